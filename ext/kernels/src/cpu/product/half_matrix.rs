//! Products with a matrix of bf16 or f16, summed in f32: by tiles or by pairs where the CPU multiplies
//! bf16, else on numbers that are widened as they are read.

#[cfg(target_arch = "x86_64")]
mod pairs;
#[cfg(target_arch = "x86_64")]
mod speed;
mod widened;

use std::borrow::Cow;

use crate::cpu::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::cpu::product::amx;
#[cfg(target_arch = "aarch64")]
use crate::cpu::product::arm;
use crate::cpu::product::driver::{Context, TaskRows, Tile, WeightMatrix, TASK_COLUMNS};
use crate::cpu::product::panels::{pack_panels, PANEL};
use crate::cpu::product::store::Panels;
use crate::cpu::{build, for_each_range, read, Element, Output, Stored};
use crate::Result;
#[cfg(target_arch = "x86_64")]
pub use speed::pairs_are_faster;
use widened::{multiply_widened, WidePanels};

/// The depth of a tile; rows of both factors are padded to it by zeros.
const DEPTH: usize = 32;

/// Rows that are multiplied together where the CPU multiplies bits: two tiles.
const BLOCK: usize = if cfg!(target_arch = "aarch64") {
    48
} else {
    32
};

/// Bytes of a task's rows at most: half of the second-level cache, which the weights and the sums pass
/// through too.
const CACHE: usize = 1 << 20;

/// Rows of a task at most, but for what the cache says.
const MOST_ROWS: usize = 256 / BLOCK * BLOCK;

/// Rows of a task at most where weights are widened: the more there are, the less that matters.
const MOST_WIDE_ROWS: usize = 1032;

/// Such rows that are multiplied and finished together.
const WIDE_BLOCK: usize = 96;

/// Bytes that a task's widened panels may take, or else a task's rows with one panel at a time.
const WIDE_CACHE: usize = 1 << 20;

/// With so many rows, a panel is widened once for all of them, and else as it is read.
const LEAST_IN_WIDE_PANELS: usize = 16;

/// A matrix [outputs, inputs] as panels of 32 outputs. Those of bf16 are [inputs / 2, 32] pairs of neighbouring inputs,
/// which CPUs multiply; those of f16, which are always widened, [inputs, 32] numbers. Every instruction set reads this
/// one layout.
#[derive(Clone)]
pub struct HalfMatrix {
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

/// Rows of x, each padded to whole tiles.
pub enum HalfRows<'a> {
    /// bf16, as the CPU multiplies it; `tail` holds the rows of the last block, filled up by zeros.
    #[cfg(target_arch = "x86_64")]
    Bits {
        rows: Cow<'a, [u16]>,
        tail: Vec<u16>,
    },
    /// bf16, as the CPU multiplies it, in pairs of rows.
    #[cfg(target_arch = "aarch64")]
    Pairs(Vec<u8>),
    Widened(Cow<'a, [f32]>),
}

impl HalfMatrix {
    /// `weight` is [outputs, inputs], row after row; `T` is one of the half types.
    pub fn new<T: Element>(weight: &[T], inputs: usize, outputs: usize) -> Result<Self> {
        let pairs = inputs.next_multiple_of(DEPTH) / 2;
        let weight = bits(weight);
        let panels = pack_panels(outputs, pairs * PANEL, |panel: &mut [u32], first| {
            let rows = weight.chunks(inputs.max(1)).skip(first).take(PANEL);
            for (column, row) in rows.enumerate() {
                if T::STORED == Stored::Bf16 {
                    lay_out_pairs(row, &mut panel[column..]);
                } else {
                    lay_out_numbers(row, &mut halves_of(panel)[column..]);
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

    /// How many widened panels are held at once: all of a task's, or one where that is too much.
    fn wide_panels(&self) -> usize {
        if self.padded_inputs() * TASK_COLUMNS * size_of::<f32>() <= WIDE_CACHE {
            TASK_COLUMNS / PANEL
        } else {
            1
        }
    }

    fn panel(&self, number: usize) -> &[u32] {
        let length = self.padded_inputs() / 2 * PANEL;
        &self.panels[number * length..][..length]
    }

    /// Rows of bf16 as they are.
    #[cfg(target_arch = "x86_64")]
    fn bits_of<'a>(&self, x: &'a [u16], rows: usize) -> HalfRows<'a> {
        let depth = self.padded_inputs();
        let rows_of_bits = if self.inputs == depth {
            Cow::Borrowed(x)
        } else {
            let mut padded = vec![0; rows * depth];
            for (from, to) in x.chunks(self.inputs).zip(padded.chunks_mut(depth)) {
                to[..self.inputs].copy_from_slice(from);
            }
            Cow::Owned(padded)
        };
        let mut tail = vec![0; BLOCK * depth];
        let last = &rows_of_bits[rows / BLOCK * BLOCK * depth..];
        tail[..last.len()].copy_from_slice(last);
        HalfRows::Bits {
            rows: rows_of_bits,
            tail,
        }
    }

    /// Rows of bf16 in pairs.
    #[cfg(target_arch = "aarch64")]
    fn pairs_of<'a>(&self, x: &[u16], rows: usize) -> HalfRows<'a> {
        let words = self.padded_inputs() / 2;
        let mut pairs = vec![0; arm::paired_bytes(rows, words)];
        let to = Output(pairs.as_mut_ptr());
        for_each_range(rows, self.padded_inputs(), |range| {
            let mut row = vec![0u16; self.padded_inputs()];
            for number in range {
                row[..self.inputs].copy_from_slice(&x[number * self.inputs..][..self.inputs]);
                // SAFETY: the row has the words, and the pairs room for all rows, each of which is written once.
                unsafe { arm::put_into_pair(row.as_ptr().cast(), words, to.at(0), number) };
            }
        });
        HalfRows::Pairs(pairs)
    }

    /// Rows of f32 as they are, where they need no padding.
    fn widened<'a, T: Element>(&self, isa: Isa, x: &'a [T], rows: usize) -> Cow<'a, [f32]> {
        let depth = self.padded_inputs();
        if T::IS_F32 && depth == self.inputs {
            return Cow::Borrowed(read(isa, x, &mut []));
        }
        // SAFETY: every row is written once, its padding included.
        Cow::Owned(unsafe {
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
        })
    }
}

impl<T: Element> WeightMatrix<T> for HalfMatrix {
    const PANEL: usize = PANEL;
    type Rows<'a> = HalfRows<'a>;
    type Workspace = WidePanels;

    fn inputs(&self) -> usize {
        self.inputs
    }

    fn outputs(&self) -> usize {
        self.outputs
    }

    fn task_rows(&self, isa: Isa) -> TaskRows {
        if multiplies::<T>(isa, self.stored) {
            let rows = CACHE / (self.padded_inputs() * size_of::<u16>()).max(1);
            return TaskRows {
                most: (rows / BLOCK * BLOCK).clamp(BLOCK, MOST_ROWS),
                unit: BLOCK,
                together: BLOCK,
                padded: true,
            };
        }
        let (most, together) = match self.wide_panels() {
            1 => {
                let rows = WIDE_CACHE / (self.padded_inputs() * size_of::<f32>());
                let most = (rows / WIDE_BLOCK * WIDE_BLOCK).max(WIDE_BLOCK);
                (most, most)
            }
            _ => (MOST_WIDE_ROWS, WIDE_BLOCK),
        };
        TaskRows {
            most,
            unit: 4,
            together,
            padded: false,
        }
    }

    /// `x` is of the matrix's own type, or of f32.
    fn prepare<'a>(&self, isa: Isa, x: &'a [T], rows: usize) -> HalfRows<'a> {
        assert!(T::IS_F32 || T::STORED == self.stored);
        #[cfg(target_arch = "x86_64")]
        if multiplies::<T>(isa, self.stored) {
            return self.bits_of(bits(x), rows);
        }
        #[cfg(target_arch = "aarch64")]
        if multiplies::<T>(isa, self.stored) {
            return self.pairs_of(bits(x), rows);
        }
        HalfRows::Widened(self.widened(isa, x, rows))
    }

    #[cfg(target_arch = "x86_64")]
    fn takes_tile_registers(&self, isa: Isa) -> bool {
        multiplies::<T>(isa, self.stored)
    }

    unsafe fn multiply_tile(
        &self,
        context: &Context,
        wide: &mut WidePanels,
        x: &HalfRows<'_>,
        tile: Tile,
    ) {
        let (depth, panel) = (self.padded_inputs(), self.panel(tile.panel));
        match x {
            HalfRows::Widened(x) => {
                let operands = widened::Operands {
                    x: x[tile.row * depth..][..tile.rows * depth].as_ptr(),
                    panel: panel.as_ptr(),
                    depth,
                    is_bf16: self.stored == Stored::Bf16,
                };
                let place = tile.panel % self.wide_panels();
                let in_wide =
                    tile.rows >= LEAST_IN_WIDE_PANELS || wide.holds(panel.as_ptr(), place);
                // SAFETY: x and the panel are `depth` deep, and the caller vouches for the sums; an `Isa` comes from
                // detection.
                unsafe {
                    if in_wide {
                        wide.multiply(context.isa, operands, place, tile.rows, tile.sums)
                    } else {
                        multiply_widened(context.isa, operands, tile.rows, tile.sums)
                    }
                }
            }
            #[cfg(target_arch = "aarch64")]
            HalfRows::Pairs(pairs) => {
                let words = depth / 2;
                let bytes = arm::paired_bytes(tile.rows, words);
                let operands = arm::Operands {
                    x: pairs[arm::paired_bytes(tile.row, words)..][..bytes].as_ptr(),
                    stride: words,
                    panel: panel.as_ptr().cast(),
                    words,
                };
                // SAFETY: the pairs and the panel are as deep as one another, tasks begin with a pair, and rows were
                // put into pairs because the instruction set multiplies them; the caller vouches for the sums.
                unsafe { arm::multiply_matrices_of_bf16(operands, tile.rows, tile.sums) };
            }
            #[cfg(target_arch = "x86_64")]
            HalfRows::Bits { rows, tail } => {
                let x = if tile.rows == BLOCK {
                    &rows[tile.row * depth..][..BLOCK * depth]
                } else {
                    tail
                };
                // SAFETY: x has the rows of a whole block, and its bits were taken because the instruction
                // set multiplies them; the caller vouches for the sums.
                unsafe { multiply_bits(context, x, panel, &tile) };
            }
        }
    }
}

/// A row becomes a column of pairs.
fn lay_out_pairs(row: &[u16], column: &mut [u32]) {
    for (to, numbers) in column.iter_mut().step_by(PANEL).zip(row.chunks(2)) {
        let second = numbers.get(1).copied().unwrap_or(0);
        *to = u32::from(numbers[0]) | u32::from(second) << 16;
    }
}

/// A row becomes a column of numbers.
fn lay_out_numbers(row: &[u16], column: &mut [u16]) {
    for (to, &number) in column.iter_mut().step_by(PANEL).zip(row) {
        *to = number;
    }
}

/// The words of a panel as twice as many numbers.
fn halves_of(panel: &mut [u32]) -> &mut [u16] {
    // SAFETY: a word is two numbers, which any bits are; the numbers need less alignment and take the words' place.
    unsafe { std::slice::from_raw_parts_mut(panel.as_mut_ptr().cast(), 2 * panel.len()) }
}

/// Whether an instruction set multiplies rows of bf16 as they are, instead of widening them.
pub fn multiplies_bf16(isa: Isa) -> bool {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 | Isa::Amx => true,
        #[cfg(target_arch = "aarch64")]
        Isa::Bf16 => true,
        _ => false,
    }
}

fn multiplies<T: Element>(isa: Isa, stored: Stored) -> bool {
    multiplies_bf16(isa) && stored == Stored::Bf16 && !T::IS_F32
}

/// The bits of half numbers.
pub fn bits<T: Element>(numbers: &[T]) -> &[u16] {
    assert!(!T::IS_F32);
    // SAFETY: the two half types are transparent wrappers of u16.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), numbers.len()) }
}

/// # Safety
/// `x` has `BLOCK` rows, as deep as the panel; the sums have room for as many, and the CPU multiplies
/// bf16.
#[cfg(target_arch = "x86_64")]
unsafe fn multiply_bits(context: &Context, x: &[u16], panel: &[u32], tile: &Tile) {
    let (depth, sums) = (x.len() / BLOCK, tile.sums);
    let (bytes, ahead) = (size_of_val(panel), TASK_COLUMNS / PANEL);
    // SAFETY: x, the panel and the sums have the rows and the pairs, as the caller vouches, who has the instructions.
    unsafe {
        match &context.tiles {
            Some(tiles) => {
                let operands = amx::Operands {
                    a: x.as_ptr().cast(),
                    a_stride: depth * size_of::<u16>(),
                    b: panel.as_ptr().cast(),
                    steps: depth / DEPTH,
                    sums: sums.start.cast(),
                    stride: sums.stride * size_of::<f32>(),
                    later: Some(amx::later(panel.as_ptr().cast(), bytes, ahead, tile.row)),
                };
                amx::multiply_bf16(tiles, tile.rows, operands);
            }
            None => {
                let operands = pairs::Operands {
                    x: x.as_ptr().cast(),
                    panel: panel.as_ptr(),
                    pairs: depth / 2,
                };
                pairs::multiply(operands, tile.rows, sums);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::product::GemmEpilogue;
    use crate::cpu::test_numbers::numbers;
    use crate::Activation;
    use half::{bf16, f16};

    const SHAPES: [(usize, usize, usize); 11] = [
        (1, 1, 1),
        (7, 5, 31),
        (6, 70, 40),
        (11, 130, 36),
        (70, 64, 3),
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

    fn compare<T: Element, W: Element>(
        round: impl Fn(f32) -> T,
        round_weight: impl Fn(f32) -> W,
        unit: f64,
    ) {
        // Miri would take an hour for larger ones.
        let some = if cfg!(miri) { 1 } else { SHAPES.len() };
        for (rows, inputs, outputs) in SHAPES.into_iter().take(some) {
            let make = |count, seed| numbers(count, seed).into_iter().map(&round).collect();
            let x: Vec<T> = make(rows * inputs, 1);
            let weight: Vec<W> = numbers(outputs * inputs, 2)
                .into_iter()
                .map(&round_weight)
                .collect();
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
        compare(bf16::from_f32, bf16::from_f32, 1.0 / 256.0);
    }

    #[test]
    fn every_instruction_set_multiplies_f16_like_the_definition() {
        compare(f16::from_f32, f16::from_f32, 1.0 / 2048.0);
    }

    #[test]
    fn every_instruction_set_multiplies_f32_with_halves_like_the_definition() {
        compare(|x| x, bf16::from_f32, 0.0);
        compare(|x| x, f16::from_f32, 0.0);
    }

    #[test]
    fn not_a_number_stays_in_its_row() {
        let (rows, inputs, outputs) = if cfg!(miri) { (5, 8, 5) } else { (40, 40, 40) };
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
