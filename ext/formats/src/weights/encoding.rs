//! Tensors as the bytes of another type, for files that are written.

use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};

use super::coded::Coded;
use super::WeightSource;
use crate::{Error, Result};
use base::quant::{self, BlockType};

/// The bytes of a tensor in a type (`f32`, `f16`, `bf16` or a block type), little-endian. With `heads`, the rows of
/// each head are sorted so that those that are rotated together are neighbours, as GGUF files have them. `importance`
/// weighs the columns, one after the other where a tensor is a stack of matrices.
pub fn encoded(
    source: &dyn WeightSource,
    name: &str,
    kind: &str,
    heads: Option<usize>,
    importance: Option<&[f32]>,
) -> Result<Vec<u8>> {
    let tensor = source.tensor(name, Some(DType::F32), &Device::Cpu)?;
    let tensor = match heads {
        Some(heads) => side_by_side(&tensor, heads, name)?,
        None => tensor,
    };
    let row = tensor.dims().last().copied().unwrap_or(1);
    let values: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
    let size = BlockType::named(kind).map(BlockType::elements);
    let size = size.or(Coded::named(kind).map(Coded::elements));
    if let Some(size) = size.filter(|&size| !row.is_multiple_of(size)) {
        return Err(Error::InvalidInput(format!(
            "rows of {row} elements are not whole blocks of {kind}, which have {size}"
        )));
    }
    let blocks = match kind {
        "f32" => Ok(values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()),
        "f16" => {
            let halves = values.iter().map(|&value| f16::from_f32(value));
            Ok(halves.flat_map(f16::to_le_bytes).collect())
        }
        "bf16" => {
            let halves = values.iter().map(|&value| bf16::from_f32(value));
            Ok(halves.flat_map(bf16::to_le_bytes).collect())
        }
        _ if needs_importance(kind) && importance.is_none() => {
            return Err(Error::InvalidInput(format!(
                "tensor {name:?} needs an importance matrix to become {kind}"
            )))
        }
        _ if is_written(kind) => blocks(kind, &values, importance),
        _ => return Err(not_written(kind)),
    };
    blocks.map_err(|error| match error {
        Error::InvalidInput(reason) => {
            Error::corrupt(&source.file(name), format!("tensor {name:?}: {reason}"))
        }
        other => other,
    })
}

/// Whole blocks of a type, one after the other. `importance` has a number for each column of a row.
pub fn blocks(kind: &str, values: &[f32], importance: Option<&[f32]>) -> Result<Vec<u8>> {
    match (BlockType::named(kind), Coded::named(kind)) {
        (Some(block), _) => quant::quantize(block, values, importance),
        (_, Some(coded)) => coded.quantize(values, importance),
        _ => Err(not_written(kind)),
    }
}

fn is_written(kind: &str) -> bool {
    BlockType::named(kind).is_some_and(BlockType::is_written) || Coded::named(kind).is_some()
}

fn needs_importance(kind: &str) -> bool {
    Coded::named(kind).is_some_and(Coded::needs_importance)
}

fn not_written(kind: &str) -> Error {
    Error::InvalidInput(format!("weights are not written in the type {kind:?}"))
}

/// Rows i and i + half of a head become neighbours.
fn side_by_side(tensor: &Tensor, heads: usize, name: &str) -> Result<Tensor> {
    let shape = tensor.dims().to_vec();
    let rows = shape.first().copied().unwrap_or(0);
    if heads == 0 || !rows.is_multiple_of(2 * heads) {
        return Err(Error::InvalidInput(format!(
            "{rows} rows of {name} are not those of {heads} heads"
        )));
    }
    let rest: usize = shape[1..].iter().product();
    let parts = tensor.reshape((heads, 2, rows / heads / 2, rest))?;
    Ok(parts.transpose(1, 2)?.contiguous()?.reshape(shape)?)
}
