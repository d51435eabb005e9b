//! The scans of layers that keep states: tokens one after the other, each by vectors over independent columns.
//!
//! Every number of a state and of an output is a fixed chain of operations of its own column, whatever vectors the
//! columns lie in and however many rows are read at once. A sequence therefore gives the same bits whole, in parts and
//! beside others. A lane, such as a head or a block of channels, runs on one thread.

mod channels;
mod convolution;
mod gates;
mod matrix;
#[cfg(test)]
mod tests;

pub use channels::{rglru, rwkv, selective, RglruLane, RwkvLane, SelectiveLane};
pub use convolution::{convolution, ConvolutionLane};
pub use gates::{decays, open_rglru, unit, Decay, RglruGates};
pub use matrix::{matrix, MatrixLane, MatrixRule};

/// Rows of inputs, of which a lane reads some columns.
#[derive(Clone, Copy)]
pub struct ScanRows<'a> {
    /// `[rows, width]`
    pub inputs: &'a [f32],
    pub width: usize,
}

impl ScanRows<'_> {
    fn count(&self) -> usize {
        self.inputs.len() / self.width
    }

    /// That each row has these columns, and that every lane's output has room.
    fn check(&self, columns: &[(usize, usize)], outputs: usize, lane_outputs: usize) {
        let fit = |(first, count): &(usize, usize)| first + count <= self.width;
        assert!(columns.iter().all(fit));
        assert_eq!(outputs, self.count() * lane_outputs);
    }
}
