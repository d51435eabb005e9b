//! From groups to blocks: where a block type has the same numbers, they become its blocks, which have kernels.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use half::f16;
use rayon::prelude::*;

use super::grouped::{Group, Grouped, Layout, Levels, Rounding, ROWS_PER_TASK};
use super::Packed;
use crate::Result;
use base::quant::{BlockType, GroupForm, LinedTensor, QuantizedTensor};
use base::quant::{GROUP, MOST_NUMBERS, SMALL_BLOCK};
use base::runtime::bytes::Bytes;
use base::runtime::threads;

/// A weight in blocks.
pub struct Blocks {
    pub kind: BlockType,
    pub bytes: Vec<u8>,
    /// The columns that the blocks' stand for, where these are in another order.
    pub order: Option<Arc<[u32]>>,
}

impl Blocks {
    /// As a tensor of the file.
    pub fn tensor(self, packed: &Packed) -> QuantizedTensor {
        QuantizedTensor {
            kind: self.kind,
            shape: packed.file_shape(),
            bytes: Bytes::unpacked(self.bytes),
            order: self.order,
            fp8_rows: packed.fp8_rows,
        }
    }

    fn of(kind: BlockType, bytes: Vec<u8>) -> Self {
        Self {
            kind,
            bytes,
            order: None,
        }
    }
}

/// A range of levels that a block type has, as codes with an offset.
const SIGNED: [(BlockType, i32); 3] = [
    (BlockType::Q4_0, 8),
    (BlockType::Q5_0, 16),
    (BlockType::Q8_0, 128),
];

impl Grouped {
    /// The same numbers as blocks; `None` where no block type has them. Types of GGUF files come first, whose kernels
    /// multiply integers.
    pub fn blocks(&self) -> Result<Option<Blocks>> {
        if let Layout::Columns { of, count } = &self.layout {
            return match self.in_groups(of, *count)? {
                Some((grouped, order)) => Ok(grouped.blocks()?.map(|blocks| Blocks {
                    order: Some(order),
                    ..blocks
                })),
                None => Ok(None),
            };
        }
        if let Some(blocks) = self.file_blocks()? {
            return Ok(Some(blocks));
        }
        match self.group_type() {
            Some((kind, form)) => self.group_blocks(kind, form).map(Some),
            None => Ok(None),
        }
    }

    /// The same numbers as codes with scales of columns; `None` where groups lie otherwise.
    pub fn lined(self) -> Option<LinedTensor> {
        let Layout::Lines(lines) = self.layout else {
            return None;
        };
        let plain = matches!(self.levels, Levels::Codes) && self.rounding == Rounding::None;
        if !plain || self.codes.len() != self.rows.checked_mul(self.columns)? {
            return None;
        }
        let scales = self.groups.iter().map(|group| group.scale * self.factor);
        let minimum = |group: &Group| (group.minimum - group.zero * group.scale) * self.factor;
        Some(LinedTensor {
            shape: [self.rows, self.columns],
            bits: if self.codes.iter().all(|&code| code < 16) {
                4
            } else {
                8
            },
            lines,
            scales: scales.collect(),
            minimums: self.groups.iter().map(minimum).collect(),
            codes: self.codes,
        })
    }

    /// The same numbers as blocks that GGUF files have.
    fn file_blocks(&self) -> Result<Option<Blocks>> {
        let found = self.block_type();
        let blocks = found.map(|(kind, offset)| self.small_blocks(kind, offset));
        blocks.transpose()
    }

    /// The same with the columns of each group side by side, and which columns these are; `None` where groups do not
    /// have as many.
    fn in_groups(&self, of: &[u32], count: usize) -> Result<Option<(Self, Arc<[u32]>)>> {
        let width = self.columns.checked_div(count).unwrap_or(0);
        let mut order: Vec<u32> = (0..self.columns as u32).collect();
        order.sort_by_key(|&column| of[column as usize]);
        let whole = width > 0
            && order.chunks(width).enumerate().all(|(group, columns)| {
                columns.iter().all(|&at| of[at as usize] as usize == group)
            });
        if !whole {
            return Ok(None);
        }
        let mut codes = vec![0u8; self.codes.len()];
        threads::install(|| {
            let rows = codes.par_chunks_exact_mut(self.columns);
            let rows = rows.zip(self.codes.par_chunks_exact(self.columns));
            rows.for_each(|(to, codes)| {
                for (to, &column) in to.iter_mut().zip(&order) {
                    *to = codes[column as usize];
                }
            });
        })?;
        let levels = match &self.levels {
            Levels::Codes => Levels::Codes,
            Levels::Table(table) => Levels::Table(table.clone()),
        };
        let grouped = Self {
            codes,
            levels,
            layout: Layout::Grid {
                rows: 1,
                columns: width,
            },
            groups: self.groups.clone(),
            ..*self
        };
        Ok(Some((grouped, order.into())))
    }

    fn small_blocks(&self, kind: BlockType, offset: i32) -> Result<Blocks> {
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
        Ok(Blocks::of(kind, blocks))
    }

    fn group_blocks(&self, kind: BlockType, form: GroupForm) -> Result<Blocks> {
        let across = self.columns.div_ceil(GROUP) * kind.bytes();
        let rows = self.codes.len().checked_div(self.columns).unwrap_or(0);
        let mut blocks = vec![0u8; rows * across];
        threads::install(|| {
            let rows = blocks.par_chunks_exact_mut(across);
            let rows = rows.zip(self.codes.par_chunks_exact(self.columns));
            let rows = rows.enumerate().with_min_len(ROWS_PER_TASK);
            rows.for_each(|(row, (blocks, codes))| {
                let parts = blocks.chunks_exact_mut(kind.bytes());
                for (number, (block, codes)) in parts.zip(codes.chunks(GROUP)).enumerate() {
                    let group = |run: usize| self.group_at(row, number * GROUP + run * form.run);
                    let mut whole = [0u8; GROUP];
                    whole[..codes.len()].copy_from_slice(codes);
                    let mut numbers = [0.0; MOST_NUMBERS];
                    for run in 0..codes.len().div_ceil(form.run) {
                        let group = group(run);
                        numbers[run] = group.scale * self.factor;
                        if form.has_minimum {
                            let minimum = group.minimum - group.zero * group.scale;
                            numbers[form.scales() + run] = minimum * self.factor;
                        }
                    }
                    form.write(block, &numbers[..form.numbers()], &whole);
                }
            });
        })?;
        Ok(Blocks::of(kind, blocks))
    }

    /// The type of groups with scales of f32 that has these numbers.
    fn group_type(&self) -> Option<(BlockType, GroupForm)> {
        if self.codes.is_empty() {
            return None;
        }
        let kinds = match &self.levels {
            Levels::Codes if self.rounding != Rounding::None => return None,
            Levels::Codes if self.codes.iter().all(|&code| code < 16) => {
                vec![BlockType::Int4, BlockType::Int4Of32, BlockType::Int4Of16]
            }
            Levels::Codes => vec![BlockType::Int8, BlockType::Int8Of32, BlockType::Int8Of16],
            Levels::Table(table) => vec![self.table_type(table)?],
        };
        let fits = |form: &GroupForm| match &self.layout {
            Layout::Grid { columns, .. } => {
                *columns >= self.columns || columns.is_multiple_of(form.run)
            }
            Layout::Run(length) => {
                length.is_multiple_of(form.run) && self.columns.is_multiple_of(form.run)
            }
            Layout::Columns { .. } | Layout::Lines(_) => false,
        };
        let with_form = |kind| Some((kind, GroupForm::of(kind).filter(fits)?));
        kinds.into_iter().find_map(with_form)
    }

    /// The type that looks codes up in this table and rounds as much.
    fn table_type(&self, table: &[f32; 256]) -> Option<BlockType> {
        let plain = |group: &Group| group.zero == 0.0 && group.minimum == 0.0;
        let factored = self.rounding != Rounding::None && self.factor != 1.0;
        if self.affine || factored || !self.groups.iter().all(plain) {
            return None;
        }
        let numbers = |code: u8| !table[usize::from(code)].is_nan();
        let has = |kind: &BlockType| {
            let levels = GroupForm::of(*kind)
                .filter(|form| !form.has_minimum && form.rounding == self.rounding)?
                .levels();
            let mut both = table.iter().zip(levels);
            both.all(|(a, b)| a == b || a.is_nan()).then_some(*kind)
        };
        let found = BlockType::GROUPED.iter().find_map(has)?;
        self.codes
            .iter()
            .all(|&code| numbers(code))
            .then_some(found)
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
            Layout::Columns { .. } | Layout::Lines(_) => false,
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
