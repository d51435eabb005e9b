//! The panels that dense matrices are laid out in.

use crate::cpu::product::store::Panels;
use crate::cpu::{for_each_range, Output};
use crate::Result;

/// Columns of a panel: two of the widest vectors.
pub const PANEL: usize = 32;

/// The panels of a matrix of `outputs`, `length` numbers each: zeros that `fill` replaces, given the
/// panel and the number of its first output.
pub(super) fn pack_panels<N: Copy + Send>(
    outputs: usize,
    length: usize,
    fill: impl Fn(&mut [N], usize) + Sync,
) -> Result<Panels<N>> {
    let panels = outputs.div_ceil(PANEL);
    // SAFETY: every panel is written once; zeroed bytes are a number of every type used here.
    unsafe {
        Panels::build(panels * length, |out: Output<N>| {
            // A number may be a whole line of them.
            let cost = length * size_of::<N>() / size_of::<f32>();
            for_each_range(panels, cost, |range| {
                for panel in range {
                    let start = out.at(panel * length);
                    std::ptr::write_bytes(start, 0, length);
                    fill(std::slice::from_raw_parts_mut(start, length), panel * PANEL);
                }
            })
        })
    }
}
