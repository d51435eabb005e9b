//! Quantized weights of any file in one form: a code for every element, what codes stand for, and groups of elements
//! that share a scale. Where a block type has the same numbers, they become its blocks, which have kernels.

use half::{bf16, f16};
use rayon::prelude::*;

use crate::Result;
use base::quant::{BlockType, SMALL_BLOCK};
use base::runtime::threads;

/// Matrices below one another, whose rows are whole.
pub struct Grouped {
    /// Of one matrix.
    pub rows: usize,
    pub columns: usize,
    /// [matrices × rows, columns].
    pub codes: Vec<u8>,
    pub levels: Levels,
    pub layout: Layout,
    pub groups: Vec<Group>,
    /// Whether groups have minimums.
    pub affine: bool,
    /// What all elements are multiplied by, after their scales.
    pub factor: f32,
    /// What elements are rounded to at last.
    pub rounding: Rounding,
}

/// What a code stands for.
pub enum Levels {
    /// Itself.
    Codes,
    Table(Box<[f32; 256]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    None,
    F16,
    Bf16,
}

/// (level − zero) · scale + minimum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    pub scale: f32,
    pub zero: f32,
    pub minimum: f32,
}

impl Group {
    pub fn scaled(scale: f32) -> Self {
        Self {
            scale,
            zero: 0.0,
            minimum: 0.0,
        }
    }
}

/// Which group an element belongs to.
pub enum Layout {
    /// So many rows and columns have a group; those of a matrix lie row after row.
    Grid { rows: usize, columns: usize },
    /// Columns have groups in any order, and every row has `count` groups of its own.
    Columns { of: Vec<u32>, count: usize },
    /// So many elements in a row have a group, whatever rows they are in.
    Run(usize),
}

/// Rows that one task expands.
const ROWS_PER_TASK: usize = 16;

/// A range of levels that a block type has, as codes with an offset.
const SIGNED: [(BlockType, i32); 3] = [
    (BlockType::Q4_0, 8),
    (BlockType::Q5_0, 16),
    (BlockType::Q8_0, 128),
];

impl Grouped {
    /// How many groups there must be for a number of matrices.
    pub fn group_count(
        layout: &Layout,
        (matrices, rows, columns): (usize, usize, usize),
    ) -> Option<usize> {
        match layout {
            Layout::Grid {
                rows: high,
                columns: wide,
            } => {
                let of_matrix = rows.div_ceil(*high).checked_mul(columns.div_ceil(*wide))?;
                of_matrix.checked_mul(matrices)
            }
            Layout::Columns { count, .. } => matrices.checked_mul(rows)?.checked_mul(*count),
            Layout::Run(length) => {
                let elements = matrices.checked_mul(rows)?.checked_mul(columns)?;
                Some(elements.div_ceil(*length))
            }
        }
    }

    fn group_at(&self, row: usize, column: usize) -> Group {
        let at = match &self.layout {
            Layout::Grid {
                rows: high,
                columns: wide,
            } => {
                let across = self.columns.div_ceil(*wide);
                let matrix = row / self.rows * self.rows.div_ceil(*high);
                (matrix + row % self.rows / high) * across + column / wide
            }
            Layout::Columns { of, count } => row * count + of[column] as usize,
            Layout::Run(length) => (row * self.columns + column) / length,
        };
        self.groups[at]
    }

    /// How many columns from this one on have one group.
    fn alike(&self, row: usize, column: usize) -> usize {
        let step = match &self.layout {
            Layout::Grid { columns, .. } => columns - column % columns,
            Layout::Columns { .. } => 1,
            Layout::Run(length) => length - (row * self.columns + column) % length,
        };
        step.min(self.columns - column)
    }

    fn level(&self, code: u8) -> f32 {
        match &self.levels {
            Levels::Codes => f32::from(code),
            Levels::Table(table) => table[usize::from(code)],
        }
    }

    /// The numbers of all elements.
    pub fn dequantize(&self) -> Result<Vec<f32>> {
        let mut values = vec![0f32; self.codes.len()];
        if values.is_empty() {
            return Ok(values);
        }
        threads::install(|| {
            let rows = values.par_chunks_exact_mut(self.columns);
            let rows = rows.zip(self.codes.par_chunks_exact(self.columns));
            let rows = rows.enumerate().with_min_len(ROWS_PER_TASK);
            rows.for_each(|(row, (values, codes))| self.dequantize_row(row, codes, values));
        })?;
        Ok(values)
    }

    fn dequantize_row(&self, row: usize, codes: &[u8], values: &mut [f32]) {
        let mut column = 0;
        while column < codes.len() {
            let end = column + self.alike(row, column);
            let group = self.group_at(row, column);
            for (value, &code) in values[column..end].iter_mut().zip(&codes[column..end]) {
                let scaled = (self.level(code) - group.zero) * group.scale;
                let value_of_group = if self.affine {
                    scaled + group.minimum
                } else {
                    scaled
                };
                *value = self.rounded(value_of_group * self.factor);
            }
            column = end;
        }
    }

    fn rounded(&self, value: f32) -> f32 {
        match self.rounding {
            Rounding::None => value,
            Rounding::F16 => f16::from_f32(value).to_f32(),
            Rounding::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }

    /// The same numbers as blocks; `None` where no block type has them.
    pub fn blocks(&self) -> Result<Option<(BlockType, Vec<u8>)>> {
        let Some((kind, offset)) = self.block_type() else {
            return Ok(None);
        };
        let across = self.columns / SMALL_BLOCK;
        let mut blocks = vec![0u8; self.codes.len() / SMALL_BLOCK * kind.bytes()];
        threads::install(|| {
            let rows = blocks.par_chunks_exact_mut(across * kind.bytes());
            let rows = rows.zip(self.codes.par_chunks_exact(self.columns));
            let rows = rows.enumerate().with_min_len(ROWS_PER_TASK);
            rows.for_each(|(row, (blocks, codes))| {
                let parts = blocks.chunks_exact_mut(kind.bytes());
                let parts = parts.zip(codes.chunks_exact(SMALL_BLOCK)).enumerate();
                for (number, (block, codes)) in parts {
                    let group = self.group_at(row, number * SMALL_BLOCK);
                    write_block(kind, block, codes, group, offset);
                }
            });
        })?;
        Ok(Some((kind, blocks)))
    }

    /// The smallest type that has these numbers, and what is added to levels to get its codes.
    fn block_type(&self) -> Option<(BlockType, i32)> {
        let whole_blocks = match &self.layout {
            Layout::Grid { columns, .. } => {
                *columns >= self.columns || columns.is_multiple_of(SMALL_BLOCK)
            }
            Layout::Run(length) => {
                length.is_multiple_of(SMALL_BLOCK) && self.columns.is_multiple_of(SMALL_BLOCK)
            }
            Layout::Columns { .. } => false,
        };
        let plain = matches!(self.levels, Levels::Codes)
            && self.rounding == Rounding::None
            && self.factor == 1.0;
        if !plain || !whole_blocks || self.codes.is_empty() {
            return None;
        }
        if !self.columns.is_multiple_of(SMALL_BLOCK) {
            return None;
        }
        let exact = |value: f32| f16::from_f32(value).to_f32() == value;
        let groups_fit =
            |group: &Group| exact(group.scale) && exact(group.minimum) && group.zero.fract() == 0.0;
        if !self.groups.iter().all(groups_fit) {
            return None;
        }
        let most = i32::from(self.codes.iter().copied().max()?);
        if self.affine {
            let without_zeros = self.groups.iter().all(|group| group.zero == 0.0);
            return match most {
                _ if !without_zeros => None,
                0..16 => Some((BlockType::Q4_1, 0)),
                16..32 => Some((BlockType::Q5_1, 0)),
                _ => None,
            };
        }
        let least = i32::from(self.codes.iter().copied().min()?);
        let zeros = self.groups.iter().map(|group| group.zero as i32);
        let (low, high) = (least - zeros.clone().max()?, most - zeros.min()?);
        let fits = |offset: i32| low >= -offset && high < offset;
        SIGNED.into_iter().find(|&(_, offset)| fits(offset))
    }
}

/// A block of the older types: scale, minimum where it has one, high bits, and codes.
fn write_block(kind: BlockType, block: &mut [u8], codes: &[u8], group: Group, offset: i32) {
    let shift = offset - group.zero as i32;
    let code = |at: usize| (i32::from(codes[at]) + shift) as u8;
    let (scale, mut rest) = block.split_at_mut(2);
    scale.copy_from_slice(&f16::from_f32(group.scale).to_le_bytes());
    if matches!(kind, BlockType::Q4_1 | BlockType::Q5_1) {
        let (minimum, after) = rest.split_at_mut(2);
        minimum.copy_from_slice(&f16::from_f32(group.minimum).to_le_bytes());
        rest = after;
    }
    if kind == BlockType::Q8_0 {
        for (at, byte) in rest.iter_mut().enumerate() {
            *byte = code(at) ^ 0x80;
        }
        return;
    }
    if matches!(kind, BlockType::Q5_0 | BlockType::Q5_1) {
        let high = (0..SMALL_BLOCK).fold(0u32, |bits, at| bits | u32::from(code(at) >> 4) << at);
        let (bits, after) = rest.split_at_mut(4);
        bits.copy_from_slice(&high.to_le_bytes());
        rest = after;
    }
    for (at, byte) in rest.iter_mut().enumerate() {
        *byte = code(at) & 0x0f | code(at + SMALL_BLOCK / 2) << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grouped(most: u8, zero: f32, affine: bool) -> Grouped {
        let codes: Vec<u8> = (0..3 * 64u32)
            .map(|at| (at * 7 % (u32::from(most) + 1)) as u8)
            .collect();
        let groups = (0..6).map(|at| Group {
            scale: 0.25 + at as f32 / 64.0,
            zero,
            minimum: if affine { at as f32 - 2.5 } else { 0.0 },
        });
        Grouped {
            rows: 3,
            columns: 64,
            codes,
            levels: Levels::Codes,
            layout: Layout::Grid {
                rows: 1,
                columns: 32,
            },
            groups: groups.collect(),
            affine,
            factor: 1.0,
            rounding: Rounding::None,
        }
    }

    #[test]
    fn blocks_have_the_same_numbers() {
        for (most, zero, affine, expected) in [
            (15, 8.0, false, BlockType::Q4_0),
            (15, 3.0, false, BlockType::Q5_0),
            (255, 128.0, false, BlockType::Q8_0),
            (15, 0.0, true, BlockType::Q4_1),
            (31, 0.0, true, BlockType::Q5_1),
        ] {
            let grouped = grouped(most, zero, affine);
            let (kind, blocks) = grouped.blocks().unwrap().unwrap();
            assert_eq!(kind, expected);
            let found = base::quant::dequantize(kind, &blocks).unwrap();
            assert_eq!(found, grouped.dequantize().unwrap());
        }
    }

    #[test]
    fn numbers_that_no_block_type_has_are_expanded() {
        assert!(grouped(255, 0.0, false).blocks().unwrap().is_none());
        assert!(grouped(255, 0.0, true).blocks().unwrap().is_none());
        let mut fine = grouped(15, 8.0, false);
        fine.groups[1].scale = 0.1;
        assert!(fine.blocks().unwrap().is_none());
        let mut short = grouped(15, 8.0, false);
        short.layout = Layout::Grid {
            rows: 1,
            columns: 16,
        };
        short.groups = vec![Group::scaled(0.5); 12];
        assert!(short.blocks().unwrap().is_none());
    }
}
