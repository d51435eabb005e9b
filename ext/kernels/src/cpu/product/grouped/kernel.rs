//! Rows of x times one panel.
//!
//! There is one order of sums, whatever the instruction set and the number of rows, so that all give the same bits:
//! four sums of a group take the inputs in turns, are added up, and scaled. Where weights are rounded, each is scaled
//! and rounded before it is multiplied.

use super::decode::Decode;
use super::{PANEL, SUMMED};
use crate::cpu::isa::dispatched;
use crate::cpu::product::driver::Sums;
use crate::cpu::product::row_tiles::in_row_tiles;
use crate::cpu::simd::Simd;
use base::quant::{BlockType, Rounding, GROUP};

/// Rows that are multiplied together at most.
pub(super) const MOST_ROWS: usize = 6;
/// How far ahead of its use a panel is asked for, in bytes, where one row is multiplied with it.
const AHEAD: usize = 4096;
/// Sums that take turns: they don't wait for each other.
const TURNS: usize = 4;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Some rows of x, and a panel.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub x: *const f32,
    /// Of every SUMMED elements of x.
    pub sums: *const f32,
    /// In a row.
    pub groups: usize,
    pub panel: *const u8,
    /// 16 at least.
    pub levels: &'a [f32],
}

impl Operands<'_> {
    /// # Safety
    /// The row is one of x.
    #[inline(always)]
    unsafe fn starting_at(self, row: usize) -> Self {
        // SAFETY: the caller vouches for the row.
        unsafe {
            Self {
                x: self.x.add(row * self.groups * GROUP),
                sums: self.sums.add(row * self.groups * (GROUP / SUMMED)),
                ..self
            }
        }
    }
}

/// What a kernel is compiled for.
trait Format {
    /// Inputs that share a scale.
    const RUN: usize = GROUP;
    const MINIMUM: bool = false;
    /// Whether codes have eight bits.
    const WIDE: bool = false;
    /// Whether those are floats of e4m3, or of e5m2.
    const FLOATS: bool = false;
    const WIDE_FLOATS: bool = false;
    /// What scaled levels are rounded to.
    const ROUNDING: Rounding = Rounding::None;
    /// Whether blocks have scales; x has them else.
    const SCALED: bool = true;

    const RUNS: usize = GROUP / Self::RUN;
    const HEADER: usize =
        Self::SCALED as usize * Self::RUNS * (1 + Self::MINIMUM as usize) * 4 * PANEL;
    /// Bytes of eight inputs.
    const STEP: usize = if Self::WIDE { 8 * PANEL } else { 4 * PANEL };
    const BLOCK: usize = Self::HEADER + GROUP / 8 * Self::STEP;
}

struct Levels;
impl Format for Levels {}

struct LevelsAsBf16;
impl Format for LevelsAsBf16 {
    const ROUNDING: Rounding = Rounding::Bf16;
}

struct LevelsAsF16;
impl Format for LevelsAsF16 {
    const ROUNDING: Rounding = Rounding::F16;
}

struct LevelsOfRuns;
impl Format for LevelsOfRuns {
    const RUN: usize = 16;
}

struct LevelsAboveMinimum;
impl Format for LevelsAboveMinimum {
    const MINIMUM: bool = true;
}

struct Floats;
impl Format for Floats {
    const WIDE: bool = true;
    const FLOATS: bool = true;
}

struct WideFloats;
impl Format for WideFloats {
    const WIDE: bool = true;
    const WIDE_FLOATS: bool = true;
}

struct BytesAboveMinimum;
impl Format for BytesAboveMinimum {
    const MINIMUM: bool = true;
    const WIDE: bool = true;
}

struct LevelsAboveMinimums;
impl Format for LevelsAboveMinimums {
    const RUN: usize = 32;
    const MINIMUM: bool = true;
}

struct BytesAboveMinimums;
impl Format for BytesAboveMinimums {
    const RUN: usize = 32;
    const MINIMUM: bool = true;
    const WIDE: bool = true;
}

struct LevelsAboveEachMinimum;
impl Format for LevelsAboveEachMinimum {
    const RUN: usize = 16;
    const MINIMUM: bool = true;
}

struct BytesAboveEachMinimum;
impl Format for BytesAboveEachMinimum {
    const RUN: usize = 16;
    const MINIMUM: bool = true;
    const WIDE: bool = true;
}

/// Codes alone, whose inputs are scaled before.
struct Codes;
impl Format for Codes {
    const SCALED: bool = false;
}

struct ByteCodes;
impl Format for ByteCodes {
    const WIDE: bool = true;
    const SCALED: bool = false;
}

/// The sums of a group's rows that take turns.
type Turns<S, const R: usize> = [[<S as Simd>::V; TURNS]; R];

/// A level, scaled here where the product is rounded.
#[inline(always)]
unsafe fn weight<S: Decode, F: Format>(level: S::V, scale: S::V) -> S::V {
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe {
        match F::ROUNDING {
            Rounding::None => level,
            Rounding::Bf16 => S::as_bf16(S::mul(level, scale)),
            Rounding::F16 => S::as_f16(S::mul(level, scale)),
        }
    }
}

/// Adds the products of eight inputs, whose codes for the lanes of a vector begin at `codes`.
#[inline(always)]
unsafe fn add_eight<S: Decode, F: Format, const R: usize>(
    sums: &mut Turns<S, R>,
    codes: *const u8,
    (table, scale): (S::Table, S::V),
    (x, stride): (*const f32, usize),
) {
    // SAFETY: the caller has eight inputs of R rows and of the codes, and the instruction set; the sums have R rows.
    unsafe {
        macro_rules! input {
            ($level:expr, $input:literal) => {
                let level = weight::<S, F>($level, scale);
                let mut r = 0;
                while r < R {
                    let x = S::splat(*x.add(r * stride + $input));
                    let sum = &mut sums[r][$input % TURNS];
                    *sum = S::fuse(level, x, *sum);
                    r += 1;
                }
            };
        }
        if F::WIDE {
            macro_rules! byte {
                ($($input:literal)*) => {
                    $(
                        let from = codes.add($input * PANEL);
                        let level = if F::FLOATS {
                            S::floats(from)
                        } else if F::WIDE_FLOATS {
                            S::wide_floats(from)
                        } else {
                            S::bytes(from)
                        };
                        input!(level, $input);
                    )*
                };
            }
            byte!(0 1 2 3 4 5 6 7);
        } else {
            let words = S::words(codes);
            macro_rules! nibble {
                ($($input:literal $bit:literal),*) => {
                    $(input!(S::look_up::<$bit>(words, table), $input);)*
                };
            }
            nibble!(0 0, 1 4, 2 8, 3 12, 4 16, 5 20, 6 24, 7 28);
        }
    }
}

/// Asks for what is read soon: the hardware looks ahead within a page only.
#[inline(always)]
fn fetch_ahead<S: Simd>(from: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(LINE) {
        // SAFETY: a prefetch reads nothing and cannot fault, and belongs to every CPU of the architecture.
        unsafe { S::prefetch(from.wrapping_add(AHEAD + line).cast()) };
    }
}

/// `R` rows of x times the outputs of the lanes from `first` on.
#[inline(always)]
unsafe fn tile<S: Decode, F: Format, const R: usize>(
    operands: Operands<'_>,
    first: usize,
) -> [S::V; R] {
    let stride = operands.groups * GROUP;
    let lane_bytes = if F::WIDE { first } else { 4 * first };
    // SAFETY: the panel has blocks for all groups of the rows, of which there are R, and `first` is the lane of a
    // vector; as the caller vouches, who has the instruction set. `at` moves by whole blocks and ends with the last.
    unsafe {
        let table = S::table(operands.levels);
        let mut totals = [S::splat(0.0); R];
        let mut at = operands.panel;
        let mut group = 0;
        while group < operands.groups {
            if R == 1 && first == 0 {
                fetch_ahead::<S>(at, F::BLOCK);
            }
            let number = |number: usize| S::load(at.cast::<f32>().add(number * PANEL + first));
            let mut run = 0;
            while run < F::RUNS {
                let mut sums: Turns<S, R> = [[S::splat(0.0); TURNS]; R];
                let scale = if F::SCALED {
                    number(run)
                } else {
                    S::splat(1.0)
                };
                let mut step = run * F::RUN / 8;
                while step < (run + 1) * F::RUN / 8 {
                    let codes = at.add(F::HEADER + step * F::STEP + lane_bytes);
                    let x = operands.x.add(group * GROUP + 8 * step);
                    add_eight::<S, F, R>(&mut sums, codes, (table, scale), (x, stride));
                    step += 1;
                }
                let mut r = 0;
                while r < R {
                    let [a, b, c, d] = sums[r];
                    let sum = S::add(S::add(a, b), S::add(c, d));
                    totals[r] = if F::SCALED && matches!(F::ROUNDING, Rounding::None) {
                        S::fuse(sum, scale, totals[r])
                    } else {
                        S::add(sum, totals[r])
                    };
                    r += 1;
                }
                run += 1;
            }
            let mut run = 0;
            while F::MINIMUM && run < F::RUNS {
                let minimum = number(F::RUNS + run);
                let first = (group * GROUP + run * F::RUN) / SUMMED;
                let mut r = 0;
                while r < R {
                    let sums = operands.sums.add(r * (stride / SUMMED) + first);
                    let mut sum = *sums;
                    let mut next = 1;
                    while next < F::RUN / SUMMED {
                        sum += *sums.add(next);
                        next += 1;
                    }
                    totals[r] = S::fuse(minimum, S::splat(sum), totals[r]);
                    r += 1;
                }
                run += 1;
            }
            at = at.add(F::BLOCK);
            group += 1;
        }
        totals
    }
}

#[inline(always)]
unsafe fn multiply_format<S: Decode, F: Format>(operands: Operands<'_>, rows: usize, sums: Sums) {
    // SAFETY: the caller vouches for the operands and the sums, and has the instruction set of `S`.
    unsafe {
        for first in (0..PANEL).step_by(S::LANES) {
            in_row_tiles!(rows, most if S::REGISTERS > 16 { MOST_ROWS } else { 2 }, (row, HEIGHT) => {
                let operands = operands.starting_at(row);
                let totals = tile::<S, F, HEIGHT>(operands, first);
                for (r, total) in totals.into_iter().enumerate() {
                    S::store(sums.row(row + r).add(first), total);
                }
            });
        }
    }
}

#[inline(always)]
unsafe fn multiply_with<S: Decode>(
    kind: BlockType,
    operands: Operands<'_>,
    rows: usize,
    sums: Sums,
) {
    // SAFETY: the caller vouches for the operands and the sums, and has the instruction set of `S`.
    unsafe {
        match kind {
            BlockType::Nf4 | BlockType::Fp4 => multiply_format::<S, Levels>(operands, rows, sums),
            BlockType::Nf4Bf16 | BlockType::Fp4Bf16 => {
                multiply_format::<S, LevelsAsBf16>(operands, rows, sums)
            }
            BlockType::Nf4F16 | BlockType::Fp4F16 => {
                multiply_format::<S, LevelsAsF16>(operands, rows, sums)
            }
            BlockType::NvFp4 | BlockType::Iq2 => {
                multiply_format::<S, LevelsOfRuns>(operands, rows, sums)
            }
            BlockType::Fp8 => multiply_format::<S, Floats>(operands, rows, sums),
            BlockType::Int4 => multiply_format::<S, LevelsAboveMinimum>(operands, rows, sums),
            BlockType::Int8 => multiply_format::<S, BytesAboveMinimum>(operands, rows, sums),
            BlockType::E5m2 => multiply_format::<S, WideFloats>(operands, rows, sums),
            BlockType::Int4Of32 => multiply_format::<S, LevelsAboveMinimums>(operands, rows, sums),
            BlockType::Int8Of32 => multiply_format::<S, BytesAboveMinimums>(operands, rows, sums),
            BlockType::Int4Of16 => {
                multiply_format::<S, LevelsAboveEachMinimum>(operands, rows, sums)
            }
            BlockType::Int8Of16 => {
                multiply_format::<S, BytesAboveEachMinimum>(operands, rows, sums)
            }
            _ => {}
        }
    }
}

dispatched! {
    /// The sums of some rows of x and a panel of this type.
    ///
    /// # Safety
    /// x and the panel have as many groups, and the sums room for the rows and the panel.
    pub(super) unsafe fn multiply(
        kind: BlockType, operands: Operands<'_>, rows: usize, sums: Sums,
    ) = multiply_with
}

#[inline(always)]
unsafe fn multiply_codes_with<S: Decode>(
    bits: usize,
    operands: Operands<'_>,
    rows: usize,
    sums: Sums,
) {
    // SAFETY: the caller vouches for the operands and the sums, and has the instruction set of `S`.
    unsafe {
        match bits {
            8 => multiply_format::<S, ByteCodes>(operands, rows, sums),
            _ => multiply_format::<S, Codes>(operands, rows, sums),
        }
    }
}

dispatched! {
    /// The sums of some rows of x and a panel of codes of eight or four bits, without scales.
    ///
    /// # Safety
    /// As for `multiply`; the sums of x are not read.
    pub(super) unsafe fn multiply_codes(
        bits: usize, operands: Operands<'_>, rows: usize, sums: Sums,
    ) = multiply_codes_with
}
