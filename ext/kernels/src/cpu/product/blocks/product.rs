//! Rows of bytes times one panel.
//!
//! There is one definition, whatever the instruction set and the number of rows, so that all give the
//! same bits: the products of a group are summed in integers, which is exact, and the groups are added
//! in their order. All that is rounded is rounded by the same steps everywhere.

use super::format::{for_format, Format, GROUP, PANEL, SIGNED};
use super::halves;
use super::integers::Integers;
use super::level::{leveled, Level};
use super::place::Place;
use super::quantize::{ByteRows, PLANES};
use super::rows::{Rows, Shared};
use crate::cpu::product::driver::{Sums, Tile};
use crate::cpu::product::row_tiles::in_row_tiles;
use crate::cpu::simd::Simd;
use base::quant::BlockType;

pub(super) type Float<S> = <S as Integers>::Float;
pub(super) type Number<S> = <Float<S> as Simd>::V;

/// How far ahead of its use a lone panel is asked for, in bytes.
pub(super) const AHEAD: usize = 4096;

/// Panels that any level multiplies with one row together.
const MOST_PANELS: usize = 4;

/// The codes of step `STEP` of a group.
#[inline(always)]
pub(super) unsafe fn codes<S: Integers, F: Format, const STEP: usize>(
    low: *const u8,
    high: *const u8,
    levels: &[u8; 16],
) -> S::V {
    const LINE: usize = 4 * PANEL;
    // SAFETY: the caller has a group's low and high bits from the lanes of a vector on, and the instruction set; a
    // group has eight steps, and `STEP` is one of them.
    unsafe {
        let codes = match F::LOW_BITS {
            8 => S::load(low.add(LINE * STEP)),
            4 => {
                let both = S::load(low.add(LINE * (STEP % 4)));
                match STEP / 4 {
                    0 => S::right::<0>(both, 15),
                    _ => S::right::<4>(both, 15),
                }
            }
            _ => {
                let all = S::load(low.add(LINE * (STEP % 2)));
                match STEP / 2 {
                    0 => S::right::<0>(all, 3),
                    1 => S::right::<2>(all, 3),
                    2 => S::right::<4>(all, 3),
                    _ => S::right::<6>(all, 3),
                }
            }
        };
        if F::LOOKED_UP {
            return S::look_up(codes, levels);
        }
        match F::HIGH_BITS {
            0 => codes,
            1 => S::add_bits(codes, high.add(8 * STEP), 1 << F::LOW_BITS),
            _ => {
                let all = S::load(high.add(LINE * (STEP % 2)));
                let above = match STEP / 2 {
                    0 => S::left::<4>(all, 0x30),
                    1 => S::left::<2>(all, 0x30),
                    2 => S::right::<0>(all, 0x30),
                    _ => S::right::<2>(all, 0x30),
                };
                S::or(codes, above)
            }
        }
    }
}

/// How the codes of a matrix are read.
pub(super) struct Coding {
    /// The table of levels, where there is one.
    pub levels: [u8; 16],
    pub zipped: bool,
}

/// The codes of the four steps of half a group, zipped where the level takes them so.
#[inline(always)]
pub(super) unsafe fn half_codes<S: Integers, F: Format, const HALF: usize>(
    low: *const u8,
    high: *const u8,
    coding: &Coding,
) -> [S::V; 4] {
    // SAFETY: `low` and `high` have the codes of a group of this format, as the caller vouches, who has the
    // instruction set of `S`.
    unsafe {
        macro_rules! steps {
            ($($step:literal)*) => {
                [$(codes::<S, F, $step>(low, high, &coding.levels)),*]
            };
        }
        let [a, b, c, d] = if HALF == 0 {
            steps!(0 1 2 3)
        } else {
            steps!(4 5 6 7)
        };
        if S::JOINS_PLANES || !coding.zipped {
            return [a, b, c, d];
        }
        let ([a, b], [c, d]) = (S::unzip([a, b]), S::unzip([c, d]));
        [a, b, c, d]
    }
}

/// The exact sums of the planes of `R` rows with `P` panels.
type PanelSums<S, const R: usize, const P: usize> = [[[<S as Integers>::V; PLANES]; R]; P];

/// The exact sums of half a group (`HALF` 0 or 1), on top of `sums`. The panels take turns step by step:
/// the sums of each would wait for themselves.
#[inline(always)]
unsafe fn half_group<S: Integers, F: Format, const R: usize, const P: usize, const HALF: usize>(
    mut sums: PanelSums<S, R, P>,
    places: &[Place<Number<S>>; P],
    levels: &[u8; 16],
    rows: &Rows,
    group: usize,
) -> PanelSums<S, R, P> {
    // SAFETY: the places are those of a group of this format and the rows have it, R of them, as the caller
    // vouches, who has the instruction set.
    unsafe {
        macro_rules! step {
            ($step:literal) => {
                let mut panel = 0;
                while panel < P {
                    let (low, high) = places[panel].planes;
                    let codes = codes::<S, F, $step>(low, high, levels);
                    let sums = &mut sums[panel];
                    let mut r = 0;
                    while r < R {
                        let mut p = 0;
                        while p < PLANES {
                            let x = rows.step(r, p, group, $step);
                            sums[r][p] = if F::WIDE {
                                S::dot_wide(sums[r][p], codes, x)
                            } else {
                                S::dot(sums[r][p], codes, x)
                            };
                            p += 1;
                        }
                        r += 1;
                    }
                    panel += 1;
                }
            };
        }
        if HALF == 0 {
            step!(0);
            step!(1);
            step!(2);
            step!(3);
        } else {
            step!(4);
            step!(5);
            step!(6);
            step!(7);
        }
        sums
    }
}

/// Where the sums of rows begin, so that codes count as levels.
#[inline(always)]
unsafe fn begin<S: Integers, F: Format, const R: usize>(
    rows: &Rows,
    group: usize,
    byte_sum: impl Fn([i32; 2]) -> i32,
) -> [[S::V; PLANES]; R] {
    let offset = if F::WIDE { S::WIDE_OFFSET } else { F::OFFSET };
    // SAFETY: there are R rows, which have the group, as the caller vouches, who has the instruction set.
    unsafe {
        let mut sums = [[S::splat(0); PLANES]; R];
        let mut r = 0;
        while r < R {
            let of_plane = |p| -offset * byte_sum(rows.group(r, p, group).byte_sums);
            sums[r] = S::begin([of_plane(0), of_plane(1)]);
            r += 1;
        }
        sums
    }
}

/// What the groups of the block at `at` share: the scale and, where there is one, the minimum.
#[inline(always)]
pub(super) unsafe fn shared<S: Integers, F: Format>(at: *const u8, first: usize) -> [Number<S>; 2] {
    // SAFETY: at `at` there is a block's header, a scale and, where the format has one, a minimum for each of 32
    // outputs, and `first` is the lane of a vector; as the caller vouches, who has the instruction set.
    unsafe {
        let scale = S::load_halves(at.add(2 * first));
        let minimum = if F::MINIMUM {
            S::load_halves(at.add(2 * (PANEL + first)))
        } else {
            scale
        };
        [scale, minimum]
    }
}

/// The sums of a group, or of one of its runs, by row, in units of the last plane's scale: whole numbers,
/// rounded once where they are too large.
pub(super) trait RowSums<S: Integers> {
    /// # Safety
    /// The row is there, and so is the instruction set.
    unsafe fn of(&self, row: usize) -> Number<S>;
}

impl<S: Integers, const R: usize> RowSums<S> for [[S::V; PLANES]; R] {
    #[inline(always)]
    unsafe fn of(&self, row: usize) -> Number<S> {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { S::together(self[row]) }
    }
}

/// Adds a group with one scale to `totals`.
#[inline(always)]
pub(super) unsafe fn add_sums<S: Integers, F: Format, const R: usize>(
    totals: &mut [Number<S>; R],
    place: &Place<Number<S>>,
    sums: &impl RowSums<S>,
    x: &impl Shared,
) {
    // SAFETY: the place is that of a group of this format, and there are R rows, as the caller vouches, who has the
    // instruction set.
    unsafe {
        let (mut scale, mut minimum) = (place.scale, place.minimum);
        if F::SUPER {
            scale = Float::<S>::mul(scale, S::load_bytes(place.scales));
            if F::MINIMUM {
                minimum = Float::<S>::mul(minimum, S::load_bytes(place.minimums));
            }
        }
        let mut r = 0;
        while r < R {
            let both = Float::<S>::mul(scale, Float::<S>::splat(x.scale(r)));
            totals[r] = S::fuse(sums.of(r), both, totals[r]);
            if F::MINIMUM {
                totals[r] = S::fuse(minimum, Float::<S>::splat(x.sum(r)), totals[r]);
            }
            r += 1;
        }
    }
}

/// The first of a group's two runs, which have a scale each, in units of the block's scale.
#[inline(always)]
pub(super) unsafe fn scale_first_run<S: Integers, const R: usize>(
    place: &Place<Number<S>>,
    sums: &impl RowSums<S>,
) -> [Number<S>; R] {
    // SAFETY: the place is that of a group of two runs, and there are R rows, as the caller vouches, who has the
    // instruction set.
    unsafe {
        let scale = S::load_bytes(place.scales);
        let mut scaled = [Float::<S>::splat(0.0); R];
        let mut r = 0;
        while r < R {
            scaled[r] = Float::<S>::mul(sums.of(r), scale);
            r += 1;
        }
        scaled
    }
}

/// Adds both runs to `totals`; `sums` are those of the second.
#[inline(always)]
pub(super) unsafe fn add_second_run<S: Integers, F: Format, const R: usize>(
    totals: &mut [Number<S>; R],
    place: &Place<Number<S>>,
    (first, sums): ([Number<S>; R], &impl RowSums<S>),
    x: &impl Shared,
) {
    // SAFETY: the place is that of a group of two runs, whose scales lie a panel apart, and there are R rows, as
    // the caller vouches, who has the instruction set.
    unsafe {
        let scale = S::load_bytes(place.scales.add(PANEL));
        let mut r = 0;
        while r < R {
            let factor = Float::<S>::splat(x.scale(r));
            let sum = S::fuse(sums.of(r), scale, first[r]);
            let both = Float::<S>::mul(place.scale, factor);
            totals[r] = S::fuse(sum, both, totals[r]);
            if F::MINIMUM {
                let sum = |half: usize| Float::<S>::splat(x.half_sum(r, half));
                let minimum = |run: usize| S::load_bytes(place.minimums.add(run * PANEL));
                let scaled = Float::<S>::mul(minimum(0), sum(0));
                let sum = S::fuse(minimum(1), sum(1), scaled);
                let both = Float::<S>::mul(place.minimum, factor);
                totals[r] = S::fuse(sum, both, totals[r]);
            }
            r += 1;
        }
    }
}

/// Multiplies a group with one scale and adds it to the panels' totals.
#[inline(always)]
unsafe fn add_group<S: Integers, F: Format, const R: usize, const P: usize>(
    totals: &mut [[Number<S>; R]; P],
    places: &[Place<Number<S>>; P],
    levels: &[u8; 16],
    rows: &Rows,
    group: usize,
) {
    // SAFETY: the places are those of a group of this format, and the rows have it, R of them, as the caller
    // vouches, who has the instruction set; `panel` is below P.
    unsafe {
        let sums = [begin::<S, F, R>(rows, group, |halves| halves[0] + halves[1]); P];
        let sums = half_group::<S, F, R, P, 0>(sums, places, levels, rows, group);
        let sums = half_group::<S, F, R, P, 1>(sums, places, levels, rows, group);
        for panel in 0..P {
            let totals = &mut totals[panel];
            let x = rows.in_group(group);
            add_sums::<S, F, R>(totals, &places[panel], &sums[panel], &x);
        }
    }
}

/// Multiplies a group of two runs with a scale each and adds it to the panels' totals.
#[inline(always)]
unsafe fn add_runs<S: Integers, F: Format, const R: usize, const P: usize>(
    totals: &mut [[Number<S>; R]; P],
    places: &[Place<Number<S>>; P],
    levels: &[u8; 16],
    rows: &Rows,
    group: usize,
) {
    // SAFETY: the places are those of a group of two runs, and the rows have it, R of them, as the caller vouches,
    // who has the instruction set; `panel` is below P.
    unsafe {
        let sums = [begin::<S, F, R>(rows, group, |halves| halves[0]); P];
        let sums = half_group::<S, F, R, P, 0>(sums, places, levels, rows, group);
        let mut first = [[Float::<S>::splat(0.0); R]; P];
        for panel in 0..P {
            first[panel] = scale_first_run::<S, R>(&places[panel], &sums[panel]);
        }
        let sums = [begin::<S, F, R>(rows, group, |halves| halves[1]); P];
        let sums = half_group::<S, F, R, P, 1>(sums, places, levels, rows, group);
        for panel in 0..P {
            let runs = (first[panel], &sums[panel]);
            let x = rows.in_group(group);
            add_second_run::<S, F, R>(&mut totals[panel], &places[panel], runs, &x);
        }
    }
}

/// Asks for what is read soon: the hardware looks ahead within a page only.
#[inline(always)]
pub(super) unsafe fn fetch_ahead(from: *const u8, distance: usize, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: a prefetch reads nothing and cannot fault; SSE belongs to every x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(distance + line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, distance, bytes);
}

/// `R` rows of x times the outputs of the lanes from `first` on in `P` panels, of which the first is given
/// and the others are `stride` apart; or, with a stride of 0, times those of `P` vectors of lanes in one panel.
#[inline(always)]
unsafe fn tile<S: Integers, F: Format, const R: usize, const P: usize>(
    (panel, stride): (*const u8, usize),
    first: usize,
    coding: &Coding,
    rows: &Rows,
) -> [[Number<S>; R]; P] {
    // Of several panels, those that follow are asked for, each at the place where this one is.
    let ahead = if P > 1 { P * stride } else { AHEAD };
    // SAFETY: P panels, `stride` apart, have blocks for all groups of the rows, of which there are R, and `first`
    // is the lane of a vector, as are the next where the panel is one; as the caller vouches, who has the instruction
    // set. `at` moves by whole blocks and ends with the last.
    unsafe {
        // From a vector of lanes to the next.
        let lanes = if S::ACROSS && stride == 0 {
            Float::<S>::LANES
        } else {
            0
        };
        let mut totals = [[Float::<S>::splat(0.0); R]; P];
        let mut at = panel;
        let mut group = 0;
        while group < rows.width {
            let mut common = [[Float::<S>::splat(0.0); 2]; P];
            for (number, common) in common.iter_mut().enumerate() {
                *common = shared::<S, F>(at.add(number * stride), first + number * lanes);
            }
            at = at.add(F::HEADER_BYTES);
            for _ in 0..F::GROUPS {
                let mut places = [Place::new::<F>(common[0], at, first); P];
                for (number, place) in places.iter_mut().enumerate() {
                    let at = at.add(number * stride);
                    if R == 1 {
                        fetch_ahead(at, ahead, F::GROUP_BYTES);
                    }
                    *place = Place::new::<F>(common[number], at, first + number * lanes);
                }
                if S::BY_HALVES {
                    halves::add_group::<S, F, R, P>(&mut totals, &places, coding, rows, group);
                } else if F::RUNS {
                    add_runs::<S, F, R, P>(&mut totals, &places, &coding.levels, rows, group);
                } else {
                    add_group::<S, F, R, P>(&mut totals, &places, &coding.levels, rows, group);
                }
                at = at.add(F::GROUP_BYTES);
                group += 1;
            }
        }
        totals
    }
}

/// The table of levels, as bytes that are 128 more where they are not signed.
pub(super) fn levels<F: Format>() -> [u8; 16] {
    let above = if SIGNED { 0 } else { 0x80 };
    F::KIND
        .levels()
        .map_or([0; 16], |levels| levels.map(|level| level as u8 ^ above))
}

/// The rows of a tile times its panels.
#[inline(always)]
unsafe fn multiply_format<S: Integers, F: Format>(panels: &Panels<'_>, rows: Rows, tile: Tile) {
    let coding = Coding {
        levels: levels::<F>(),
        zipped: panels.zipped,
    };
    let mut panel = 0;
    while panel < panels.count {
        let left = panels.count - panel;
        // As even as can be: four and one would be slower than three and two.
        let most = if tile.rows == 1 { S::PANELS } else { 1 };
        let together = left.div_ceil(left.div_ceil(most));
        let operands = (panels.at(panel), panels.stride);
        // SAFETY: the caller vouches for the rows of x, the panels and the sums, and has the instruction set of `S`.
        unsafe {
            let sums = tile.sums.at(0, panel * PANEL);
            match together {
                1 if S::ACROSS && tile.rows == 1 => {
                    multiply_across::<S, F>(operands.0, &coding, &rows, sums)
                }
                1 => multiply_rows::<S, F>(operands, &coding, rows, tile.rows, sums),
                2 => multiply_row::<S, F, 2>(operands, &coding, &rows, sums),
                3 => multiply_row::<S, F, 3>(operands, &coding, &rows, sums),
                _ => multiply_row::<S, F, 4>(operands, &coding, &rows, sums),
            }
        }
        panel += together;
    }
}

/// One row times all lanes of one panel, four vectors.
#[inline(always)]
unsafe fn multiply_across<S: Integers, F: Format>(
    panel: *const u8,
    coding: &Coding,
    rows: &Rows,
    sums: Sums,
) {
    const VECTORS: usize = 4;
    // SAFETY: the panel is as deep as the row, and the sums have room for it, as the caller vouches, who has the
    // instruction set; levels that get here have vectors of a quarter of a panel.
    unsafe {
        if !S::ACROSS || VECTORS * Float::<S>::LANES != PANEL {
            return;
        }
        let totals = tile::<S, F, 1, VECTORS>((panel, 0), 0, coding, rows);
        for (number, [total]) in totals.into_iter().enumerate() {
            Float::<S>::store(sums.at(0, number * Float::<S>::LANES).start, total);
        }
    }
}

/// One row times `P` panels.
#[inline(always)]
unsafe fn multiply_row<S: Integers, F: Format, const P: usize>(
    panels: (*const u8, usize),
    coding: &Coding,
    rows: &Rows,
    sums: Sums,
) {
    const { assert!(P <= MOST_PANELS) };
    // Levels that take fewer at once don't get here, and have no code for it.
    if P > S::PANELS {
        return;
    }
    // SAFETY: there are P panels, `stride` apart, as deep as the row, and the sums have room for a panel each, as
    // the caller vouches, who has the instruction set; vectors divide a panel.
    unsafe {
        for first in (0..PANEL).step_by(Float::<S>::LANES) {
            let totals = tile::<S, F, 1, P>(panels, first, coding, rows);
            for (panel, [total]) in totals.into_iter().enumerate() {
                Float::<S>::store(sums.at(0, panel * PANEL + first).start, total);
            }
        }
    }
}

/// `count` rows times one panel.
#[inline(always)]
unsafe fn multiply_rows<S: Integers, F: Format>(
    panel: (*const u8, usize),
    coding: &Coding,
    rows: Rows,
    count: usize,
    sums: Sums,
) {
    // SAFETY: the panel is as deep as the rows, of which there are `count`, and the sums have room for as many rows
    // of a panel, as the caller vouches, who has the instruction set.
    unsafe {
        for first in (0..PANEL).step_by(Float::<S>::LANES) {
            in_row_tiles!(count, most if F::RUNS { S::ROWS_OF_RUNS } else { S::ROWS }, (row, HEIGHT) => {
                let rows = rows.starting_at(row);
                let [totals] = tile::<S, F, HEIGHT, 1>(panel, first, coding, &rows);
                for (r, total) in totals.into_iter().enumerate() {
                    Float::<S>::store(sums.row(row + r).add(first), total);
                }
            });
        }
    }
}

/// Panels of a matrix that follow each other.
pub(super) struct Panels<'a> {
    pub kind: BlockType,
    pub inputs: usize,
    pub bytes: &'a [u8],
    /// Bytes from one to the next.
    pub stride: usize,
    pub count: usize,
    /// Whether codes are zipped.
    pub zipped: bool,
}

impl Panels<'_> {
    /// Where one of them begins.
    pub fn at(&self, panel: usize) -> *const u8 {
        self.bytes[panel * self.stride..][..self.stride].as_ptr()
    }
}

#[inline(always)]
unsafe fn multiply_panels_with<S: Integers, F: Format>(
    panels: &Panels<'_>,
    x: &ByteRows,
    tile: Tile,
) {
    let rows = Rows::new(x, tile.row, panels.inputs / GROUP);
    // SAFETY: the caller vouches for the rows of x and of the sums, and has the instruction set of `S`; a panel has
    // all its blocks.
    unsafe { multiply_format::<S, F>(panels, rows, tile) }
}

leveled! {
    /// The sums of the tile's rows of x and the panels, which have this format.
    ///
    /// # Safety
    /// As below.
    unsafe fn multiply_panels_of<F: Format>(
        panels: &Panels<'_>, x: &ByteRows, tile: Tile,
    ) = multiply_panels_with
}

/// The sums of the tile's rows of x and the panels.
///
/// # Safety
/// x has the rows, of as many groups as the panels; the sums have room for them.
pub(super) unsafe fn multiply_panels(level: Level, panels: &Panels<'_>, x: &ByteRows, tile: Tile) {
    // SAFETY: the caller vouches for the rows and the sums.
    unsafe {
        for_format!(
            panels.kind,
            F => multiply_panels_of::<F>(level, panels, x, tile),
            ()
        );
    }
}
