//! Products of f32, of bytes and of bf16 on ARM. Rows and panels are words of four bytes: a number, four bytes, or two
//! bf16, of neighbouring inputs.

use std::arch::aarch64::*;
use std::arch::asm;

use crate::cpu::product::driver::Sums;
use crate::cpu::product::panels::PANEL;
use crate::cpu::product::row_tiles::in_row_tiles;

/// Bytes of a word.
const WORD: usize = 4;
/// Words of a vector.
const LANES: usize = 4;
/// Words that a row's part of a small matrix has.
const PART: usize = 2;
/// Rows and columns of a small matrix.
const SIDE: usize = 2;

/// Rows of x and one panel, as deep as one another.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    /// [rows, words], or in pairs of rows [pairs, words / 2, 2, 2]
    pub x: *const u8,
    /// Words from row to row of x.
    pub stride: usize,
    /// [words, 32]
    pub panel: *const u8,
    pub words: usize,
}

impl Operands {
    /// From a row on, and from a column on.
    ///
    /// # Safety
    /// Both are there; the row begins a pair where rows are in pairs.
    #[inline(always)]
    unsafe fn at(self, row: usize, column: usize) -> Self {
        // SAFETY: the caller vouches for the row and the column.
        unsafe {
            Self {
                x: self.x.add(row * self.stride * WORD),
                panel: self.panel.add(column * WORD),
                ..self
            }
        }
    }
}

/// Bytes of so many rows of some words in pairs.
pub(super) fn paired_bytes(rows: usize, words: usize) -> usize {
    rows.next_multiple_of(SIDE) * words * WORD
}

/// Puts a row into its pair: its words by twos, beside those of the other.
///
/// # Safety
/// `row` has `words` words, an even number, and the pairs at `to` have the row `number`.
pub(super) unsafe fn put_into_pair(row: *const u8, words: usize, to: *mut u8, number: usize) {
    const BYTES: usize = PART * WORD;
    // SAFETY: the caller vouches for the row and for its place in its pair.
    unsafe {
        let pair = to.add(number / SIDE * SIDE * words * WORD + number % SIDE * BYTES);
        for part in 0..words / PART {
            let (from, to) = (row.add(part * BYTES), pair.add(part * SIDE * BYTES));
            std::ptr::copy_nonoverlapping(from, to, BYTES);
        }
    }
}

/// Products of columns with a word of a row.
pub(super) trait Words {
    /// Adds, in each lane, what its word of `columns` makes with the word `NUMBER` of x.
    ///
    /// # Safety
    /// The CPU has the instruction.
    unsafe fn add<const NUMBER: i32>(
        sums: uint32x4_t,
        columns: uint32x4_t,
        x: uint32x4_t,
    ) -> uint32x4_t;
}

/// Words of four bytes, by dot products.
pub(super) struct Dots;
/// Words that are a number.
struct Singles;

impl Words for Dots {
    #[inline(always)]
    unsafe fn add<const NUMBER: i32>(
        mut sums: uint32x4_t,
        columns: uint32x4_t,
        x: uint32x4_t,
    ) -> uint32x4_t {
        // SAFETY: the caller has the dot product; the instruction touches the registers it is given.
        unsafe {
            asm!(
                "sdot {sums:v}.4s, {columns:v}.16b, {x:v}.4b[{number}]",
                sums = inout(vreg) sums,
                columns = in(vreg) columns,
                x = in(vreg) x,
                number = const NUMBER,
                options(pure, nomem, nostack, preserves_flags)
            );
            sums
        }
    }
}

impl Words for Singles {
    #[inline(always)]
    unsafe fn add<const NUMBER: i32>(
        sums: uint32x4_t,
        columns: uint32x4_t,
        x: uint32x4_t,
    ) -> uint32x4_t {
        // SAFETY: every CPU of this architecture has NEON; this touches registers alone.
        unsafe {
            let sums = vreinterpretq_f32_u32(sums);
            let (columns, x) = (vreinterpretq_f32_u32(columns), vreinterpretq_f32_u32(x));
            vreinterpretq_u32_f32(vfmaq_laneq_f32::<NUMBER>(sums, columns, x))
        }
    }
}

/// Vectors of columns that a tile of so many rows takes: sixteen sums hide how long each takes.
const fn word_columns(rows: usize) -> usize {
    match rows {
        1 | 2 => 8,
        3 | 4 => 4,
        _ => 2,
    }
}

/// R rows of x against C vectors of columns. A sum takes the words in their order, whatever R and C.
#[inline(always)]
unsafe fn word_tile<W: Words, const R: usize, const C: usize>(operands: Operands, sums: Sums) {
    let Operands {
        x,
        stride,
        panel,
        words,
    } = operands;
    // SAFETY: x has R rows of `words` words, `stride` apart, the panel as many rows of 32 words from the column it
    // begins with, and the sums room for R rows of C vectors, as the caller vouches, who has the instruction. The last
    // words of a row, fewer than a vector, go through an array.
    unsafe {
        let mut totals = [[vdupq_n_u32(0); C]; R];
        let mut word = 0;
        let mut rows = [vdupq_n_u32(0); R];
        macro_rules! step {
            ($number:literal) => {
                let mut c = 0;
                while c < C {
                    let from = panel.add(((word + $number) * PANEL + c * LANES) * WORD);
                    let columns = vld1q_u32(from.cast());
                    let mut r = 0;
                    while r < R {
                        totals[r][c] = W::add::<$number>(totals[r][c], columns, rows[r]);
                        r += 1;
                    }
                    c += 1;
                }
            };
        }
        while word + LANES <= words {
            let mut r = 0;
            while r < R {
                rows[r] = vld1q_u32(x.add((r * stride + word) * WORD).cast());
                r += 1;
            }
            step!(0);
            step!(1);
            step!(2);
            step!(3);
            word += LANES;
        }
        let left = words - word;
        if left > 0 {
            for (r, row) in rows.iter_mut().enumerate() {
                let mut last = [0u32; LANES];
                let from = x.add((r * stride + word) * WORD);
                std::ptr::copy_nonoverlapping(from, last.as_mut_ptr().cast(), left * WORD);
                *row = vld1q_u32(last.as_ptr());
            }
            step!(0);
            if left > 1 {
                step!(1);
            }
            if left > 2 {
                step!(2);
            }
        }
        for (r, totals) in totals.iter().enumerate() {
            for (c, &total) in totals.iter().enumerate() {
                vst1q_u32(sums.row(r).add(c * LANES).cast(), total);
            }
        }
    }
}

#[inline(always)]
unsafe fn multiply_words<W: Words>(operands: Operands, rows: usize, sums: Sums) {
    // SAFETY: the caller vouches for the sizes and the instruction; tiles lie within the rows, and their columns within
    // the panel.
    unsafe {
        in_row_tiles!(rows, most 8, (row, HEIGHT) => {
            const COLUMNS: usize = word_columns(HEIGHT);
            for column in (0..PANEL).step_by(COLUMNS * LANES) {
                word_tile::<W, HEIGHT, COLUMNS>(operands.at(row, column), sums.at(row, column));
            }
        });
    }
}

/// A function of its own, since its loops are looked for by name.
///
/// # Safety
/// x and the sums have the rows.
#[inline(never)]
pub(super) unsafe fn multiply_singles(operands: Operands, rows: usize, sums: Sums) {
    // SAFETY: the caller vouches for the sizes; every CPU of this architecture has NEON.
    unsafe { multiply_words::<Singles>(operands, rows, sums) }
}

/// # Safety
/// x and the sums, which are written as i32, have the rows, and the CPU has the dot product.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn multiply_dots(operands: Operands, rows: usize, sums: Sums) {
    // SAFETY: x, the panel and the sums have the rows and words, as the caller vouches; `dotprod` is enabled.
    unsafe { multiply_words::<Dots>(operands, rows, sums) }
}

/// Products of small matrices: two rows of x with two columns, two words deep.
pub(super) trait Matrices {
    /// Four sums: those of the first row, and those of the second.
    ///
    /// # Safety
    /// The CPU has the instruction.
    unsafe fn add(sums: uint32x4_t, x: uint32x4_t, columns: uint32x4_t) -> uint32x4_t;
}

macro_rules! matrices {
    ($name:ident, $instruction:literal) => {
        pub(super) struct $name;

        impl Matrices for $name {
            #[inline(always)]
            unsafe fn add(
                mut sums: uint32x4_t,
                x: uint32x4_t,
                columns: uint32x4_t,
            ) -> uint32x4_t {
                // SAFETY: the caller has the instruction, which touches the registers it is given.
                unsafe {
                    asm!(
                        $instruction,
                        sums = inout(vreg) sums,
                        x = in(vreg) x,
                        columns = in(vreg) columns,
                        options(pure, nomem, nostack, preserves_flags)
                    );
                    sums
                }
            }
        }
    };
}
matrices!(Bytes, "smmla {sums:v}.4s, {x:v}.16b, {columns:v}.16b");
matrices!(Bf16s, "bfmmla {sums:v}.4s, {x:v}.8h, {columns:v}.8h");

/// Four columns by twos, from two vectors of words.
#[inline(always)]
pub(super) unsafe fn by_twos(first: uint32x4_t, second: uint32x4_t) -> [uint32x4_t; 2] {
    // SAFETY: every CPU of this architecture has NEON; this touches registers alone.
    unsafe { [vzip1q_u32(first, second), vzip2q_u32(first, second)] }
}

/// The sums of two rows with four columns, by rows, from those with two columns each.
#[inline(always)]
pub(super) unsafe fn by_rows(sums: [uint32x4_t; 2]) -> [uint32x4_t; 2] {
    // SAFETY: every CPU of this architecture has NEON; this touches registers alone.
    unsafe {
        let low = vreinterpretq_u64_u32(sums[0]);
        let high = vreinterpretq_u64_u32(sums[1]);
        [
            vreinterpretq_u32_u64(vzip1q_u64(low, high)),
            vreinterpretq_u32_u64(vzip2q_u64(low, high)),
        ]
    }
}

/// Vectors of columns that a tile of so many pairs of rows takes: up to 24 sums hide how long each takes.
const fn matrix_columns(pairs: usize) -> usize {
    match pairs {
        1 => 8,
        2 | 3 => 4,
        4..=6 => 2,
        _ => 1,
    }
}

/// P pairs of rows of x against C vectors of columns.
#[inline(always)]
unsafe fn matrix_tile<M: Matrices, const P: usize, const C: usize>(operands: Operands, sums: Sums) {
    let Operands {
        x, panel, words, ..
    } = operands;
    // SAFETY: x has P pairs of rows of `words` words, an even number, the panel as many rows of 32 words from the
    // column it begins with, and the sums room for the rows, of C vectors, as the caller vouches, who has the
    // instruction.
    unsafe {
        let mut totals = [[[vdupq_n_u32(0); 2]; C]; P];
        let mut word = 0;
        while word < words {
            let mut rows = [vdupq_n_u32(0); P];
            let mut p = 0;
            while p < P {
                rows[p] = vld1q_u32(x.add((p * words + word) * SIDE * WORD).cast());
                p += 1;
            }
            let mut c = 0;
            while c < C {
                let from = panel.add((word * PANEL + c * LANES) * WORD);
                let next = from.add(PANEL * WORD);
                let [low, high] = by_twos(vld1q_u32(from.cast()), vld1q_u32(next.cast()));
                let mut p = 0;
                while p < P {
                    totals[p][c][0] = M::add(totals[p][c][0], rows[p], low);
                    totals[p][c][1] = M::add(totals[p][c][1], rows[p], high);
                    p += 1;
                }
                c += 1;
            }
            word += PART;
        }
        for (p, totals) in totals.iter().enumerate() {
            for (c, &total) in totals.iter().enumerate() {
                for (row, sums_of_row) in by_rows(total).into_iter().enumerate() {
                    let to = sums.row(p * SIDE + row).add(c * LANES);
                    vst1q_u32(to.cast(), sums_of_row);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn multiply_pairs<M: Matrices>(operands: Operands, rows: usize, sums: Sums) {
    // SAFETY: the caller vouches for the sizes, an even number of rows, and the instruction; tiles lie within the
    // rows, and their columns within the panel.
    unsafe {
        in_row_tiles!(rows.div_ceil(SIDE), most 12, (pair, PAIRS) => {
            const COLUMNS: usize = matrix_columns(PAIRS);
            let row = pair * SIDE;
            for column in (0..PANEL).step_by(COLUMNS * LANES) {
                let (operands, sums) = (operands.at(row, column), sums.at(row, column));
                matrix_tile::<M, PAIRS, COLUMNS>(operands, sums);
            }
        });
    }
}

/// # Safety
/// x is in pairs, which have the rows; the sums, which are written as i32, have one more where their number is odd;
/// and the CPU has the instruction.
#[target_feature(enable = "neon,i8mm")]
pub(super) unsafe fn multiply_matrices_of_bytes(operands: Operands, rows: usize, sums: Sums) {
    // SAFETY: x, the panel and the sums have the pairs of rows and the words, as the caller vouches; `i8mm` is
    // enabled.
    unsafe { multiply_pairs::<Bytes>(operands, rows, sums) }
}

/// # Safety
/// As above, but that the sums are f32.
#[target_feature(enable = "neon,bf16")]
pub(super) unsafe fn multiply_matrices_of_bf16(operands: Operands, rows: usize, sums: Sums) {
    // SAFETY: x, the panel and the sums have the pairs of rows and the words, as the caller vouches; `bf16` is
    // enabled.
    unsafe { multiply_pairs::<Bf16s>(operands, rows, sums) }
}
