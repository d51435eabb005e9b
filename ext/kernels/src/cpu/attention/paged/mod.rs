//! Attention over pages of keys and values. A page has a head's keys with the keys side by side,
//! [width, PAGE], and its values row after row, [PAGE, width]: as the products want them, so that nothing
//! is copied to another layout, for one query as for many.

mod pages;
mod product;
mod ranks;

use std::ops::Range;

use candle_core::{CpuStorage, Storage, Tensor};
use half::{bf16, f16};

pub use pages::CpuPages;
use pages::LANES;
use product::{multiply, multiply_onto, Product};

use super::sequences::rows;
use crate::attention::{AttentionBias, AttentionOptions};
use crate::cpu::rows::softmax::soften_row;
use crate::cpu::{build, for_each_range, with_scratch, Element, Isa, Output, RowView};
use crate::paged::{PagedBatch, PagedPiece, PAGE};
use crate::rows::row_major;
use crate::{Error, Result};
use base::runtime::threads;

/// Queries of all heads that are worked on together.
const ROWS: usize = 48;

struct Call<'a, T> {
    isa: Isa,
    q: RowView<'a, T>,
    heads: usize,
    pages: &'a CpuPages,
    options: &'a AttentionOptions<'a>,
}

/// Some queries of a piece under heads that share their keys.
struct Unit<'a> {
    piece: &'a PagedPiece,
    heads: Range<usize>,
    /// Counted from the piece's first row.
    queries: Range<usize>,
}

impl Unit<'_> {
    fn position(&self, query: usize) -> isize {
        (self.piece.keys - self.piece.rows.len() + query) as isize
    }
}

impl CpuPages {
    /// `query` is `[rows, heads, width]`, and so is the result.
    pub fn attend(
        &self,
        batch: &PagedBatch,
        query: &Tensor,
        options: &AttentionOptions<'_>,
    ) -> Result<Tensor> {
        let (tokens, heads, width) = query.dims3()?;
        let shape = self.shape();
        let fits = tokens == batch.slots.len()
            && width == shape.width
            && heads.is_multiple_of(shape.heads)
            && match options.bias {
                AttentionBias::None => true,
                AttentionBias::Alibi(slopes) => slopes.len() == heads,
                _ => false,
            }
            && options.sinks.is_none_or(|sinks| sinks.len() == heads)
            && options.chosen.is_none_or(|chosen| chosen.len() == tokens)
            && batch
                .pieces
                .iter()
                .flat_map(|piece| &piece.pages)
                .all(|&page| (page as usize) < self.capacity());
        if !fits {
            return Err(Error::Internal(
                "queries that do not fit the pages they read".into(),
            ));
        }
        let isa = Isa::current()?;
        let query = row_major(query)?;
        let (storage, layout) = query.storage_and_layout();
        macro_rules! run {
            ($T:ty, $variant:ident) => {{
                let call = Call::<$T> {
                    isa,
                    q: rows(&storage, layout)?,
                    heads,
                    pages: self,
                    options,
                };
                CpuStorage::$variant(call.run(&batch.pieces, tokens))
            }};
        }
        let out = match query.dtype() {
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
        let none = candle_core::op::BackpropOp::none();
        let dims = (tokens, heads, width);
        Ok(Tensor::from_storage(Storage::Cpu(out), dims, none, false))
    }
}

impl<T: Element> Call<'_, T> {
    fn run(&self, pieces: &[PagedPiece], tokens: usize) -> Vec<T> {
        let units = self.units(pieces);
        let width = self.pages.shape().width;
        let work = |unit: &Unit<'_>| unit.queries.len() * unit.heads.len() * unit.piece.keys;
        let total: usize = units.iter().map(work).sum();
        let cost = total / units.len().max(1) * width / 4;
        // SAFETY: the units cover every row and head once.
        unsafe {
            build(tokens * self.heads * width, |out| {
                for_each_range(units.len(), cost, |range| {
                    units[range].iter().for_each(|unit| self.unit(unit, out));
                })
            })
        }
    }

    fn units<'a>(&self, pieces: &'a [PagedPiece]) -> Vec<Unit<'a>> {
        let key_heads = self.pages.shape().heads;
        let sharing = self.heads / key_heads;
        // Heads that share keys go together, unless that leaves threads without work: a single query's sums
        // wait for themselves.
        let blocks: usize = pieces
            .iter()
            .map(|piece| (piece.rows.len() * sharing).div_ceil(ROWS))
            .sum();
        let together = if blocks * key_heads >= threads::count() {
            sharing
        } else {
            1
        };
        let queries = (ROWS / together).max(1);
        let mut units = Vec::new();
        for piece in pieces {
            for head in (0..self.heads).step_by(together) {
                for first in (0..piece.rows.len()).step_by(queries) {
                    units.push(Unit {
                        piece,
                        heads: head..head + together,
                        queries: first..(first + queries).min(piece.rows.len()),
                    });
                }
            }
        }
        units
    }

    /// # Safety
    /// `out` has a row for every token and head, of which no other unit writes these.
    unsafe fn unit(&self, unit: &Unit<'_>, out: Output<T>) {
        let width = self.pages.shape().width;
        let padded = self.pages.padded();
        let heads = unit.heads.len();
        let rows = unit.queries.len() * heads;
        let seen = self.seen(unit);
        let pages = seen.start / PAGE..seen.end.div_ceil(PAGE);
        let (offset, span) = (pages.start * PAGE, pages.len() * PAGE);
        let sizes = [
            rows * width,
            rows * span,
            rows * padded,
            self.pages.scratch(),
        ];
        with_scratch(sizes.iter().sum(), |scratch| {
            let (queries, rest) = scratch.split_at_mut(sizes[0]);
            let (scores, rest) = rest.split_at_mut(sizes[1]);
            let (sums, page_scratch) = rest.split_at_mut(sizes[2]);
            let key_head = unit.heads.start / (self.heads / self.pages.shape().heads);
            let place = |row: usize| {
                let query = unit.piece.rows.start + unit.queries.start + row / heads;
                query * self.heads + unit.heads.start + row % heads
            };
            for (row, query) in queries.chunks_exact_mut(width).enumerate() {
                T::widen(self.isa, self.q.row(place(row)), query);
            }
            for (at, number) in pages.clone().enumerate() {
                let page = unit.piece.pages[number];
                let keys = self.pages.keys(self.isa, page, key_head, page_scratch);
                let product = Product {
                    a: queries.as_ptr(),
                    a_stride: width,
                    b: keys.as_ptr(),
                    b_stride: PAGE,
                    depth: width,
                    // The others' scores are written over.
                    columns: PAGE.min((seen.end - number * PAGE).next_multiple_of(LANES)),
                    out: scores[at * PAGE..].as_mut_ptr(),
                    out_stride: span,
                };
                // SAFETY: there are `rows` queries of `width` and rows of scores, and a page has that depth.
                unsafe { multiply(self.isa, product, rows) };
            }
            for (row, scores) in scores.chunks_exact_mut(span.max(1)).enumerate() {
                let at = (
                    unit.queries.start + row / heads,
                    unit.heads.start + row % heads,
                );
                self.probabilities(unit, at, scores, offset);
            }
            sums.fill(0.0);
            for (at, number) in pages.clone().enumerate() {
                let page = unit.piece.pages[number];
                let values = self.pages.values(self.isa, page, key_head, page_scratch);
                let product = Product {
                    a: scores[at * PAGE..].as_ptr(),
                    a_stride: span,
                    b: values.as_ptr(),
                    b_stride: padded,
                    // What lies behind the last key that was stored is not to be read.
                    depth: PAGE.min(seen.end - number * PAGE),
                    columns: padded,
                    out: sums.as_mut_ptr(),
                    out_stride: padded,
                };
                // SAFETY: there are `rows` rows of scores and sums, and a page has that depth.
                unsafe { multiply_onto(self.isa, product, rows) };
            }
            for (row, sums) in sums.chunks_exact(padded).enumerate() {
                // SAFETY: the caller vouches for `out`, and the row is within it.
                unsafe { T::narrow(self.isa, &sums[..width], out.at(place(row) * width)) };
            }
        });
    }

    /// The keys that any query of a unit sees.
    fn seen(&self, unit: &Unit<'_>) -> Range<usize> {
        let kind = self.options.kind;
        let first = kind.seen(unit.position(unit.queries.start), unit.piece.keys);
        let last = kind.seen(unit.position(unit.queries.end - 1), unit.piece.keys);
        first.start.min(last.start)..last.end.max(first.end)
    }

    /// Turns the scores of a query with the keys from `offset` on into probabilities, 0 where it does not
    /// see a key.
    fn probabilities(
        &self,
        unit: &Unit<'_>,
        (query, head): (usize, usize),
        row: &mut [f32],
        offset: usize,
    ) {
        let position = unit.position(query);
        let seen = self.options.kind.seen(position, unit.piece.keys);
        if seen.is_empty() {
            return row.fill(0.0);
        }
        let distance = seen.start as isize - position;
        let seen = seen.start - offset..seen.end - offset;
        row[..seen.start].fill(0.0);
        row[seen.end..].fill(0.0);
        let row = &mut row[seen];
        let mut scale = self.options.scale;
        if let Some(cap) = self.options.soft_cap {
            for score in row.iter_mut() {
                *score = cap * (*score * scale / cap).tanh();
            }
            scale = 1.0;
        }
        if let AttentionBias::Alibi(slopes) = self.options.bias {
            for (key, score) in row.iter_mut().enumerate() {
                let distance = (distance + key as isize).unsigned_abs() as f32;
                *score = *score * scale - slopes[head] * distance;
            }
            scale = 1.0;
        }
        let sink = self.options.sinks.map(|sinks| sinks[head]);
        let chosen = self.options.chosen;
        match chosen.and_then(|chosen| chosen[unit.piece.rows.start + query].as_deref()) {
            Some(chosen) => soften_chosen(row, chosen, |row| {
                soften_row(self.isa, row, scale, sink);
            }),
            None => soften_row(self.isa, row, scale, sink),
        }
    }
}

/// Probabilities of the chosen scores of a row among themselves, 0 at others. Keys are counted from the first that
/// the row has, and rise.
fn soften_chosen(row: &mut [f32], chosen: &[u32], soften: impl FnOnce(&mut [f32])) {
    let chosen = &chosen[..chosen.partition_point(|&key| (key as usize) < row.len())];
    // None comes before its place among the chosen, so that nothing is written over that is still to be moved.
    for (at, &key) in chosen.iter().enumerate() {
        row[at] = row[key as usize];
    }
    soften(&mut row[..chosen.len()]);
    let mut end = row.len();
    for (at, &key) in chosen.iter().enumerate().rev() {
        row[key as usize] = row[at];
        row[key as usize + 1..end].fill(0.0);
        end = key as usize;
    }
    row[..end].fill(0.0);
}
