//! Products of f32 by int8 tiles. The numbers of a row, and the weights of an output, become integers
//! of 24 bits over one power of two, which `scale.rs` chooses. The integers are cut into three parts of a byte, and
//! two numbers' product is the sum of their parts' products, all but that of the two lowest. Tiles sum
//! them exactly, and `levels.rs` puts the sums together. Numbers that are far larger than the others of
//! their row or output are multiplied in f32 instead (`outliers.rs`). `tests.rs` compares the error with that of f32.
//! The weights are cut when they are laid out.
//!
//! Rows and matrices that hold an infinity, or nothing of a usual size, are multiplied in f32. That
//! depends on the row or on the matrix alone, and a row's results on nothing else.

mod cut;
mod levels;
mod matrix;
#[cfg(test)]
mod model;
#[cfg(test)]
mod outlier_tests;
mod outliers;
mod scale;
#[cfg(test)]
mod tests;
mod tiles;

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::cpu::product::amx::TILE;
use crate::cpu::product::driver::{TaskRows, Tile};
use crate::cpu::product::panels::PANEL;
use crate::cpu::{build, for_each_range, Output};
use levels::{Joining, Levels};
pub(super) use matrix::Matrix;
use matrix::UNITS;
use outliers::Outlier;
pub(super) use tiles::ByteTiles;

/// Inputs of a tile.
const STEP: usize = 64;

const PARTS: usize = 3;

/// Lines of a step, of 16 rows or of 16 outputs.
const LINES: usize = PARTS * TILE;

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

/// A row of a tile: 64 parts, four by four.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line([u32; STEP / 4]);

type Lines = Vec<MaybeUninit<Line>>;

/// Lines of so many rows.
fn lines_of(rows: usize, inputs: usize) -> usize {
    rows.div_ceil(TILE) * inputs.div_ceil(STEP) * LINES
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
pub struct CutRows {
    lines: Lines,
    /// Of the rows; not a number where a row is to be multiplied in f32.
    units: Vec<f32>,
    /// Of the rows, in order.
    outliers: Vec<Outlier>,
}

impl CutRows {
    /// `x` is [rows, inputs]; the CPU has AVX-512.
    pub fn new(x: &[f32], inputs: usize) -> Self {
        let rows = x.len() / inputs;
        let mut lines = Lines::new();
        let all = Mutex::new(Vec::new());
        // SAFETY: every row has a unit; what is read of the lines is written; the caller has AVX-512.
        let units = unsafe {
            build(rows, |units: Output<f32>| {
                lines = build(
                    lines_of(rows, inputs),
                    |lines: Output<MaybeUninit<Line>>| {
                        for_each_range(rows, inputs, |range| {
                            let mut outliers = Vec::new();
                            for row in range {
                                let to = lines.at(first_line(row, inputs)).cast();
                                let numbers = &x[row * inputs..][..inputs];
                                let unit = cut::cut_row((row, numbers), to, &mut outliers);
                                units.at(row).write(unit);
                            }
                            if !outliers.is_empty() {
                                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                                all.append(&mut outliers);
                            }
                        })
                    },
                );
            })
        };
        let mut outliers = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        outliers.sort_unstable();
        Self {
            lines,
            units,
            outliers,
        }
    }

    /// `new`, in the same memory.
    fn cut(&mut self, x: &[f32], inputs: usize) {
        let rows = x.len() / inputs;
        let count = lines_of(rows, inputs).max(self.lines.len());
        self.lines.resize(count, MaybeUninit::uninit());
        self.units.clear();
        self.outliers.clear();
        for (row, numbers) in x.chunks_exact(inputs).enumerate() {
            let to = self.lines[first_line(row, inputs)..].as_mut_ptr().cast();
            // SAFETY: there are lines for all rows, and a matrix in parts exists only with AVX-512.
            let unit = unsafe { cut::cut_row((row, numbers), to, &mut self.outliers) };
            self.units.push(unit);
        }
        self.outliers.sort_unstable();
    }
}

/// Where the lines of a row begin.
fn first_line(row: usize, inputs: usize) -> usize {
    lines_of(row / TILE * TILE, inputs) + row % TILE
}

/// What a thread keeps while it multiplies: a task's rows.
pub struct Workspace {
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
                outliers: Vec::new(),
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

/// The sums of some rows and a panel. `multiply_exactly` replaces those of rows that are not usual, given
/// the panel in f32, the first row and their number.
///
/// # Safety
/// x has the rows, which begin with a block, and the sums have room for them; the matrix is as deep; the
/// workspace saw no other x. Tiles have as many rows as all of x, or 16.
pub(super) unsafe fn multiply<T: ByteTiles>(
    tiles: &T,
    workspace: &mut Workspace,
    rows: Rows<'_>,
    matrix: &Matrix,
    tile: Tile,
    multiply_exactly: impl Fn(&[f32], usize, usize),
) {
    let Rows { x, inputs, cut } = rows;
    let range = tile.row..tile.row + tile.rows;
    let x = &x[range.start * inputs..range.end * inputs];
    let (cut, first) = match cut {
        Some(cut) => (cut, tile.row),
        None => {
            let Workspace { rows, held } = workspace;
            if *held != range {
                rows.cut(x, inputs);
                *held = range;
            }
            (&*rows, 0)
        }
    };
    // While tiles work, what the outliers will read comes into the cache.
    outliers::ask_for(matrix, tile.panel, &cut.outliers);
    let units = &cut.units[first..][..tile.rows];
    let blocks = &cut.lines[lines_of(first, inputs)..][..lines_of(tile.rows, inputs)];
    // SAFETY: the blocks are those of the rows; the caller vouches for the rest.
    unsafe { multiply_parts(tiles, (blocks, units), matrix.panel(tile.panel), tile) };
    let split = &matrix.columns(tile.panel).split;
    // SAFETY: the sums have all rows of the tile, and a matrix in parts exists only with AVX-512.
    unsafe {
        if !split.is_empty() {
            outliers::add_columns(split, x, inputs, tile.sums);
        }
        if !cut.outliers.is_empty() {
            let own = |outlier: &Outlier| (first..first + tile.rows).contains(&outlier.row);
            let outliers = cut.outliers.iter().copied().filter(own);
            outliers::add_outliers(matrix, tile.panel, outliers, first, tile.sums);
        }
    }
    if units.iter().any(|unit| unit.is_nan()) {
        let numbers = matrix.numbers(tile.panel);
        let mut row = 0;
        for rows in units.chunk_by(|a, b| a.is_nan() == b.is_nan()) {
            if rows[0].is_nan() {
                multiply_exactly(&numbers, row, rows.len());
            }
            row += rows.len();
        }
    }
}

/// The sums of the parts of some rows, which have these units, and a panel.
///
/// # Safety
/// As for `multiply`.
unsafe fn multiply_parts<T: ByteTiles>(
    tiles: &T,
    (blocks, units): (&[MaybeUninit<Line>], &[f32]),
    panel: &[Line],
    tile: Tile,
) {
    let (panel_units, panel) = panel.split_at(UNITS);
    let half = panel.len() / 2;
    let mut levels = Levels::NONE;
    let mut waiting = Joining::NONE;
    let halves = panel_units.iter().zip(panel.chunks_exact(half));
    for (column, (panel_units, panel)) in halves.enumerate() {
        let blocks = blocks.chunks_exact(half).zip(units.chunks(TILE));
        for (number, (block, units)) in blocks.enumerate() {
            // SAFETY: the block has the lines of its rows, and tiles have no more rows that matter; the caller
            // vouches for the sums and the CPU.
            unsafe {
                let to = tile.sums.at(number * TILE, column * TILE);
                let is_far = number == 0;
                multiply_block(tiles, block, (panel, is_far), (&levels, &mut waiting));
                tiles.store(&mut levels);
                waiting = Joining::new(units, panel_units, to);
            }
        }
    }
    // SAFETY: the last block was stored, and its sums have room as above; the caller vouches for the CPU.
    unsafe { levels.join(&mut waiting, TILE) };
}

/// The sums of a block of rows and half a panel, in the tiles. A panel that is `far` lies in memory and is asked
/// for ahead. Vectors join the levels of the last block, step by step, while tiles work on this one.
///
/// # Safety
/// The lines are a block's, and the panel is as deep; the levels are those of what waits to be joined.
unsafe fn multiply_block<T: ByteTiles>(
    tiles: &T,
    block: &[MaybeUninit<Line>],
    (panel, far): (&[Line], bool),
    (levels, waiting): (&Levels, &mut Joining<'_>),
) {
    tiles.clear();
    let rows_of_step = TILE.div_ceil(block.len() / LINES);
    for (rows, panel) in block.chunks_exact(LINES).zip(panel.chunks_exact(LINES)) {
        if far {
            tiles::ask_for(panel.as_ptr().wrapping_add(AHEAD), LINES);
        }
        // SAFETY: rows and panel have the step; the caller vouches for the levels; matrices in parts exist only with
        // AVX-512.
        unsafe {
            tiles.add(rows.as_ptr().cast(), panel.as_ptr());
            levels.join(waiting, rows_of_step);
        }
    }
}
