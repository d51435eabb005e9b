//! Attention on the CPU: one task per sequence and head, whose keys and values fit the cache.

use candle_core::{CpuStorage, Layout, Storage, Tensor};
use half::{bf16, f16};

use super::scores::{block_scores, block_weigh, pack_keys, pack_values, packed_width, BLOCK};
#[cfg(target_arch = "x86_64")]
use super::tiles::{TiledUnit, TILED_QUERIES};
use crate::attention::bias::Biases;
use crate::attention::{Alignment, AttentionOptions, AttentionShape, Inputs};
use crate::cpu::product::gemm::PANEL;
use crate::cpu::product::Sums;
use crate::cpu::rows::softmax::soften_row;
use crate::cpu::{build, for_each_range, with_scratch, Element, Isa, Output, RowView};
#[cfg(target_arch = "x86_64")]
use crate::cpu::{product::half_matrix::bits, Stored};
use crate::rows::row_major;
use crate::{Error, Result};

/// With fewer queries than this, laying the keys out in panels costs more than it saves.
const LEAST_IN_PANELS: usize = 4;

pub fn attend(inputs: &Inputs<'_>, options: &AttentionOptions<'_>) -> Result<Tensor> {
    attend_with(inputs, options, &Biases::read(options, &inputs.shape)?)
}

/// With these biases instead of those of the options.
pub fn attend_with(
    inputs: &Inputs<'_>,
    options: &AttentionOptions<'_>,
    biases: &Biases<'_>,
) -> Result<Tensor> {
    let Inputs { q, k, v, shape, .. } = inputs;
    if options.chosen.is_some() {
        return Err(Error::Internal(
            "a choice of keys is for attention over pages".into(),
        ));
    }
    let boundaries = (inputs.query_boundaries, inputs.key_boundaries);
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
                biases,
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

pub(super) fn rows<'a, T: Element>(
    storage: &'a Storage,
    layout: &Layout,
) -> Result<RowView<'a, T>> {
    match storage {
        Storage::Cpu(storage) => Ok(RowView::new(storage, layout)?),
        _ => Err(Error::InvalidInput(
            "attention: queries, keys and values must be on one device".into(),
        )),
    }
}

pub(super) struct Call<'a, T> {
    pub isa: Isa,
    pub q: RowView<'a, T>,
    pub k: RowView<'a, T>,
    pub v: RowView<'a, T>,
    pub boundaries: (&'a [u32], &'a [u32]),
    pub shape: &'a AttentionShape,
    pub options: &'a AttentionOptions<'a>,
    biases: &'a Biases<'a>,
}

/// The queries and keys of one sequence under one head.
pub(super) struct Unit {
    pub head: usize,
    pub first_query: usize,
    pub queries: usize,
    pub first_key: usize,
    pub keys: usize,
    pub alignment: Alignment,
}

impl Unit {
    /// The same under another head, counted from its own.
    pub fn under(&self, head: usize) -> Self {
        Self {
            head: self.head + head,
            ..*self
        }
    }

    /// Where query i stands among the keys.
    pub fn position(&self, i: usize) -> isize {
        self.alignment.position(i, self.queries, self.keys)
    }
}

impl<T: Element> Call<'_, T> {
    fn run(&self) -> Vec<T> {
        let shape = self.shape;
        let sequences = self.boundaries.0.len() - 1;
        let units = sequences * shape.heads;
        let mean_keys = shape.key_tokens / sequences.max(1) + 1;
        let cost = (shape.tokens / sequences.max(1) + 1) * mean_keys * shape.width / 4;
        let few = |sequence: &[u32]| ((sequence[1] - sequence[0]) as usize) < LEAST_IN_PANELS;
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

    pub(super) fn unit_at(&self, sequence: usize, head: usize) -> Unit {
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
            alignment: self.options.alignment,
        }
    }

    /// # Safety
    /// `out` holds a row for every token and head.
    unsafe fn unit(&self, unit: &Unit, out: Output<T>) {
        // SAFETY: `out` is valid for a row of every token and head, as the caller promises; AMX is used only where
        // `takes_tiles` found it.
        unsafe {
            if unit.queries < LEAST_IN_PANELS {
                return self.few(unit, 1, out);
            }
            #[cfg(target_arch = "x86_64")]
            if self.takes_tiles() {
                return self.tiled_unit(unit, out);
            }
            self.panel_unit(unit, out);
        }
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn takes_tiles(&self) -> bool {
        self.isa == Isa::Amx && T::STORED == Stored::Bf16 && self.options.sinks.is_none()
    }

    /// # Safety
    /// `out` holds a row for every token and head.
    unsafe fn panel_unit(&self, unit: &Unit, out: Output<T>) {
        let shape = self.shape;
        let (width, value_width) = (shape.width, shape.value_width);
        let (stride, padded_values) = (packed_width(unit.keys), packed_width(value_width));
        let block = BLOCK.min(unit.queries);
        let widened = if T::IS_F32 { 0 } else { BLOCK };
        let room = stride * width
            + unit.keys * padded_values
            + block * (stride + padded_values)
            + widened * width.max(value_width);
        with_scratch(room, |scratch| {
            let (keys, rest) = scratch.split_at_mut(stride * width);
            let (values, rest) = rest.split_at_mut(unit.keys * padded_values);
            let (scores, rest) = rest.split_at_mut(block * stride);
            let (sums, widened) = rest.split_at_mut(block * padded_values);
            self.pack(unit, (keys, values), widened);
            for start in (0..unit.queries).step_by(block) {
                let count = block.min(unit.queries - start);
                let place = |query: usize| self.query_row(unit, start + query);
                let queries = self.strided(&self.q, place, count, widened);
                let seen = self.seen(unit, start, count);
                let to = (&mut *scores, stride);
                block_scores(self.isa, (queries, count), keys, &seen, to);
                self.probabilities(unit, start, count, scores, stride, &seen);
                let probabilities = (&*scores, count, stride);
                let values = (&*values, unit.keys, padded_values);
                // SAFETY: there is room for the sums of whole panels, in the scratch and, where rows are whole
                // panels, in `out`, for which the caller vouches; an `Isa` comes from detection.
                unsafe {
                    if T::IS_F32 && value_width == padded_values {
                        let sums = Sums {
                            start: out.at(place(0) * value_width).cast(),
                            stride: shape.heads * value_width,
                        };
                        block_weigh(self.isa, probabilities, values, &seen, sums);
                    } else {
                        let to = Sums {
                            start: sums.as_mut_ptr(),
                            stride: padded_values,
                        };
                        block_weigh(self.isa, probabilities, values, &seen, to);
                        self.store(unit, start, count, sums, padded_values, out);
                    }
                }
            }
        });
    }

    /// Keys and values as panels; `widened` has room for rows that are not f32.
    fn pack(&self, unit: &Unit, (keys, values): (&mut [f32], &mut [f32]), widened: &mut [f32]) {
        let head = self.key_head(unit);
        let panels = keys.chunks_exact_mut((self.shape.width * PANEL).max(1));
        for (first, panel) in (0..unit.keys).step_by(PANEL).zip(panels) {
            let place = |key: usize| self.key_row(unit, head, first + key);
            let count = PANEL.min(unit.keys - first);
            let rows = self.strided(&self.k, place, count, widened);
            pack_keys(self.isa, (rows, count), panel);
            let rows = self.strided(&self.v, place, count, widened);
            pack_values(self.isa, (rows, count), (first, unit.keys), values);
        }
    }

    /// By tiles of bf16.
    ///
    /// # Safety
    /// `out` holds a row for every token and head.
    #[cfg(target_arch = "x86_64")]
    unsafe fn tiled_unit(&self, unit: &Unit, out: Output<T>) {
        let shape = self.shape;
        let sizes = (unit.keys, shape.width, shape.value_width);
        let key_head = self.key_head(unit);
        with_scratch(TiledUnit::room(sizes, false), |scratch| {
            let mut tiles = TiledUnit::new(self.isa, sizes, false, scratch);
            let key = |key: usize| bits(self.k.row(self.key_row(unit, key_head, key)));
            for first in (0..unit.keys).step_by(PANEL) {
                tiles.set_keys(first, PANEL.min(unit.keys - first), |at| key(first + at));
            }
            self.set_values(unit, &(0..unit.keys), &mut tiles);
            for start in (0..unit.queries).step_by(TILED_QUERIES) {
                let count = TILED_QUERIES.min(unit.queries - start);
                let query = |at: usize| bits(self.q.row(self.query_row(unit, start + at)));
                let seen = self.seen(unit, start, count);
                tiles.score(count, &seen, query);
                for row in 0..count {
                    self.soften(unit, start + row, &mut tiles, row, &seen);
                }
                let width = shape.value_width;
                // SAFETY: the caller vouches for `out`, whose rows are of bf16.
                unsafe {
                    tiles.weigh(count, &seen, width, |row| {
                        out.at(self.query_row(unit, start + row) * width).cast()
                    })
                };
            }
        });
    }

    /// Turns the scores of a query in a row of tiles into probabilities; `all` are the keys that any row sees.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn soften(
        &self,
        unit: &Unit,
        query: usize,
        tiles: &mut TiledUnit<'_>,
        row: usize,
        all: &std::ops::Range<usize>,
    ) {
        let position = unit.position(query);
        let seen = self.options.kind.seen(position, unit.keys);
        let distance = seen.start as isize - position;
        let scale = if seen.is_empty() {
            0.0
        } else {
            let scores = &mut tiles.scores(row)[seen.clone()];
            self.adjust(scores, unit, query, seen.start, distance)
        };
        tiles.soften(row, &seen, all, scale);
    }

    /// The values of the keys that are `seen`, and of neighbours that share their pairs.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn set_values(
        &self,
        unit: &Unit,
        seen: &std::ops::Range<usize>,
        tiles: &mut TiledUnit<'_>,
    ) {
        let head = self.key_head(unit);
        let value = |key: usize| bits(self.v.row(self.key_row(unit, head, key)));
        let first = seen.start / TILED_QUERIES * TILED_QUERIES;
        for key in (first..seen.end).step_by(2) {
            tiles.set_values(
                key,
                value(key),
                (key + 1 < unit.keys).then(|| value(key + 1)),
            );
        }
    }

    pub(super) fn key_head(&self, unit: &Unit) -> usize {
        unit.head / (self.shape.heads / self.shape.key_heads)
    }

    pub(super) fn key_row(&self, unit: &Unit, key_head: usize, key: usize) -> usize {
        (unit.first_key + key) * self.shape.key_heads + key_head
    }

    fn query_row(&self, unit: &Unit, query: usize) -> usize {
        (unit.first_query + query) * self.shape.heads + unit.head
    }

    /// The sums of some queries, rows of `stride`, to their places.
    ///
    /// # Safety
    /// `out` holds a row for every token and head.
    unsafe fn store(
        &self,
        unit: &Unit,
        start: usize,
        count: usize,
        sums: &[f32],
        stride: usize,
        out: Output<T>,
    ) {
        let width = self.shape.value_width;
        for (i, sums) in sums.chunks(stride.max(1)).enumerate().take(count) {
            let at = self.query_row(unit, start + i) * width;
            // SAFETY: the caller vouches for `out`, and the row is within it.
            unsafe { T::narrow(self.isa, &sums[..width], out.at(at)) };
        }
    }

    /// The keys that any query of a tile sees.
    pub(super) fn seen(&self, unit: &Unit, start: usize, count: usize) -> std::ops::Range<usize> {
        let kind = self.options.kind;
        let first = kind.seen(unit.position(start), unit.keys);
        let last = kind.seen(unit.position(start + count - 1), unit.keys);
        first.start.min(last.start)..last.end.max(first.end)
    }

    /// Turns the scores of some queries into probabilities, 0 where a query does not see a key.
    fn probabilities(
        &self,
        unit: &Unit,
        start: usize,
        count: usize,
        scores: &mut [f32],
        stride: usize,
        tile: &std::ops::Range<usize>,
    ) {
        for i in 0..count {
            let row = &mut scores[i * stride..][..stride];
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
            let sink = self.options.sinks.map(|sinks| sinks[unit.head]);
            soften_row(self.isa, row, scale, sink);
        }
    }

    /// Applies cap and bias; the scale that is left for the softmax.
    pub(super) fn adjust(
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
