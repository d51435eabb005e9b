//! Codes whose scales belong to columns: some rows, a number apart from one another, have the scale of a column in
//! common, as HQQ's groups along axis 0 do.

/// A matrix of codes, [outputs, inputs]: those of row r and column c stand for scale · code + minimum of line r mod
/// `lines` and column c.
#[derive(Clone, Debug)]
pub struct LinedTensor {
    pub shape: [usize; 2],
    /// Of a code: 4 or 8.
    pub bits: usize,
    /// A byte each.
    pub codes: Vec<u8>,
    /// How many rows have scales of their own.
    pub lines: usize,
    /// [lines, inputs].
    pub scales: Vec<f32>,
    pub minimums: Vec<f32>,
}

impl LinedTensor {
    /// Whether there are as many codes and scales as the shape says, and as many rows for each line.
    pub fn is_whole(&self) -> bool {
        let [outputs, inputs] = self.shape;
        let scales = self.lines.checked_mul(inputs);
        outputs.checked_mul(inputs) == Some(self.codes.len())
            && scales == Some(self.scales.len())
            && scales == Some(self.minimums.len())
            && self.lines > 0
            && outputs.is_multiple_of(self.lines)
    }

    /// All numbers.
    pub fn dequantize(&self) -> Vec<f32> {
        let width = self.shape[1].max(1);
        let rows = self.codes.chunks_exact(width).enumerate();
        let values = rows.flat_map(|(row, codes)| {
            let first = row % self.lines.max(1) * width;
            let (scales, minimums) = (&self.scales[first..], &self.minimums[first..]);
            let columns = codes.iter().zip(scales).zip(minimums);
            columns.map(|((&code, scale), minimum)| scale * f32::from(code) + minimum)
        });
        values.collect()
    }
}
