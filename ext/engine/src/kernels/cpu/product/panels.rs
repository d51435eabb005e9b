//! How products of short numbers are cut into tasks, and what follows each block of sums.

use crate::kernels::cpu::isa::{dispatched, Isa};
use crate::kernels::cpu::product::gemm::{GemmEpilogue, PANEL};
use crate::kernels::cpu::product::store::Panels;
use crate::kernels::cpu::rows::activation::activate_row_with;
use crate::kernels::cpu::simd::Simd;
use crate::kernels::cpu::{build, for_each_range, with_scratch, Element, Output, Stored};
use crate::kernels::Activation;
use crate::{runtime::threads, Result};

/// Rows of a block: two tiles.
pub(super) const BLOCK_ROWS: usize = 32;

/// Columns of a block at most, in panels and in numbers.
const BLOCK_PANELS: usize = 4;
pub(super) const BLOCK_COLUMNS: usize = BLOCK_PANELS * PANEL;

/// Tasks that are enough for a thread: with fewer, some threads would wait for the last.
const TASKS_PER_THREAD: usize = 8;

/// How many panels of a matrix a task takes: some, so that an epilogue works on long runs, but no more
/// than keep every thread busy to the end.
pub(super) fn panels_per_task(row_tasks: usize, outputs: usize) -> usize {
    let threads = match threads::is_alone() {
        true => 1,
        false => threads::count(),
    };
    let panels = row_tasks * outputs.div_ceil(PANEL);
    (panels / (TASKS_PER_THREAD * threads)).clamp(1, BLOCK_PANELS)
}

/// The panels of a matrix of `outputs`, `length` numbers each: zeros that `fill` replaces, given the
/// panel and the number of its first output.
pub(super) fn pack_panels<N: Copy + Send>(
    outputs: usize,
    length: usize,
    fill: impl Fn(&mut [N], usize) + Sync,
) -> Result<Panels<N>> {
    let panels = outputs.div_ceil(PANEL);
    // SAFETY: every panel is written once; zeroed bytes are a number of every type used here.
    unsafe {
        Panels::build(panels * length, |out: Output<N>| {
            for_each_range(panels, length, |range| {
                for panel in range {
                    let start = out.at(panel * length);
                    std::ptr::write_bytes(start, 0, length);
                    fill(std::slice::from_raw_parts_mut(start, length), panel * PANEL);
                }
            })
        })
    }
}

/// Some rows and columns of a product; the columns are whole panels, of which the last may end
/// beyond the matrix.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub row: usize,
    pub rows: usize,
    pub column: usize,
    pub columns: usize,
}

impl Block {
    /// The panels, by number, and where in the block each starts.
    pub fn panels(&self) -> impl Iterator<Item = (usize, usize)> {
        let first = self.column / PANEL;
        (0..self.columns.div_ceil(PANEL)).map(move |at| (first + at, at * PANEL))
    }
}

/// The whole product of [rows, inputs] and a matrix of `outputs`, block by block: `compute` writes
/// the sums of a block as rows of `BLOCK_COLUMNS` (all `BLOCK_ROWS` of them may be written), with what
/// `begin` made for its thread.
pub(super) fn multiply_blocks<T: Element, C>(
    isa: Isa,
    (rows, inputs, outputs): (usize, usize, usize),
    epilogue: &GemmEpilogue<'_, T>,
    begin: impl Fn() -> C + Sync,
    compute: impl Fn(&C, Block, &mut [f32]) + Sync,
) -> Vec<T> {
    assert!(epilogue.bias.is_none_or(|bias| bias.len() == outputs));
    assert!(epilogue.residual.is_none_or(|r| r.len() == rows * outputs));
    let row_tasks = rows.div_ceil(BLOCK_ROWS);
    let columns = panels_per_task(row_tasks, outputs) * PANEL;
    let column_tasks = outputs.div_ceil(columns);
    // However few the rows, a block reads its panels.
    let cost = BLOCK_ROWS * inputs;
    // SAFETY: the blocks cover every row and column once.
    unsafe {
        build(rows * outputs, |out: Output<T>| {
            for_each_range(row_tasks * column_tasks, cost, |range| {
                let context = begin();
                with_scratch(BLOCK_ROWS * BLOCK_COLUMNS, |sums| {
                    for task in range {
                        let row = task / column_tasks * BLOCK_ROWS;
                        let column = task % column_tasks * columns;
                        let block = Block {
                            row,
                            rows: BLOCK_ROWS.min(rows - row),
                            column,
                            columns: columns.min(outputs - column),
                        };
                        compute(&context, block, sums);
                        let at = row * outputs + column;
                        let finish = Finish {
                            sums: sums.as_mut_ptr(),
                            rows: block.rows,
                            columns: block.columns,
                            bias: epilogue
                                .bias
                                .map_or(std::ptr::null(), |b| b[column..].as_ptr()),
                            activation: epilogue.activation,
                            residual: epilogue
                                .residual
                                .map_or(std::ptr::null(), |r| r[at..].as_ptr().cast()),
                            out: out.at(at).cast(),
                            stride: outputs,
                            stored: T::STORED,
                        };
                        finish_block(isa, finish);
                    }
                })
            })
        })
    }
}

/// What follows the sums of a block, and where they go.
#[derive(Clone, Copy)]
struct Finish {
    /// Rows of `BLOCK_COLUMNS`.
    sums: *mut f32,
    rows: usize,
    columns: usize,
    /// May be null.
    bias: *const f32,
    activation: Option<Activation>,
    /// May be null; rows of `stride` numbers, like `out`.
    residual: *const u8,
    out: *mut u8,
    stride: usize,
    stored: Stored,
}

#[inline(always)]
unsafe fn finish_block_with<S: Simd>(finish: Finish) {
    unsafe {
        for row in 0..finish.rows {
            let sums = finish.sums.add(row * BLOCK_COLUMNS);
            // The padding of a short panel lies within the row of sums.
            let padded = finish.columns.next_multiple_of(S::LANES);
            if !finish.bias.is_null() {
                let mut at = 0;
                while at + S::LANES <= finish.columns {
                    let sum = S::add(S::load(sums.add(at)), S::load(finish.bias.add(at)));
                    S::store(sums.add(at), sum);
                    at += S::LANES;
                }
                for at in at..finish.columns {
                    *sums.add(at) += *finish.bias.add(at);
                }
            }
            if let Some(activation) = finish.activation {
                activate_row_with::<S>(sums, std::ptr::null(), sums, padded, activation);
            }
            let at = row * finish.stride;
            match finish.stored {
                Stored::F32 => store_row::<S, F32>(&finish, sums, at),
                Stored::F16 => store_row::<S, F16>(&finish, sums, at),
                Stored::Bf16 => store_row::<S, Bf16>(&finish, sums, at),
            }
        }
    }
}

dispatched! {
    unsafe fn finish_block(finish: Finish) = finish_block_with
}

/// Vectors of one stored type.
trait Vectors<S: Simd> {
    type Number: Copy + Default;

    unsafe fn load(from: *const Self::Number) -> S::V;
    unsafe fn store(to: *mut Self::Number, v: S::V);
}

struct F32;
struct F16;
struct Bf16;

macro_rules! vectors {
    ($name:ident, $number:ty, $load:ident, $store:ident) => {
        impl<S: Simd> Vectors<S> for $name {
            type Number = $number;

            #[inline(always)]
            unsafe fn load(from: *const $number) -> S::V {
                unsafe { S::$load(from) }
            }
            #[inline(always)]
            unsafe fn store(to: *mut $number, v: S::V) {
                unsafe { S::$store(to, v) }
            }
        }
    };
}
vectors!(F32, f32, load, store);
vectors!(F16, u16, load_f16, store_f16);
vectors!(Bf16, u16, load_bf16, store_bf16);

/// One row of sums plus the residual, rounded to what is stored.
#[inline(always)]
unsafe fn store_row<S: Simd, N: Vectors<S>>(finish: &Finish, sums: *const f32, at: usize) {
    unsafe {
        let out = finish.out.cast::<N::Number>().add(at);
        let residual = match finish.residual.is_null() {
            true => std::ptr::null(),
            false => finish.residual.cast::<N::Number>().add(at),
        };
        let mut i = 0;
        while i + S::LANES <= finish.columns {
            let mut v = S::load(sums.add(i));
            if !residual.is_null() {
                v = S::add(v, N::load(residual.add(i)));
            }
            N::store(out.add(i), v);
            i += S::LANES;
        }
        let rest = finish.columns - i;
        if rest > 0 {
            let mut numbers = [N::Number::default(); 16];
            let mut v = S::load(sums.add(i));
            if !residual.is_null() {
                std::ptr::copy_nonoverlapping(residual.add(i), numbers.as_mut_ptr(), rest);
                v = S::add(v, N::load(numbers.as_ptr()));
            }
            N::store(numbers.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(numbers.as_ptr(), out.add(i), rest);
        }
    }
}
