//! Sums of products of parts, level by level, in tiles. They are integers: their order does not matter.

use std::arch::asm;

use super::levels::Levels;
use super::Line;
use crate::cpu::product::amx::{Tiles, TILE};

/// Bytes of a line. The offsets in the assembly are those of tiles.
const LINE: usize = size_of::<Line>();
const _: () = assert!(TILE * LINE == 1024);

/// What sums a block of rows with half a panel: tiles, and in tests a model of them. The sums stay there from call
/// to call.
pub(crate) trait ByteTiles {
    /// Begins with zeros.
    fn clear(&self);

    /// Adds the products of a step.
    ///
    /// # Safety
    /// `rows` and `panel` hold it; of the rows those are read that the tiles have.
    unsafe fn add(&self, rows: *const Line, panel: *const Line);

    fn store(&self, levels: &mut Levels);
}

/// The compiler itself uses no tiles: nothing but these calls changes the first eight.
impl ByteTiles for Tiles {
    #[inline(always)]
    fn clear(&self) {
        // SAFETY: the tiles are configured, so the CPU has them; no memory is touched.
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

    #[inline(always)]
    unsafe fn add(&self, rows: *const Line, panel: *const Line) {
        // SAFETY: the lines of rows and panel have a step, as the caller vouches; the tiles are configured, so the
        // CPU has AMX.
        unsafe {
            asm!(
                "tileloadd tmm5, [{b} + {line}]",
                "tileloadd tmm4, [{a} + {line}]",
                "tdpbssd tmm0, tmm4, tmm5",
                "tileloadd tmm6, [{b} + {line} + 1024]",
                "tdpbssd tmm1, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {line} + 2048]",
                "tdpbssd tmm2, tmm4, tmm7",
                "tileloadd tmm4, [{a} + {line} + 1024]",
                "tdpbssd tmm1, tmm4, tmm5",
                "tdpbssd tmm2, tmm4, tmm6",
                "tdpbssd tmm3, tmm4, tmm7",
                "tileloadd tmm4, [{a} + {line} + 2048]",
                "tdpbssd tmm2, tmm4, tmm5",
                "tdpbssd tmm3, tmm4, tmm6",
                a = in(reg) rows,
                b = in(reg) panel,
                line = in(reg) LINE,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    #[inline(always)]
    fn store(&self, levels: &mut Levels) {
        // SAFETY: the tiles are configured, so the CPU has them, and have at most as many rows as the levels.
        unsafe {
            asm!(
                "tilestored [{to} + {line}], tmm0",
                "tilestored [{to} + {line} + 1024], tmm1",
                "tilestored [{to} + {line} + 2048], tmm2",
                "tilestored [{to} + {line} + 3072], tmm3",
                to = in(reg) levels.as_mut_ptr(),
                line = in(reg) LINE,
                options(nostack),
            );
        }
    }
}

/// Asks for lines that will be read soon; the address may be anything.
pub(super) fn ask_for(first: *const Line, lines: usize) {
    for line in 0..lines {
        // SAFETY: a prefetch touches nothing and cannot fault, at any address; SSE belongs to every x86-64.
        unsafe {
            asm!(
                "prefetcht0 [{}]",
                in(reg) first.wrapping_add(line),
                options(nostack, readonly, preserves_flags),
            );
        }
    }
}
