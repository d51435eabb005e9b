//! Rows of x for tiles: the whole number that an element's two bytes make is taken apart once more, into
//! a multiple of 256 and the rest, which bf16 both hold exactly. So one sum in f32 has both, exact as long
//! as it stays below 2²⁴, and integers need not be put together.

use std::arch::x86_64::*;

use super::format::GROUP;
use super::quantize::{COST, FINER, LEAST as LEAST_SIZE, MOST};
use super::rows::Shared;
use crate::cpu::product::amx::TILE;
use crate::cpu::simd::{Avx512, Simd};
use crate::cpu::{build, for_each_range};

/// With fewer rows, vectors take less time than tiles.
pub(super) const LEAST: usize = 12;
/// No element is made of a larger multiple of 256 and rest, taken together.
pub(super) const LARGEST: i32 = 127 * 256 + 127;
/// Elements of a tile: of the multiples, or of the rests.
pub(super) const FILLED: usize = TILE * GROUP;
/// What is kept for a group of a tile's rows: scales, sums, and the sums of both halves.
pub(super) const KEPT: usize = 4 * TILE;
/// How the elements of a group are ordered: pairs, as the codes of a step of four are unpacked.
const ORDER: [u8; 4] = [0, 2, 1, 3];

pub struct TileRows {
    /// bf16, [tiles, inputs / 32, multiples and rests, rows of a tile, 32].
    pub halves: Vec<u16>,
    /// [tiles, inputs / 32, scales, sums, first and second halves' sums, rows of a tile].
    pub kept: Vec<f32>,
}

/// What a group of a tile's rows shares.
pub(super) struct Kept(pub *const f32);

impl Shared for Kept {
    #[inline(always)]
    unsafe fn scale(&self, row: usize) -> f32 {
        // SAFETY: the caller vouches for the row; a group keeps one number of each kind for every row of a tile,
        // scales first.
        unsafe { *self.0.add(row) }
    }

    #[inline(always)]
    unsafe fn sum(&self, row: usize) -> f32 {
        // SAFETY: the caller vouches for the row; sums follow the scales of a tile's rows.
        unsafe { *self.0.add(TILE + row) }
    }

    #[inline(always)]
    unsafe fn half_sum(&self, row: usize, half: usize) -> f32 {
        // SAFETY: the caller vouches for the row and the half; their sums follow those of whole groups.
        unsafe { *self.0.add((2 + half) * TILE + row) }
    }
}

impl TileRows {
    /// `x` is [rows, inputs], its rows whole groups. What is left of the last tile is 0.
    ///
    /// # Safety
    /// The CPU has AVX-512 with BW, DQ and VL.
    pub unsafe fn new(x: &[f32], rows: usize) -> Self {
        let inputs = x.len() / rows.max(1);
        let (tiles, width) = (rows.div_ceil(TILE), inputs / GROUP);
        let mut kept = Vec::new();
        // SAFETY: the tasks cover every tile once, of which every group is filled; the caller vouches for
        // the instructions.
        let halves = unsafe {
            build(tiles * width * 2 * FILLED, |halves| {
                kept = build(tiles * width * KEPT, |kept| {
                    for_each_range(tiles, COST * TILE * inputs, |range| {
                        for tile in range {
                            let x = &x[tile * TILE * inputs..];
                            let rows = TILE.min(rows - tile * TILE);
                            for group in 0..width {
                                let at = tile * width + group;
                                let from = x[group * GROUP..].as_ptr();
                                let to = (halves.at(at * 2 * FILLED), kept.at(at * KEPT));
                                fill((from, inputs, rows), to);
                            }
                        }
                    })
                })
            })
        };
        Self { halves, kept }
    }
}

/// A group of a tile's rows, which are `stride` apart.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn fill(
    (x, stride, rows): (*const f32, usize, usize),
    (halves, kept): (*mut u16, *mut f32),
) {
    // SAFETY: x has `rows` rows of a group, `stride` apart, and the halves and what is kept have room for a tile of
    // rows, as the caller vouches; AVX-512BW and AVX-512DQ are enabled.
    unsafe {
        let mut largest = [0f32; TILE];
        for (row, largest) in largest.iter_mut().enumerate().take(rows) {
            // By their bits, infinity is larger than any number, and NaN is larger still.
            let size = |at: usize| {
                let bits = _mm512_loadu_si512(x.add(row * stride + at).cast());
                _mm512_and_si512(bits, _mm512_set1_epi32(i32::MAX))
            };
            let bits = _mm512_reduce_max_epu32(_mm512_max_epu32(size(0), size(GROUP / 2)));
            *largest = f32::from_bits(bits);
        }
        let largest = _mm512_loadu_ps(largest.as_ptr());
        let splat = |value: f32| _mm512_set1_ps(value);
        let finite = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(largest, splat(f32::INFINITY));
        let fits = finite & _mm512_cmp_ps_mask::<_CMP_GT_OQ>(largest, splat(LEAST_SIZE));
        let mut factors = [0f32; TILE];
        let factor = _mm512_maskz_div_ps(fits, splat(MOST), largest);
        _mm512_storeu_ps(factors.as_mut_ptr(), factor);
        let scale = _mm512_maskz_div_ps(fits, largest, splat(MOST));
        let scale = _mm512_div_ps(scale, splat(FINER as f32));
        // The products are NaN then, too.
        let scale = _mm512_mask_mov_ps(scale, !finite, splat(f32::NAN));
        let mut sums = [[0f32; TILE]; 2];
        for pair in (0..TILE).step_by(2) {
            let [a, b] = [pair, pair + 1].map(|row| {
                let there = if fits >> row & 1 == 1 { !0 } else { 0 };
                let (x, factor) = (x.wrapping_add(row * stride), splat(factors[row]));
                let whole = [0, GROUP / 2].map(|at| {
                    let v = _mm512_maskz_loadu_ps(there, x.wrapping_add(at));
                    whole_number(_mm512_mul_ps(v, factor))
                });
                store_parts(halves.add(row * GROUP), whole);
                whole
            });
            let [first, second, next_first, next_second] =
                <Avx512 as Simd>::sum_each([a[0], a[1], b[0], b[1]]);
            sums[0][pair..pair + 2].copy_from_slice(&[first, next_first]);
            sums[1][pair..pair + 2].copy_from_slice(&[second, next_second]);
        }
        let [first, second] = sums.map(|sums| _mm512_loadu_ps(sums.as_ptr()));
        let sum = _mm512_mul_ps(scale, _mm512_add_ps(first, second));
        for (number, v) in [scale, sum, first, second].into_iter().enumerate() {
            _mm512_storeu_ps(kept.add(number * TILE), v);
        }
    }
}

/// What the two bytes of an element make, by the same steps: 254 of the second are 1 of the first.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn whole_number(v: __m512) -> __m512 {
    // SAFETY: the features are enabled.
    unsafe {
        let finer = _mm512_set1_ps(FINER as f32);
        let whole = <Avx512 as Simd>::round(v);
        let rest = <Avx512 as Simd>::round(_mm512_mul_ps(_mm512_sub_ps(v, whole), finer));
        _mm512_fmadd_ps(whole, finer, rest)
    }
}

/// Stores a row's 32 numbers as multiples of 256 and rests.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn store_parts(to: *mut u16, whole: [__m512; 2]) {
    /// Where the upper halves of two vectors' numbers lie.
    const UPPER: [u16; GROUP] = {
        let mut places = [0; GROUP];
        let mut i = 0;
        while i < GROUP {
            places[i] = 2 * (i as u16 / 4 * 4 + ORDER[i % 4] as u16) + 1;
            i += 1;
        }
        places
    };
    // SAFETY: `UPPER` is a vector, and the caller vouches for room for both parts; AVX-512BW is enabled.
    unsafe {
        // Beside this, numbers are rounded to 256.
        let large = _mm512_set1_ps(1.5 * (1u32 << 31) as f32);
        let upper = _mm512_loadu_si512(UPPER.as_ptr().cast());
        let multiples = whole.map(|v| _mm512_sub_ps(_mm512_add_ps(v, large), large));
        let rests = [0, 1].map(|half: usize| _mm512_sub_ps(whole[half], multiples[half]));
        for (part, numbers) in [multiples, rests].into_iter().enumerate() {
            let [a, b] = numbers.map(|v| _mm512_castps_si512(v));
            let stored = _mm512_permutex2var_epi16(a, upper, b);
            _mm512_storeu_si512(to.add(part * FILLED).cast(), stored);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::level::Level;
    use super::super::quantize::{ByteRows, PLANES};
    use super::*;
    use crate::cpu::isa::Isa;

    #[test]
    fn tiles_have_the_same_numbers_and_nothing_after_the_last_row() {
        if !Level::available().iter().any(|level| level.has_tiles()) {
            return;
        }
        const ROWS: usize = 19;
        let mut x: Vec<f32> = (0..ROWS * 96)
            .map(|i| (i as f32 * 0.7).sin() * (1.0 + (i / 32) as f32))
            .collect();
        x[5] = f32::NAN;
        x[96 + 32] = f32::NEG_INFINITY;
        x[192..224].fill(1e-39);
        let plain = ByteRows::new((Isa::Scalar, Level::Portable), &x, ROWS);
        // SAFETY: a CPU with tiles has the features.
        let tiled = unsafe { TileRows::new(&x, ROWS) };
        assert_eq!(
            (tiled.halves.len(), tiled.kept.len()),
            (32 * 96 * 2, 32 * 3 * 4)
        );
        for row in 0..32 {
            for group in 0..3 {
                let at = row / 16 * 3 + group;
                let kept = Kept(tiled.kept[at * KEPT..].as_ptr());
                // SAFETY: a tile has 16 rows.
                let [scale, sum, first, second] = unsafe {
                    let row = row % 16;
                    [
                        kept.scale(row),
                        kept.sum(row),
                        kept.half_sum(row, 0),
                        kept.half_sum(row, 1),
                    ]
                };
                let part = |number: usize, i: usize| {
                    let half = tiled.halves[(2 * at + number) * FILLED + row % 16 * 32 + i];
                    f32::from_bits(u32::from(half) << 16)
                };
                if row >= ROWS {
                    assert_eq!([scale, sum, first, second], [0.0; 4]);
                    assert!((0..32).all(|i| part(0, i) == 0.0 && part(1, i) == 0.0));
                    continue;
                }
                let planes = [0, 1].map(|plane| (row * PLANES + plane) * 3 + group);
                let shared = planes.map(|plane| plain.groups[plane]);
                assert!(scale == shared[1].scale || scale.is_nan() && shared[1].scale.is_nan());
                assert!(sum == shared[1].sum || sum.is_nan() && shared[1].sum.is_nan());
                for (half, got) in [first, second].into_iter().enumerate() {
                    let [coarse, fine] = shared.map(|shared| shared.byte_sums[half]);
                    assert_eq!(got, (254 * coarse + fine) as f32);
                }
                for i in 0..32 {
                    let place = i / 4 * 4 + usize::from(ORDER[i % 4]);
                    let [coarse, fine] = planes.map(|p| i32::from(plain.bytes[p * 32 + place]));
                    let [multiple, rest] = [part(0, i), part(1, i)];
                    assert_eq!(multiple + rest, (254 * coarse + fine) as f32);
                    assert!(multiple % 256.0 == 0.0 && rest.abs() <= 128.0);
                    assert!((multiple.abs() + rest.abs()) as i32 <= LARGEST);
                }
            }
        }
    }
}
