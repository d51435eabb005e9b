//! How well keys fit queries, by many small heads together, as a sparse attention chooses its keys (DeepSeek V3.2).

use candle_core::{DType, Tensor};

use super::product::{multiply, Product};
use super::{CpuPages, LANES};
use crate::cpu::attention::sequences::rows;
use crate::cpu::{build, for_each_range, with_scratch, Isa, Output, RowView};
use crate::paged::{PagedBatch, PagedPiece, PAGE};
use crate::rows::row_major;
use crate::{Error, Result};

struct Call<'a> {
    isa: Isa,
    pages: &'a CpuPages,
    /// A row for every query and head.
    queries: RowView<'a, f32>,
    weights: &'a [f32],
    heads: usize,
    /// The places of a result.
    span: usize,
}

impl CpuPages {
    /// For every row of the batch, Σ over its heads of weight · max(0, query · key), for each key up to its own;
    /// `query` is `[rows, heads, width]`, `weights` are `[rows, heads]`.
    pub fn ranks(
        &self,
        batch: &PagedBatch,
        query: &Tensor,
        weights: &Tensor,
    ) -> Result<Vec<Vec<f32>>> {
        let (tokens, heads, width) = query.dims3()?;
        let known = |page: &u32| (*page as usize) < self.capacity();
        let mut pages = batch.pieces.iter().flat_map(|piece| &piece.pages);
        let fits = tokens == batch.slots.len()
            && width == self.shape().width
            && self.shape().heads == 1
            && weights.dims() == [tokens, heads]
            && pages.all(known);
        if !fits {
            return Err(Error::Internal(
                "queries that do not fit the pages they read".into(),
            ));
        }
        let weights: Vec<f32> = weights.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        let query = row_major(&query.to_dtype(DType::F32)?)?;
        let (storage, layout) = query.storage_and_layout();
        let most = batch.pieces.iter().map(|piece| piece.keys).max();
        let call = Call {
            isa: Isa::current()?,
            pages: self,
            queries: rows(&storage, layout)?,
            weights: &weights,
            heads,
            span: most.unwrap_or(0).next_multiple_of(PAGE),
        };
        Ok(call.run(batch, tokens))
    }
}

impl Call<'_> {
    fn run(&self, batch: &PagedBatch, tokens: usize) -> Vec<Vec<f32>> {
        let units: Vec<(&PagedPiece, usize)> = batch
            .pieces
            .iter()
            .flat_map(|piece| piece.rows.clone().map(move |row| (piece, row)))
            .collect();
        let cost = self.span * self.heads * self.pages.shape().width / 4;
        // SAFETY: the units are the rows, each of which is written whole.
        let all: Vec<f32> = unsafe {
            build(tokens * self.span, |out| {
                for_each_range(units.len(), cost, |range| {
                    let units = units[range].iter();
                    units.for_each(|&(piece, row)| self.row(piece, row, out));
                })
            })
        };
        let ranks = all.chunks_exact(self.span.max(1));
        let seen = units.iter().map(|(piece, row)| seen(piece, *row));
        ranks
            .zip(seen)
            .map(|(ranks, seen)| ranks[..seen].to_vec())
            .collect()
    }

    /// # Safety
    /// `out` has a row for every query, of which no other unit writes this one.
    unsafe fn row(&self, piece: &PagedPiece, row: usize, out: Output<f32>) {
        let width = self.pages.shape().width;
        let seen = seen(piece, row);
        let sizes = [self.heads * width, self.heads * PAGE, self.pages.scratch()];
        with_scratch(sizes.iter().sum(), |scratch| {
            let (queries, rest) = scratch.split_at_mut(sizes[0]);
            let (scores, page_scratch) = rest.split_at_mut(sizes[1]);
            for (head, query) in queries.chunks_exact_mut(width).enumerate() {
                query.copy_from_slice(self.queries.row(row * self.heads + head));
            }
            // SAFETY: the caller vouches for `out`; the buffer is written here before it is read.
            let ranks = unsafe {
                let start = out.at(row * self.span);
                start.write_bytes(0, self.span);
                std::slice::from_raw_parts_mut(start, self.span)
            };
            for (number, ranks) in ranks.chunks_exact_mut(PAGE).enumerate() {
                let first = number * PAGE;
                if first >= seen {
                    break;
                }
                let keys = piece.pages[number];
                let keys = self.pages.keys(self.isa, keys, 0, page_scratch);
                let columns = PAGE.min((seen - first).next_multiple_of(LANES));
                let product = Product {
                    a: queries.as_ptr(),
                    a_stride: width,
                    b: keys.as_ptr(),
                    b_stride: PAGE,
                    depth: width,
                    columns,
                    out: scores.as_mut_ptr(),
                    out_stride: PAGE,
                };
                // SAFETY: there is a query of `width` and a row of scores for every head, and a page has that depth.
                unsafe { multiply(self.isa, product, self.heads) };
                let weights = &self.weights[row * self.heads..][..self.heads];
                for (scores, weight) in scores.chunks_exact(PAGE).zip(weights) {
                    for (rank, score) in ranks.iter_mut().zip(&scores[..columns]) {
                        *rank += weight * score.max(0.0);
                    }
                }
            }
        });
    }
}

/// How many keys a row of a batch sees.
fn seen(piece: &PagedPiece, row: usize) -> usize {
    piece.keys - (piece.rows.end - row) + 1
}
