//! Tensors as the bytes of another type, for files that are written.

use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};

use super::coded::Coded;
use super::WeightSource;
use crate::{Error, Result};
use base::quant::{self, BlockType};

/// What the rows of a tensor are in a file, if they are others than in its checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// Of so many heads, those that are rotated together are neighbours.
    Neighbours(usize),
    /// Queries, keys and values lie one after the other, which were together for each group of heads: of so many
    /// groups, with so many queries each.
    Apart { groups: usize, queries: usize },
    /// The columns of a matrix, or of each of a stack.
    Columns,
    /// Those of every second column from this one on, as for `Columns`; of vectors, every second number.
    Alternate(usize),
    /// All but so many from the first on.
    After(usize),
    /// The first half of a matrix's rows, or of each of a stack, or the second.
    Half(usize),
    /// Of each of so many heads, so many rows from one on, as a stack.
    Heads {
        heads: usize,
        first: usize,
        count: usize,
        by_inputs: bool,
    },
}

impl Arrangement {
    /// By its name and its numbers.
    pub fn named(name: &str, numbers: &[usize]) -> Option<Self> {
        Some(match (name, numbers) {
            ("neighbours", &[heads]) => Self::Neighbours(heads),
            ("apart", &[groups, queries]) => Self::Apart { groups, queries },
            ("columns", []) => Self::Columns,
            ("alternate", &[first]) => Self::Alternate(first),
            ("after", &[count]) => Self::After(count),
            ("half", &[number @ 0..=1]) => Self::Half(number),
            ("heads" | "heads_by_inputs", &[heads, first, count]) => Self::Heads {
                heads,
                first,
                count,
                by_inputs: name == "heads_by_inputs",
            },
            _ => return None,
        })
    }

    fn of(self, tensor: &Tensor) -> Result<Tensor> {
        let rows = tensor.dims().first().copied().unwrap_or(0);
        let misfit = |what: String| {
            Err(Error::InvalidInput(format!(
                "its {rows} rows are not those of {what}"
            )))
        };
        match self {
            _ if tensor.rank() == 0 => misfit("a matrix or a vector".to_owned()),
            Self::Neighbours(heads) if heads == 0 || !rows.is_multiple_of(2 * heads) => {
                misfit(format!("{heads} heads"))
            }
            Self::Neighbours(heads) => side_by_side(tensor, heads),
            Self::Apart { groups, queries } => {
                let parts = queries.saturating_add(2).checked_mul(groups);
                match parts.filter(|&parts| parts > 0 && rows.is_multiple_of(parts)) {
                    Some(_) => apart(tensor, groups, queries),
                    None => misfit(format!("{groups} groups of {queries} queries")),
                }
            }
            Self::Columns if tensor.rank() < 2 => misfit("a matrix".to_owned()),
            Self::Columns => Ok(tensor.t()?.contiguous()?),
            Self::Alternate(first) => match alternate(tensor, first)? {
                Some(part) if tensor.rank() > 2 => Ok(part.t()?.contiguous()?),
                Some(part) => Ok(part),
                None => misfit("pairs".to_owned()),
            },
            Self::After(count) if count >= rows => misfit(format!("a table after {count} of them")),
            Self::After(count) => Ok(tensor.narrow(0, count, rows - count)?.contiguous()?),
            Self::Half(number) => match half_of(tensor, number)? {
                Some(part) => Ok(part),
                None => misfit("two matrices".to_owned()),
            },
            Self::Heads {
                heads,
                first,
                count,
                by_inputs,
            } => match of_heads(tensor, heads, (first, count))? {
                Some(part) if by_inputs => Ok(part.transpose(1, 2)?.contiguous()?),
                Some(part) => Ok(part),
                None => misfit(format!("{heads} heads with {count} rows after {first}")),
            },
        }
    }
}

/// The bytes of a tensor in a type (`f32`, `f16`, `bf16` or a block type), little-endian, its rows arranged as files
/// have them. `importance` weighs the columns, one after the other where a tensor is a stack of matrices.
pub fn encoded(
    source: &dyn WeightSource,
    name: &str,
    kind: &str,
    arrangement: Option<Arrangement>,
    importance: Option<&[f32]>,
) -> Result<Vec<u8>> {
    let tensor = source.tensor(name, Some(DType::F32), &Device::Cpu)?;
    let tensor = match arrangement {
        Some(arrangement) => arrangement.of(&tensor).map_err(|error| match error {
            Error::InvalidInput(reason) => {
                Error::corrupt(&source.file(name), format!("tensor {name:?}: {reason}"))
            }
            other => other,
        })?,
        None => tensor,
    };
    let row = tensor.dims().last().copied().unwrap_or(1);
    let values: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
    drop(tensor);
    source.release(name);
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
    Error::InvalidInput(format!("weights can't be written in the type {kind:?}"))
}

/// Rows i and i + half of a head become neighbours.
fn side_by_side(tensor: &Tensor, heads: usize) -> Result<Tensor> {
    let shape = tensor.dims().to_vec();
    let rest: usize = shape[1..].iter().product();
    let parts = tensor.reshape((heads, 2, shape[0] / heads / 2, rest))?;
    Ok(parts.transpose(1, 2)?.contiguous()?.reshape(shape)?)
}

/// Every second number of each row; `None` where these are not pairs.
fn alternate(tensor: &Tensor, first: usize) -> Result<Option<Tensor>> {
    let mut shape = tensor.dims().to_vec();
    let width = shape.last().copied().unwrap_or(0);
    if first > 1 || width == 0 || !width.is_multiple_of(2) {
        return Ok(None);
    }
    let rows: usize = shape.iter().product::<usize>() / width;
    let part = tensor.reshape((rows, width / 2, 2))?;
    let part = part.narrow(2, first, 1)?.contiguous()?;
    if let Some(last) = shape.last_mut() {
        *last = width / 2;
    }
    Ok(Some(part.reshape(shape)?))
}

/// Half of the rows of each matrix; `None` where they are odd.
fn half_of(tensor: &Tensor, number: usize) -> Result<Option<Tensor>> {
    let dimension = match tensor.rank() {
        0 | 1 => return Ok(None),
        rank => rank - 2,
    };
    let rows = tensor.dim(dimension)?;
    if !rows.is_multiple_of(2) || number > 1 {
        return Ok(None);
    }
    let part = tensor.narrow(dimension, number * (rows / 2), rows / 2)?;
    Ok(Some(part.contiguous()?))
}

/// Some rows of each head, [heads, rows, inputs]; `None` where heads do not have them.
fn of_heads(
    tensor: &Tensor,
    heads: usize,
    (first, count): (usize, usize),
) -> Result<Option<Tensor>> {
    let &[rows, inputs] = tensor.dims() else {
        return Ok(None);
    };
    let end = first.checked_add(count);
    let fits = heads > 0 && rows.is_multiple_of(heads);
    if !fits || end.is_none_or(|end| end > rows / heads) {
        return Ok(None);
    }
    let all = tensor.reshape((heads, rows / heads, inputs))?;
    Ok(Some(all.narrow(1, first, count)?.contiguous()?))
}

/// All queries, all keys, and all values.
fn apart(tensor: &Tensor, groups: usize, queries: usize) -> Result<Tensor> {
    let shape = tensor.dims().to_vec();
    let rest: usize = shape[1..].iter().product();
    let size = shape[0] / groups / (queries + 2);
    let parts = tensor.reshape((groups, queries + 2, size, rest))?;
    let kinds = [(0, queries), (queries, 1), (queries + 1, 1)].map(|(first, count)| {
        let part = parts.narrow(1, first, count)?;
        part.contiguous()?.reshape((groups * count * size, rest))
    });
    let kinds = kinds.into_iter().collect::<candle_core::Result<Vec<_>>>()?;
    Ok(Tensor::cat(&kinds, 0)?.reshape(shape)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_number_has_no_rows_to_arrange() {
        let number = Tensor::new(1f32, &Device::Cpu).unwrap();
        for arrangement in [
            Arrangement::Neighbours(1),
            Arrangement::Apart {
                groups: 1,
                queries: 2,
            },
            Arrangement::Columns,
            Arrangement::Alternate(0),
            Arrangement::After(0),
            Arrangement::Half(0),
            Arrangement::Heads {
                heads: 1,
                first: 0,
                count: 1,
                by_inputs: false,
            },
        ] {
            let refused = arrangement.of(&number);
            assert!(matches!(refused, Err(Error::InvalidInput(_))));
        }
    }
}
