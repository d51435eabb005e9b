//! Searching the rows of a tensor.

use engine::Error as EngineError;
use kernels::tensor::nearest;
use magnus::{method, prelude::*, Error, RArray, RClass, Ruby};

use super::{compute, on_cpu, RbTensor};
use crate::error;

/// Pairs of a row and its cosine. The rows' lengths are computed once for a tensor.
fn nearest_rows(
    ruby: &Ruby,
    this: &RbTensor,
    vector: &RbTensor,
    most: usize,
) -> Result<RArray, Error> {
    let (rows, vector) = (this.tensor(ruby)?, vector.tensor(ruby)?);
    let vector: Vec<f32> = vector
        .flatten_all()
        .and_then(|vector| vector.to_vec1())
        .map_err(|error| error::to_ruby(ruby, EngineError::from(error)))?;
    let found = compute(ruby, on_cpu(rows), rows.elem_count(), |cancel| {
        let lengths = match this.lengths.get() {
            Some(lengths) => lengths,
            None => {
                let computed = nearest::lengths(rows, cancel)?;
                this.lengths.get_or_init(|| computed)
            }
        };
        nearest::nearest(rows, lengths, &vector, most, cancel)
    })?;
    let list = ruby.ary_new_capa(found.len());
    for (row, score) in found {
        list.push((row, f64::from(score)))?;
    }
    Ok(list)
}

pub fn init(class: RClass) -> Result<(), Error> {
    class.define_private_method("_nearest", method!(nearest_rows, 2))
}
