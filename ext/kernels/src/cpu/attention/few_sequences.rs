//! Attention of few queries, as when one token is generated: nothing is copied to another layout.

use super::few_queries::{scores, weigh, StridedRows};
use super::sequences::{Call, Unit};
#[cfg(target_arch = "x86_64")]
use super::tiles::{TiledUnit, TILED_QUERIES};
#[cfg(target_arch = "x86_64")]
use crate::cpu::product::half_matrix::bits;
use crate::cpu::rows::softmax::softmax_row;
use crate::cpu::{for_each_range, with_scratch, Element, Output, RowView};
use base::runtime::threads;

/// Keys whose numbers are widened together, so that they stay in the first cache.
const WIDENED_KEYS: usize = 64;

impl<T: Element> Call<'_, T> {
    /// # Safety
    /// `out` has room for a row of every token and head.
    pub(super) unsafe fn run_few(&self, cost: usize, out: Output<T>) {
        let shape = self.shape;
        let sequences = self.boundaries.0.len() - 1;
        let sharing = shape.heads / shape.key_heads;
        // Heads that share keys go together, unless that leaves threads without work.
        let together = if sequences * shape.key_heads >= 2 * threads::count() {
            sharing
        } else {
            1
        };
        let units = shape.heads / together;
        for_each_range(sequences * units, cost * together, |range| {
            for unit in range {
                let unit = self.unit_at(unit / units, unit % units * together);
                // SAFETY: the caller vouches for `out`; heads are worked on once.
                unsafe { self.few(&unit, together, out) };
            }
        });
    }

    /// The heads from the unit's on, which share their keys.
    ///
    /// # Safety
    /// As for `run_few`.
    pub(super) unsafe fn few(&self, unit: &Unit, heads: usize, out: Output<T>) {
        #[cfg(target_arch = "x86_64")]
        if self.takes_tiles() && unit.queries > 0 {
            // SAFETY: `out` holds a row for every token and head, as the caller promises; `takes_tiles` found AMX.
            return unsafe { self.few_tiled(unit, heads, out) };
        }
        let shape = self.shape;
        let rows = unit.queries * heads;
        if rows == 0 {
            return;
        }
        let (width, value_width) = (shape.width, shape.value_width);
        let together = if T::IS_F32 {
            unit.keys.max(1)
        } else {
            WIDENED_KEYS
        };
        let widened = if T::IS_F32 { 0 } else { WIDENED_KEYS };
        let room = widened * width.max(value_width) + rows * (width + unit.keys + value_width);
        with_scratch(room, |scratch| {
            let (wide, rest) = scratch.split_at_mut(widened * width.max(value_width));
            let (queries, rest) = rest.split_at_mut(rows * width);
            let (probabilities, rest) = rest.split_at_mut(rows * unit.keys);
            let sums = &mut rest[..rows * value_width];
            let place = |row: usize| self.place(unit, heads, row);
            for (row, query) in queries.chunks_exact_mut(width.max(1)).enumerate() {
                T::widen(self.isa, self.q.row(place(row)), query);
            }
            let head = self.key_head(unit);
            let seen = self.seen(unit, 0, unit.queries);
            let parts = || {
                let starts = seen.clone().step_by(together);
                starts.map(|first| (first, 0..together.min(seen.end - first)))
            };
            for (first, part) in parts() {
                let key = |key: usize| self.key_row(unit, head, first + key);
                let keys = self.strided(&self.k, key, part.len(), wide);
                let to = &mut probabilities[first..];
                scores(self.isa, queries, keys, &part, to, unit.keys);
            }
            let each = probabilities.chunks_exact_mut(unit.keys.max(1));
            for (row, probabilities) in each.enumerate() {
                self.query_probabilities(unit, (row / heads, row % heads), probabilities, &seen);
            }
            sums.fill(0.0);
            for (first, part) in parts() {
                let key = |key: usize| self.key_row(unit, head, first + key);
                let values = self.strided(&self.v, key, part.len(), wide);
                let to = (&mut *sums, first > seen.start);
                weigh(
                    self.isa,
                    &probabilities[first..],
                    unit.keys,
                    values,
                    &part,
                    to,
                );
            }
            for (row, sums) in sums.chunks_exact(value_width.max(1)).enumerate() {
                // SAFETY: the caller vouches for `out`, and the row is within it.
                unsafe { T::narrow(self.isa, sums, out.at(place(row) * value_width)) };
            }
        });
    }

    /// `few` by tiles of bf16, as many queries are multiplied on a CPU that has them.
    ///
    /// # Safety
    /// As for `run_few`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn few_tiled(&self, unit: &Unit, heads: usize, out: Output<T>) {
        let shape = self.shape;
        let sizes = (unit.keys, shape.width, shape.value_width);
        let seen = self.seen(unit, 0, unit.queries);
        let head = self.key_head(unit);
        let key = |key: usize| bits(self.k.row(self.key_row(unit, head, key)));
        with_scratch(TiledUnit::room(sizes, true), |scratch| {
            let mut tiles = TiledUnit::new(self.isa, sizes, true, scratch);
            self.set_values(unit, &seen, &mut tiles);
            let rows = unit.queries * heads;
            for start in (0..rows).step_by(TILED_QUERIES) {
                let count = TILED_QUERIES.min(rows - start);
                let place = |row: usize| self.place(unit, heads, start + row);
                for row in 0..count {
                    tiles.set_few(row, bits(self.q.row(place(row))));
                }
                tiles.score_few(count, &seen, key);
                for row in 0..count {
                    let unit = unit.under((start + row) % heads);
                    self.soften(&unit, (start + row) / heads, &mut tiles, row, &seen);
                }
                let width = shape.value_width;
                // SAFETY: the caller vouches for `out`, whose rows are of bf16.
                unsafe {
                    tiles.weigh(count, &seen, width, |row| out.at(place(row) * width).cast())
                };
            }
        });
    }

    /// The row of a query under one of `heads` heads, of which those of a query are neighbours.
    fn place(&self, unit: &Unit, heads: usize, row: usize) -> usize {
        (unit.first_query + row / heads) * self.shape.heads + unit.head + row % heads
    }

    /// So many rows at places that are evenly apart: where they lie, or widened into `scratch`.
    pub(super) fn strided<'a>(
        &self,
        rows: &RowView<'a, T>,
        place: impl Fn(usize) -> usize,
        count: usize,
        scratch: &'a mut [f32],
    ) -> StridedRows<'a> {
        let width = rows.rows.width;
        let length = |first: &[T], last: &[T]| {
            let apart = last.as_ptr() as usize - first.as_ptr() as usize;
            apart / size_of::<T>() + width
        };
        if T::IS_F32 && count > 0 {
            let (first, last) = (rows.row(place(0)), rows.row(place(count - 1)));
            let (length, steps) = (length(first, last), (count - 1).max(1));
            // SAFETY: both rows lie in one slice of f32, the last behind the first.
            let values = unsafe { std::slice::from_raw_parts(first.as_ptr().cast(), length) };
            return StridedRows {
                values,
                stride: (length - width) / steps,
                width,
            };
        }
        let scratch = &mut scratch[..count * width];
        let ends = || (rows.row(place(0)), rows.row(place(count - 1)));
        if count > 1 && length(ends().0, ends().1) == count * width {
            // SAFETY: both rows lie in one slice, the last behind the first, and those between them without a gap:
            // they are evenly apart.
            let values = unsafe { std::slice::from_raw_parts(ends().0.as_ptr(), count * width) };
            T::widen(self.isa, values, scratch);
            return StridedRows {
                values: scratch,
                stride: width,
                width,
            };
        }
        for (at, scratch) in scratch.chunks_exact_mut(width.max(1)).enumerate() {
            T::widen(self.isa, rows.row(place(at)), scratch);
        }
        StridedRows {
            values: scratch,
            stride: width,
            width,
        }
    }

    /// Turns the scores of a query into probabilities, 0 where it does not see a key; heads are counted
    /// from the unit's own.
    fn query_probabilities(
        &self,
        unit: &Unit,
        (query, head): (usize, usize),
        row: &mut [f32],
        all: &std::ops::Range<usize>,
    ) {
        let unit = &unit.under(head);
        let position = unit.position(query);
        let seen = self.options.kind.seen(position, unit.keys);
        row[all.start..seen.start.max(all.start)].fill(0.0);
        row[seen.end.min(all.end)..all.end].fill(0.0);
        if seen.is_empty() {
            return row[all.clone()].fill(0.0);
        }
        let first = seen.start;
        let row = &mut row[seen];
        let scale = self.adjust(row, unit, query, first, first as isize - position);
        let pointer = row.as_mut_ptr();
        // SAFETY: input and output are the same whole row, read before it is written.
        unsafe { softmax_row(self.isa, pointer, pointer, row.len(), scale) };
    }
}
