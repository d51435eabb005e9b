//! Tiles of two parts, high and middle, of the numbers of both factors.
//!
//! Every sum is added in one order, in a tile alone as in a block: step by step middle · middle,
//! middle · high, high · high, high · middle.

use std::arch::asm;

use super::{BYTES, ROWS, STEP};
use crate::kernels::cpu::product::amx::{Tiles, TILE};
use crate::kernels::cpu::product::driver::Sums;
use crate::kernels::cpu::product::panels::PANEL;

/// Bytes of a row of a tile of rows, and of a row of pairs of a panel.
const ROW: usize = 2 * STEP;
const PAIRS: usize = 4 * PANEL;

/// Bytes of one part of a step: of `ROWS` rows, or of a panel. The offsets in the assembly are halves
/// and multiples of it.
const PART: usize = ROWS * ROW;
const _: () = assert!(PART == 2048 && PART == TILE * PAIRS && BYTES == 2 * PART);

/// The sums of a block of rows, or of half a block, with a panel. They stay in the tiles from call to
/// call: the compiler itself uses none.
pub(super) struct TileSums<'a> {
    _tiles: &'a Tiles,
    is_block: bool,
}

impl<'a> TileSums<'a> {
    /// The tiles are for these sums alone.
    pub fn new(tiles: &'a Tiles, is_block: bool) -> Self {
        Self {
            _tiles: tiles,
            is_block,
        }
    }

    pub fn clear(&mut self) {
        // SAFETY: the tiles are configured.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, nomem),
            );
        }
    }

    /// Asks for the memory that so many rows of sums will be stored to: most of it is in no cache.
    ///
    /// # Safety
    /// There is room for them.
    pub unsafe fn expect(&self, rows: usize, to: Sums) {
        for row in 0..rows {
            // SAFETY: asking touches nothing; every CPU with tiles knows how.
            unsafe {
                asm!(
                    "prefetchw [{to}]",
                    "prefetchw [{to} + 64]",
                    to = in(reg) to.row(row),
                    options(nostack, readonly, preserves_flags),
                );
            }
        }
    }

    /// # Safety
    /// There is room for the rows that the tiles have, and a panel's columns.
    pub unsafe fn store(&mut self, to: Sums) {
        // SAFETY: the caller vouches for the sums, and the tiles are configured.
        unsafe {
            asm!(
                "tilestored [{to} + {stride}], tmm0",
                "tilestored [{to} + {stride} + 64], tmm1",
                to = in(reg) to.start,
                stride = in(reg) size_of::<f32>() * to.stride,
                options(nostack),
            );
            if self.is_block {
                asm!(
                    "tilestored [{to} + {stride}], tmm2",
                    "tilestored [{to} + {stride} + 64], tmm3",
                    to = in(reg) to.row(TILE),
                    stride = in(reg) size_of::<f32>() * to.stride,
                    options(nostack),
                );
            }
        }
    }

    /// Adds the products of some steps.
    ///
    /// # Safety
    /// `rows` and `panel` hold so many, at least one; of the rows those are read that the sums are of.
    pub unsafe fn add(&mut self, rows: *const u8, panel: *const u8, steps: usize) {
        // SAFETY: the caller vouches for the steps, and the tiles are configured.
        unsafe {
            match self.is_block {
                true => add_block(rows, panel, steps),
                false => add_tile(rows, panel, steps),
            }
        }
    }
}

macro_rules! each_step {
    ($name:ident: $($line:literal,)*) => {
        /// # Safety
        /// As `TileSums::add`; the tiles are configured.
        #[inline(always)]
        unsafe fn $name(rows: *const u8, panel: *const u8, steps: usize) {
            // SAFETY: the caller vouches for the steps.
            unsafe {
                asm!(
                    "2:",
                    $($line,)*
                    "add {a}, {step}",
                    "add {b}, {step}",
                    "dec {steps}",
                    "jnz 2b",
                    a = inout(reg) rows => _,
                    b = inout(reg) panel => _,
                    steps = inout(reg) steps => _,
                    row = in(reg) ROW,
                    pairs = in(reg) PAIRS,
                    step = const BYTES,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, readonly),
                );
            }
        }
    };
}

each_step!(add_block:
    "tileloadd tmm6, [{b} + {pairs} + 2048]",
    "tileloadd tmm4, [{a} + {row} + 2048]",
    "tileloadd tmm7, [{b} + {pairs} + 2112]",
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tileloadd tmm5, [{a} + {row} + 3072]",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tileloadd tmm6, [{b} + {pairs}]",
    "tdpbf16ps tmm3, tmm5, tmm7",
    "tileloadd tmm7, [{b} + {pairs} + 64]",
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tileloadd tmm4, [{a} + {row}]",
    "tdpbf16ps tmm3, tmm5, tmm7",
    "tileloadd tmm5, [{a} + {row} + 1024]",
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tileloadd tmm6, [{b} + {pairs} + 2048]",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tdpbf16ps tmm3, tmm5, tmm7",
    "tileloadd tmm7, [{b} + {pairs} + 2112]",
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tdpbf16ps tmm2, tmm5, tmm6",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tdpbf16ps tmm3, tmm5, tmm7",
);

each_step!(add_tile:
    "tileloadd tmm2, [{b} + {pairs} + 2048]",
    "tileloadd tmm4, [{a} + {row} + 2048]",
    "tileloadd tmm3, [{b} + {pairs} + 2112]",
    "tdpbf16ps tmm0, tmm4, tmm2",
    "tdpbf16ps tmm1, tmm4, tmm3",
    "tileloadd tmm6, [{b} + {pairs}]",
    "tileloadd tmm7, [{b} + {pairs} + 64]",
    "tdpbf16ps tmm0, tmm4, tmm6",
    "tdpbf16ps tmm1, tmm4, tmm7",
    "tileloadd tmm5, [{a} + {row}]",
    "tdpbf16ps tmm0, tmm5, tmm6",
    "tdpbf16ps tmm1, tmm5, tmm7",
    "tdpbf16ps tmm0, tmm5, tmm2",
    "tdpbf16ps tmm1, tmm5, tmm3",
);

/// Asks for lines that will be read soon; the address may be anything.
pub(super) fn ask_for(first: *const u8, lines: usize) {
    for line in 0..lines {
        // SAFETY: asking touches nothing.
        unsafe {
            asm!(
                "prefetcht0 [{0}]",
                in(reg) first.wrapping_add(line * ROW),
                options(nostack, readonly, preserves_flags),
            );
        }
    }
}
