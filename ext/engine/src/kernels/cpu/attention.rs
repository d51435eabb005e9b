//! The products inside attention, on four queries at a time.

use std::ops::Range;

use super::isa::{dispatched, Isa};
use super::simd::Simd;

/// Queries that are worked on together.
pub(crate) const TILE: usize = 4;

/// Rows are padded to this, two of the widest vectors.
const PADDING: usize = 32;

pub(crate) fn packed_width(width: usize) -> usize {
    width.next_multiple_of(PADDING)
}

/// out[i][j] = Σ queries[i][d] · keys[d][j], for the blocks of keys that cover `first..last`.
#[inline(always)]
unsafe fn tile_scores_with<S: Simd>(
    queries: *const f32,
    keys: *const f32,
    out: *mut f32,
    width: usize,
    stride: usize,
    first: usize,
    last: usize,
) {
    unsafe {
        let block = 2 * S::LANES;
        let mut j = first / block * block;
        while j < last {
            let mut sums = [[S::splat(0.0); 2]; TILE];
            for d in 0..width {
                let from = keys.add(d * stride + j);
                let pair = [S::load(from), S::load(from.add(S::LANES))];
                for (i, sums) in sums.iter_mut().enumerate() {
                    let query = S::splat(*queries.add(i * width + d));
                    sums[0] = S::fma(query, pair[0], sums[0]);
                    sums[1] = S::fma(query, pair[1], sums[1]);
                }
            }
            for (i, sums) in sums.iter().enumerate() {
                S::store(out.add(i * stride + j), sums[0]);
                S::store(out.add(i * stride + j + S::LANES), sums[1]);
            }
            j += block;
        }
    }
}

/// out[i] = Σ shares[i][j] · values[j] over the keys `first..last`; value rows are padded.
#[inline(always)]
unsafe fn weigh_with<S: Simd>(
    shares: *const f32,
    stride: usize,
    values: *const f32,
    value_width: usize,
    out: *mut f32,
    first: usize,
    last: usize,
) {
    unsafe {
        let mut column = 0;
        while column < value_width {
            let mut sums = [[S::splat(0.0); 2]; TILE];
            for j in first..last {
                let from = values.add(j * value_width + column);
                let pair = [S::load(from), S::load(from.add(S::LANES))];
                for (i, sums) in sums.iter_mut().enumerate() {
                    let share = S::splat(*shares.add(i * stride + j));
                    sums[0] = S::fma(share, pair[0], sums[0]);
                    sums[1] = S::fma(share, pair[1], sums[1]);
                }
            }
            for (i, sums) in sums.iter().enumerate() {
                S::store(out.add(i * value_width + column), sums[0]);
                S::store(out.add(i * value_width + column + S::LANES), sums[1]);
            }
            column += 2 * S::LANES;
        }
    }
}

dispatched! {
    unsafe fn run_tile_scores(
        queries: *const f32, keys: *const f32, out: *mut f32, width: usize, stride: usize, first: usize,
        last: usize,
    ) = tile_scores_with
}
dispatched! {
    unsafe fn run_weigh(
        shares: *const f32, stride: usize, values: *const f32, value_width: usize, out: *mut f32,
        first: usize, last: usize,
    ) = weigh_with
}

/// Scores of `TILE` queries [TILE, width] against keys laid out as [width, stride].
pub(crate) fn tile_scores(
    isa: Isa,
    queries: &[f32],
    keys: &[f32],
    width: usize,
    seen: &Range<usize>,
    out: &mut [f32],
) {
    let stride = out.len() / TILE;
    assert!(queries.len() >= TILE * width && keys.len() >= width * stride);
    assert!(seen.end <= stride && stride.is_multiple_of(PADDING));
    let (queries, keys) = (queries.as_ptr(), keys.as_ptr());
    // SAFETY: the lengths were just checked, and blocks end within the padded stride.
    unsafe {
        run_tile_scores(
            isa,
            queries,
            keys,
            out.as_mut_ptr(),
            width,
            stride,
            seen.start,
            seen.end,
        );
    }
}

/// Sums of values [keys, value_width] by shares [TILE, stride].
pub(crate) fn weigh(
    isa: Isa,
    shares: &[f32],
    stride: usize,
    values: &[f32],
    value_width: usize,
    seen: &Range<usize>,
    out: &mut [f32],
) {
    assert!(shares.len() >= TILE * stride && seen.end <= stride);
    assert!(values.len() >= seen.end * value_width && out.len() >= TILE * value_width);
    assert!(value_width.is_multiple_of(PADDING));
    let (shares, values) = (shares.as_ptr(), values.as_ptr());
    // SAFETY: the lengths were just checked, and value rows are whole blocks.
    unsafe {
        run_weigh(
            isa,
            shares,
            stride,
            values,
            value_width,
            out.as_mut_ptr(),
            seen.start,
            seen.end,
        );
    }
}
