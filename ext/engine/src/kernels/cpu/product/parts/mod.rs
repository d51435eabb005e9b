//! Products of f32 by tiles of bf16. A number is cut into two parts of bf16, which hold all of it but for
//! 2⁻¹⁷, and two numbers' product is the sum of their parts' four. `tests.rs` says how exact that is. The
//! weights are cut when they are laid out, and take as much memory as before.
//!
//! Tiles take numbers that are too small for zeros, and the parts of an infinity are not its own: rows and
//! matrices that hold any, or nothing of a usual size, are multiplied in f32. That depends on the row or
//! on the matrix alone, and a row's results on nothing else.

mod cut;
#[cfg(test)]
mod tests;
mod tiles;

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::kernels::cpu::isa::Isa;
use crate::kernels::cpu::product::amx::{Tiles, TILE};
use crate::kernels::cpu::product::driver::{Sums, TaskRows, Tile};
use crate::kernels::cpu::product::gemm::lay_out;
use crate::kernels::cpu::product::panels::{pack_panels, PANEL};
use crate::kernels::cpu::product::store::Panels;
use crate::kernels::cpu::{build, for_each_range, with_scratch, Output};
use crate::Result;
use tiles::TileSums;

/// Inputs of a tile.
const STEP: usize = 32;

/// Rows of a block: two tiles.
const ROWS: usize = 32;

const PARTS: usize = 2;

/// Lines of one part of a step, of a block of rows and of a panel.
const PART: usize = ROWS;

/// Lines and bytes of a step.
const LINES: usize = PARTS * PART;
const BYTES: usize = LINES * size_of::<Line>();

/// Bytes that the parts of a task's rows and of a panel may take: half of the second-level cache, which
/// the weights and the sums pass through too.
const CACHE: usize = 1 << 20;

/// How many lines ahead of the arithmetic a panel is asked for.
const AHEAD: usize = 4 * LINES;

/// Rows of a task at most, but for what the cache says, and at least.
const MOST_ROWS: usize = 256;
const LEAST_ROWS: usize = 64;

/// The bits that the largest number of a row or of a panel may have, unless it is 0: those of 2⁻⁵⁰ to
/// 2⁵⁰. Any sum of products is then finite, and what tiles take for 0 is below 2⁻⁷⁰.
const USUAL: Range<u32> = (127 - 50) << 23..(127 + 50) << 23;

/// A row of a tile.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line([u16; STEP]);

type Lines = Vec<MaybeUninit<Line>>;

/// The parts of a matrix [outputs, inputs], panel by panel; none without tiles, and of numbers that they
/// are not for.
pub(super) fn of_matrix(
    weight: &[f32],
    inputs: usize,
    outputs: usize,
) -> Result<Option<Panels<Line>>> {
    if Isa::current()? != Isa::Amx || inputs == 0 {
        return Ok(None);
    }
    let is_usual = AtomicBool::new(true);
    let panels = pack_panels(outputs, lines_of(1, inputs), |lines: &mut [Line], first| {
        with_scratch(inputs * PANEL, |panel| {
            panel.fill(0.0);
            lay_out(weight, inputs, first, panel);
            // SAFETY: whoever has tiles has AVX-512, and the lines are those of all steps.
            unsafe {
                if self::is_usual(cut::largest(panel)) {
                    cut::cut_panel(panel, lines.as_mut_ptr());
                } else {
                    is_usual.store(false, Ordering::Relaxed);
                }
            }
        });
    })?;
    Ok(is_usual.into_inner().then_some(panels))
}

/// One of the panels that `of_matrix` made.
pub(super) fn panel(panels: &[Line], inputs: usize, number: usize) -> &[Line] {
    let length = lines_of(1, inputs);
    &panels[number * length..][..length]
}

/// The panel [inputs, 32] that lines were cut from, but for what that left out.
pub(super) fn join(lines: &[Line], panel: &mut [f32]) {
    for (input, numbers) in panel.chunks_exact_mut(PANEL).enumerate() {
        let (step, pair, second) = (input / STEP, input % STEP / 2, input % 2);
        for (column, number) in numbers.iter_mut().enumerate() {
            let at = 2 * (pair * PANEL + column) + second;
            let part = |part: usize| {
                let Line(line) = &lines[step * LINES + part * PART + at / STEP];
                f32::from_bits(u32::from(line[at % STEP]) << 16)
            };
            *number = part(0) + part(1);
        }
    }
}

/// Of the bits of a largest number, without its sign.
fn is_usual(largest: u32) -> bool {
    largest == 0 || USUAL.contains(&largest)
}

/// The rows of a task: as many as stay in cache with a panel.
pub(super) fn task_rows(inputs: usize) -> TaskRows {
    let blocks = CACHE / (inputs.div_ceil(STEP).max(1) * BYTES);
    let blocks = blocks.saturating_sub(1);
    TaskRows {
        most: (blocks * ROWS).clamp(LEAST_ROWS, MOST_ROWS),
        unit: ROWS,
        padded: false,
    }
}

/// Rows of x in parts, in blocks of `ROWS`, each [steps, `PARTS`, `ROWS`] lines. The last block may end with
/// its first tile.
pub(crate) struct CutRows {
    lines: Lines,
    /// Which rows are to be multiplied in f32.
    unusual: Vec<bool>,
}

/// Lines of so many rows.
fn lines_of(rows: usize, inputs: usize) -> usize {
    rows.div_ceil(ROWS) * inputs.div_ceil(STEP) * LINES
}

impl CutRows {
    /// `x` is [rows, inputs].
    pub fn new(x: &[f32], inputs: usize) -> Self {
        let rows = x.len() / inputs;
        let mut lines = Lines::new();
        // SAFETY: every row says whether it is usual; what is read of the lines is written.
        let unusual = unsafe {
            build(rows, |unusual: Output<bool>| {
                lines = build(lines_of(rows, inputs), |lines: Output<_>| {
                    for_each_range(rows.div_ceil(ROWS), ROWS * inputs, |range| {
                        for block in range {
                            let (first, at) = (block * ROWS, lines_of(block * ROWS, inputs));
                            let fills_up = rows > TILE;
                            let (lines, unusual) = (lines.at(at), unusual.at(first));
                            cut_block(x, inputs, (first, fills_up), lines, unusual);
                        }
                    })
                });
            })
        };
        Self { lines, unusual }
    }

    /// `new`, in the same memory.
    fn cut(&mut self, x: &[f32], inputs: usize) {
        let rows = x.len() / inputs;
        let count = lines_of(rows, inputs).max(self.lines.len());
        self.lines.resize(count, MaybeUninit::uninit());
        self.unusual.resize(rows, false);
        for first in (0..rows).step_by(ROWS) {
            let lines = &mut self.lines[lines_of(first, inputs)..];
            let unusual = &mut self.unusual[first..];
            // SAFETY: there are lines for all rows.
            unsafe {
                cut_block(
                    x,
                    inputs,
                    (first, true),
                    lines.as_mut_ptr(),
                    unusual.as_mut_ptr(),
                )
            };
        }
    }
}

/// Cuts the rows of x from the first on that are in its block, and fills them up to whole tiles by zeros,
/// unless tiles have as many rows as x.
///
/// # Safety
/// There are the lines of a block, room for what the rows are, and the CPU has tiles.
unsafe fn cut_block(
    x: &[f32],
    inputs: usize,
    (first, fills_up): (usize, bool),
    lines: *mut MaybeUninit<Line>,
    unusual: *mut bool,
) {
    let x = &x[first * inputs..];
    let x = &x[..x.len().min(ROWS * inputs)];
    let rows = x.len() / inputs;
    // SAFETY: the caller vouches for the lines and the room.
    unsafe {
        for (row, numbers) in x.chunks_exact(inputs).enumerate() {
            unusual.add(row).write(!is_usual(cut::largest(numbers)));
        }
        cut::cut_rows(x.as_ptr(), inputs, rows, lines.cast());
        let padding = match fills_up {
            true => rows.next_multiple_of(TILE) - rows,
            false => 0,
        };
        for part in 0..inputs.div_ceil(STEP) * PARTS {
            lines.add(part * PART + rows).write_bytes(0, padding);
        }
    }
}

/// What a thread keeps while it multiplies: a task's rows.
pub(crate) struct Workspace {
    rows: CutRows,
    /// Which rows of x those are.
    held: Range<usize>,
}

thread_local! {
    static KEPT: Cell<Lines> = const { Cell::new(Vec::new()) };
}

impl Default for Workspace {
    fn default() -> Self {
        Self {
            rows: CutRows {
                lines: KEPT.take(),
                unusual: Vec::new(),
            },
            held: 0..0,
        }
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        KEPT.set(std::mem::take(&mut self.rows.lines));
    }
}

/// Rows of x, and in parts if there are few.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub x: &'a [f32],
    pub inputs: usize,
    pub cut: Option<&'a CutRows>,
}

/// The sums of some rows and a panel; `multiply_exactly` replaces those of a row that is not usual.
///
/// # Safety
/// x has the rows, which begin with a block, and the sums have room for them; the panel is as deep; the
/// workspace saw no other x. Tiles have as many rows as all of x, or 16.
pub(super) unsafe fn multiply(
    tiles: &Tiles,
    workspace: &mut Workspace,
    rows: Rows<'_>,
    panel: &[Line],
    tile: Tile,
    multiply_exactly: impl Fn(usize),
) {
    let Rows { x, inputs, cut } = rows;
    let range = tile.row..tile.row + tile.rows;
    let (cut, first) = match cut {
        Some(cut) => (cut, tile.row),
        None => {
            let Workspace { rows, held } = workspace;
            if *held != range {
                rows.cut(&x[range.start * inputs..range.end * inputs], inputs);
                *held = range;
            }
            (&*rows, 0)
        }
    };
    let mut padded = Padded::NONE;
    let blocks = &cut.lines[lines_of(first, inputs)..][..lines_of(tile.rows, inputs)];
    for (number, block) in blocks.chunks_exact(lines_of(1, inputs)).enumerate() {
        let row = number * ROWS;
        let rows = ROWS.min(tile.rows - row);
        let is_first = number == 0;
        // SAFETY: the block has the lines of its rows and what its tiles read beyond; the caller vouches for
        // the sums of whole blocks.
        unsafe {
            let to = tile.sums.at(row, 0);
            if rows == ROWS || rows == tiles.rows_of_a() {
                multiply_block(tiles, block, (panel, is_first), rows, to);
            } else {
                multiply_block(tiles, block, (panel, is_first), rows, padded.sums());
                padded.copy(rows, to);
            }
        }
    }
    let unusual = cut.unusual[first..][..tile.rows].iter();
    for (row, _) in unusual.enumerate().filter(|(_, &unusual)| unusual) {
        multiply_exactly(row);
    }
}

/// The sums of a block of rows. A panel that is `far` lies in memory and is asked for ahead.
///
/// # Safety
/// The lines are a block's, the panel is as deep, and the sums have room for the rows of its tiles.
unsafe fn multiply_block(
    tiles: &Tiles,
    block: &[MaybeUninit<Line>],
    (panel, far): (&[Line], bool),
    rows: usize,
    to: Sums,
) {
    let mut sums = TileSums::new(tiles, rows > TILE);
    let steps = block.len() / LINES;
    // SAFETY: rows and panel have the steps; the caller vouches for the rest.
    unsafe {
        sums.clear();
        sums.expect(rows, to);
        if far {
            for (rows, panel) in block.chunks_exact(LINES).zip(panel.chunks_exact(LINES)) {
                tiles::ask_for(panel.as_ptr().wrapping_add(AHEAD).cast(), LINES);
                sums.add(rows.as_ptr().cast(), panel.as_ptr().cast(), 1);
            }
        } else {
            sums.add(block.as_ptr().cast(), panel.as_ptr().cast(), steps);
        }
        sums.store(to);
    }
}

/// The sums of a block that has fewer rows than its tiles.
#[repr(C, align(64))]
struct Padded([[MaybeUninit<f32>; PANEL]; ROWS]);

impl Padded {
    const NONE: Self = Self([[MaybeUninit::uninit(); PANEL]; ROWS]);

    fn sums(&mut self) -> Sums {
        Sums {
            start: self.0.as_mut_ptr().cast(),
            stride: PANEL,
        }
    }

    /// # Safety
    /// So many rows have been stored; `to` has them, and a panel's columns of each.
    unsafe fn copy(&self, rows: usize, to: Sums) {
        for (row, sums) in self.0[..rows].iter().enumerate() {
            // SAFETY: the caller vouches for the row.
            unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr().cast(), to.row(row), PANEL) };
        }
    }
}
