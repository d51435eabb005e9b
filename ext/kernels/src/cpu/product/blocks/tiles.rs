//! Many rows of x times one panel in Intel's tiles of bf16, 16 rows at a time. Codes and the parts of x's
//! whole numbers are exact in bf16, and so are their sums in f32; what is rounded is rounded by the steps
//! of `product`.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::format::{for_format, Format, GROUP, PANEL};
use super::place::Place;
use super::product::{
    add_second_run, add_sums, codes, fetch_ahead, levels, scale_first_run, shared, Panels, RowSums,
    AHEAD,
};
use super::tile_rows::{Kept, TileRows, FILLED, KEPT, LARGEST};
use super::x86::Avx512Dot;
use crate::cpu::product::amx::{multiply_group, Tiles, TILE};
use crate::cpu::product::driver::{Sums, Tile};
use crate::cpu::simd::{Avx512, Simd};
use base::quant::BlockType;

const _: () = assert!(PANEL == TILE && super::TILE_ROWS == TILE && CELLS * 4 == 1024);

/// Groups whose codes are unpacked at once, but for what blocks of several groups are more: they stay in
/// the first-level cache.
const BATCH: usize = 12;
/// Groups whose codes there is room for.
const MOST_OPEN: usize = BATCH.next_multiple_of(8);
/// How many groups vectors are behind the tiles, so that neither waits for the other.
const BEHIND: usize = 1;
/// Groups whose sums there is room for.
const RING: usize = 2 * BEHIND;
/// Codes of a group.
const OPEN: usize = PANEL * GROUP;
/// Sums of a tile.
const CELLS: usize = TILE * PANEL;
/// Codes that are looked up as bf16.
const LOOKED_UP: usize = 64;

/// What a batch goes through: codes as bf16, and the sums of one tile of rows and of the latest groups,
/// two for each where they are summed apart.
#[repr(C, align(64))]
struct Room {
    codes: [[u16; OPEN]; MOST_OPEN],
    sums: [[f32; CELLS]; 2 * RING],
}

/// Whether the sums of both parts of x would not be exact together.
const fn is_apart<F: Format>() -> bool {
    let apart = F::MOST as i64 * F::RUN as i64 * LARGEST as i64 >= 1 << 24;
    assert!(!(apart && F::RUNS));
    apart
}

/// The tiles of a thread, and what they are configured for.
#[derive(Default)]
pub struct Workspace(Option<(usize, Tiles)>);

impl Workspace {
    /// Tiles for rows of groups, or of runs.
    fn tiles(&mut self, depth: usize) -> &Tiles {
        if self.0.as_ref().is_some_and(|(before, _)| *before != depth) {
            self.0 = None;
        }
        // SAFETY: rows are tiled where the CPU has tiles; groups and runs are whole pairs.
        let make = || (depth, unsafe { Tiles::for_groups(2 * depth) });
        &self.0.get_or_insert_with(make).1
    }
}

/// The sums of the tile's rows of x and the panels.
///
/// # Safety
/// x has the tile's rows, which begin with a tile of x, of as many groups as the panels; the sums have
/// room for them.
pub(super) unsafe fn multiply_panels(
    workspace: &mut Workspace,
    panels: &Panels<'_>,
    x: &TileRows,
    tile: Tile,
) {
    let width = panels.inputs / GROUP;
    let first = tile.row / TILE * width;
    for panel in 0..panels.count {
        let operands = Operands {
            panel: panels.at(panel),
            width,
            x: x.halves[first * 2 * FILLED..].as_ptr(),
            kept: x.kept[first * KEPT..].as_ptr(),
            count: tile.rows,
            // SAFETY: the caller vouches for the sums.
            sums: unsafe { tile.sums.at(0, panel * PANEL) },
        };
        // SAFETY: x has `count` rows of whole groups and the panel as many groups, the sums have room for the rows,
        // as the caller vouches; a CPU with AMX has the AVX-512 features of `multiply`.
        unsafe {
            for_format!(
                panels.kind,
                F => multiply::<F>(workspace.tiles(F::RUN), operands),
                ()
            );
        }
    }
}

#[derive(Clone, Copy)]
struct Operands {
    panel: *const u8,
    width: usize,
    x: *const u16,
    kept: *const f32,
    count: usize,
    sums: Sums,
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn multiply<F: Format>(tiles: &Tiles, operands: Operands) {
    let mut room = MaybeUninit::<Room>::uninit();
    let halves = Halves::new::<F>();
    let width = operands.width;
    // SAFETY: a batch writes what it reads of `room`; panel, x and sums are valid for the groups and rows, as the
    // caller vouches; the AVX-512 features are enabled, and `Tiles` exists only on a CPU with AMX.
    unsafe {
        let (open, found) = {
            let room = room.as_mut_ptr();
            (
                (&raw mut (*room).codes).cast::<u16>(),
                (&raw mut (*room).sums).cast::<f32>(),
            )
        };
        let mut at = operands.panel;
        let mut group = 0;
        // Batches of about the same length.
        let length = width.div_ceil(width.div_ceil(BATCH).max(1));
        let length = length.next_multiple_of(F::GROUPS);
        const { assert!(BATCH.next_multiple_of(F::GROUPS) <= MOST_OPEN) };
        while group < width {
            let count = length.min(width - group);
            for number in 0..count {
                let from = place_of::<F>(at, number);
                fetch_ahead(from, AHEAD, F::GROUP_BYTES);
                halves.lay_open::<F>(from, open.add(number * OPEN));
            }
            for first in (0..operands.count).step_by(TILE) {
                let tile = first / TILE * width + group;
                let batch = Batch {
                    at,
                    x: operands.x.add(tile * 2 * FILLED),
                    kept: operands.kept.add(tile * KEPT),
                    open,
                    is_first: group == 0,
                    count,
                    found,
                    wanted: TILE.min(operands.count - first),
                    sums: operands.sums.at(first, 0),
                };
                if batch.wanted > TILE / 2 {
                    batch.add::<F, TILE>(tiles);
                } else {
                    batch.add::<F, { TILE / 2 }>(tiles);
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

/// What codes are as bf16.
struct Halves {
    /// Of codes that are looked up, as bytes.
    levels: [u8; 16],
    /// Of all that have six bits at most.
    table: [u16; LOOKED_UP],
}

impl Halves {
    fn new<F: Format>() -> Self {
        let half = |code: usize| ((code as f32 - F::OFFSET as f32).to_bits() >> 16) as u16;
        Self {
            levels: levels::<F>(),
            table: std::array::from_fn(half),
        }
    }

    /// The codes of a group as bf16, step after step: of each the first and third of four inputs, then the
    /// second and fourth.
    #[inline(always)]
    unsafe fn lay_open<F: Format>(&self, from: *const u8, to: *mut u16) {
        // SAFETY: `from` has the codes of a group and `to` room for its numbers, as the caller vouches, who has
        // AVX-512BW and AVX512-VNNI.
        unsafe {
            let none = <Avx512 as Simd>::splat(0.0);
            let (low, high) = Place::new::<F>([none; 2], from, 0).planes;
            macro_rules! steps {
                ($($step:literal)*) => {
                    $({
                        let codes = codes::<Avx512Dot, F, $step>(low, high, &self.levels);
                        let others = _mm512_srli_epi16::<8>(codes);
                        for (number, codes) in [codes, others].into_iter().enumerate() {
                            let to = to.add((2 * $step + number) * 2 * PANEL);
                            _mm512_storeu_si512(to.cast(), self.of::<F>(codes));
                        }
                    })*
                };
            }
            steps!(0 1 2 3 4 5 6 7);
        }
    }

    /// The codes in the lower bytes.
    #[inline(always)]
    unsafe fn of<F: Format>(&self, codes: __m512i) -> __m512i {
        // SAFETY: the tables are arrays as long as what is read of them; the caller has AVX-512BW, and the rest
        // touches registers alone.
        unsafe {
            if F::WIDE {
                let number = |codes: __m512i| {
                    let code = _mm512_and_si512(codes, _mm512_set1_epi32(255));
                    let level = _mm512_sub_epi32(code, _mm512_set1_epi32(128));
                    _mm512_castps_si512(_mm512_cvtepi32_ps(level))
                };
                let even = _mm512_srli_epi32::<16>(number(codes));
                return _mm512_or_si512(even, number(_mm512_srli_epi32::<16>(codes)));
            }
            let table = |first: usize| _mm512_loadu_si512(self.table[first..].as_ptr().cast());
            match F::LOW_BITS + F::HIGH_BITS {
                ..=5 => _mm512_permutexvar_epi16(codes, table(0)),
                _ => _mm512_permutex2var_epi16(table(0), codes, table(LOOKED_UP / 2)),
            }
        }
    }
}

/// Some groups of a panel, and one tile of rows.
struct Batch {
    /// The first block.
    at: *const u8,
    /// The rows' parts and what their groups share, and the unpacked codes.
    x: *const u16,
    kept: *const f32,
    open: *const u16,
    /// Whether nothing was added to the sums before.
    is_first: bool,
    /// Groups.
    count: usize,
    /// Room for the sums of tiles.
    found: *mut f32,
    /// How many of the rows there are.
    wanted: usize,
    sums: Sums,
}

/// Sums that tiles have stored.
struct Found {
    at: *const f32,
    is_apart: bool,
}

impl RowSums<Avx512Dot> for Found {
    #[inline(always)]
    unsafe fn of(&self, row: usize) -> __m512 {
        // SAFETY: the sums have the row, and those of a second tile where they are apart, as the caller vouches, who
        // has AVX-512F.
        unsafe {
            let from = self.at.add(row * PANEL);
            let sum = <Avx512 as Simd>::load(from);
            if self.is_apart {
                <Avx512 as Simd>::add(sum, <Avx512 as Simd>::load(from.add(CELLS)))
            } else {
                sum
            }
        }
    }
}

impl Batch {
    /// Where the sums of a group are found.
    #[inline(always)]
    unsafe fn found(&self, number: usize) -> *mut f32 {
        // SAFETY: there is room for the ring.
        unsafe { self.found.add(number % RING * 2 * CELLS) }
    }

    /// Has tiles sum up a group.
    #[inline(always)]
    unsafe fn multiply<F: Format>(&self, tiles: &Tiles, number: usize) {
        // SAFETY: x, the codes and the ring of sums have the group, as the caller vouches; `Tiles` exists only on a
        // CPU with AMX.
        unsafe {
            let x = self.x.add(number * 2 * FILLED);
            let (parts, open) = ([x, x.add(FILLED)], self.open.add(number * OPEN));
            let found = self.found(number);
            if F::RUNS {
                let parts_of_run = parts.map(|part| part.add(F::RUN));
                multiply_group::<false>(tiles, parts, open, found);
                let (open, found) = (open.add(OPEN / 2), found.add(CELLS));
                multiply_group::<false>(tiles, parts_of_run, open, found);
            } else if const { is_apart::<F>() } {
                multiply_group::<true>(tiles, parts, open, found);
            } else {
                multiply_group::<false>(tiles, parts, open, found);
            }
        }
    }

    /// Scales the sums of `R` rows, of which the last may be none, and adds them up.
    #[inline(always)]
    unsafe fn add<F: Format, const R: usize>(&self, tiles: &Tiles) {
        // SAFETY: the batch has `count` groups and the sums `wanted` rows of a vector, as the caller vouches, who has
        // AVX-512 and its VNNI; `Tiles` exists only on a CPU with AMX.
        unsafe {
            let mut totals = [<Avx512 as Simd>::splat(0.0); R];
            if !self.is_first {
                for (row, total) in totals.iter_mut().enumerate() {
                    // Missing rows count as the last: the number of registers is fixed.
                    let row = row.min(self.wanted - 1);
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
            for (row, total) in totals.into_iter().enumerate() {
                if row < self.wanted {
                    <Avx512 as Simd>::store(self.sums.row(row), total);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn add_group<F: Format, const R: usize>(
        &self,
        totals: &mut [<Avx512 as Simd>::V; R],
        number: usize,
    ) {
        // SAFETY: the panel, what was kept of x and the ring of sums have the group, as the caller vouches, who has
        // AVX-512 and its VNNI.
        unsafe {
            let block = self.at.add(number / F::GROUPS * F::BLOCK_BYTES);
            let place = Place::new::<F>(
                shared::<Avx512Dot, F>(block, 0),
                place_of::<F>(self.at, number),
                0,
            );
            let kept = Kept(self.kept.add(number * KEPT));
            let is_apart = const { is_apart::<F>() };
            let at = self.found(number);
            let found = Found { at, is_apart };
            if F::RUNS {
                let second = Found {
                    at: at.add(CELLS),
                    is_apart,
                };
                let first = scale_first_run::<Avx512Dot, R>(&place, &found);
                add_second_run::<Avx512Dot, F, R>(totals, &place, (first, &second), &kept);
            } else {
                add_sums::<Avx512Dot, F, R>(totals, &place, &found, &kept);
            }
        }
    }
}
