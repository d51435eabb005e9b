//! Rows of bytes times one panel in Intel's tiles: the integers are summed there, eight rows with their
//! planes at a time, and what is rounded is rounded by the steps of `product`.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::format::{for_format, Format, GROUP, PANEL};
use super::integers::Integers;
use super::product::{
    add_second_run, add_sums, codes, fetch_ahead, levels, scale_first_run, shared, Panels, Place,
    RowSums, Rows, AHEAD,
};
use super::quantize::{QuantizedRows, PLANES, TILE_ROWS};
use super::x86::Avx512Dot;
use crate::kernels::cpu::product::amx::{multiply_group, Tiles, TILE};
use crate::kernels::cpu::product::driver::{Sums, Tile};
use crate::kernels::cpu::simd::{Avx512, Simd};
use crate::quant::BlockType;

const _: () = assert!(TILE_ROWS * PLANES == TILE && PANEL == TILE);

/// Groups whose codes are laid open at once: with the sums, half of the first-level cache.
const BATCH: usize = 24;
/// How many groups vectors are behind the tiles, so that neither waits for the other.
const BEHIND: usize = 2;
/// Groups whose sums there is room for.
const RING: usize = 2 * BEHIND;
/// Bytes of a group's codes, and of its rows of x.
const OPEN: usize = PANEL * GROUP;
const FILLED: usize = TILE * GROUP;
/// Sums of a tile.
const CELLS: usize = TILE * PANEL;

/// What a batch goes through: codes, signed, and the sums of one tile of rows and of the latest groups,
/// two for each where its runs are summed apart.
#[repr(C, align(64))]
struct Room {
    codes: [[i8; OPEN]; BATCH],
    sums: [[i32; CELLS]; 2 * RING],
}

/// The tiles of a thread, and what they are configured for.
#[derive(Default)]
pub(crate) struct Workspace(Option<(usize, Tiles)>);

impl Workspace {
    /// Tiles for rows of groups, or of runs.
    fn tiles(&mut self, depth: usize) -> &Tiles {
        if self.0.as_ref().is_some_and(|(before, _)| *before != depth) {
            self.0 = None;
        }
        // SAFETY: rows are tiled where the CPU has tiles; groups and runs are whole fours.
        let make = || (depth, unsafe { Tiles::for_groups(depth) });
        &self.0.get_or_insert_with(make).1
    }
}

/// The sums of the tile's rows of x and the panels.
///
/// # Safety
/// x is `tiled`, has the tile's rows, which begin with a tile of x, of as many groups as the panels; the
/// sums have room for them.
pub(super) unsafe fn multiply_panels(
    workspace: &mut Workspace,
    panels: &Panels<'_>,
    x: &QuantizedRows,
    tile: Tile,
) {
    let width = panels.inputs / GROUP;
    for panel in 0..panels.count {
        let operands = Operands {
            panel: panels.at(panel),
            x: x.bytes[tile.row * PLANES * panels.inputs..].as_ptr(),
            rows: Rows::new(x, tile.row, width),
            count: tile.rows,
            // SAFETY: the caller vouches for the sums.
            sums: unsafe { tile.sums.at(0, panel * PANEL) },
        };
        for_format!(
            panels.kind,
            F => {
                let depth = if F::RUNS { GROUP / 2 } else { GROUP };
                let tiles = workspace.tiles(depth);
                // SAFETY: the caller vouches for the operands; a CPU with tiles has the features.
                unsafe { multiply::<F>(tiles, operands) }
            },
            ()
        );
    }
}

#[derive(Clone, Copy)]
struct Operands {
    panel: *const u8,
    x: *const i8,
    rows: Rows,
    count: usize,
    sums: Sums,
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn multiply<F: Format>(tiles: &Tiles, operands: Operands) {
    let mut room = MaybeUninit::<Room>::uninit();
    let levels = levels::<F>();
    let Operands { rows, .. } = operands;
    // SAFETY: batches write what they read; the caller vouches for the operands.
    unsafe {
        let (open, found) = {
            let room = room.as_mut_ptr();
            (
                (&raw mut (*room).codes).cast::<i8>(),
                (&raw mut (*room).sums).cast::<i32>(),
            )
        };
        let mut at = operands.panel;
        let mut group = 0;
        while group < rows.width {
            let count = BATCH.min(rows.width - group);
            for number in 0..count {
                let from = place_of::<F>(at, number);
                fetch_ahead(from, AHEAD, F::GROUP_BYTES);
                lay_open::<F>(from, &levels, open.add(number * OPEN));
            }
            for first in (0..operands.count).step_by(TILE_ROWS) {
                let tile = first / TILE_ROWS * rows.width + group;
                let batch = Batch {
                    at,
                    x: operands.x.add(tile * FILLED),
                    open,
                    first: group,
                    count,
                    found,
                    rows: rows.starting_at(first),
                    wanted: TILE_ROWS.min(operands.count - first),
                    sums: operands.sums.at(first, 0),
                };
                match batch.wanted > TILE_ROWS / 2 {
                    true => batch.add::<F, TILE_ROWS>(tiles),
                    false => batch.add::<F, { TILE_ROWS / 2 }>(tiles),
                }
            }
            at = at.add(count / F::GROUPS * F::BLOCK_BYTES);
            group += count;
        }
    }
}

/// Where a group of a batch begins, of which `at` is the first block.
#[inline(always)]
unsafe fn place_of<F: Format>(at: *const u8, number: usize) -> *const u8 {
    let block = number / F::GROUPS * F::BLOCK_BYTES + F::HEADER_BYTES;
    // SAFETY: the caller vouches for the group.
    unsafe { at.add(block + number % F::GROUPS * F::GROUP_BYTES) }
}

/// The codes of a group as signed bytes, step after step.
#[inline(always)]
unsafe fn lay_open<F: Format>(from: *const u8, levels: &[u8; 16], to: *mut i8) {
    // SAFETY: the caller vouches for the group and for room.
    unsafe {
        let none = <Avx512 as Simd>::splat(0.0);
        let (low, high) = Place::new::<F>([none; 2], from, 0).planes;
        let offset = if F::WIDE { 128 } else { F::OFFSET };
        macro_rules! steps {
            ($($step:literal)*) => {
                $({
                    let codes = codes::<Avx512Dot, F, $step>(low, high, levels);
                    let codes = match offset {
                        0 => codes,
                        _ => _mm512_sub_epi8(codes, _mm512_set1_epi8(offset as i8)),
                    };
                    _mm512_storeu_si512(to.add(64 * $step).cast(), codes);
                })*
            };
        }
        steps!(0 1 2 3 4 5 6 7);
    }
}

/// Some groups of a panel, and one tile of rows.
struct Batch {
    /// The first block.
    at: *const u8,
    /// The rows' bytes, and the codes that were laid open.
    x: *const i8,
    open: *const i8,
    /// The groups.
    first: usize,
    count: usize,
    /// Room for the sums of tiles.
    found: *mut i32,
    rows: Rows,
    /// How many of the rows there are.
    wanted: usize,
    sums: Sums,
}

/// Sums that a tile has stored.
struct Found(*const i32);

impl RowSums<Avx512Dot> for Found {
    #[inline(always)]
    unsafe fn of(&self, row: usize) -> [__m512i; PLANES] {
        // SAFETY: the caller vouches for the row, which has its planes side by side.
        unsafe {
            let from = self.0.add(row * PLANES * PANEL);
            [
                Avx512Dot::load(from.cast()),
                Avx512Dot::load(from.add(PANEL).cast()),
            ]
        }
    }
}

impl Batch {
    /// Where the sums of a group are found.
    #[inline(always)]
    unsafe fn found(&self, number: usize) -> *mut i32 {
        // SAFETY: there is room for the ring.
        unsafe { self.found.add(number % RING * 2 * CELLS) }
    }

    /// Has tiles sum up a group.
    #[inline(always)]
    unsafe fn multiply<F: Format>(&self, tiles: &Tiles, number: usize) {
        // SAFETY: the caller vouches for the group.
        unsafe {
            let (x, open) = (self.x.add(number * FILLED), self.open.add(number * OPEN));
            let found = self.found(number);
            if F::RUNS {
                let (x_of_run, open_of_run) = (x.add(GROUP / 2), open.add(OPEN / 2));
                multiply_group::<0>(tiles, (x, GROUP), open, found);
                multiply_group::<1>(tiles, (x_of_run, GROUP), open_of_run, found.add(CELLS));
            } else if number.is_multiple_of(2) {
                multiply_group::<0>(tiles, (x, GROUP), open, found);
            } else {
                multiply_group::<1>(tiles, (x, GROUP), open, found);
            }
        }
    }

    /// Scales the sums of `R` rows, of which the last may be none, and adds them up.
    #[inline(always)]
    unsafe fn add<F: Format, const R: usize>(&self, tiles: &Tiles) {
        // SAFETY: the caller vouches for the batch and its sums.
        unsafe {
            let mut totals = [<Avx512 as Simd>::splat(0.0); R];
            if self.first > 0 {
                for (row, total) in totals.iter_mut().enumerate().take(self.wanted) {
                    *total = <Avx512 as Simd>::load(self.sums.row(row));
                }
            }
            for number in 0..self.count + BEHIND {
                if number < self.count {
                    self.multiply::<F>(tiles, number);
                }
                if let Some(summed) = number.checked_sub(BEHIND) {
                    self.add_group::<F, R>(&mut totals, summed);
                }
            }
            for (row, total) in totals.into_iter().enumerate().take(self.wanted) {
                <Avx512 as Simd>::store(self.sums.row(row), total);
            }
        }
    }

    #[inline(always)]
    unsafe fn add_group<F: Format, const R: usize>(
        &self,
        totals: &mut [<Avx512 as Simd>::V; R],
        number: usize,
    ) {
        // SAFETY: the caller vouches for the group.
        unsafe {
            let block = self.at.add(number / F::GROUPS * F::BLOCK_BYTES);
            let place = Place::new::<F>(
                shared::<Avx512Dot, F>(block, 0),
                place_of::<F>(self.at, number),
                0,
            );
            let (group, found) = (self.first + number, self.found(number));
            if F::RUNS {
                let [first, second] = [Found(found), Found(found.add(CELLS))];
                let first = scale_first_run::<Avx512Dot, R>(&place, &first);
                let sums = (first, &second);
                add_second_run::<Avx512Dot, F, R>(totals, &place, sums, &self.rows, group);
            } else {
                let sums = &Found(found);
                add_sums::<Avx512Dot, F, R>(totals, &place, sums, &self.rows, group);
            }
        }
    }
}
