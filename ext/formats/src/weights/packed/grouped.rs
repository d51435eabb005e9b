//! Quantized weights of any file in one form: a code for every element, what codes stand for, and groups of elements
//! that share a scale.

use rayon::prelude::*;

use crate::Result;
pub use base::quant::Rounding;
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
    /// So many rows have groups of their own, one for each column; those of the rows after them begin again.
    Lines(usize),
}

/// Rows that one task expands.
pub const ROWS_PER_TASK: usize = 16;

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
            Layout::Lines(lines) => lines.checked_mul(columns),
        }
    }

    pub fn group_at(&self, row: usize, column: usize) -> Group {
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
            Layout::Lines(lines) => row % lines * self.columns + column,
        };
        self.groups[at]
    }

    /// How many columns from this one on have one group.
    fn alike(&self, row: usize, column: usize) -> usize {
        let step = match &self.layout {
            Layout::Grid { columns, .. } => columns - column % columns,
            Layout::Columns { .. } | Layout::Lines(_) => 1,
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
                *value = self.rounding.of(value_of_group * self.factor);
            }
            column = end;
        }
    }
}
