//! The micro-kernels of f32: some rows of x against a panel, in tiles whose sums stay in registers.

use crate::cpu::isa::dispatched;
#[cfg(target_arch = "aarch64")]
use crate::cpu::product::arm;
use crate::cpu::product::driver::Sums;
use crate::cpu::product::panels::PANEL;
use crate::cpu::product::row_tiles::in_row_tiles;
use crate::cpu::simd::{Simd, Turns};

/// Numbers of a cache line.
const LINE: usize = 16;

/// Rows of x and one panel.
#[derive(Clone, Copy)]
pub struct Operands {
    pub x: *const f32,
    /// From row to row of x.
    pub x_stride: usize,
    /// [inputs, 32].
    pub panel: *const f32,
    pub inputs: usize,
}

/// What will be read soon, which may lie anywhere, and how much of it is asked for with every input.
pub(in crate::cpu::product) type Ahead = (*const f32, usize);

/// Inputs that a turn of the loop takes: fewer turns leave more of the processor to the products.
const UNROLLED: usize = 4;

/// Where a tile reads.
#[derive(Clone, Copy)]
struct Reading<const R: usize> {
    /// Every fourth row of x: four share a pointer, which addresses them by one and three strides.
    rows: [*const f32; R],
    x_stride: usize,
    panel: *const f32,
    ahead: *const f32,
    ahead_step: usize,
}

impl<const R: usize> Reading<R> {
    /// # Safety
    /// x has R rows, `x_stride` apart.
    #[inline(always)]
    unsafe fn new(operands: Operands, (ahead, ahead_step): Ahead) -> Self {
        let mut rows = [operands.x; R];
        let mut group = 0;
        while 4 * group < R {
            // SAFETY: the row exists, as the caller vouches.
            rows[group] = unsafe { operands.x.add(4 * group * operands.x_stride) };
            group += 1;
        }
        Self {
            rows,
            x_stride: operands.x_stride,
            panel: operands.panel,
            ahead,
            ahead_step,
        }
    }

    /// The number of row `r` that stands `input` behind where it reads, in every lane.
    ///
    /// # Safety
    /// The row has it, and the CPU the instruction set.
    #[inline(always)]
    unsafe fn number<S: Simd>(&self, r: usize, input: usize) -> S::V {
        let row = self.rows[r / 4];
        // SAFETY: the caller vouches for the row and its number, and has the instruction set of `S`.
        unsafe {
            let row = match r % 4 {
                0 => row,
                1 => row.add(self.x_stride),
                2 => row.add(2 * self.x_stride),
                _ => row.add(3 * self.x_stride),
            };
            S::splat(*row.add(input))
        }
    }

    /// Adds the products of the input that stands `input` behind where it reads. What a tile has less of, rows or
    /// vectors of columns, stays in registers meanwhile.
    ///
    /// # Safety
    /// x and the panel have the input, and the CPU the instruction set.
    #[inline(always)]
    unsafe fn add<S: Simd, const C: usize, const ASKS: bool>(
        &self,
        sums: &mut [[S::V; C]; R],
        input: usize,
    ) {
        let from = self.panel.wrapping_add(input * PANEL);
        // SAFETY: the caller vouches for the input, and has the instruction set of `S`; what is asked for ahead may
        // lie anywhere.
        unsafe {
            if ASKS {
                let ahead = self.ahead.wrapping_add(input * self.ahead_step);
                let mut asked = 0;
                while asked < C * S::LANES {
                    S::prefetch(ahead.wrapping_add(asked));
                    asked += LINE;
                }
            }
            if R < C {
                let mut numbers = [S::splat(0.0); R];
                let mut r = 0;
                while r < R {
                    numbers[r] = self.number::<S>(r, input);
                    r += 1;
                }
                let mut c = 0;
                while c < C {
                    let column = S::load(from.add(c * S::LANES));
                    let mut r = 0;
                    while r < R {
                        sums[r][c] = S::fma(numbers[r], column, sums[r][c]);
                        r += 1;
                    }
                    c += 1;
                }
            } else {
                let mut columns = [S::splat(0.0); C];
                let mut c = 0;
                while c < C {
                    columns[c] = S::load(from.add(c * S::LANES));
                    c += 1;
                }
                let mut r = 0;
                while r < R {
                    let number = self.number::<S>(r, input);
                    let mut c = 0;
                    while c < C {
                        sums[r][c] = S::fma(number, columns[c], sums[r][c]);
                        c += 1;
                    }
                    r += 1;
                }
            }
        }
    }

    /// Goes on by some inputs. Wrapping, since after the last input it stands behind the panel's end, by the column it
    /// began with.
    #[inline(always)]
    fn advance(&mut self, inputs: usize) {
        let mut group = 0;
        while 4 * group < R {
            self.rows[group] = self.rows[group].wrapping_add(inputs);
            group += 1;
        }
        self.panel = self.panel.wrapping_add(inputs * PANEL);
        self.ahead = self.ahead.wrapping_add(inputs * self.ahead_step);
    }
}

/// R rows of x against C vectors of columns, added `onto` the sums or written; `ASKS` for what lies ahead. Every sum
/// takes its inputs in order.
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const C: usize, const ASKS: bool>(
    operands: Operands,
    (ahead, ahead_step): Ahead,
    to: Sums,
    onto: bool,
) {
    // SAFETY: x has R rows of `inputs` numbers and the panel `inputs` rows of 32, from the column it begins with;
    // the sums have room for R rows of C vectors; all as the caller vouches, who has the instruction set.
    unsafe {
        let mut sums = [[S::splat(0.0); C]; R];
        if onto {
            let mut r = 0;
            while r < R {
                let mut c = 0;
                while c < C {
                    sums[r][c] = S::load(to.row(r).add(c * S::LANES));
                    c += 1;
                }
                r += 1;
            }
        }
        let mut reading = Reading::<R>::new(operands, (ahead, ahead_step));
        let turns = Turns {
            count: operands.inputs / UNROLLED,
            x: operands.x,
            x_stride: operands.x_stride,
            panel: operands.panel,
            ahead,
            ahead_step,
        };
        let mut done = turns.count * UNROLLED;
        if S::add_products(&mut sums, turns, ASKS) {
            reading.advance(done);
        } else if S::REGISTERS < 32 {
            for _ in 0..turns.count {
                // Not a loop, which the compiler might keep, with the sums in memory.
                reading.add::<S, C, ASKS>(&mut sums, 0);
                reading.add::<S, C, ASKS>(&mut sums, 1);
                reading.add::<S, C, ASKS>(&mut sums, 2);
                reading.add::<S, C, ASKS>(&mut sums, 3);
                reading.advance(UNROLLED);
            }
        } else {
            // With as many sums as there are registers for, it would keep some in memory too.
            done = 0;
        }
        for _ in done..operands.inputs {
            reading.add::<S, C, ASKS>(&mut sums, 0);
            reading.advance(1);
        }
        let mut r = 0;
        while r < R {
            let mut c = 0;
            while c < C {
                S::store(to.row(r).add(c * S::LANES), sums[r][c]);
                c += 1;
            }
            r += 1;
        }
    }
}

/// How tiles are cut where vectors are wide or registers few.
struct Shape {
    /// Rows of the tallest.
    tallest: usize,
    /// One row of few vectors takes as long as so many, waiting for its own sums. With many registers it waits for the
    /// panel.
    least: usize,
    /// Vectors of columns.
    vectors: usize,
    /// Inputs that all rows are multiplied with before the next: where tiles are low, the panel is read again so often
    /// that so much of it stays in the first-level cache, half full.
    depth: usize,
}

const fn shape<S: Simd>() -> Shape {
    if S::REGISTERS >= 32 {
        Shape {
            tallest: 12,
            least: 1,
            vectors: 2,
            depth: usize::MAX,
        }
    } else {
        Shape {
            tallest: 3,
            least: 2,
            vectors: NARROW,
            depth: 192,
        }
    }
}

/// Vectors of a panel where there are few registers.
const NARROW: usize = PANEL / 8;

#[inline(always)]
unsafe fn multiply_with<S: Simd, const ASKS: bool>(
    operands: Operands,
    (ahead, step): Ahead,
    rows: usize,
    sums: Sums,
) {
    #[cfg(target_arch = "aarch64")]
    if S::MULTIPLIES_BY_LANES {
        let operands = arm::Operands {
            x: operands.x.cast(),
            stride: operands.x_stride,
            panel: operands.panel.cast(),
            words: operands.inputs,
        };
        // SAFETY: the caller vouches for the rows, the panel and the sums.
        return unsafe { arm::multiply_singles(operands, rows, sums) };
    }
    let mut first = 0;
    loop {
        let inputs = (operands.inputs - first).min(const { shape::<S>().depth });
        let part = Operands {
            x: operands.x.wrapping_add(first),
            panel: operands.panel.wrapping_add(first * PANEL),
            inputs,
            ..operands
        };
        let ahead = (ahead.wrapping_add(first * step), step);
        // SAFETY: x and the sums have the rows and the panel the inputs, as the caller vouches, who has the
        // instruction set; the sums hold those of the inputs before the first.
        unsafe { multiply_inputs::<S, ASKS>(part, ahead, rows, sums, first > 0) };
        first += inputs;
        if first == operands.inputs {
            return;
        }
    }
}

/// The products of some inputs, added `onto` the sums or written.
#[inline(always)]
unsafe fn multiply_inputs<S: Simd, const ASKS: bool>(
    operands: Operands,
    (ahead, step): Ahead,
    rows: usize,
    sums: Sums,
    onto: bool,
) {
    // SAFETY: x and the sums have the rows and the panel the inputs, as the caller vouches, who has the instruction
    // set; tiles lie within the rows, and their columns within the panel.
    unsafe {
        let mut column = 0;
        while column < PANEL {
            in_row_tiles!(rows, most shape::<S>().tallest, least shape::<S>().least, (row, HEIGHT) => {
                let operands = Operands {
                    x: operands.x.add(row * operands.x_stride),
                    panel: operands.panel.add(column),
                    ..operands
                };
                let (ahead, sums) = ((ahead.wrapping_add(column), step), sums.at(row, column));
                if const { shape::<S>().vectors == 2 } {
                    tile::<S, HEIGHT, 2, ASKS>(operands, ahead, sums, onto);
                } else if ASKS && row == 0 {
                    tile::<S, HEIGHT, NARROW, true>(operands, ahead, sums, onto);
                } else {
                    // The rows before have asked for all.
                    tile::<S, HEIGHT, NARROW, false>(operands, ahead, sums, onto);
                }
            });
            column += shape::<S>().vectors * S::LANES;
        }
    }
}

#[inline(always)]
unsafe fn multiply_panel_with<S: Simd>(operands: Operands, ahead: Ahead, rows: usize, sums: Sums) {
    // SAFETY: x and the sums have the rows and the panel the inputs, as the caller vouches, who has the instruction
    // set.
    unsafe { multiply_with::<S, true>(operands, ahead, rows, sums) }
}

#[inline(always)]
unsafe fn multiply_cached_panel_with<S: Simd>(operands: Operands, rows: usize, sums: Sums) {
    // SAFETY: x and the sums have the rows and the panel the inputs, as the caller vouches, who has the instruction
    // set; nothing is asked for ahead, so that the null pointer is not used.
    unsafe { multiply_with::<S, false>(operands, (std::ptr::null(), 0), rows, sums) }
}

dispatched! {
    /// The sums of `rows` rows of x with a panel, while what lies ahead is asked for.
    ///
    /// # Safety
    /// x and the sums have the rows, the panel the inputs.
    pub(in crate::cpu::product) unsafe fn multiply_panel(
        operands: Operands, ahead: Ahead, rows: usize, sums: Sums,
    ) = multiply_panel_with
}
dispatched! {
    /// `multiply_panel` where nothing is waited for.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn multiply_cached_panel(
        operands: Operands, rows: usize, sums: Sums,
    ) = multiply_cached_panel_with
}
