//! What is multiplied in f32 beside the integers: outliers of rows, and inputs for which a weight of the panel is an
//! outlier.

use std::arch::x86_64::*;

use super::{scale, Matrix};
use crate::cpu::product::driver::Sums;
use crate::cpu::product::panels::PANEL;

/// A number of a row of x. The order is that in which they are multiplied: a weight's column is read once for
/// all rows, and what a row adds, and in which order, depends on the row alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Outlier {
    pub input: usize,
    pub row: usize,
    /// Its bits.
    value: u32,
}

impl Outlier {
    pub fn new(input: usize, row: usize, value: f32) -> Self {
        let value = value.to_bits();
        Self { input, row, value }
    }

    pub fn value(self) -> f32 {
        f32::from_bits(self.value)
    }
}

/// The weights of one input in a panel.
pub(super) type Column = [f32; PANEL];

/// Inputs, in their order, and their weights in f32.
type Columns = Vec<(usize, Column)>;

/// The inputs of a panel whose integers do not suffice.
#[derive(Clone, Default)]
pub(super) struct PanelColumns {
    /// One of the weights is an outlier: all of them are multiplied in f32, and their parts are 0.
    pub split: Columns,
    /// All weights are small beside the others of their outputs: the integers do for usual rows, and these for
    /// outliers of rows.
    pub small: Columns,
}

impl PanelColumns {
    /// Splits off what has an outlier, which leaves zeros in the rows; `None` if a row is not usual.
    pub fn split_off(rows: &mut [f32], inputs: usize) -> Option<Self> {
        let mut split = Vec::new();
        for row in rows.chunks(inputs) {
            let largest = scale::largest(row.iter().copied());
            let squares = scale::trimmed_squares(row);
            let unit = scale::unit(largest, squares, scale::SHARE_OF_WEIGHTS);
            if unit.is_nan() {
                return None;
            }
            if scale::is_outlier(f32::from_bits(largest), unit) {
                let numbers = row.iter().enumerate();
                let outliers = numbers.filter(|(_, &number)| scale::is_outlier(number, unit));
                split.extend(outliers.map(|(input, _)| input));
            }
        }
        split.sort_unstable();
        split.dedup();
        let take = |input| {
            let column = column_of(rows, inputs, input);
            rows.chunks_mut(inputs).for_each(|row| row[input] = 0.0);
            (input, column)
        };
        Some(Self {
            split: split.into_iter().map(take).collect(),
            small: Vec::new(),
        })
    }

    /// Keeps the columns of rows, which have these units, that are small beside the rows' other numbers.
    pub fn keep_small(&mut self, rows: &[f32], inputs: usize, units: &[f32]) {
        // Four bytes are off by up to 2⁻²⁶ of a unit: at this size, f32 rounds by as much.
        const SMALL: f32 = 0.5;
        let mut sizes = vec![0.0f32; inputs];
        for (row, unit) in rows.chunks(inputs).zip(units) {
            for (size, number) in sizes.iter_mut().zip(row) {
                *size = size.max(number.abs() / unit);
            }
        }
        let is_small = |&(_, &size): &(usize, &f32)| size > 0.0 && size < SMALL;
        let small = sizes.iter().enumerate().filter(is_small);
        self.small = small
            .map(|(input, _)| (input, column_of(rows, inputs, input)))
            .collect();
    }
}

fn column_of(rows: &[f32], inputs: usize, input: usize) -> Column {
    let mut column = [0.0; PANEL];
    for (to, row) in column.iter_mut().zip(rows.chunks(inputs)) {
        *to = row[input];
    }
    column
}

/// Adds the products of a panel's split columns with some rows of x.
///
/// # Safety
/// The sums have the rows, each a whole panel; the CPU has AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add_columns(split: &Columns, x: &[f32], inputs: usize, sums: Sums) {
    for (number, row) in x.chunks_exact(inputs).enumerate() {
        // SAFETY: the caller vouches for the sums of this row, and a column is a panel; AVX-512F is enabled.
        unsafe {
            let to = sums.row(number);
            let mut low = _mm512_loadu_ps(to);
            let mut high = _mm512_loadu_ps(to.add(PANEL / 2));
            for (input, column) in split {
                let value = _mm512_set1_ps(row[*input]);
                low = _mm512_fmadd_ps(value, _mm512_loadu_ps(column.as_ptr()), low);
                let column = column[PANEL / 2..].as_ptr();
                high = _mm512_fmadd_ps(value, _mm512_loadu_ps(column), high);
            }
            _mm512_storeu_ps(to, low);
            _mm512_storeu_ps(to.add(PANEL / 2), high);
        }
    }
}

/// Asks for what the outliers read of a panel beside its parts.
pub(super) fn ask_for(matrix: &Matrix, panel: usize, outliers: &[Outlier]) {
    for same in outliers.chunk_by(|a, b| a.input == b.input) {
        matrix.ask_for_rests(panel, same[0].input);
    }
}

/// Adds the products of outliers with a panel; rows count from the `first`, which the sums begin with.
///
/// # Safety
/// The sums have the outliers' rows, each a whole panel; the CPU has AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add_outliers(
    matrix: &Matrix,
    panel: usize,
    outliers: impl Iterator<Item = Outlier>,
    first: usize,
    sums: Sums,
) {
    let mut held = (usize::MAX, [0.0; PANEL]);
    for outlier in outliers {
        if held.0 != outlier.input {
            held = (outlier.input, matrix.column(panel, outlier.input));
        }
        let value = _mm512_set1_ps(outlier.value());
        // SAFETY: the caller vouches for the sums of this row; a column has as many numbers; AVX-512F is enabled.
        unsafe {
            let to = sums.row(outlier.row - first);
            for half in [0, PANEL / 2] {
                let column = _mm512_loadu_ps(held.1[half..].as_ptr());
                let sum = _mm512_fmadd_ps(value, column, _mm512_loadu_ps(to.add(half)));
                _mm512_storeu_ps(to.add(half), sum);
            }
        }
    }
}
