//! Products with a matrix of bytes: weights with one scale per output, rows of x rounded to bytes as
//! they come, with one scale per row. The sums are exact, so every instruction set gives the same.

use std::sync::Arc;

use crate::kernels::cpu::isa::{dispatched, Isa};
use crate::kernels::cpu::lanes::for_lanes;
use crate::kernels::cpu::product::gemm::{GemmEpilogue, PANEL};
use crate::kernels::cpu::product::panels::{
    multiply_blocks, pack_panels, Block, BLOCK_COLUMNS, BLOCK_ROWS,
};
use crate::kernels::cpu::product::store::Panels;
use crate::kernels::cpu::simd::Simd;
use crate::kernels::cpu::{build, for_each_range, Output};
use crate::Result;

/// The depth of a tile; rows of both factors are padded to it.
const DEPTH: usize = 64;

/// Rounded numbers lie within ±127.
const LARGEST: f32 = 127.0;

/// What is added to a rounded number of x, since instructions multiply unsigned bytes by signed ones.
const OFFSET: i32 = 128;

/// The deepest product whose sums fit 32 bits.
pub(crate) const MOST_INPUTS: usize = 65_536;

/// A matrix [outputs, inputs] as panels of 32 outputs, each [inputs / 4, 32] groups of four
/// neighbouring inputs. Every instruction set reads this one layout.
#[derive(Clone)]
pub(crate) struct ByteMatrix {
    weights: Arc<Weights>,
    pub inputs: usize,
    pub outputs: usize,
}

struct Weights {
    panels: Panels<[i8; 4]>,
    /// Of each output, padded to whole panels like `offsets`.
    scales: Vec<f32>,
    /// What the offset of x adds to an output's sum.
    offsets: Vec<i32>,
}

impl std::fmt::Debug for ByteMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ByteMatrix[{}, {}]", self.outputs, self.inputs)
    }
}

/// Rows of x as bytes, filled up to whole blocks and tiles, and a scale for each.
struct Quantized {
    bytes: Vec<u8>,
    scales: Vec<f32>,
}

/// What rounds the numbers of a row to bytes, and what takes the bytes back.
fn scales_of(highest: f32) -> (f32, f32) {
    match highest > 0.0 {
        true => (LARGEST / highest, highest / LARGEST),
        false => (0.0, 0.0),
    }
}

fn highest(row: &[f32]) -> f32 {
    row.iter().fold(0f32, |most, value| most.max(value.abs()))
}

impl ByteMatrix {
    /// `weight` is [outputs, inputs], row after row, at most `MOST_INPUTS` wide.
    pub fn new(weight: &[f32], inputs: usize, outputs: usize) -> Result<Self> {
        assert!(inputs <= MOST_INPUTS);
        let groups = inputs.next_multiple_of(DEPTH) / 4;
        let rows = || weight.chunks(inputs.max(1)).take(outputs);
        let panels = pack_panels(outputs, groups * PANEL, |panel: &mut [[i8; 4]], first| {
            for (column, row) in rows().skip(first).take(PANEL).enumerate() {
                let (inverse, _) = scales_of(highest(row));
                for (i, value) in row.iter().enumerate() {
                    let byte = (value * inverse).round_ties_even() as i8;
                    panel[i / 4 * PANEL + column][i % 4] = byte;
                }
            }
        })?;
        let mut scales = vec![0.0; outputs.next_multiple_of(PANEL)];
        for (to, row) in scales.iter_mut().zip(rows()) {
            let finite = row.iter().all(|value| value.is_finite());
            let (_, scale) = scales_of(highest(row));
            *to = if finite { scale } else { f32::NAN };
        }
        let mut offsets = vec![0; scales.len()];
        for (panel, offsets) in panels
            .chunks((groups * PANEL).max(1))
            .zip(offsets.chunks_mut(PANEL))
        {
            for bytes in panel.chunks(PANEL) {
                for (offset, bytes) in offsets.iter_mut().zip(bytes) {
                    *offset += OFFSET * bytes.iter().map(|&byte| i32::from(byte)).sum::<i32>();
                }
            }
        }
        Ok(Self {
            weights: Arc::new(Weights {
                panels,
                scales,
                offsets,
            }),
            inputs,
            outputs,
        })
    }

    fn depth(&self) -> usize {
        self.inputs.next_multiple_of(DEPTH)
    }

    /// x · matrixᵀ and the epilogue, for `rows` rows of x.
    pub fn multiply(
        &self,
        isa: Isa,
        x: &[f32],
        rows: usize,
        epilogue: &GemmEpilogue<'_>,
    ) -> Vec<f32> {
        assert_eq!(x.len(), rows * self.inputs);
        let shape = (rows, self.inputs, self.outputs);
        let quantized = self.quantize(isa, x, rows);
        multiply_blocks(
            isa,
            shape,
            epilogue,
            || Context::new(isa),
            |context, block, sums| self.block(isa, context, &quantized, block, sums),
        )
    }

    fn quantize(&self, isa: Isa, x: &[f32], rows: usize) -> Quantized {
        let (depth, padded) = (self.depth(), rows.next_multiple_of(BLOCK_ROWS));
        let mut scales = Vec::new();
        // SAFETY: every row is written once, its padding included, and so is every scale.
        let bytes = unsafe {
            build(padded * depth, |bytes: Output<u8>| {
                scales = build(padded, |scales: Output<f32>| {
                    for_each_range(padded, depth, |range| {
                        for row in range {
                            let (to, scale) = (bytes.at(row * depth), scales.at(row));
                            std::ptr::write_bytes(to, OFFSET as u8, depth);
                            *scale = 0.0;
                            if row < rows {
                                let from = x[row * self.inputs..].as_ptr();
                                *scale = quantize_row(isa, from, to, self.inputs);
                            }
                        }
                    })
                })
            })
        };
        Quantized { bytes, scales }
    }

    fn block(&self, isa: Isa, context: &Context, x: &Quantized, block: Block, sums: &mut [f32]) {
        assert!(sums.len() >= BLOCK_ROWS * BLOCK_COLUMNS);
        let depth = self.depth();
        let bytes = &x.bytes[block.row * depth..][..BLOCK_ROWS * depth];
        let scales = &x.scales[block.row..][..block.rows];
        for (number, at) in block.panels() {
            let length = depth / 4 * PANEL;
            let panel = &self.weights.panels[number * length..][..length];
            let sums = sums[at..].as_mut_ptr();
            // SAFETY: the bytes are a whole block, the panel is as deep, and the sums hold the block;
            // the instruction set is there.
            unsafe {
                let offset = context.multiply(isa, bytes, panel, depth, block.rows, sums.cast());
                let columns = number * PANEL;
                scale_sums(
                    isa,
                    sums,
                    scales.as_ptr(),
                    self.weights.scales[columns..].as_ptr(),
                    self.weights.offsets[columns..].as_ptr(),
                    block.rows,
                    offset,
                );
            }
        }
    }
}

/// Writes a row as bytes; the scale that takes them back, NaN where the row holds what is not finite.
#[inline(always)]
unsafe fn quantize_row_with<S: Simd>(x: *const f32, to: *mut u8, width: usize) -> f32 {
    unsafe {
        let zero = S::splat(0.0);
        let (mut highest, mut poison) = (zero, zero);
        for_lanes!(S, width, lanes => {
            let v = lanes.load::<S>(x);
            highest = S::max(S::abs(v), highest);
            poison = S::fma(v, zero, poison);
        });
        let (inverse, scale) = scales_of(S::highest(highest));
        let (inverse, offset) = (S::splat(inverse), S::splat(OFFSET as f32));
        for_lanes!(S, width, lanes => {
            let v = S::add(S::round(S::mul(lanes.load::<S>(x), inverse)), offset);
            if lanes.count == 0 {
                S::store_bytes(to.add(lanes.at), v);
            } else {
                let mut bytes = [0u8; 16];
                S::store_bytes(bytes.as_mut_ptr(), v);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.add(lanes.at), lanes.count);
            }
        });
        scale + S::sum(poison)
    }
}

/// Sums of bytes, in place, to numbers.
#[inline(always)]
unsafe fn scale_sums_with<S: Simd>(
    sums: *mut f32,
    row_scales: *const f32,
    scales: *const f32,
    offsets: *const i32,
    rows: usize,
    is_offset: bool,
) {
    unsafe {
        for row in 0..rows {
            let (sums, scale) = (sums.add(row * BLOCK_COLUMNS), *row_scales.add(row));
            for column in 0..PANEL {
                let sum = *sums.add(column).cast::<i32>();
                let offset = if is_offset { *offsets.add(column) } else { 0 };
                *sums.add(column) = (sum - offset) as f32 * (scale * *scales.add(column));
            }
        }
    }
}

/// Without instructions for it: the compiler's own way.
#[inline(always)]
unsafe fn multiply_plainly_with<S: Simd>(
    x: *const u8,
    panel: *const [i8; 4],
    depth: usize,
    rows: usize,
    sums: *mut i32,
) {
    unsafe {
        for row in 0..rows {
            let mut totals = [0i32; PANEL];
            for group in 0..depth / 4 {
                let four = x
                    .add(row * depth + 4 * group)
                    .cast::<[u8; 4]>()
                    .read_unaligned();
                let four = four.map(|byte| i32::from(byte) - OFFSET);
                for (column, total) in totals.iter_mut().enumerate() {
                    let weights = *panel.add(group * PANEL + column);
                    for (x, weight) in four.iter().zip(weights) {
                        *total += x * i32::from(weight);
                    }
                }
            }
            std::ptr::copy_nonoverlapping(totals.as_ptr(), sums.add(row * BLOCK_COLUMNS), PANEL);
        }
    }
}

dispatched! {
    unsafe fn quantize_row(x: *const f32, to: *mut u8, width: usize) -> f32 = quantize_row_with
}
dispatched! {
    unsafe fn scale_sums(
        sums: *mut f32, row_scales: *const f32, scales: *const f32, offsets: *const i32, rows: usize,
        is_offset: bool,
    ) = scale_sums_with
}
dispatched! {
    unsafe fn multiply_plainly(
        x: *const u8, panel: *const [i8; 4], depth: usize, rows: usize, sums: *mut i32,
    ) = multiply_plainly_with
}

/// What a thread needs while it works on blocks.
#[cfg(target_arch = "x86_64")]
struct Context(Option<crate::kernels::cpu::product::amx::Tiles>);

#[cfg(target_arch = "x86_64")]
impl Context {
    fn new(isa: Isa) -> Self {
        // SAFETY: the set is only available where tiles are usable.
        Self(
            (isa == Isa::Amx)
                .then(|| unsafe { crate::kernels::cpu::product::amx::Tiles::configure() }),
        )
    }

    /// Whether the sums still hold what the offset of x added.
    ///
    /// # Safety
    /// `x` holds `BLOCK_ROWS` rows and `panel` the groups of `depth` inputs; the sums hold a block, and
    /// the CPU has the instruction set.
    unsafe fn multiply(
        &self,
        isa: Isa,
        x: &[u8],
        panel: &[[i8; 4]],
        depth: usize,
        rows: usize,
        sums: *mut i32,
    ) -> bool {
        use crate::kernels::cpu::product::amx::{multiply_bytes, TILE};
        let (x, groups) = (x.as_ptr(), depth / 4);
        let (steps, stride) = (depth / DEPTH, BLOCK_COLUMNS * size_of::<i32>());
        // SAFETY: the caller vouches for the sizes and the instructions.
        unsafe {
            match (&self.0, isa) {
                (Some(tiles), _) => {
                    let (panel, sums) = (panel.as_ptr().cast(), sums.cast());
                    match rows > TILE {
                        true => multiply_bytes::<true>(tiles, x, depth, panel, steps, sums, stride),
                        false => {
                            multiply_bytes::<false>(tiles, x, depth, panel, steps, sums, stride)
                        }
                    }
                    true
                }
                (None, Isa::Avx512Vnni | Isa::Avx512Bf16) => {
                    groups::multiply_vnni(x.cast(), panel.as_ptr(), groups, rows, sums);
                    true
                }
                (None, Isa::Avx2 | Isa::Avx512) => {
                    groups::multiply_avx2(x.cast(), panel.as_ptr(), groups, rows, sums);
                    false
                }
                _ => {
                    multiply_plainly(isa, x, panel.as_ptr(), depth, rows, sums);
                    false
                }
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
struct Context;

#[cfg(not(target_arch = "x86_64"))]
impl Context {
    fn new(_: Isa) -> Self {
        Self
    }

    /// Whether the sums still hold what the offset of x added.
    ///
    /// # Safety
    /// `x` holds `BLOCK_ROWS` rows and `panel` the groups of `depth` inputs, and the sums hold a block.
    unsafe fn multiply(
        &self,
        isa: Isa,
        x: &[u8],
        panel: &[[i8; 4]],
        depth: usize,
        rows: usize,
        sums: *mut i32,
    ) -> bool {
        // SAFETY: the caller vouches for the sizes.
        unsafe { multiply_plainly(isa, x.as_ptr(), panel.as_ptr(), depth, rows, sums) };
        false
    }
}

/// Groups of four bytes of a row against those of 32 columns.
#[cfg(target_arch = "x86_64")]
mod groups {
    use super::{BLOCK_COLUMNS, OFFSET, PANEL};
    use std::arch::x86_64::*;

    /// Rows in tiles of the given sizes.
    macro_rules! in_tiles {
        ($tile:ident, ($x:ident, $panel:ident, $groups:ident, $rows:ident, $sums:ident), $($count:literal)*) => {
            let mut row = 0;
            $(while $rows - row >= $count {
                // SAFETY: the caller vouches for the sizes.
                unsafe {
                    let (x, to) = ($x.add(row * $groups), $sums.add(row * BLOCK_COLUMNS));
                    $tile::<$count>(x, $panel, $groups, to);
                }
                row += $count;
            })*
        };
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn vnni_tile<const R: usize>(
        x: *const i32,
        panel: *const [i8; 4],
        groups: usize,
        sums: *mut i32,
    ) {
        unsafe {
            let mut totals = [[_mm512_setzero_si512(); 2]; R];
            for group in 0..groups {
                let from = panel.add(group * PANEL);
                let columns = [
                    _mm512_loadu_si512(from.cast()),
                    _mm512_loadu_si512(from.add(16).cast()),
                ];
                for (r, totals) in totals.iter_mut().enumerate() {
                    let row = _mm512_set1_epi32(*x.add(r * groups + group));
                    totals[0] = _mm512_dpbusd_epi32(totals[0], row, columns[0]);
                    totals[1] = _mm512_dpbusd_epi32(totals[1], row, columns[1]);
                }
            }
            for (r, totals) in totals.iter().enumerate() {
                let to = sums.add(r * BLOCK_COLUMNS);
                _mm512_storeu_si512(to.cast(), totals[0]);
                _mm512_storeu_si512(to.add(16).cast(), totals[1]);
            }
        }
    }

    /// # Safety
    /// `x` is [rows, groups], `panel` [groups, 32], and `sums` has as many rows of `BLOCK_COLUMNS`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    pub unsafe fn multiply_vnni(
        x: *const i32,
        panel: *const [i8; 4],
        groups: usize,
        rows: usize,
        sums: *mut i32,
    ) {
        in_tiles!(vnni_tile, (x, panel, groups, rows, sums), 12 8 4 2 1);
    }

    /// Signs change sides, so that unsigned times signed bytes never leave 16 bits.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn avx2_tile<const R: usize>(
        x: *const i32,
        panel: *const [i8; 4],
        groups: usize,
        sums: *mut i32,
    ) {
        unsafe {
            let (ones, offset) = (_mm256_set1_epi16(1), _mm256_set1_epi8(OFFSET as u8 as i8));
            for column in (0..PANEL).step_by(16) {
                let mut totals = [[_mm256_setzero_si256(); 2]; R];
                for group in 0..groups {
                    let from = panel.add(group * PANEL + column);
                    let columns = [
                        _mm256_loadu_si256(from.cast()),
                        _mm256_loadu_si256(from.add(8).cast()),
                    ];
                    for (r, totals) in totals.iter_mut().enumerate() {
                        let row = _mm256_set1_epi32(*x.add(r * groups + group));
                        let row = _mm256_xor_si256(row, offset);
                        let size = _mm256_abs_epi8(row);
                        for (total, columns) in totals.iter_mut().zip(columns) {
                            let pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(columns, row));
                            *total = _mm256_add_epi32(*total, _mm256_madd_epi16(pairs, ones));
                        }
                    }
                }
                for (r, totals) in totals.iter().enumerate() {
                    let to = sums.add(r * BLOCK_COLUMNS + column);
                    _mm256_storeu_si256(to.cast(), totals[0]);
                    _mm256_storeu_si256(to.add(8).cast(), totals[1]);
                }
            }
        }
    }

    /// # Safety
    /// As above.
    #[target_feature(enable = "avx2")]
    pub unsafe fn multiply_avx2(
        x: *const i32,
        panel: *const [i8; 4],
        groups: usize,
        rows: usize,
        sums: *mut i32,
    ) {
        in_tiles!(avx2_tile, (x, panel, groups, rows, sums), 4 2 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::test_numbers::numbers;
    use crate::kernels::Activation;

    /// The product of what the definition says both factors are rounded to, in f64.
    fn expected(x: &[f32], weight: &[f32], inputs: usize, rows: usize, outputs: usize) -> Vec<f64> {
        let rounded = |values: &[f32]| -> (Vec<i64>, f64) {
            let highest = values.iter().fold(0f32, |most, v| most.max(v.abs()));
            let (inverse, scale) = scales_of(highest);
            let bytes = values
                .iter()
                .map(|v| (v * inverse).round_ties_even() as i64);
            (bytes.collect(), f64::from(scale))
        };
        let x: Vec<_> = x.chunks(inputs).map(rounded).collect();
        let weight: Vec<_> = weight.chunks(inputs).map(rounded).collect();
        (0..rows * outputs)
            .map(|at| {
                let ((a, a_scale), (b, b_scale)) = (&x[at / outputs], &weight[at % outputs]);
                let sum: i64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                sum as f64 * a_scale * b_scale
            })
            .collect()
    }

    #[test]
    fn every_instruction_set_gives_the_same_exact_sums() {
        for (rows, inputs, outputs) in [
            (1, 1, 1),
            (7, 5, 31),
            (16, 64, 32),
            (17, 65, 33),
            (33, 200, 129),
            (65, 40, 161),
        ] {
            let (x, weight) = (numbers(rows * inputs, 1), numbers(outputs * inputs, 2));
            let packed = ByteMatrix::new(&weight, inputs, outputs).unwrap();
            let want = expected(&x, &weight, inputs, rows, outputs);
            let first = packed.multiply(Isa::Scalar, &x, rows, &GemmEpilogue::default());
            for (got, want) in first.iter().zip(&want) {
                let apart = (f64::from(*got) - want).abs();
                assert!(apart <= 1e-6 * (1.0 + want.abs()), "{got} {want}");
            }
            for &isa in Isa::available() {
                let got = packed.multiply(isa, &x, rows, &GemmEpilogue::default());
                assert_eq!(got, first, "{} {rows} {inputs} {outputs}", isa.name());
            }
        }
    }

    #[test]
    fn the_largest_bytes_do_not_overflow() {
        let (inputs, outputs) = (512, 32);
        let x: Vec<f32> = (0..inputs)
            .map(|i| if i % 3 == 0 { -1.0 } else { 1.0 })
            .collect();
        let weight: Vec<f32> = (0..outputs).flat_map(|_| x.clone()).collect();
        let packed = ByteMatrix::new(&weight, inputs, outputs).unwrap();
        for &isa in Isa::available() {
            let got = packed.multiply(isa, &x, 1, &GemmEpilogue::default());
            assert!(
                got.iter().all(|v| (v - 512.0).abs() < 1e-3),
                "{} {got:?}",
                isa.name()
            );
        }
    }

    #[test]
    fn the_epilogue_follows_and_a_row_does_not_depend_on_the_others() {
        let (rows, inputs, outputs) = (40, 70, 50);
        let (x, weight) = (numbers(rows * inputs, 1), numbers(outputs * inputs, 2));
        let (bias, residual) = (numbers(outputs, 3), numbers(rows * outputs, 4));
        let packed = ByteMatrix::new(&weight, inputs, outputs).unwrap();
        for &isa in Isa::available() {
            let plain = packed.multiply(isa, &x, rows, &GemmEpilogue::default());
            let epilogue = GemmEpilogue {
                bias: Some(&bias),
                activation: Some(Activation::Relu),
                residual: Some(&residual),
            };
            let full = packed.multiply(isa, &x, rows, &epilogue);
            for at in 0..rows * outputs {
                let want = (plain[at] + bias[at % outputs]).max(0.0) + residual[at];
                assert!((full[at] - want).abs() < 1e-6, "{}", isa.name());
            }
            let row = 33;
            let alone = &x[row * inputs..][..inputs];
            let alone = packed.multiply(isa, alone, 1, &GemmEpilogue::default());
            assert_eq!(plain[row * outputs..][..outputs], alone);
        }
    }

    #[test]
    fn what_is_not_finite_is_not_hidden() {
        let inputs = 20;
        let mut x = vec![1.0; 3 * inputs];
        x[inputs + 3] = f32::NAN;
        x[2 * inputs + 4] = f32::INFINITY;
        let packed = ByteMatrix::new(&vec![0.5; 40 * inputs], inputs, 40).unwrap();
        for &isa in Isa::available() {
            let out = packed.multiply(isa, &x, 3, &GemmEpilogue::default());
            assert!(
                out[..40].iter().all(|v| (v - 10.0).abs() < 1e-4),
                "{}",
                isa.name()
            );
            assert!(out[40..].iter().all(|v| v.is_nan()), "{}", isa.name());
        }
    }
}
