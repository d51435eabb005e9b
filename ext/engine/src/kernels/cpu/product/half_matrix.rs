//! Products with a matrix of bf16 or f16, summed in f32: by tiles or by pairs where the CPU multiplies
//! bf16, else on numbers that are widened as they are read.

use crate::kernels::cpu::isa::{dispatched, Isa};
use crate::kernels::cpu::product::gemm::{GemmEpilogue, PANEL};
use crate::kernels::cpu::product::panels::{
    multiply_blocks, pack_panels, Block, BLOCK_COLUMNS, BLOCK_ROWS,
};
use crate::kernels::cpu::product::store::Panels;
use crate::kernels::cpu::simd::Simd;
use crate::kernels::cpu::{build, for_each_range, Element, Output, Stored};
use crate::Result;

/// The depth of a tile; rows of both factors are padded to it by zeros.
const DEPTH: usize = 32;

/// A matrix [outputs, inputs] as panels of 32 outputs, each [inputs / 2, 32] pairs of neighbouring
/// inputs. Every instruction set reads this one layout.
#[derive(Clone)]
pub(crate) struct HalfMatrix {
    panels: Panels<u32>,
    stored: Stored,
    pub inputs: usize,
    pub outputs: usize,
}

impl std::fmt::Debug for HalfMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "HalfMatrix[{}, {}] of {:?}",
            self.outputs, self.inputs, self.stored
        )
    }
}

/// Rows of x, bits or widened, each padded to whole tiles.
enum Operand<'a> {
    /// bf16, as the CPU multiplies it; `tail` holds the rows of the last block, filled up by zeros.
    Bits {
        rows: &'a [u16],
        tail: Vec<u16>,
    },
    Widened(Vec<f32>),
}

impl HalfMatrix {
    /// `weight` is [outputs, inputs], row after row; `T` is one of the half types.
    pub fn new<T: Element>(weight: &[T], inputs: usize, outputs: usize) -> Result<Self> {
        let pairs = inputs.next_multiple_of(DEPTH) / 2;
        let weight = bits(weight);
        let panels = pack_panels(outputs, pairs * PANEL, |panel: &mut [u32], first| {
            let rows = weight.chunks(inputs.max(1)).skip(first).take(PANEL);
            for (column, row) in rows.enumerate() {
                for (to, numbers) in panel[column..].iter_mut().step_by(PANEL).zip(row.chunks(2)) {
                    let second = numbers.get(1).copied().unwrap_or(0);
                    *to = u32::from(numbers[0]) | u32::from(second) << 16;
                }
            }
        })?;
        Ok(Self {
            panels,
            stored: T::STORED,
            inputs,
            outputs,
        })
    }

    fn padded_inputs(&self) -> usize {
        self.inputs.next_multiple_of(DEPTH)
    }

    fn panel(&self, number: usize) -> &[u32] {
        let length = self.padded_inputs() / 2 * PANEL;
        &self.panels[number * length..][..length]
    }

    /// x · matrixᵀ and the epilogue, for `rows` rows of x, which are of the matrix's own type.
    pub fn multiply<T: Element>(
        &self,
        isa: Isa,
        x: &[T],
        rows: usize,
        epilogue: &GemmEpilogue<'_, T>,
    ) -> Vec<T> {
        assert_eq!(x.len(), rows * self.inputs);
        assert_eq!(T::STORED, self.stored);
        let shape = (rows, self.inputs, self.outputs);
        let depth = self.padded_inputs();
        let padded;
        let operand = match by_bits(isa, self.stored) {
            false => Operand::Widened(self.widened(isa, x, rows)),
            true => {
                let whole = match self.inputs == depth {
                    true => bits(x),
                    false => {
                        padded = self.padded(bits(x), rows);
                        &padded
                    }
                };
                let mut tail = vec![0; BLOCK_ROWS * depth];
                let last = &whole[rows / BLOCK_ROWS * BLOCK_ROWS * depth..];
                tail[..last.len()].copy_from_slice(last);
                Operand::Bits { rows: whole, tail }
            }
        };
        multiply_blocks(
            isa,
            shape,
            epilogue,
            || Context::new(isa),
            |context, block, sums| self.block(isa, context, &operand, block, sums),
        )
    }

    fn padded(&self, x: &[u16], rows: usize) -> Vec<u16> {
        let depth = self.padded_inputs();
        let mut padded = vec![0; rows * depth];
        for (from, to) in x.chunks(self.inputs).zip(padded.chunks_mut(depth)) {
            to[..self.inputs].copy_from_slice(from);
        }
        padded
    }

    fn widened<T: Element>(&self, isa: Isa, x: &[T], rows: usize) -> Vec<f32> {
        let depth = self.padded_inputs();
        // SAFETY: every row is written once, its padding included.
        unsafe {
            build(rows * depth, |out: Output<f32>| {
                for_each_range(rows, depth, |range| {
                    for row in range {
                        let to = out.at(row * depth);
                        std::ptr::write_bytes(to.add(self.inputs), 0, depth - self.inputs);
                        let to = std::slice::from_raw_parts_mut(to, self.inputs);
                        T::widen(isa, &x[row * self.inputs..][..self.inputs], to);
                    }
                })
            })
        }
    }

    fn block(
        &self,
        isa: Isa,
        context: &Context,
        operand: &Operand<'_>,
        block: Block,
        sums: &mut [f32],
    ) {
        assert!(sums.len() >= BLOCK_ROWS * BLOCK_COLUMNS);
        let depth = self.padded_inputs();
        for (number, at) in block.panels() {
            let panel = self.panel(number);
            let sums = sums[at..].as_mut_ptr();
            match operand {
                Operand::Widened(rows) => {
                    let x = rows[block.row * depth..][..block.rows * depth].as_ptr();
                    let bf16 = self.stored == Stored::Bf16;
                    // SAFETY: x and the panel are `depth` deep, and the sums hold the block.
                    unsafe {
                        multiply_widened(isa, x, panel.as_ptr(), depth, block.rows, sums, bf16);
                    }
                }
                Operand::Bits { rows, tail } => {
                    let x = match block.rows == BLOCK_ROWS {
                        true => &rows[block.row * depth..][..BLOCK_ROWS * depth],
                        false => tail,
                    };
                    // SAFETY: x has the rows of a whole block, and its bits were taken because the
                    // instruction set multiplies them.
                    unsafe { context.multiply(x, panel, depth, block.rows, sums) };
                }
            }
        }
    }
}

/// Whether an instruction set multiplies numbers of this type as they are.
fn by_bits(isa: Isa, stored: Stored) -> bool {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 | Isa::Amx => stored == Stored::Bf16,
        _ => {
            let _ = stored;
            false
        }
    }
}

/// The bits of half numbers.
pub(crate) fn bits<T: Element>(numbers: &[T]) -> &[u16] {
    assert!(!T::IS_F32);
    // SAFETY: the two half types are transparent wrappers of u16.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), numbers.len()) }
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

    /// # Safety
    /// `x` holds `BLOCK_ROWS` rows and `panel` the pairs of `depth` inputs; the sums hold a block, and
    /// the CPU multiplies bf16.
    unsafe fn multiply(&self, x: &[u16], panel: &[u32], depth: usize, rows: usize, sums: *mut f32) {
        use crate::kernels::cpu::product::amx::{multiply_bf16, TILE};
        let (steps, stride) = (depth / DEPTH, BLOCK_COLUMNS * size_of::<f32>());
        // SAFETY: the caller vouches for the sizes and the instructions.
        unsafe {
            match &self.0 {
                Some(tiles) => {
                    let (x, panel) = (x.as_ptr().cast(), panel.as_ptr().cast());
                    let sums = sums.cast();
                    match rows > TILE {
                        true => {
                            multiply_bf16::<true>(tiles, x, 2 * depth, panel, steps, sums, stride)
                        }
                        false => {
                            multiply_bf16::<false>(tiles, x, 2 * depth, panel, steps, sums, stride)
                        }
                    }
                }
                None => pairs::multiply(x.as_ptr().cast(), panel.as_ptr(), depth / 2, rows, sums),
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

    /// # Safety
    /// Never called: no instruction set of this architecture multiplies bits.
    unsafe fn multiply(&self, _: &[u16], _: &[u32], _: usize, _: usize, _: *mut f32) {}
}

/// AVX512-BF16: pairs of a row against pairs of 32 columns.
#[cfg(target_arch = "x86_64")]
mod pairs {
    use super::{BLOCK_COLUMNS, PANEL};
    use std::arch::x86_64::*;
    use std::mem::transmute;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn tile<const R: usize>(x: *const i32, panel: *const u32, pairs: usize, sums: *mut f32) {
        unsafe {
            let mut totals = [[_mm512_setzero_ps(); 2]; R];
            for pair in 0..pairs {
                let from = panel.add(pair * PANEL);
                let columns: [__m512bh; 2] = [
                    transmute::<__m512i, __m512bh>(_mm512_loadu_si512(from.cast())),
                    transmute::<__m512i, __m512bh>(_mm512_loadu_si512(from.add(16).cast())),
                ];
                for (r, totals) in totals.iter_mut().enumerate() {
                    let row = _mm512_set1_epi32(*x.add(r * pairs + pair));
                    let row = transmute::<__m512i, __m512bh>(row);
                    totals[0] = _mm512_dpbf16_ps(totals[0], row, columns[0]);
                    totals[1] = _mm512_dpbf16_ps(totals[1], row, columns[1]);
                }
            }
            for (r, totals) in totals.iter().enumerate() {
                let to = sums.add(r * BLOCK_COLUMNS);
                _mm512_storeu_ps(to, totals[0]);
                _mm512_storeu_ps(to.add(16), totals[1]);
            }
        }
    }

    /// # Safety
    /// `x` is [rows, pairs], `panel` [pairs, 32], and `sums` has as many rows of `BLOCK_COLUMNS`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    pub unsafe fn multiply(
        x: *const i32,
        panel: *const u32,
        pairs: usize,
        rows: usize,
        sums: *mut f32,
    ) {
        let mut row = 0;
        macro_rules! tiles {
            ($count:literal) => {
                while rows - row >= $count {
                    // SAFETY: the caller vouches for the sizes.
                    unsafe {
                        let (x, to) = (x.add(row * pairs), sums.add(row * BLOCK_COLUMNS));
                        tile::<$count>(x, panel, pairs, to);
                    }
                    row += $count;
                }
            };
        }
        tiles!(12);
        tiles!(8);
        tiles!(4);
        tiles!(2);
        tiles!(1);
    }
}

/// R rows of widened x against two vectors of columns from `column` on.
#[inline(always)]
unsafe fn widened_tile<S: Simd, const R: usize>(
    x: *const f32,
    panel: *const u32,
    depth: usize,
    sums: *mut f32,
    bf16: bool,
) {
    unsafe {
        let mut totals = [[S::splat(0.0); 2]; R];
        for pair in 0..depth / 2 {
            let from = panel.add(pair * PANEL);
            let columns = match bf16 {
                true => [S::bf16_pairs(from), S::bf16_pairs(from.add(S::LANES))],
                false => [S::f16_pairs(from), S::f16_pairs(from.add(S::LANES))],
            };
            let mut r = 0;
            while r < R {
                let row = x.add(r * depth + 2 * pair);
                let (first, second) = (S::splat(*row), S::splat(*row.add(1)));
                totals[r][0] = S::fma(first, columns[0][0], totals[r][0]);
                totals[r][1] = S::fma(first, columns[1][0], totals[r][1]);
                totals[r][0] = S::fma(second, columns[0][1], totals[r][0]);
                totals[r][1] = S::fma(second, columns[1][1], totals[r][1]);
                r += 1;
            }
        }
        let mut r = 0;
        while r < R {
            S::store(sums.add(r * BLOCK_COLUMNS), totals[r][0]);
            S::store(sums.add(r * BLOCK_COLUMNS + S::LANES), totals[r][1]);
            r += 1;
        }
    }
}

#[inline(always)]
unsafe fn widened_columns<S: Simd>(
    x: *const f32,
    panel: *const u32,
    depth: usize,
    rows: usize,
    sums: *mut f32,
    bf16: bool,
) {
    unsafe {
        let mut row = 0;
        macro_rules! tiles {
            ($count:literal) => {
                while rows - row >= $count {
                    let (x, to) = (x.add(row * depth), sums.add(row * BLOCK_COLUMNS));
                    widened_tile::<S, $count>(x, panel, depth, to, bf16);
                    row += $count;
                }
            };
        }
        if S::REGISTERS >= 32 {
            tiles!(12);
            tiles!(8);
        }
        tiles!(4);
        tiles!(2);
        tiles!(1);
    }
}

#[inline(always)]
unsafe fn multiply_widened_with<S: Simd>(
    x: *const f32,
    panel: *const u32,
    depth: usize,
    rows: usize,
    sums: *mut f32,
    bf16: bool,
) {
    unsafe {
        let mut column = 0;
        while column < PANEL {
            let (panel, sums) = (panel.add(column), sums.add(column));
            // Two constants, so that no loop decides anew.
            match bf16 {
                true => widened_columns::<S>(x, panel, depth, rows, sums, true),
                false => widened_columns::<S>(x, panel, depth, rows, sums, false),
            }
            column += 2 * S::LANES;
        }
    }
}

dispatched! {
    unsafe fn multiply_widened(
        x: *const f32, panel: *const u32, depth: usize, rows: usize, sums: *mut f32, bf16: bool,
    ) = multiply_widened_with
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::test_numbers::numbers;
    use crate::kernels::Activation;
    use half::{bf16, f16};

    const SHAPES: [(usize, usize, usize); 8] = [
        (1, 1, 1),
        (7, 5, 31),
        (16, 32, 32),
        (17, 64, 33),
        (32, 33, 128),
        (33, 96, 129),
        (65, 40, 161),
        (100, 17, 200),
    ];

    /// How far sums of n products of numbers up to 1 may be apart when they are added in another order.
    fn tolerance(inputs: usize) -> f64 {
        1e-6 * (inputs as f64 + 1.0)
    }

    fn compare<T: Element>(round: impl Fn(f32) -> T, unit: f64) {
        for (rows, inputs, outputs) in SHAPES {
            let make = |count, seed| numbers(count, seed).into_iter().map(&round).collect();
            let x: Vec<T> = make(rows * inputs, 1);
            let weight: Vec<T> = make(outputs * inputs, 2);
            let residual: Vec<T> = make(rows * outputs, 4);
            let bias = numbers(outputs, 3);
            let packed = HalfMatrix::new(&weight, inputs, outputs).unwrap();
            let epilogue = GemmEpilogue {
                bias: Some(&bias),
                activation: Some(Activation::Relu),
                residual: Some(&residual),
            };
            for &isa in Isa::available() {
                let full = packed.multiply(isa, &x, rows, &epilogue);
                let plain = packed.multiply(isa, &x, rows, &GemmEpilogue::default());
                for at in 0..rows * outputs {
                    let (row, output) = (at / outputs, at % outputs);
                    let dot: f64 = (0..inputs)
                        .map(|i| {
                            x[row * inputs + i].to_f64() * weight[output * inputs + i].to_f64()
                        })
                        .sum();
                    let want = (dot + f64::from(bias[output])).max(0.0) + residual[at].to_f64();
                    for (got, want) in [(plain[at], dot), (full[at], want)] {
                        let limit = tolerance(inputs) + unit * want.abs();
                        let apart = (got.to_f64() - want).abs();
                        assert!(apart <= limit, "{} {rows} {inputs} {outputs}", isa.name());
                    }
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_multiplies_bf16_like_the_definition() {
        compare(bf16::from_f32, 1.0 / 256.0);
    }

    #[test]
    fn every_instruction_set_multiplies_f16_like_the_definition() {
        compare(f16::from_f32, 1.0 / 2048.0);
    }

    #[test]
    fn a_row_does_not_depend_on_the_others() {
        let (rows, inputs, outputs) = (50, 96, 70);
        let round = |v: Vec<f32>| -> Vec<bf16> { v.into_iter().map(bf16::from_f32).collect() };
        let x = round(numbers(rows * inputs, 5));
        let packed =
            HalfMatrix::new(&round(numbers(outputs * inputs, 6)), inputs, outputs).unwrap();
        for &isa in Isa::available() {
            let all = packed.multiply(isa, &x, rows, &GemmEpilogue::default());
            for row in [0, 13, 31, 32, 49] {
                let x = &x[row * inputs..][..inputs];
                let alone = packed.multiply(isa, x, 1, &GemmEpilogue::default());
                assert_eq!(all[row * outputs..][..outputs], alone, "{}", isa.name());
            }
        }
    }

    #[test]
    fn not_a_number_stays_in_its_row() {
        let (rows, inputs, outputs) = (40, 40, 40);
        let mut x = vec![bf16::ONE; rows * inputs];
        x[3 * inputs + 7] = bf16::NAN;
        let packed = HalfMatrix::new(&vec![bf16::ONE; outputs * inputs], inputs, outputs).unwrap();
        for &isa in Isa::available() {
            let out = packed.multiply(isa, &x, rows, &GemmEpilogue::default());
            for (row, values) in out.chunks(outputs).enumerate() {
                assert!(
                    values.iter().all(|v| v.is_nan() == (row == 3)),
                    "{}",
                    isa.name()
                );
            }
        }
    }
}
