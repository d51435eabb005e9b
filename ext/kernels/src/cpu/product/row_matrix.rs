//! Products with a matrix that stays as the checkpoint stores it, row after row, since it is in use
//! elsewhere: an embedding that is the output layer too.

use std::borrow::Cow;

use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::product::driver::{Context, Sums, TaskRows, Tile, WeightMatrix};
use crate::cpu::product::panels::PANEL;
use crate::cpu::product::row_tiles::in_row_tiles;
use crate::cpu::simd::{Simd, MOST_LANES};
use crate::cpu::{Element, Stored};

/// Rows of the matrix that a tile of the kernel has.
const COLUMNS: usize = 4;

/// A matrix [outputs, inputs].
pub struct RowMatrix<'a, T> {
    values: &'a [T],
    inputs: usize,
    outputs: usize,
}

impl<'a, T: Element> RowMatrix<'a, T> {
    /// `values` are as many as inputs · outputs.
    pub fn new(values: &'a [T], inputs: usize, outputs: usize) -> Self {
        assert_eq!(values.len(), inputs * outputs);
        Self {
            values,
            inputs,
            outputs,
        }
    }
}

impl<T: Element> WeightMatrix<T> for RowMatrix<'_, T> {
    const PANEL: usize = PANEL;
    type Rows<'a> = Cow<'a, [f32]>;
    type Workspace = ();

    fn inputs(&self) -> usize {
        self.inputs
    }

    fn outputs(&self) -> usize {
        self.outputs
    }

    fn task_rows(&self, _: Isa) -> TaskRows {
        TaskRows {
            most: 96,
            unit: 4,
            together: 96,
            padded: false,
        }
    }

    fn prepare<'a>(&self, isa: Isa, x: &'a [T], _: usize) -> Cow<'a, [f32]> {
        if T::IS_F32 {
            // SAFETY: `IS_F32` holds for f32 alone.
            return Cow::Borrowed(unsafe {
                std::slice::from_raw_parts(x.as_ptr().cast(), x.len())
            });
        }
        let mut wide = vec![0.0; x.len()];
        T::widen(isa, x, &mut wide);
        Cow::Owned(wide)
    }

    unsafe fn multiply_tile(&self, context: &Context, (): &mut (), x: &Cow<'_, [f32]>, tile: Tile) {
        let first = tile.panel * PANEL;
        let columns = PANEL.min(self.outputs - first);
        let operands = Operands {
            x: x[tile.row * self.inputs..][..tile.rows * self.inputs].as_ptr(),
            matrix: self.values[first * self.inputs..][..columns * self.inputs]
                .as_ptr()
                .cast(),
            stored: T::STORED,
            inputs: self.inputs,
        };
        // SAFETY: x and the matrix have their rows; the caller vouches for the sums.
        unsafe { multiply(context.isa, operands, tile.rows, columns, tile.sums) };
    }
}

/// Rows of x and of the matrix, all `inputs` wide.
#[derive(Clone, Copy)]
struct Operands {
    x: *const f32,
    /// Of the type that `stored` says.
    matrix: *const u8,
    stored: Stored,
    inputs: usize,
}

/// How numbers of one type are read as f32.
trait Numbers {
    type Stored: Copy;

    /// # Safety
    /// LANES numbers are there, and the CPU has the instruction set.
    unsafe fn load<S: Simd>(from: *const Self::Stored) -> S::V;

    /// The first `count` < LANES numbers, the others 0.
    ///
    /// # Safety
    /// So many are there.
    unsafe fn load_first<S: Simd>(from: *const Self::Stored, count: usize) -> S::V;
}

struct Singles;

impl Numbers for Singles {
    type Stored = f32;

    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const f32) -> S::V {
        // SAFETY: the caller has LANES numbers at `from`, and the instruction set.
        unsafe { S::load(from) }
    }

    #[inline(always)]
    unsafe fn load_first<S: Simd>(from: *const f32, count: usize) -> S::V {
        // SAFETY: the caller has `count` < LANES numbers at `from`, and the instruction set.
        unsafe { S::load_first(from, count) }
    }
}

macro_rules! halves {
    ($name:ident, $load:ident) => {
        struct $name;

        impl Numbers for $name {
            type Stored = u16;

            #[inline(always)]
            unsafe fn load<S: Simd>(from: *const u16) -> S::V {
                // SAFETY: the caller has LANES numbers at `from`, and the instruction set.
                unsafe { S::$load(from) }
            }

            #[inline(always)]
            unsafe fn load_first<S: Simd>(from: *const u16, count: usize) -> S::V {
                let mut numbers = [0; MOST_LANES];
                // SAFETY: the caller has `count` < LANES numbers at `from`, and the instruction set; the array has
                // as many numbers as the longest vector.
                unsafe {
                    std::ptr::copy_nonoverlapping(from, numbers.as_mut_ptr(), count);
                    S::$load(numbers.as_ptr())
                }
            }
        }
    };
}
halves!(Brain, load_bf16);
halves!(Half, load_f16);

/// R rows of x with C rows of the matrix. Every sum is added in one order, whatever R and C.
#[inline(always)]
unsafe fn tile<S: Simd, N: Numbers, const R: usize, const C: usize>(
    x: *const f32,
    matrix: *const N::Stored,
    inputs: usize,
    to: Sums,
) {
    // SAFETY: x has R rows and the matrix C rows of `inputs` numbers, and the sums have room for R rows of C, as
    // the caller vouches, who has the instruction set; the last load takes what is left.
    unsafe {
        let mut sums = [[S::splat(0.0); C]; R];
        let mut at = 0;
        while at < inputs {
            let left = inputs - at;
            let mut columns = [S::splat(0.0); C];
            for (c, column) in columns.iter_mut().enumerate() {
                let from = matrix.add(c * inputs + at);
                *column = if left >= S::LANES {
                    N::load::<S>(from)
                } else {
                    N::load_first::<S>(from, left)
                };
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let from = x.add(r * inputs + at);
                let row = if left >= S::LANES {
                    S::load(from)
                } else {
                    S::load_first(from, left)
                };
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = S::fma(row, column, *sum);
                }
            }
            at += S::LANES;
        }
        for (r, sums) in sums.iter().enumerate() {
            for (c, &sum) in sums.iter().enumerate() {
                *to.row(r).add(c) = S::sum(sum);
            }
        }
    }
}

#[inline(always)]
unsafe fn multiply_numbers<S: Simd, N: Numbers>(
    operands: Operands,
    rows: usize,
    columns: usize,
    sums: Sums,
) {
    let Operands { x, inputs, .. } = operands;
    let matrix: *const N::Stored = operands.matrix.cast();
    // SAFETY: x and the sums have the rows, the matrix and the sums the columns, as the caller vouches, who has the
    // instruction set; tiles lie within both.
    unsafe {
        let mut column = 0;
        while column < columns {
            let whole = columns - column >= COLUMNS;
            let matrix = matrix.add(column * inputs);
            in_row_tiles!(rows, most if S::REGISTERS >= 32 { 6 } else { 2 }, (row, HEIGHT) => {
                let (x, sums) = (x.add(row * inputs), sums.at(row, column));
                if whole {
                    tile::<S, N, HEIGHT, COLUMNS>(x, matrix, inputs, sums)
                } else {
                    tile::<S, N, HEIGHT, 1>(x, matrix, inputs, sums)
                }
            });
            column += if whole { COLUMNS } else { 1 };
        }
    }
}

#[inline(always)]
unsafe fn multiply_with<S: Simd>(operands: Operands, rows: usize, columns: usize, sums: Sums) {
    // SAFETY: `matrix` points to numbers of the type that `stored` says; x, the matrix and the sums have the rows
    // and columns, as the caller vouches, who has the instruction set.
    unsafe {
        match operands.stored {
            Stored::F32 => multiply_numbers::<S, Singles>(operands, rows, columns, sums),
            Stored::Bf16 => multiply_numbers::<S, Brain>(operands, rows, columns, sums),
            Stored::F16 => multiply_numbers::<S, Half>(operands, rows, columns, sums),
        }
    }
}

dispatched! {
    /// # Safety
    /// x and the sums have the rows, the matrix and the sums the columns.
    unsafe fn multiply(operands: Operands, rows: usize, columns: usize, sums: Sums) = multiply_with
}
