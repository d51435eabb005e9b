//! Tables whose rows are looked up: token embeddings, positions, token types.

use std::borrow::Cow;

use candle_core::{DType, Device, Tensor};

use super::{elementwise, Linear};
use crate::{Error, Result};
use base::quant::QuantizedTensor;
use kernels::blocks::DeviceBlocks;

/// A table [rows, width].
#[derive(Clone, Debug)]
pub enum Embedding {
    Dense(Tensor),
    /// Quantized, as it lies in the file; rows are expanded when they are looked up.
    Blocks(QuantizedTensor),
    /// Quantized, in a GPU's memory; rows are expanded there, to the type.
    DeviceBlocks(DeviceBlocks, DType),
}

/// Rows of a table; `what` names them in an error.
pub struct Lookup<'a> {
    pub table: &'a Embedding,
    pub rows: Cow<'a, [u32]>,
    pub what: &'static str,
}

impl Embedding {
    /// Whether such a table can stay quantized on a device: GPUs look rows up as they lie.
    pub fn keeps(table: &QuantizedTensor, device: &Device) -> bool {
        device.is_cpu() || table.order.is_none()
    }

    /// A table that stays quantized, where `keeps` and `Linear::keeps_blocks` allow it.
    pub fn quantized(table: QuantizedTensor, device: &Device, dtype: DType) -> Result<Self> {
        if device.is_cpu() {
            Ok(Self::Blocks(table))
        } else {
            Ok(Self::DeviceBlocks(
                DeviceBlocks::new(&table, device)?,
                dtype,
            ))
        }
    }

    /// How many rows there are.
    pub fn count(&self) -> usize {
        self.shape().first().copied().unwrap_or(0)
    }

    pub fn width(&self) -> usize {
        self.shape().last().copied().unwrap_or(0)
    }

    pub fn shape(&self) -> &[usize] {
        match self {
            Self::Dense(table) => table.dims(),
            Self::Blocks(table) => &table.shape,
            Self::DeviceBlocks(table, _) => table.shape(),
        }
    }

    /// Some rows, which must be within the table: [rows, width].
    pub fn rows(&self, rows: &[u32]) -> Result<Tensor> {
        match self {
            Self::Dense(table) => {
                let rows = Tensor::new(rows, table.device())?;
                Ok(table.index_select(&rows, 0)?)
            }
            Self::Blocks(table) => {
                let rows: Vec<usize> = rows.iter().map(|&row| row as usize).collect();
                let shape = (rows.len(), self.width());
                Ok(Tensor::from_vec(table.rows(&rows)?, shape, &Device::Cpu)?)
            }
            Self::DeviceBlocks(table, dtype) => table.rows(rows, *dtype),
        }
    }

    /// As `rows`, with their numbers on the table's GPU, u32 [rows]; `None` where there is no kernel for it.
    pub fn rows_at(&self, rows: &Tensor) -> Result<Option<Tensor>> {
        match self {
            Self::Dense(table) => kernels::gather_at(&[(table, rows)]),
            Self::Blocks(_) => Ok(None),
            Self::DeviceBlocks(table, dtype) => table.rows_at(rows, *dtype),
        }
    }

    /// The sum of what is looked up. Rows are checked, since a GPU would read past a table's end.
    pub fn sum(lookups: &[Lookup<'_>]) -> Result<Tensor> {
        for lookup in lookups {
            lookup.check()?;
        }
        let dense = lookups.iter().map(|lookup| match lookup.table {
            Self::Dense(table) => Some((table, &*lookup.rows)),
            Self::Blocks(_) | Self::DeviceBlocks(..) => None,
        });
        if let Some(terms) = dense.collect::<Option<Vec<_>>>() {
            if let Some(sum) = kernels::gather_sum(&terms)? {
                return Ok(sum);
            }
        }
        let mut sum: Option<Tensor> = None;
        for lookup in lookups {
            let rows = lookup.table.rows(&lookup.rows)?;
            sum = Some(match sum {
                Some(sum) => elementwise::add(&sum, &rows)?,
                None => rows,
            });
        }
        sum.ok_or_else(|| Error::Internal("embeddings without a table".into()))
    }

    /// The table itself, where it is numbers.
    pub fn dense(&self) -> Option<&Tensor> {
        match self {
            Self::Dense(table) => Some(table),
            Self::Blocks(_) | Self::DeviceBlocks(..) => None,
        }
    }

    /// The output layer that a checkpoint ties to the table; its memory is the table's but for blocks on
    /// the CPU, which its products want laid out.
    pub fn tied_output(&self, bias: Option<Tensor>) -> Result<Linear> {
        match self {
            Self::Dense(table) => Linear::shared(table.clone(), bias),
            Self::Blocks(table) => {
                Linear::quantized(table.clone(), bias, (&Device::Cpu, DType::F32))
            }
            Self::DeviceBlocks(table, dtype) => Linear::on_blocks(table.clone(), *dtype, bias),
        }
    }
}

impl Lookup<'_> {
    fn check(&self) -> Result<()> {
        let count = self.table.count();
        match self.rows.iter().copied().max() {
            None => Ok(()),
            Some(last) if (last as usize) < count => Ok(()),
            Some(beyond) => Err(Error::InvalidInput(format!(
                "{} {beyond} is beyond the model's table of {count}: the tokenizer belongs to another model, \
                 or the text is longer than the model's positions",
                self.what
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::quant::{dequantize, BlockType};
    use base::runtime::bytes::Bytes;

    fn quantized() -> Embedding {
        let kind = BlockType::Q8_0;
        let bytes = (0..4 * kind.bytes()).map(|i| (i * 7 % 61) as u8).collect();
        Embedding::Blocks(QuantizedTensor {
            kind,
            order: None,
            fp8_rows: false,
            shape: vec![4, kind.elements()],
            bytes: Bytes::unpacked(bytes),
        })
    }

    #[test]
    fn quantized_rows_are_those_of_the_expanded_table() {
        let table = quantized();
        let Embedding::Blocks(blocks) = &table else {
            panic!("a table of blocks");
        };
        let values = dequantize(blocks.kind, &blocks.bytes).unwrap();
        let dense = Tensor::from_vec(values, (4, 32), &Device::Cpu).unwrap();
        let dense = Embedding::Dense(dense);
        assert_eq!((table.count(), table.width()), (4, 32));
        let [a, b] = [&table, &dense].map(|table| {
            let lookup = |rows: &[u32]| Lookup {
                table,
                rows: rows.to_vec().into(),
                what: "token id",
            };
            let sum = Embedding::sum(&[lookup(&[3, 0, 3]), lookup(&[1, 1, 2])]).unwrap();
            sum.to_vec2::<f32>().unwrap()
        });
        assert_eq!(a, b);
    }

    #[test]
    fn rows_beyond_the_table_are_refused_by_name() {
        let table = quantized();
        let lookup = Lookup {
            table: &table,
            rows: vec![0, 4].into(),
            what: "token id",
        };
        let message = Embedding::sum(&[lookup]).unwrap_err().to_string();
        assert!(message.contains("token id 4 is beyond the model's table of 4"));
    }
}
