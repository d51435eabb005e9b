//! The products inside attention where there are few queries: keys and values are read where they lie.

use std::ops::Range;

use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::simd::{Simd, MOST_LANES};

/// Numbers of a cache line.
const LINE: usize = 16;

/// How many values ahead of the arithmetic one is asked for.
const AHEAD: usize = 16;

/// Rows of keys or values; `stride` elements from row to row.
#[derive(Clone, Copy)]
pub struct StridedRows<'a> {
    pub values: &'a [f32],
    pub stride: usize,
    pub width: usize,
}

impl StridedRows<'_> {
    /// Whether the rows of `range` are there.
    pub fn holds(&self, range: &Range<usize>) -> bool {
        range.is_empty() || (range.end - 1) * self.stride + self.width <= self.values.len()
    }
}

/// The scores of R queries with the keys from `first` on, `VECTORS` vectors of them, of which `left` exist.
/// The products of a score are added one after the other, as `scores::block_scores` adds them: which of
/// the two computes a score changes no bit of it.
#[inline(always)]
unsafe fn score_keys<S: Simd, const R: usize, const VECTORS: usize>(
    queries: *const f32,
    keys: &StridedRows<'_>,
    first: usize,
    left: usize,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: there are R queries as wide as the keys, `left` > (VECTORS − 1) · LANES keys from `first` on, of
    // which no later one is read, and room for R rows of scores, `stride` apart; as the caller vouches, who has the
    // instruction set. What is asked for ahead may lie anywhere.
    unsafe {
        let (width, from) = (keys.width, keys.values.as_ptr().add(first * keys.stride));
        let mut sums = [[S::splat(0.0); VECTORS]; R];
        let (mut at, mut asked) = (0, 0);
        while at + 4 <= width {
            // The next keys lie apart, where no processor expects them.
            let next = VECTORS * S::LANES;
            for _ in 0..next * 4 / LINE {
                let row = (next + asked % next) * keys.stride;
                S::prefetch(from.wrapping_add(row + asked / next * LINE));
                asked += 1;
            }
            for vector in 0..VECTORS {
                let rows = from.add(vector * S::LANES * keys.stride + at);
                let last = (left - vector * S::LANES).min(S::LANES) - 1;
                let columns = S::load_columns(rows, keys.stride, last);
                for (column, values) in columns.into_iter().enumerate() {
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let query = S::splat(*queries.add(r * width + at + column));
                        sums[vector] = S::fma(query, values, sums[vector]);
                    }
                }
            }
            at += 4;
        }
        while at < width {
            for vector in 0..VECTORS {
                let mut values = [0.0f32; MOST_LANES];
                for (lane, value) in values.iter_mut().enumerate().take(S::LANES) {
                    let row = (vector * S::LANES + lane).min(left - 1);
                    *value = *from.add(row * keys.stride + at);
                }
                let values = S::load(values.as_ptr());
                for (r, sums) in sums.iter_mut().enumerate() {
                    let query = S::splat(*queries.add(r * width + at));
                    sums[vector] = S::fma(query, values, sums[vector]);
                }
            }
            at += 1;
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (vector, sum) in sums.into_iter().enumerate() {
                let to = out.add(r * stride + first + vector * S::LANES);
                match left - vector * S::LANES {
                    left if left >= S::LANES => S::store(to, sum),
                    left => S::store_first(to, sum, left),
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn score_rows<S: Simd, const R: usize>(
    queries: *const f32,
    keys: &StridedRows<'_>,
    seen: Range<usize>,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: there are R queries, the keys `seen`, and room for R rows of their scores, as the caller vouches, who
    // has the instruction set; `left` keys are those up to the end.
    unsafe {
        let mut first = seen.start;
        while first < seen.end {
            let left = seen.end - first;
            if left > S::LANES {
                score_keys::<S, R, 2>(queries, keys, first, left, out, stride);
                first += 2 * S::LANES;
            } else {
                score_keys::<S, R, 1>(queries, keys, first, left, out, stride);
                first += S::LANES;
            }
        }
    }
}

#[inline(always)]
unsafe fn scores_with<S: Simd>(
    queries: *const f32,
    count: usize,
    keys: StridedRows<'_>,
    seen: Range<usize>,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: there are `count` queries, the keys `seen`, and room for `count` rows of scores, as the caller
    // vouches, who has the instruction set; the rows of a call are some that are left.
    unsafe {
        let mut i = 0;
        while i < count {
            let (queries, out) = (queries.add(i * keys.width), out.add(i * stride));
            match count - i {
                4.. => {
                    score_rows::<S, 4>(queries, &keys, seen.clone(), out, stride);
                    i += 4;
                }
                2.. => {
                    score_rows::<S, 2>(queries, &keys, seen.clone(), out, stride);
                    i += 2;
                }
                _ => {
                    score_rows::<S, 1>(queries, &keys, seen.clone(), out, stride);
                    i += 1;
                }
            }
        }
    }
}

/// `VECTORS` vectors of columns from `column` on, for `R` rows of probabilities; the last `left` of the
/// columns exist. Sums go on from those of `out` where there are some.
#[inline(always)]
unsafe fn weigh_columns<S: Simd, const R: usize, const VECTORS: usize>(
    probabilities: *const f32,
    stride: usize,
    values: &StridedRows<'_>,
    seen: Range<usize>,
    column: usize,
    (out, goes_on): (*mut f32, bool),
) {
    // SAFETY: there are R rows of probabilities and the values of the keys `seen`, and `out` has R rows as wide as
    // those; as the caller vouches, who has the instruction set. Columns beyond the width are neither read nor
    // written. What is asked for ahead may lie anywhere.
    unsafe {
        let left = values.width - column;
        let mut sums = [[S::splat(0.0); VECTORS]; R];
        if goes_on {
            for (i, sums) in sums.iter_mut().enumerate() {
                for (at, sum) in sums.iter_mut().enumerate() {
                    let from = out.add(i * values.width + column + at * S::LANES);
                    *sum = if left >= (at + 1) * S::LANES {
                        S::load(from)
                    } else {
                        S::load_first(from, left - at * S::LANES)
                    };
                }
            }
        }
        for j in seen {
            let from = values.values.as_ptr().add(j * values.stride + column);
            let ahead = from.wrapping_add(AHEAD * values.stride);
            for line in 0..(VECTORS * S::LANES).div_ceil(LINE) {
                S::prefetch(ahead.wrapping_add(line * LINE));
            }
            let mut row = [S::splat(0.0); VECTORS];
            for (at, v) in row.iter_mut().enumerate() {
                *v = if left >= (at + 1) * S::LANES {
                    S::load(from.add(at * S::LANES))
                } else {
                    S::load_first(from.add(at * S::LANES), left - at * S::LANES)
                };
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let probability = S::splat(*probabilities.add(i * stride + j));
                for (sum, v) in sums.iter_mut().zip(row) {
                    *sum = S::fma(probability, v, *sum);
                }
            }
        }
        for (i, sums) in sums.into_iter().enumerate() {
            for (at, sum) in sums.into_iter().enumerate() {
                let to = out.add(i * values.width + column + at * S::LANES);
                if left >= (at + 1) * S::LANES {
                    S::store(to, sum)
                } else {
                    S::store_first(to, sum, left - at * S::LANES)
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn weigh_rows<S: Simd, const R: usize>(
    probabilities: *const f32,
    stride: usize,
    values: &StridedRows<'_>,
    seen: Range<usize>,
    (out, goes_on): (*mut f32, bool),
) {
    // SAFETY: there are R rows of probabilities, the values of the keys `seen`, and room for R rows, as the caller
    // vouches, who has the instruction set; columns begin within the width.
    unsafe {
        let mut column = 0;
        while column + 4 * S::LANES <= values.width {
            let to = (out, goes_on);
            weigh_columns::<S, R, 4>(probabilities, stride, values, seen.clone(), column, to);
            column += 4 * S::LANES;
        }
        while column < values.width {
            let to = (out, goes_on);
            weigh_columns::<S, R, 1>(probabilities, stride, values, seen.clone(), column, to);
            column += S::LANES;
        }
    }
}

#[inline(always)]
unsafe fn weigh_with<S: Simd>(
    probabilities: *const f32,
    count: usize,
    stride: usize,
    values: StridedRows<'_>,
    seen: Range<usize>,
    (out, goes_on): (*mut f32, bool),
) {
    // SAFETY: there are `count` rows of probabilities, the values of the keys `seen`, and room for `count` rows, as
    // the caller vouches, who has the instruction set; the rows of a call are some that are left.
    unsafe {
        let mut i = 0;
        while i < count {
            let probabilities = probabilities.add(i * stride);
            let to = (out.add(i * values.width), goes_on);
            if count - i >= 3 {
                weigh_rows::<S, 3>(probabilities, stride, &values, seen.clone(), to);
                i += 3;
            } else {
                weigh_rows::<S, 1>(probabilities, stride, &values, seen.clone(), to);
                i += 1;
            }
        }
    }
}

dispatched! {
    unsafe fn run_scores(
        queries: *const f32, count: usize, keys: StridedRows<'_>, seen: Range<usize>, out: *mut f32,
        stride: usize,
    ) = scores_with
}
dispatched! {
    unsafe fn run_weigh(
        probabilities: *const f32, count: usize, stride: usize, values: StridedRows<'_>, seen: Range<usize>,
        out: (*mut f32, bool),
    ) = weigh_with
}

/// out[i][j] = Σ queries[i][d] · keys[j][d] for the keys `seen`; rows of `out` are `stride` apart.
pub fn scores(
    isa: Isa,
    queries: &[f32],
    keys: StridedRows<'_>,
    seen: &Range<usize>,
    out: &mut [f32],
    stride: usize,
) {
    let count = queries.len() / keys.width.max(1);
    assert!(keys.holds(seen) && holds_rows(out, (count, stride), seen));
    let (queries, out) = (queries.as_ptr(), out.as_mut_ptr());
    // SAFETY: the assertion checked that `keys` holds the rows `seen`, that `queries` has `count` rows of their
    // width and `out` the places `seen` of `count` rows, `stride` apart; `isa` was detected.
    unsafe { run_scores(isa, queries, count, keys, seen.clone(), out, stride) };
}

/// Whether `numbers` have the places `seen` of so many rows, `stride` apart.
fn holds_rows(numbers: &[f32], (count, stride): (usize, usize), seen: &Range<usize>) -> bool {
    let last = count.saturating_sub(1) * stride + seen.end;
    seen.end <= stride && (count == 0 || numbers.len() >= last)
}

/// out[i] = Σ probabilities[i][j] · values[j] over the keys `seen`; rows of `probabilities` are `stride` apart. With
/// `goes_on` this is added to what `out` holds of the keys before, in the same order as if all were summed at once.
pub fn weigh(
    isa: Isa,
    probabilities: &[f32],
    stride: usize,
    values: StridedRows<'_>,
    seen: &Range<usize>,
    (out, goes_on): (&mut [f32], bool),
) {
    let count = out.len() / values.width.max(1);
    assert!(values.holds(seen) && holds_rows(probabilities, (count, stride), seen));
    let (probabilities, out) = (probabilities.as_ptr(), (out.as_mut_ptr(), goes_on));
    // SAFETY: the assertion checked that `values` holds the rows `seen` and that `probabilities` has those places of
    // `count` rows, `stride` apart; `out` has as many rows of the values' width; `isa` was detected.
    unsafe { run_weigh(isa, probabilities, count, stride, values, seen.clone(), out) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .take(count)
        .collect()
    }

    #[test]
    fn scores_and_sums_are_those_of_the_definition() {
        for (count, width, gap, keys) in [
            (1, 64, 128, 40),
            (3, 80, 0, 5),
            (7, 5, 3, 9),
            (2, 129, 1, 2),
        ] {
            let stride = width + gap;
            let (rows, queries) = (numbers(keys * stride, 1), numbers(count * width, 2));
            let rows = StridedRows {
                values: &rows,
                stride,
                width,
            };
            let probabilities = numbers(count * keys, 3);
            let seen = 1..keys;
            for isa in Isa::of_numbers() {
                let (mut found, mut sums) = (vec![0.0; count * keys], vec![0.0; count * width]);
                scores(isa, &queries, rows, &seen, &mut found, keys);
                weigh(isa, &probabilities, keys, rows, &seen, (&mut sums, false));
                let whole = (found.clone(), sums.clone());
                found.fill(0.0);
                // In parts, the later ones counted from their own first key.
                let middle = seen.end.div_ceil(2);
                for part in [seen.start..middle, middle..seen.end] {
                    let own = StridedRows {
                        values: &rows.values[part.start * stride..],
                        ..rows
                    };
                    let (first, places) = (part.start, 0..part.len());
                    scores(isa, &queries, own, &places, &mut found[first..], keys);
                    let to = (&mut sums[..], first > seen.start);
                    weigh(isa, &probabilities[first..], keys, own, &places, to);
                }
                assert_eq!((&found, &sums), (&whole.0, &whole.1), "{isa:?}");
                for i in 0..count {
                    for j in seen.clone() {
                        let dot: f64 = (0..width)
                            .map(|d| {
                                f64::from(queries[i * width + d])
                                    * f64::from(rows.values[j * stride + d])
                            })
                            .sum();
                        assert!(
                            (f64::from(found[i * keys + j]) - dot).abs() < 1e-4,
                            "{isa:?}"
                        );
                    }
                    for d in 0..width {
                        let sum: f64 = seen
                            .clone()
                            .map(|j| {
                                f64::from(probabilities[i * keys + j])
                                    * f64::from(rows.values[j * stride + d])
                            })
                            .sum();
                        assert!(
                            (f64::from(sums[i * width + d]) - sum).abs() < 1e-4,
                            "{isa:?}"
                        );
                    }
                }
            }
        }
    }
}
