//! Queries and keys rotated, and keys and values into the rows of their pages, in one launch.

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{Result, Storage, Tensor};

use super::operands::{dispatch, hold, Grid, Output};
use super::pipelines::pipeline;
use super::plan::{self, RopeStoreParameters, RowStarts, Source};
use crate::{RopeKind, Rotation};

/// As `kernels::rotate_and_store`; `None` where the layouts ask for another way.
pub fn rotate_and_store(
    (query, key, value): (&Tensor, &Tensor, &Tensor),
    rotation: Option<&Rotation<'_>>,
    pages: (&Tensor, &Tensor),
    slots: &Tensor,
) -> Result<Option<Tensor>> {
    let ((tokens, heads, width), (_, key_heads, _)) = (query.dims3()?, key.dims3()?);
    let dense = |rows: &Tensor| rows.stride().last() == Some(&1) && rows.dtype() == query.dtype();
    let fits = tokens * width > 0
        && [query, key, value].into_iter().all(dense)
        && [pages.0, pages.1]
            .iter()
            .all(|pages| pages.is_contiguous() && pages.dtype() == query.dtype());
    if !fits {
        return Ok(None);
    }
    let held = [query, key, value, pages.0, pages.1, slots].map(hold);
    let [q, k, v] = [held[0].input()?, held[1].input()?, held[2].input()?];
    let [keys, values, slots] = [held[3].input()?, held[4].input()?, held[5].input()?];
    let (query_rows, key_rows) = (q.rows("rope_store")?, k.rows("rope_store")?);
    let tables = rotation.map(|rotation| [rotation.cosines, rotation.sines, rotation.rows]);
    // Without a rotation there are no tables, and nothing is read of what stands in for them.
    let held = tables.unwrap_or([query; 3]).map(hold);
    let [cosines, sines, positions] = [held[0].input()?, held[1].input()?, held[2].input()?];
    let rotated = rotation.map_or(0, |rotation| rotation.rotary);
    let starts = |tensor: &Tensor| tensor.layout().start_offset().is_multiple_of(plan::VECTOR);
    let aligned = plan::is_aligned(&query_rows)
        && plan::is_aligned(&key_rows)
        && width.is_multiple_of(plan::VECTOR)
        && (rotated / 2).is_multiple_of(plan::VECTOR)
        && tables.is_none_or(|tables| starts(tables[0]) && starts(tables[1]))
        && starts(pages.0);
    let interleaved = rotation.is_some_and(|rotation| rotation.kind == RopeKind::Interleaved);
    let parameters = RopeStoreParameters {
        columns: plan::narrow(width)?,
        rotated: plan::narrow(rotated)?,
        known_positions: plan::narrow(tables.map_or(Ok(0), |tables| tables[0].dim(0))?)?,
        flags: plan::flag(aligned, plan::ALIGNED) | plan::flag(interleaved, plan::INTERLEAVED),
        heads: plan::narrow(heads)?,
        key_heads: plan::narrow(key_heads)?,
        query: RowStarts::of(&query_rows)?,
        key: RowStarts::of(&key_rows)?,
        value: RowStarts::of(&v.rows("rope_store")?)?,
    };
    let device = q.storage.device();
    let pipeline = pipeline(device, Source::Rope, "rope_store", query.dtype())?;
    let out = Output::new(device, tokens * heads * width, query.dtype())?;
    let rows = tokens * (heads + 2 * key_heads);
    let lanes = plan::rope_lanes(width, rotated).max(plan::rope_lanes(width, 0));
    let grid = Grid::elementwise(lanes, rows, &pipeline);
    dispatch(device, &pipeline, grid, |encoder| {
        let read = [q, k, v, cosines, sines, positions, slots];
        for (index, input) in read.iter().enumerate() {
            input.bind(encoder, index);
        }
        out.bind(encoder, 7);
        keys.bind_for_writing(encoder, 8);
        values.bind_for_writing(encoder, 9);
        encoder.set_bytes(10, &parameters);
    })?;
    let storage = Storage::Metal(out.into_storage());
    let shape = (tokens, heads, width);
    Ok(Some(Tensor::from_storage(
        storage,
        shape,
        BackpropOp::none(),
        false,
    )))
}
