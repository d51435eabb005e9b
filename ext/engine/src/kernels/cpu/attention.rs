//! The products inside attention: on blocks of queries against keys and values in panels, or on four
//! queries at a time, where laying out panels would cost more than it saves.

use std::ops::Range;

use super::gemm::{multiply_strided, PANEL};
use super::isa::{dispatched, Isa};
use super::simd::Simd;

/// Queries that are worked on together without panels.
pub(crate) const TILE: usize = 4;

/// Queries that are worked on together with panels: whole tiles of every instruction set.
pub(crate) const BLOCK: usize = 48;

/// Rows are padded to whole panels.
pub(crate) fn packed_width(width: usize) -> usize {
    width.next_multiple_of(PANEL)
}

/// Scores of `count` queries [count, width] against keys in panels, [width, 32] each; `out` has rows
/// of `stride`, and whole panels of it are written.
pub(crate) fn block_scores(
    isa: Isa,
    (queries, count): (&[f32], usize),
    keys: &[f32],
    width: usize,
    seen: &Range<usize>,
    (out, stride): (&mut [f32], usize),
) {
    assert!(queries.len() >= count * width && out.len() >= count * stride);
    assert!(seen.end <= stride && stride.is_multiple_of(PANEL) && keys.len() >= stride * width);
    let none = std::ptr::null();
    for first in (seen.start / PANEL * PANEL..seen.end).step_by(PANEL) {
        let (keys, out) = (keys[first * width..].as_ptr(), out[first..].as_mut_ptr());
        let x = queries.as_ptr();
        // SAFETY: the lengths were just checked; a panel ends within the padded stride.
        unsafe {
            multiply_strided(isa, x, width, keys, none, out, count, width, stride, PANEL);
        }
    }
}

/// Sums of the values of `seen` keys by shares [count, stride]: values in panels, [keys, 32] each, and
/// `out` has rows of `value_width`, which is whole panels.
pub(crate) fn block_weigh(
    isa: Isa,
    (shares, count, stride): (&[f32], usize, usize),
    (values, keys): (&[f32], usize),
    value_width: usize,
    seen: &Range<usize>,
    out: &mut [f32],
) {
    assert!(shares.len() >= count * stride && seen.end <= stride && seen.end <= keys);
    assert!(values.len() >= keys * value_width && out.len() >= count * value_width);
    assert!(value_width.is_multiple_of(PANEL) && count > 0);
    let (none, inputs) = (std::ptr::null(), seen.len());
    for column in (0..value_width).step_by(PANEL) {
        let x = shares[seen.start..].as_ptr();
        let panel = values[column * keys + seen.start * PANEL..].as_ptr();
        let out = out[column..].as_mut_ptr();
        // SAFETY: the lengths were just checked.
        unsafe {
            multiply_strided(
                isa,
                x,
                stride,
                panel,
                none,
                out,
                count,
                inputs,
                value_width,
                PANEL,
            );
        }
    }
}

/// out[i][j] = Σ queries[i][d] · keys[j][d] for the keys `first..last` and `TILE` queries.
#[inline(always)]
unsafe fn dot_scores_with<S: Simd>(
    queries: *const f32,
    keys: *const f32,
    out: *mut f32,
    width: usize,
    stride: usize,
    first: usize,
    last: usize,
) {
    unsafe {
        for j in first..last {
            let key = keys.add(j * width);
            for i in 0..TILE {
                let query = queries.add(i * width);
                let mut sums = [S::splat(0.0); 2];
                let mut d = 0;
                while d + 2 * S::LANES <= width {
                    sums[0] = S::fma(S::load(query.add(d)), S::load(key.add(d)), sums[0]);
                    let e = d + S::LANES;
                    sums[1] = S::fma(S::load(query.add(e)), S::load(key.add(e)), sums[1]);
                    d += 2 * S::LANES;
                }
                while d < width {
                    let count = (width - d).min(S::LANES - 1);
                    let a = S::load_first(query.add(d), count);
                    sums[0] = S::fma(a, S::load_first(key.add(d), count), sums[0]);
                    d += count;
                }
                *out.add(i * stride + j) = S::sum(S::add(sums[0], sums[1]));
            }
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
    unsafe fn run_dot_scores(
        queries: *const f32, keys: *const f32, out: *mut f32, width: usize, stride: usize, first: usize,
        last: usize,
    ) = dot_scores_with
}
dispatched! {
    unsafe fn run_weigh(
        shares: *const f32, stride: usize, values: *const f32, value_width: usize, out: *mut f32,
        first: usize, last: usize,
    ) = weigh_with
}

/// Scores of `TILE` queries [TILE, width] against keys [.., width].
pub(crate) fn dot_scores(
    isa: Isa,
    queries: &[f32],
    keys: &[f32],
    width: usize,
    seen: &Range<usize>,
    out: &mut [f32],
    stride: usize,
) {
    assert!(queries.len() >= TILE * width && keys.len() >= seen.end * width);
    assert!(seen.end <= stride && out.len() >= TILE * stride);
    let (queries, keys) = (queries.as_ptr(), keys.as_ptr());
    // SAFETY: the lengths were just checked.
    unsafe {
        run_dot_scores(
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
    assert!(value_width.is_multiple_of(PANEL));
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
