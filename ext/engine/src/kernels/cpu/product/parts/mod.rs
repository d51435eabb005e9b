//! Products of f32 by tiles of bytes. The numbers of a row, and the weights of an output, become integers
//! of 24 bits over one power of two, which is chosen by the largest of them: so no number is further off
//! than about 2⁻²³ of the largest. The integers are cut into three parts of a byte, and two numbers' product is
//! the sum of their parts' products, all but that of the two lowest. Tiles sum them exactly, and
//! `levels.rs` puts the sums together. `tests.rs` says how exact that is. The weights are cut when they
//! are laid out, and take three bytes each.
//!
//! Rows and matrices that hold an infinity, or nothing of a usual size, are multiplied in f32. That
//! depends on the row or on the matrix alone, and a row's results on nothing else.

mod cut;
mod levels;
#[cfg(test)]
mod tests;
mod tiles;

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::kernels::cpu::isa::Isa;
use crate::kernels::cpu::product::amx::{Tiles, TILE};
use crate::kernels::cpu::product::driver::{TaskRows, Tile};
use crate::kernels::cpu::product::panels::{pack_panels, PANEL};
use crate::kernels::cpu::product::store::Panels;
use crate::kernels::cpu::{build, for_each_range, Output};
use crate::Result;
use levels::{Joining, Levels};
use tiles::TileSums;

/// Inputs of a tile.
const STEP: usize = 64;

const PARTS: usize = 3;

/// Lines of a step, of 16 rows or of 16 outputs.
const LINES: usize = PARTS * TILE;

/// Lines of a panel that come before its parts: the units of its outputs.
const UNITS: usize = PANEL * size_of::<f32>() / size_of::<Line>();

/// Inputs at most: the sums of products of bytes stay in 32 bits.
const MOST_INPUTS: usize = 1 << 15;

/// Bytes that the parts of a task's rows and of a panel may take: half of the second-level cache, which
/// the weights and the sums pass through too.
const CACHE: usize = 1 << 20;

/// How many lines ahead of the arithmetic a panel is asked for.
const AHEAD: usize = 4 * LINES;

/// Rows of a task at most, but for what the cache says, and at least.
const MOST_ROWS: usize = 256;
const LEAST_ROWS: usize = 64;

/// The bits that the largest number of a row or of an output may have, unless it is 0: those of 2⁻¹⁰⁰ to
/// 2⁵⁰. Any sum of products is then finite.
const USUAL: Range<u32> = (127 - 100) << 23..(127 + 50) << 23;

/// A row of a tile: 64 parts, four by four.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line([u32; STEP / 4]);

type Lines = Vec<MaybeUninit<Line>>;

/// What the highest part counts where `largest` are the bits of the largest number; not a number if that
/// is not usual.
fn unit(largest: u32) -> f32 {
    // The largest integer has 127 in all of its parts: 2²³ is less than this times that, whatever rounds.
    const ROOM: f32 = 8_388_608.0 / 8_355_000.0;
    const EXPONENT: u32 = 0xff << 23;
    match largest {
        0 => 1.0,
        largest if USUAL.contains(&largest) => {
            let power = (f32::from_bits(largest) * ROOM).to_bits() & EXPONENT;
            f32::from_bits(power) / 64.0
        }
        _ => f32::NAN,
    }
}

/// What numbers are multiplied by to become integers, for the unit of their highest part.
fn factor(unit: f32) -> f32 {
    65536.0 / unit
}

/// The parts of a matrix [outputs, inputs], panel by panel; none without tiles, and of numbers that they
/// are not for.
pub(super) fn of_matrix(
    weight: &[f32],
    inputs: usize,
    outputs: usize,
) -> Result<Option<Panels<Line>>> {
    if Isa::current()? != Isa::Amx || inputs == 0 || inputs > MOST_INPUTS {
        return Ok(None);
    }
    let is_usual = AtomicBool::new(true);
    let panels = pack_panels(outputs, panel_lines(inputs), |panel: &mut [Line], first| {
        let (units, lines) = panel.split_at_mut(UNITS);
        let rows = weight.chunks(inputs).skip(first).take(PANEL);
        for (column, row) in rows.enumerate() {
            // SAFETY: whoever has tiles has AVX-512; the lines of a half panel are those of 16 rows.
            let unit = unsafe {
                let lines = &mut lines[column / TILE * lines_of(1, inputs)..];
                cut::cut_row(row, lines[column % TILE..].as_mut_ptr())
            };
            if unit.is_nan() {
                is_usual.store(false, Ordering::Relaxed);
            }
            units[column / TILE].0[column % TILE] = unit.to_bits();
        }
        lines.chunks_exact_mut(TILE).for_each(transpose);
    })?;
    Ok(is_usual.into_inner().then_some(panels))
}

/// A tile of outputs instead of rows: fours of inputs, one after the other.
fn transpose(tile: &mut [Line]) {
    for row in 1..TILE {
        let (above, below) = tile.split_at_mut(row);
        for (column, line) in above.iter_mut().enumerate() {
            std::mem::swap(&mut line.0[row], &mut below[0].0[column]);
        }
    }
}

/// Lines of so many rows.
fn lines_of(rows: usize, inputs: usize) -> usize {
    rows.div_ceil(TILE) * inputs.div_ceil(STEP) * LINES
}

fn panel_lines(inputs: usize) -> usize {
    UNITS + lines_of(PANEL, inputs)
}

/// One of the panels that `of_matrix` made.
pub(super) fn panel(panels: &[Line], inputs: usize, number: usize) -> &[Line] {
    let length = panel_lines(inputs);
    &panels[number * length..][..length]
}

/// The panel [inputs, 32] that lines were cut from, but for what that left out.
pub(super) fn join(lines: &[Line], panel: &mut [f32]) {
    let (units, lines) = lines.split_at(UNITS);
    for (input, numbers) in panel.chunks_exact_mut(PANEL).enumerate() {
        let (step, four, byte) = (input / STEP, input % STEP / 4, input % 4);
        for (column, number) in numbers.iter_mut().enumerate() {
            let (half, column) = (column / TILE, column % TILE);
            let tiles = &lines[half * lines.len() * TILE / PANEL..][step * LINES..][..LINES];
            let parts = tiles.chunks_exact(TILE).map(|tile| {
                let part = tile[four].0[column].to_le_bytes()[byte];
                f32::from(part.cast_signed())
            });
            let whole = parts.fold(0.0, |whole, part| 256.0 * whole + part);
            *number = whole / factor(f32::from_bits(units[half].0[column]));
        }
    }
}

/// The rows of a task: as many as stay in cache with a panel.
pub(super) fn task_rows(inputs: usize) -> TaskRows {
    let bytes = |rows| lines_of(rows, inputs) * size_of::<Line>();
    let rows = CACHE.saturating_sub(bytes(PANEL)) / bytes(1).max(1) * TILE;
    let most = rows.clamp(LEAST_ROWS, MOST_ROWS);
    TaskRows {
        most,
        unit: TILE,
        together: most,
        padded: false,
    }
}

/// Rows of x in parts, in blocks of 16, each [steps, `PARTS`, 16] lines.
pub(crate) struct CutRows {
    lines: Lines,
    /// Of the rows; not a number where a row is to be multiplied in f32.
    units: Vec<f32>,
}

impl CutRows {
    /// `x` is [rows, inputs].
    pub fn new(x: &[f32], inputs: usize) -> Self {
        let rows = x.len() / inputs;
        let mut lines = Lines::new();
        // SAFETY: every row has a unit; what is read of the lines is written.
        let units = unsafe {
            build(rows, |units: Output<f32>| {
                lines = build(
                    lines_of(rows, inputs),
                    |lines: Output<MaybeUninit<Line>>| {
                        for_each_range(rows, inputs, |range| {
                            for row in range {
                                let to = lines.at(first_line(row, inputs));
                                let unit = cut::cut_row(&x[row * inputs..][..inputs], to.cast());
                                units.at(row).write(unit);
                            }
                        })
                    },
                );
            })
        };
        Self { lines, units }
    }

    /// `new`, in the same memory.
    fn cut(&mut self, x: &[f32], inputs: usize) {
        let rows = x.len() / inputs;
        let count = lines_of(rows, inputs).max(self.lines.len());
        self.lines.resize(count, MaybeUninit::uninit());
        self.units.clear();
        for (row, numbers) in x.chunks_exact(inputs).enumerate() {
            let to = self.lines[first_line(row, inputs)..].as_mut_ptr();
            // SAFETY: there are lines for all rows, and whoever has tiles has AVX-512.
            self.units.push(unsafe { cut::cut_row(numbers, to.cast()) });
        }
    }
}

/// Where the lines of a row begin.
fn first_line(row: usize, inputs: usize) -> usize {
    lines_of(row / TILE * TILE, inputs) + row % TILE
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
                units: Vec::new(),
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
    let (panel_units, panel) = panel.split_at(UNITS);
    let half = lines_of(1, inputs);
    let blocks = &cut.lines[lines_of(first, inputs)..][..lines_of(tile.rows, inputs)];
    let units = &cut.units[first..][..tile.rows];
    let mut levels = Levels::NONE;
    let mut waiting = Joining::NONE;
    let halves = panel_units.iter().zip(panel.chunks_exact(half));
    for (column, (panel_units, panel)) in halves.enumerate() {
        let blocks = blocks.chunks_exact(half).zip(units.chunks(TILE));
        for (number, (block, units)) in blocks.enumerate() {
            // SAFETY: the block has the lines of its rows, and tiles have no more rows that matter; the
            // caller vouches for the sums.
            unsafe {
                let to = tile.sums.at(number * TILE, column * TILE);
                let is_far = number == 0;
                let sums = multiply_block(tiles, block, (panel, is_far), (&levels, &mut waiting));
                sums.store(&mut levels);
                waiting = Joining::new(units, panel_units, to);
            }
        }
    }
    // SAFETY: the last block was stored.
    unsafe { levels.join(&mut waiting, TILE) };
    for (row, _) in units.iter().enumerate().filter(|(_, unit)| unit.is_nan()) {
        multiply_exactly(row);
    }
}

/// The sums of a block of rows and half a panel. A panel that is `far` lies in memory and is asked for
/// ahead. Vectors join the levels of the last block, step by step, while tiles work on this one.
///
/// # Safety
/// The lines are a block's, and the panel is as deep; the levels are those of what waits to be joined.
unsafe fn multiply_block<'a>(
    tiles: &'a Tiles,
    block: &[MaybeUninit<Line>],
    (panel, far): (&[Line], bool),
    (levels, waiting): (&Levels, &mut Joining<'_>),
) -> TileSums<'a> {
    let mut sums = TileSums::new(tiles);
    let rows_of_step = TILE.div_ceil(block.len() / LINES);
    for (rows, panel) in block.chunks_exact(LINES).zip(panel.chunks_exact(LINES)) {
        if far {
            tiles::ask_for(panel.as_ptr().wrapping_add(AHEAD), LINES);
        }
        // SAFETY: rows and panel have the step; the caller vouches for the levels.
        unsafe {
            sums.add(rows.as_ptr().cast(), panel.as_ptr());
            levels.join(waiting, rows_of_step);
        }
    }
    sums
}
