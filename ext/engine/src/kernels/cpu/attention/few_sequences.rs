//! Attention of few queries, as when one token is generated: nothing is laid out anew.

use super::few_queries::{scores, weigh, StridedRows};
use super::sequences::{Call, Unit};
use crate::kernels::cpu::rows::softmax::softmax_row;
use crate::kernels::cpu::{for_each_range, with_scratch, Element, Output, RowView};
use crate::runtime::threads;

impl<T: Element> Call<'_, T> {
    /// # Safety
    /// `out` has room for a row of every token and head.
    pub(super) unsafe fn run_few(&self, cost: usize, out: Output<T>) {
        let shape = self.shape;
        let sequences = self.boundaries.0.len() - 1;
        let sharing = shape.heads / shape.key_heads;
        // Heads that share keys go together, unless that leaves threads without work.
        let together = match sequences * shape.key_heads >= 2 * threads::count() {
            true => sharing,
            false => 1,
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
        let shape = self.shape;
        let rows = unit.queries * heads;
        let (width, value_width) = (shape.width, shape.value_width);
        let widened = if T::IS_F32 { 0 } else { unit.keys };
        let room = widened * (width + value_width) + rows * (width + unit.keys + value_width);
        with_scratch(room, |scratch| {
            let (keys, rest) = scratch.split_at_mut(widened * width);
            let (values, rest) = rest.split_at_mut(widened * value_width);
            let (queries, rest) = rest.split_at_mut(rows * width);
            let (probabilities, rest) = rest.split_at_mut(rows * unit.keys);
            let sums = &mut rest[..rows * value_width];
            let place = |row: usize| {
                let (query, head) = (row / heads, unit.head + row % heads);
                (unit.first_query + query) * shape.heads + head
            };
            for (row, query) in queries.chunks_exact_mut(width.max(1)).enumerate() {
                T::widen(self.isa, self.q.row(place(row)), query);
            }
            let keys = self.strided(&self.k, unit, keys, width);
            let values = self.strided(&self.v, unit, values, value_width);
            let seen = self.seen(unit, 0, unit.queries);
            scores(self.isa, queries, keys, &seen, probabilities, unit.keys);
            for (row, probabilities) in probabilities.chunks_exact_mut(unit.keys.max(1)).enumerate()
            {
                let head = unit.head + row % heads;
                self.query_probabilities(
                    &Unit { head, ..*unit },
                    row / heads,
                    probabilities,
                    &seen,
                );
            }
            weigh(self.isa, probabilities, unit.keys, values, &seen, sums);
            for (row, sums) in sums.chunks_exact(value_width.max(1)).enumerate() {
                // SAFETY: the caller vouches for `out`, and the row is within it.
                unsafe { T::narrow(self.isa, sums, out.at(place(row) * value_width)) };
            }
        });
    }

    /// The keys or values of a unit: where they lie, or widened into `scratch`.
    fn strided<'a>(
        &'a self,
        rows: &'a RowView<'_, T>,
        unit: &Unit,
        scratch: &'a mut [f32],
        width: usize,
    ) -> StridedRows<'a> {
        let head = unit.head / (self.shape.heads / self.shape.key_heads);
        let row = |key: usize| rows.row((unit.first_key + key) * self.shape.key_heads + head);
        if T::IS_F32 && unit.keys > 0 {
            let (first, last) = (row(0), row(unit.keys - 1));
            let apart = last.as_ptr() as usize - first.as_ptr() as usize;
            let (length, steps) = (apart / size_of::<f32>() + width, (unit.keys - 1).max(1));
            // SAFETY: both rows lie in one slice of f32, the last behind the first.
            let values = unsafe { std::slice::from_raw_parts(first.as_ptr().cast(), length) };
            return StridedRows {
                values,
                stride: (length - width) / steps,
                width,
            };
        }
        for (key, scratch) in scratch.chunks_exact_mut(width.max(1)).enumerate() {
            T::widen(self.isa, row(key), scratch);
        }
        StridedRows {
            values: scratch,
            stride: width,
            width,
        }
    }

    /// Turns the scores of a query into probabilities, 0 where it does not see a key.
    fn query_probabilities(
        &self,
        unit: &Unit,
        query: usize,
        row: &mut [f32],
        all: &std::ops::Range<usize>,
    ) {
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
