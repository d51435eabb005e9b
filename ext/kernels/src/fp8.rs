//! FP8 on GPUs: how its blocks lie there, and which matrices are multiplied by tensor cores with rows of FP8.
//!
//! Checkpoints that say so are made for rows rounded to FP8, too. `CANDLE_FP8=exact` keeps rows as they are.

use base::quant::{BlockType, GroupForm, QuantizedTensor, GROUP};
use base::runtime::switch::Switch;

static EXACT: Switch = Switch::new(c"CANDLE_FP8", c"exact");

/// Blocks that lie as one: their scales first, then all codes.
const TOGETHER: usize = 4;
/// Inputs and outputs that have a scale in common, where an output has several.
const SIDE: usize = 128;
pub(crate) const SQUARE_OUTPUTS: usize = 64;

/// Reads the environment; to be called once, where nobody changes it meanwhile.
pub fn init() {
    EXACT.is_on();
}

/// Fewer rows are multiplied as they are, and weights unpacked: reading these takes the time, whatever multiplies.
pub(crate) const LEAST_ROWS: usize = 17;

/// What the elements of a matrix are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scaling {
    /// One number for each output.
    Outputs,
    /// One for every 128 inputs of 64 outputs.
    Squares,
}

impl Scaling {
    /// Inputs of a row that have a scale in common where they are rounded.
    pub(crate) fn width(self, inputs: usize) -> usize {
        match self {
            Self::Outputs => inputs,
            Self::Squares => SIDE,
        }
    }
}

/// Whether a GPU's blocks of this kind lie by fours with their scales first, where tensor maps reach the codes.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "for CUDA"))]
pub(crate) fn has_scales_first(kind: BlockType, inputs: usize) -> bool {
    kind == BlockType::Fp8 && inputs.is_multiple_of(TOGETHER * GROUP)
}

/// Blocks by fours with their scales first.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "for CUDA"))]
pub(crate) fn with_scales_first(blocks: &[u8]) -> Vec<u8> {
    let each = BlockType::Fp8.bytes();
    let scale = each - GROUP;
    let mut placed = vec![0; blocks.len()];
    let fours = placed.chunks_exact_mut(TOGETHER * each);
    for (to, from) in fours.zip(blocks.chunks_exact(TOGETHER * each)) {
        let (scales, codes) = to.split_at_mut(TOGETHER * scale);
        let places = scales.chunks_exact_mut(scale).zip(codes.chunks_mut(GROUP));
        for ((own_scale, own_codes), block) in places.zip(from.chunks_exact(each)) {
            own_scale.copy_from_slice(&block[..scale]);
            own_codes.copy_from_slice(&block[scale..]);
        }
    }
    placed
}

/// How a matrix is scaled, if its checkpoint multiplies it with rows of FP8 and tensor cores can do so.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "for CUDA"))]
pub(crate) fn scaling(matrix: &QuantizedTensor) -> Option<Scaling> {
    let inputs = matrix.shape.last().copied().unwrap_or(0);
    let wanted = matrix.fp8_rows && matrix.order.is_none() && !EXACT.is_on();
    if !wanted || inputs == 0 || !has_scales_first(matrix.kind, inputs) {
        return None;
    }
    let each = matrix.kind.bytes();
    let scales = |row: &[u8]| -> Vec<[u8; 4]> {
        let blocks = row.chunks_exact(each);
        blocks
            .map(|block| [0, 1, 2, 3].map(|at| block[at]))
            .collect()
    };
    let mut rows = matrix.bytes.chunks_exact(inputs / GROUP * each).map(scales);
    let (mut outputs, mut squares) = (true, true);
    let mut first = Vec::new();
    for number in 0.. {
        let Some(own) = rows.next() else {
            break;
        };
        outputs &= own.iter().all(|scale| *scale == own[0]);
        squares &= own
            .chunks(SIDE / GROUP)
            .all(|pair| pair.iter().all(|scale| *scale == pair[0]));
        if number % SQUARE_OUTPUTS == 0 {
            first = own;
        } else {
            squares &= own == first;
        }
        if !(outputs || squares) {
            return None;
        }
    }
    Some(if outputs {
        Scaling::Outputs
    } else {
        Scaling::Squares
    })
}

/// The largest number of e4m3, which the largest of a row becomes.
pub const LARGEST: f32 = 448.0;

/// A row as tensor cores take it: rounded to e4m3 over a scale for all of it, or for every `width` of its elements.
pub fn rounded_row(row: &[f64], width: usize) -> Vec<f64> {
    let levels = GroupForm::of(BlockType::Fp8).map(|form| form.levels());
    row.chunks(width)
        .flat_map(|part| {
            let largest = part.iter().fold(0f32, |most, x| most.max(x.abs() as f32));
            let factor = if largest < 1e-30 {
                0.0
            } else {
                LARGEST / largest
            };
            let scale = f64::from(largest * (1.0 / LARGEST));
            part.iter().map(move |&x| {
                let scaled = f64::from(x as f32 * factor);
                scale * levels.map_or(scaled, |levels| nearest(levels, scaled))
            })
        })
        .collect()
}

/// The level nearest to a number, of two the one with an even code.
fn nearest(levels: &[f32; 256], number: f64) -> f64 {
    let size = number.abs();
    // Codes of numbers that are not negative rise with them; the last is not a number.
    let above = levels[..0x7f].partition_point(|&level| f64::from(level) < size);
    let level = |at: usize| f64::from(levels[at.min(0x7e)]);
    let below = above.saturating_sub(1);
    let (up, down) = (level(above) - size, size - level(below));
    let found = if up < down || (up == down && above % 2 == 0) {
        level(above)
    } else {
        level(below)
    };
    found.copysign(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::quant::noise::random_matrix;

    fn scaled(
        outputs: usize,
        inputs: usize,
        scale: impl Fn(usize, usize) -> f32,
    ) -> QuantizedTensor {
        let mut matrix = random_matrix(BlockType::Fp8, outputs, inputs);
        let mut bytes = matrix.bytes.to_vec();
        let across = inputs / GROUP;
        for (at, block) in bytes.chunks_mut(BlockType::Fp8.bytes()).enumerate() {
            block[..4].copy_from_slice(&scale(at / across, at % across * GROUP).to_le_bytes());
        }
        matrix.bytes = base::runtime::bytes::Bytes::unpacked(bytes);
        matrix.fp8_rows = true;
        matrix
    }

    #[test]
    fn scales_of_outputs_and_of_squares_are_told_from_others() {
        let by_output = scaled(70, 512, |output, _| output as f32 + 1.0);
        assert_eq!(scaling(&by_output), Some(Scaling::Outputs));
        let by_square = scaled(200, 512, |output, input| {
            (output / 128 * 4 + input / 128) as f32 + 1.0
        });
        assert_eq!(scaling(&by_square), Some(Scaling::Squares));
        let by_group = scaled(4, 512, |_, input| input as f32 + 1.0);
        let by_thirds = scaled(96, 512, |output, input| (output / 32 + input / 128) as f32);
        for other in [by_group, by_thirds] {
            assert_eq!(scaling(&other), None);
        }
        let undeclared = QuantizedTensor {
            fp8_rows: false,
            ..by_output
        };
        assert_eq!(scaling(&undeclared), None);
        assert_eq!(scaling(&scaled(4, 320, |_, _| 1.0)), None);
    }

    #[test]
    fn four_blocks_have_their_scales_first() {
        let block = |scale: u8, code: u8| [vec![scale; 4], vec![code; GROUP]].concat();
        let blocks: Vec<u8> = (0..8).flat_map(|at| block(at, 100 + at)).collect();
        let placed = with_scales_first(&blocks);
        assert_eq!(placed.len(), blocks.len());
        let second = &placed[4 * 68..];
        assert_eq!(second[..16], [[4; 4], [5; 4], [6; 4], [7; 4]].concat());
        for (at, codes) in second[16..].chunks(GROUP).enumerate() {
            assert!(codes.iter().all(|&code| code == 104 + at as u8));
        }
    }

    #[test]
    fn rows_are_rounded_to_the_nearest_level() {
        let row = [448.0, 1.0, 1.0625, 1.19, -17.0, -19.0, 0.001, 0.0];
        let expected = [448.0, 1.0, 1.0, 1.25, -16.0, -20.0, 0.001953125, 0.0];
        let found = rounded_row(&row, 8);
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
        let halves = rounded_row(&[448.0, 1.0, 896.0, 1.0], 2);
        assert_eq!(halves, [448.0, 1.0, 896.0, 1.0]);
        assert_eq!(rounded_row(&[0.0; 2], 2), [0.0; 2]);
    }
}
