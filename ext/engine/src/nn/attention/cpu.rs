//! Attention on the CPU: one task per sequence and head, whose keys and values fit the cache.

mod few;

use candle_core::{CpuStorage, Layout, Storage, Tensor};
use half::{bf16, f16};

use super::bias::Biases;
use super::{AttentionOptions, AttentionShape};
use crate::kernels::cpu::attention::{packed_width, tile_scores, weigh, TILE};
use crate::kernels::cpu::softmax::softmax_row;
use crate::kernels::cpu::{build, for_each_range, with_scratch, Element, Isa, Output, RowView};
use crate::kernels::rows::row_major;
use crate::{Error, Result};

/// With fewer queries than this, laying the keys out for tiles costs more than it saves.
const LEAST_TILED: usize = 4;

pub(super) fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    boundaries: (&[u32], &[u32]),
    shape: &AttentionShape,
    options: &AttentionOptions<'_>,
) -> Result<Tensor> {
    let biases = Biases::read(options, shape)?;
    let isa = Isa::current()?;
    let (q, k, v) = (row_major(q)?, row_major(k)?, row_major(v)?);
    let parts = [&q, &k, &v].map(Tensor::storage_and_layout);
    let [q_part, k_part, v_part] = &parts;
    macro_rules! run {
        ($T:ty, $variant:ident) => {{
            let call = Call::<$T> {
                isa,
                q: rows(&q_part.0, q_part.1)?,
                k: rows(&k_part.0, k_part.1)?,
                v: rows(&v_part.0, v_part.1)?,
                boundaries,
                shape,
                options,
                biases: &biases,
            };
            CpuStorage::$variant(call.run())
        }};
    }
    let out = match q.dtype() {
        candle_core::DType::F32 => run!(f32, F32),
        candle_core::DType::F16 => run!(f16, F16),
        candle_core::DType::BF16 => run!(bf16, BF16),
        other => {
            return Err(Error::InvalidInput(format!(
                "attention takes f32, f16 or bf16 tensors, not {}",
                other.as_str()
            )))
        }
    };
    let dims = (shape.tokens, shape.heads, shape.value_width);
    let none = candle_core::op::BackpropOp::none();
    Ok(Tensor::from_storage(Storage::Cpu(out), dims, none, false))
}

fn rows<'a, T: Element>(storage: &'a Storage, layout: &Layout) -> Result<RowView<'a, T>> {
    match storage {
        Storage::Cpu(storage) => Ok(RowView::new(storage, layout)?),
        _ => Err(Error::InvalidInput(
            "attention: queries, keys and values must be on one device".into(),
        )),
    }
}

struct Call<'a, T> {
    isa: Isa,
    q: RowView<'a, T>,
    k: RowView<'a, T>,
    v: RowView<'a, T>,
    boundaries: (&'a [u32], &'a [u32]),
    shape: &'a AttentionShape,
    options: &'a AttentionOptions<'a>,
    biases: &'a Biases<'a>,
}

/// The queries and keys of one sequence under one head.
struct Unit {
    head: usize,
    first_query: usize,
    queries: usize,
    first_key: usize,
    keys: usize,
}

impl Unit {
    /// Where query i stands among the keys.
    fn position(&self, i: usize) -> isize {
        i as isize + self.keys as isize - self.queries as isize
    }
}

impl<T: Element> Call<'_, T> {
    fn run(&self) -> Vec<T> {
        let shape = self.shape;
        let sequences = self.boundaries.0.len() - 1;
        let units = sequences * shape.heads;
        let mean_keys = shape.key_tokens / sequences.max(1) + 1;
        let cost = (shape.tokens / sequences.max(1) + 1) * mean_keys * shape.width / 4;
        let few = |sequence: &[u32]| ((sequence[1] - sequence[0]) as usize) < LEAST_TILED;
        let all_few = self.boundaries.0.windows(2).all(few);
        // SAFETY: the units cover every token and head once.
        unsafe {
            build(shape.tokens * shape.heads * shape.value_width, |out| {
                if all_few {
                    return self.run_few(cost, out);
                }
                for_each_range(units, cost, |range| {
                    for unit in range {
                        self.unit(&self.unit_at(unit / shape.heads, unit % shape.heads), out);
                    }
                })
            })
        }
    }

    fn unit_at(&self, sequence: usize, head: usize) -> Unit {
        let (queries, keys) = self.boundaries;
        let range = |b: &[u32]| {
            (
                b[sequence] as usize,
                (b[sequence + 1] - b[sequence]) as usize,
            )
        };
        let (first_query, queries) = range(queries);
        let (first_key, keys) = range(keys);
        Unit {
            head,
            first_query,
            queries,
            first_key,
            keys,
        }
    }

    /// # Safety
    /// `out` holds a row for every token and head.
    unsafe fn unit(&self, unit: &Unit, out: Output<T>) {
        let shape = self.shape;
        if unit.queries < LEAST_TILED {
            // SAFETY: the caller vouches for `out`.
            return unsafe { self.few(unit, 1, out) };
        }
        let padded_keys = packed_width(unit.keys);
        let padded_values = packed_width(shape.value_width);
        let key_room = shape.width * padded_keys;
        let room = key_room
            + unit.keys * padded_values
            + TILE * (padded_keys + shape.width + padded_values);
        with_scratch(room, |scratch| {
            let (keys, rest) = scratch.split_at_mut(key_room);
            let (values, rest) = rest.split_at_mut(unit.keys * padded_values);
            let (scores, rest) = rest.split_at_mut(TILE * padded_keys);
            let (queries, sums) = rest.split_at_mut(TILE * shape.width);
            self.pack(unit, keys, values);
            for start in (0..unit.queries).step_by(TILE) {
                let count = TILE.min(unit.queries - start);
                self.load_queries(unit, start, count, queries);
                let seen = self.seen(unit, start, count);
                tile_scores(self.isa, queries, keys, shape.width, &seen, scores);
                self.shares(unit, start, count, scores, padded_keys, &seen);
                weigh(
                    self.isa,
                    scores,
                    padded_keys,
                    values,
                    padded_values,
                    &seen,
                    sums,
                );
                for i in 0..count {
                    let row = (unit.first_query + start + i) * shape.heads + unit.head;
                    let sums = &sums[i * padded_values..][..shape.value_width];
                    // SAFETY: the caller vouches for `out`, and the row is within it.
                    unsafe { T::narrow(self.isa, sums, out.at(row * shape.value_width)) };
                }
            }
        });
    }

    /// Keys as [width, padded keys], values as [keys, padded width].
    fn pack(&self, unit: &Unit, keys: &mut [f32], values: &mut [f32]) {
        let shape = self.shape;
        let head = unit.head / (shape.heads / shape.key_heads);
        let padded_keys = packed_width(unit.keys);
        let padded_values = packed_width(shape.value_width);
        keys.fill(0.0);
        values.fill(0.0);
        let mut row = vec![0.0; shape.width];
        for j in 0..unit.keys {
            let at = (unit.first_key + j) * shape.key_heads + head;
            T::widen(self.isa, self.k.row(at), &mut row);
            for (d, &value) in row.iter().enumerate() {
                keys[d * padded_keys + j] = value;
            }
            let target = &mut values[j * padded_values..][..shape.value_width];
            T::widen(self.isa, self.v.row(at), target);
        }
    }

    fn load_queries(&self, unit: &Unit, start: usize, count: usize, queries: &mut [f32]) {
        let width = self.shape.width;
        queries[count * width..].fill(0.0);
        for i in 0..count {
            let row = (unit.first_query + start + i) * self.shape.heads + unit.head;
            T::widen(
                self.isa,
                self.q.row(row),
                &mut queries[i * width..][..width],
            );
        }
    }

    /// The keys that any query of a tile sees.
    fn seen(&self, unit: &Unit, start: usize, count: usize) -> std::ops::Range<usize> {
        let kind = self.options.kind;
        let first = kind.seen(unit.position(start), unit.keys);
        let last = kind.seen(unit.position(start + count - 1), unit.keys);
        first.start.min(last.start)..last.end.max(first.end)
    }

    /// Turns the scores of a tile into shares, 0 where a query does not see a key.
    fn shares(
        &self,
        unit: &Unit,
        start: usize,
        count: usize,
        scores: &mut [f32],
        stride: usize,
        tile: &std::ops::Range<usize>,
    ) {
        for i in 0..TILE {
            let row = &mut scores[i * stride..][..stride];
            if i >= count {
                row[tile.clone()].fill(0.0);
                continue;
            }
            let position = unit.position(start + i);
            let seen = self.options.kind.seen(position, unit.keys);
            row[tile.start..seen.start.max(tile.start)].fill(0.0);
            row[seen.end.min(tile.end)..tile.end].fill(0.0);
            if seen.is_empty() {
                row[tile.clone()].fill(0.0);
                continue;
            }
            let first = seen.start;
            let row = &mut row[seen];
            let scale = self.adjust(row, unit, start + i, first, first as isize - position);
            let pointer = row.as_mut_ptr();
            // SAFETY: input and output are the same whole row, read before it is written.
            unsafe { softmax_row(self.isa, pointer, pointer, row.len(), scale) };
        }
    }

    /// Applies cap and bias; the scale that is left for the softmax.
    fn adjust(
        &self,
        row: &mut [f32],
        unit: &Unit,
        query: usize,
        key: usize,
        distance: isize,
    ) -> f32 {
        let scale = self.options.scale;
        if self.options.soft_cap.is_none() && matches!(self.biases, Biases::None) {
            return scale;
        }
        row.iter_mut().for_each(|score| *score *= scale);
        if let Some(cap) = self.options.soft_cap {
            row.iter_mut()
                .for_each(|score| *score = cap * (*score / cap).tanh());
        }
        let (query, key) = (unit.first_query + query, unit.first_key + key);
        self.biases.add(row, unit.head, query, key, distance);
        1.0
    }
}
