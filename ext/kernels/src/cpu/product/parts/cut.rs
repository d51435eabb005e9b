//! Numbers cut into parts by AVX-512, which every CPU with tiles has.

use std::arch::x86_64::*;

use super::outliers::Outlier;
use super::{scale, Line, LINES, STEP};
use crate::cpu::product::amx::TILE;

/// Numbers of a vector.
const LANES: usize = 16;

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// The bits of the largest of some numbers, without its sign, which are above those of infinity if one is not
/// a number; and 16 times the sum of squares of the quietest of 16 parts of the row, every 16th number each. Fifteen
/// outliers leave one of the parts alone.
#[target_feature(enable = "avx512f,avx512bw")]
fn sizes(numbers: &[f32]) -> (u32, f32) {
    let mut most = [_mm512_setzero_si512(); 2];
    let mut squares = [_mm512_setzero_ps(); 2];
    let mut pairs = numbers.chunks_exact(2 * LANES);
    for pair in pairs.by_ref() {
        for (half, vector) in pair.chunks_exact(LANES).enumerate() {
            let vector = load(vector);
            most[half] = _mm512_max_epu32(most[half], bits(vector));
            squares[half] = _mm512_fmadd_ps(vector, vector, squares[half]);
        }
    }
    for (half, vector) in pairs.remainder().chunks(LANES).enumerate() {
        let vector = load(vector);
        most[half] = _mm512_max_epu32(most[half], bits(vector));
        squares[half] = _mm512_fmadd_ps(vector, vector, squares[half]);
    }
    let most = _mm512_reduce_max_epu32(_mm512_max_epu32(most[0], most[1]));
    let least = _mm512_reduce_min_ps(_mm512_add_ps(squares[0], squares[1]));
    (most, 16.0 * least)
}

/// Without the sign.
#[inline]
#[target_feature(enable = "avx512f")]
fn bits(numbers: __m512) -> __m512i {
    _mm512_castps_si512(_mm512_abs_ps(numbers))
}

/// The first numbers, and zeros.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(numbers: &[f32]) -> __m512 {
    let mask = match numbers.len() {
        LANES.. => u16::MAX,
        count => (1 << count) - 1,
    };
    // SAFETY: the mask keeps to the numbers, and the caller has AVX-512.
    unsafe { _mm512_maskz_loadu_ps(mask, numbers.as_ptr()) }
}

/// The vectors of a step, which the last numbers of a row may leave incomplete.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_step(numbers: &[f32]) -> [__m512; 4] {
    let vector = |number| load(&numbers[numbers.len().min(number * LANES)..]);
    [vector(0), vector(1), vector(2), vector(3)]
}

/// The three parts of four numbers in every lane: the highest of all, the middle, the lowest.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn parts(numbers: __m512, factor: __m512) -> __m512i {
    let whole = _mm512_cvt_roundps_epi32::<NEAREST>(_mm512_mul_ps(numbers, factor));
    // Bytes of what is larger by 128 in every place, less 128 each.
    let middle = _mm512_set1_epi32(0x0080_8080);
    let bytes = _mm512_xor_si512(_mm512_add_epi32(whole, middle), middle);
    let order = _mm_setr_epi8(2, 6, 10, 14, 1, 5, 9, 13, 0, 4, 8, 12, -1, -1, -1, -1);
    _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(order))
}

/// Stores the parts of a step's numbers, which are in lanes of four.
///
/// # Safety
/// `to` has a line in every tile of the step.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn store([a, b, c, d]: [__m512i; 4], to: *mut Line) {
    // The highest and the middle parts of 32 numbers, and their lowest.
    let upper = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    let lower = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 2, 6, 10, 14, 18, 22, 26, 30);
    let first = _mm512_permutex2var_epi32(a, upper, b);
    let second = _mm512_permutex2var_epi32(c, upper, d);
    let highest = _mm512_shuffle_i64x2::<0x44>(first, second);
    let middle = _mm512_shuffle_i64x2::<0xee>(first, second);
    let first = _mm512_permutex2var_epi32(a, lower, b);
    let second = _mm512_permutex2var_epi32(c, lower, d);
    let lowest = _mm512_shuffle_i64x2::<0x44>(first, second);
    for (part, numbers) in [highest, middle, lowest].into_iter().enumerate() {
        // SAFETY: the caller vouches for the lines, which are aligned; AVX-512F is enabled.
        unsafe { _mm512_store_si512(to.add(part * TILE).cast(), numbers) };
    }
}

/// Cuts a row into its line of every tile of a block's steps, where no number is an outlier for this unit.
///
/// # Safety
/// The block has all steps of the row, `to` being its line of the first tile; the CPU has AVX-512.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn cut(row: &[f32], unit: f32, to: *mut Line) {
    let factor = _mm512_set1_ps(scale::factor(unit));
    let mut steps = row.chunks_exact(STEP);
    let whole = steps.len();
    // SAFETY: a step has four vectors, and the caller vouches for the lines; AVX-512BW is enabled.
    unsafe {
        for (step, numbers) in steps.by_ref().enumerate() {
            let vector = |number| _mm512_loadu_ps(numbers.as_ptr().add(number * LANES));
            let vectors = [vector(0), vector(1), vector(2), vector(3)];
            store(vectors.map(|v| parts(v, factor)), to.add(step * LINES));
        }
        let rest = steps.remainder();
        if !rest.is_empty() {
            let vectors = load_step(rest);
            store(vectors.map(|v| parts(v, factor)), to.add(whole * LINES));
        }
    }
}

/// `cut` where some numbers are outliers: their parts are 0, and they are added to those `found`.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn split(row: &[f32], unit: f32, to: *mut Line, mut found: impl FnMut(usize, f32)) {
    let factor = _mm512_set1_ps(scale::factor(unit));
    let (edge, room) = scale::edge(unit);
    let (edge, room) = (_mm512_set1_ps(edge), _mm512_set1_ps(room));
    for (step, numbers) in row.chunks(STEP).enumerate() {
        let mut vectors = load_step(numbers);
        for (number, vector) in vectors.iter_mut().enumerate() {
            let sizes = _mm512_mul_ps(_mm512_abs_ps(*vector), room);
            let mut outliers = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(sizes, edge);
            *vector = _mm512_maskz_mov_ps(!outliers, *vector);
            while outliers != 0 {
                let input = number * LANES + outliers.trailing_zeros() as usize;
                found(step * STEP + input, numbers[input]);
                outliers &= outliers - 1;
            }
        }
        // SAFETY: the caller vouches for the lines of every step; AVX-512BW is enabled.
        unsafe { store(vectors.map(|v| parts(v, factor)), to.add(step * LINES)) };
    }
}

/// Cuts a row of x, and says the unit of its highest parts; not a number if it is to be multiplied in f32.
/// Outliers of the row, which has this number, are added to the list, and have no parts.
///
/// # Safety
/// As for `cut`.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn cut_row(
    (number, row): (usize, &[f32]),
    to: *mut Line,
    outliers: &mut Vec<Outlier>,
) -> f32 {
    let (largest, squares) = sizes(row);
    let unit = scale::unit(largest, squares, scale::SHARE_OF_ROWS);
    if unit.is_nan() || !scale::is_outlier(f32::from_bits(largest), unit) {
        // SAFETY: the caller vouches for the lines and for AVX-512.
        unsafe { cut(row, unit, to) };
        return unit;
    }
    let before = outliers.len();
    // The quietest part may be all zeros; the slower sum is never far off.
    let trimmed = || scale::unit(largest, scale::trimmed_squares(row), scale::SHARE_OF_ROWS);
    for unit in [unit].into_iter().chain(std::iter::once_with(trimmed)) {
        outliers.truncate(before);
        let found = |input, value| outliers.push(Outlier::new(input, number, value));
        // SAFETY: as above: the caller vouches for the lines and for AVX-512.
        unsafe { split(row, unit, to, found) };
        if outliers.len() - before <= scale::MOST_OUTLIERS {
            return unit;
        }
    }
    outliers.truncate(before);
    f32::NAN
}

/// What the parts leave out of a row, as one more byte each: 256ths of the lowest part, in a line of 64 bytes for
/// every step.
///
/// # Safety
/// `to` has a line in the tile of every step; the CPU has AVX-512.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn cut_rest(row: &[f32], unit: f32, to: *mut Line) {
    let factor = _mm512_set1_ps(scale::factor(unit));
    for (step, numbers) in row.chunks(STEP).enumerate() {
        for (number, vector) in load_step(numbers).into_iter().enumerate() {
            let scaled = _mm512_mul_ps(vector, factor);
            let whole = _mm512_roundscale_ps::<_MM_FROUND_TO_NEAREST_INT>(scaled);
            let rest = _mm512_mul_ps(_mm512_sub_ps(scaled, whole), _mm512_set1_ps(256.0));
            let rest = _mm512_cvt_roundps_epi32::<NEAREST>(rest);
            // SAFETY: the caller vouches for the line, which has four vectors of 16 bytes; AVX-512F is enabled.
            unsafe {
                let line = to.add(step * TILE).cast::<__m128i>();
                _mm_store_si128(line.add(number), _mm512_cvtsepi32_epi8(rest));
            }
        }
    }
}
