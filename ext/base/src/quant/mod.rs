//! Quantized blocks, GGUF's and others: their formats, their expansion, and matrices of them.

mod blocks;
mod encode;
mod grouped;
mod lined;
pub mod noise;

use std::ops::Range;
use std::sync::Arc;

use crate::runtime::bytes::{Bytes, READ_ALONG};
use crate::Result;

pub use blocks::{dequantize, BlockType};
pub use blocks::{split_block, Header, RUN, SMALL as SMALL_BLOCK};
pub use encode::{each_block, mean_square, nearest, positive_scale, put_half, quantize, BlockForm};
pub use grouped::{half_of_e4m3, of_e5m2, GroupForm, Rounding, GROUP, MOST_NUMBERS};
pub use lined::LinedTensor;

/// A quantized matrix: whole blocks, row after row. Those of a file are as they are there.
#[derive(Clone, Debug)]
pub struct QuantizedTensor {
    pub kind: BlockType,
    pub shape: Vec<usize>,
    pub bytes: Bytes,
    /// The columns that the blocks' stand for, where these are in another order.
    pub order: Option<Arc<[u32]>>,
    /// Whether its checkpoint multiplies it with rows that are rounded to floats of eight bits, too.
    pub fp8_rows: bool,
}

impl QuantizedTensor {
    /// Some rows of a matrix, expanded, one after the other.
    ///
    /// They are looked up in the order of the file, and its pages let go on the way: the system reads
    /// so much along that a text of some length would otherwise bring the whole table into memory.
    pub fn rows(&self, rows: &[usize]) -> Result<Vec<f32>> {
        let width = self.shape.last().copied().unwrap_or(0);
        let mut values = vec![0f32; rows.len() * width];
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_unstable_by_key(|&at| rows[at]);
        let piece = |at: usize| rows[at] * self.row_length() / READ_ALONG;
        for near in order.chunk_by(|&a, &b| piece(a) == piece(b)) {
            for &at in near {
                let mut row = dequantize(self.kind, self.row_bytes(rows[at]))?;
                row.truncate(width);
                self.place_row(&row, &mut values[at * width..][..width]);
            }
            if let (Some(&first), Some(&last)) = (near.first(), near.last()) {
                self.release_rows(rows[first]..rows[last] + 1);
            }
        }
        Ok(values)
    }

    /// All numbers.
    pub fn dequantize(&self) -> Result<Vec<f32>> {
        let values = dequantize(self.kind, &self.bytes)?;
        let width = self.shape.last().copied().unwrap_or(0);
        if width == 0 || (self.order.is_none() && self.has_whole_blocks()) {
            return Ok(values);
        }
        let held = width.next_multiple_of(self.kind.elements());
        let mut placed = vec![0f32; values.len() / held * width];
        for (row, to) in values.chunks(held).zip(placed.chunks_mut(width)) {
            self.place_row(&row[..width.min(row.len())], to);
        }
        Ok(placed)
    }

    /// Whether rows end with a block: those of groups may end within one, whose other codes are 0.
    pub fn has_whole_blocks(&self) -> bool {
        let width = self.shape.last().copied().unwrap_or(0);
        width.is_multiple_of(self.kind.elements())
    }

    /// Columns that were expanded to where they belong.
    fn place_row(&self, row: &[f32], to: &mut [f32]) {
        match &self.order {
            None => to[..row.len()].copy_from_slice(row),
            Some(order) => {
                for (value, &column) in row.iter().zip(order.iter()) {
                    to[column as usize] = *value;
                }
            }
        }
    }

    /// The blocks of one row of a matrix; empty when there is no such row.
    pub fn row_bytes(&self, row: usize) -> &[u8] {
        let length = self.row_length();
        self.bytes
            .get(row * length..(row + 1) * length)
            .unwrap_or_default()
    }

    /// The rows of a matrix in another order, in memory of their own.
    pub fn reordered(&self, order: &[usize]) -> Self {
        let rows = order.iter().map(|&row| self.row_bytes(row));
        Self {
            kind: self.kind,
            shape: self.shape.clone(),
            order: self.order.clone(),
            fp8_rows: self.fp8_rows,
            bytes: Bytes::unpacked(rows.collect::<Vec<_>>().concat()),
        }
    }

    /// Lets go of the memory that reading these rows took; see `Bytes::release`.
    pub fn release_rows(&self, rows: Range<usize>) {
        let length = self.row_length();
        let start = (rows.start * length).min(self.bytes.len());
        let end = (rows.end * length).min(self.bytes.len());
        if let Some(part) = self.bytes.slice(start, end.saturating_sub(start)) {
            part.release();
        }
    }

    fn row_length(&self) -> usize {
        let width = self.shape.last().copied().unwrap_or(0);
        width.div_ceil(self.kind.elements()) * self.kind.bytes()
    }

    /// `[n, ..]` as n tensors `[..]` on the same bytes.
    pub fn split_first_dimension(&self) -> Vec<Self> {
        let count = self.shape.first().copied().unwrap_or(0);
        let length = self.bytes.len().checked_div(count).unwrap_or(0);
        (0..count)
            .filter_map(|index| {
                Some(Self {
                    kind: self.kind,
                    shape: self.shape[1..].to_vec(),
                    order: self.order.clone(),
                    fp8_rows: self.fp8_rows,
                    bytes: self.bytes.slice(index * length, length)?,
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_may_end_within_a_group() {
        let kind = BlockType::Int8;
        let held = noise::random_matrix(kind, 3, 128);
        let whole = held.dequantize().unwrap();
        let cut = QuantizedTensor {
            shape: vec![3, 100],
            ..held
        };
        assert!(!cut.has_whole_blocks());
        let values = cut.dequantize().unwrap();
        for row in 0..3 {
            assert_eq!(values[row * 100..][..100], whole[row * 128..][..100]);
            assert_eq!(cut.rows(&[row]).unwrap(), whole[row * 128..][..100]);
        }
    }

    #[test]
    fn rows_come_in_the_order_asked_for() {
        let kind = BlockType::Q8_0;
        let length = 2 * kind.bytes();
        let bytes = Bytes::unpacked((0..5 * length).map(|i| (i * 7 % 61) as u8).collect());
        let shape = vec![5, 2 * kind.elements()];
        let mut table = QuantizedTensor {
            kind,
            shape,
            bytes,
            order: None,
            fp8_rows: false,
        };
        let asked = [4, 0, 4, 2];
        let expected: Vec<f32> = asked
            .iter()
            .flat_map(|&row| dequantize(kind, table.row_bytes(row)).unwrap())
            .collect();
        assert_eq!(table.rows(&asked).unwrap(), expected);
        assert!(table.rows(&[]).unwrap().is_empty());
        let plain = table.dequantize().unwrap();
        let width = 2 * kind.elements();
        table.order = Some((0..width as u32).rev().collect());
        let mut turned = table.dequantize().unwrap();
        assert_eq!(table.rows(&[1]).unwrap(), turned[width..2 * width]);
        turned.chunks_mut(width).for_each(<[f32]>::reverse);
        assert_eq!(turned, plain);
    }
}
