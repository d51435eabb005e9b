//! Products with a matrix that was laid out once for the micro-kernels.

use std::ops::Range;

use crate::kernels::cpu::isa::{dispatched, Isa};
use crate::kernels::cpu::product::panels::{pack_panels, panels_per_task};
use crate::kernels::cpu::product::store::Panels;
use crate::kernels::cpu::rows::activation::activate_row;
use crate::kernels::cpu::rows::norm::add_row;
use crate::kernels::cpu::simd::Simd;
use crate::kernels::cpu::{build, for_each_range, Output};
use crate::kernels::Activation;
use crate::Result;

/// Columns of a panel: two of the widest vectors.
pub(crate) const PANEL: usize = 32;

/// How far ahead of the arithmetic a panel is asked for: what memory takes to answer, and a page.
const AHEAD: usize = 1024;

/// Rows of x that one task takes: their panel of the matrix stays in the second-level cache.
const TASK_ROWS: usize = 96;

/// A matrix [outputs, inputs] as panels of 32 outputs, each [inputs, 32], the last padded by zeros.
#[derive(Clone)]
pub(crate) struct PackedMatrix {
    panels: Panels<f32>,
    pub inputs: usize,
    pub outputs: usize,
}

/// What follows the product, in this order.
#[derive(Clone, Copy)]
pub(crate) struct GemmEpilogue<'a, T = f32> {
    /// [outputs].
    pub bias: Option<&'a [f32]>,
    pub activation: Option<Activation>,
    /// [rows, outputs].
    pub residual: Option<&'a [T]>,
}

impl<T> Default for GemmEpilogue<'_, T> {
    fn default() -> Self {
        Self {
            bias: None,
            activation: None,
            residual: None,
        }
    }
}

impl std::fmt::Debug for PackedMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedMatrix[{}, {}]", self.outputs, self.inputs)
    }
}

impl PackedMatrix {
    /// `weight` is [outputs, inputs], row after row.
    pub fn new(weight: &[f32], inputs: usize, outputs: usize) -> Result<Self> {
        let panels = pack_panels(outputs, inputs * PANEL, |panel: &mut [f32], first| {
            let rows = weight.chunks(inputs.max(1)).skip(first).take(PANEL);
            for (column, row) in rows.enumerate() {
                for (to, &value) in panel[column..].iter_mut().step_by(PANEL).zip(row) {
                    *to = value;
                }
            }
        })?;
        Ok(Self {
            panels,
            inputs,
            outputs,
        })
    }

    /// x · matrixᵀ and the epilogue, for `rows` rows of x.
    pub fn multiply(
        &self,
        isa: Isa,
        x: &[f32],
        rows: usize,
        epilogue: &GemmEpilogue<'_>,
    ) -> Vec<f32> {
        assert_eq!(x.len(), rows * self.inputs);
        assert!(epilogue.bias.is_none_or(|bias| bias.len() == self.outputs));
        assert!(epilogue
            .residual
            .is_none_or(|r| r.len() == rows * self.outputs));
        let row_tasks = rows.div_ceil(TASK_ROWS).max(1);
        let task_rows = rows.div_ceil(row_tasks).next_multiple_of(4).max(4);
        let panels = panels_per_task(row_tasks, self.outputs);
        let column_tasks = self.outputs.div_ceil(panels * PANEL);
        let tasks = rows.div_ceil(task_rows) * column_tasks;
        // However few the rows, a task reads its panels.
        let cost = task_rows.max(PANEL) * self.inputs * panels;
        // SAFETY: the tasks cover every row and panel once.
        unsafe {
            build(rows * self.outputs, |out| {
                for_each_range(tasks, cost, |range| {
                    for task in range {
                        let first = task / column_tasks * task_rows;
                        let start = task % column_tasks * panels * PANEL;
                        let end = (start + panels * PANEL).min(self.outputs);
                        let count = task_rows.min(rows - first);
                        self.task(isa, x, (first, count), start..end, epilogue, out);
                    }
                })
            })
        }
    }

    /// # Safety
    /// `out` holds the rows of the product; no other task writes these rows and panels.
    unsafe fn task(
        &self,
        isa: Isa,
        x: &[f32],
        (first, count): (usize, usize),
        columns: Range<usize>,
        epilogue: &GemmEpilogue<'_>,
        out: Output<f32>,
    ) {
        for column in columns.clone().step_by(PANEL) {
            let panel = &self.panels[column * self.inputs..][..self.inputs * PANEL];
            let width = PANEL.min(self.outputs - column);
            let bias = epilogue
                .bias
                .map_or(std::ptr::null(), |b| b[column..].as_ptr());
            // SAFETY: x has the rows, the panel its inputs, and the bias and out `width` columns here.
            unsafe {
                let to = out.at(first * self.outputs + column);
                let from = x[first * self.inputs..].as_ptr();
                multiply_panel(
                    isa,
                    from,
                    panel.as_ptr(),
                    bias,
                    to,
                    count,
                    self.inputs,
                    self.outputs,
                    width,
                );
            }
        }
        // SAFETY: the runs were just written, by this task alone.
        unsafe { epilogue.finish(isa, (first, count), columns, self.outputs, out) };
    }
}

impl GemmEpilogue<'_> {
    /// Activation and residual for some columns of `count` rows from `first` on.
    ///
    /// # Safety
    /// `out` holds the rows of the product, `outputs` wide, and these columns of them are written.
    pub(crate) unsafe fn finish(
        &self,
        isa: Isa,
        (first, count): (usize, usize),
        columns: Range<usize>,
        outputs: usize,
        out: Output<f32>,
    ) {
        for row in first..first + count {
            let at = row * outputs + columns.start;
            // SAFETY: the caller vouches for the run.
            unsafe {
                let run = out.at(at);
                if let Some(activation) = self.activation {
                    activate_row(isa, run, std::ptr::null(), run, columns.len(), activation);
                }
                if let Some(residual) = self.residual {
                    add_row(isa, run, residual[at..].as_ptr(), run, columns.len());
                }
            }
        }
    }
}

/// R rows of x, `x_stride` apart, against two vectors of columns. A panel that lies in memory is asked
/// for `AHEAD`.
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const FAR: bool>(
    x: *const f32,
    x_stride: usize,
    panel: *const f32,
    bias: [S::V; 2],
    inputs: usize,
) -> [[S::V; 2]; R] {
    unsafe {
        let mut sums = [bias; R];
        // Four rows share a pointer, which addresses them by one and three strides.
        let thrice = 3 * x_stride;
        let mut rows = [x; R];
        let mut group = 0;
        while 4 * group < R {
            rows[group] = x.add(4 * group * x_stride);
            group += 1;
        }
        let mut from = panel;
        for _ in 0..inputs {
            let pair = [S::load(from), S::load(from.add(S::LANES))];
            if FAR {
                S::prefetch(from.wrapping_add(AHEAD));
                S::prefetch(from.wrapping_add(AHEAD + S::LANES));
            }
            let mut r = 0;
            while r < R {
                let row = rows[r / 4];
                let value = S::splat(match r % 4 {
                    0 => *row,
                    1 => *row.add(x_stride),
                    2 => *row.add(2 * x_stride),
                    _ => *row.add(thrice),
                });
                sums[r][0] = S::fma(value, pair[0], sums[r][0]);
                sums[r][1] = S::fma(value, pair[1], sums[r][1]);
                r += 1;
            }
            let mut group = 0;
            while 4 * group < R {
                rows[group] = rows[group].add(1);
                group += 1;
            }
            from = from.add(PANEL);
        }
        sums
    }
}

/// The first `width` columns of a tile's rows to `out`.
#[inline(always)]
unsafe fn store_tile<S: Simd, const R: usize>(
    sums: [[S::V; 2]; R],
    out: *mut f32,
    stride: usize,
    width: usize,
) {
    unsafe {
        let mut r = 0;
        while r < R {
            let row = out.add(r * stride);
            if width >= 2 * S::LANES {
                S::store(row, sums[r][0]);
                S::store(row.add(S::LANES), sums[r][1]);
            } else if width >= S::LANES {
                S::store(row, sums[r][0]);
                if width > S::LANES {
                    S::store_first(row.add(S::LANES), sums[r][1], width - S::LANES);
                }
            } else {
                S::store_first(row, sums[r][0], width);
            }
            r += 1;
        }
    }
}

#[inline(always)]
unsafe fn load_up_to<S: Simd>(from: *const f32, left: usize) -> S::V {
    unsafe {
        if from.is_null() || left == 0 {
            S::splat(0.0)
        } else if left >= S::LANES {
            S::load(from)
        } else {
            S::load_first(from, left)
        }
    }
}

/// `rows` rows of x [.., inputs] times one panel of a matrix, plus bias; `width` columns of it exist.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn multiply_panel_with<S: Simd>(
    x: *const f32,
    panel: *const f32,
    bias: *const f32,
    out: *mut f32,
    rows: usize,
    inputs: usize,
    stride: usize,
    width: usize,
) {
    unsafe {
        multiply_with::<S, true>(x, inputs, panel, bias, out, rows, inputs, stride, width);
    }
}

/// The same on rows of x that lie `x_stride` apart, and a panel that is in cache.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn multiply_strided_with<S: Simd>(
    x: *const f32,
    x_stride: usize,
    panel: *const f32,
    bias: *const f32,
    out: *mut f32,
    rows: usize,
    inputs: usize,
    stride: usize,
    width: usize,
) {
    unsafe {
        multiply_with::<S, false>(x, x_stride, panel, bias, out, rows, inputs, stride, width);
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn multiply_with<S: Simd, const FAR: bool>(
    x: *const f32,
    x_stride: usize,
    panel: *const f32,
    bias: *const f32,
    out: *mut f32,
    rows: usize,
    inputs: usize,
    stride: usize,
    width: usize,
) {
    unsafe {
        let mut column = 0;
        while column < width {
            let left = width - column;
            let at = |offset: usize| match bias.is_null() {
                true => bias,
                false => bias.add(offset.min(width)),
            };
            let bias = [
                load_up_to::<S>(at(column), left),
                load_up_to::<S>(at(column + S::LANES), left.saturating_sub(S::LANES)),
            ];
            let panel = panel.add(column);
            let out = out.add(column);
            let mut row = 0;
            macro_rules! tiles {
                ($count:literal) => {
                    while rows - row >= $count {
                        let sums = tile::<S, $count, FAR>(
                            x.add(row * x_stride),
                            x_stride,
                            panel,
                            bias,
                            inputs,
                        );
                        store_tile::<S, $count>(sums, out.add(row * stride), stride, left);
                        row += $count;
                    }
                };
            }
            if S::REGISTERS >= 32 {
                tiles!(12);
                tiles!(8);
            } else {
                tiles!(6);
            }
            tiles!(4);
            tiles!(2);
            tiles!(1);
            column += 2 * S::LANES;
        }
    }
}

dispatched! {
    pub(crate) unsafe fn multiply_strided(
        x: *const f32, x_stride: usize, panel: *const f32, bias: *const f32, out: *mut f32, rows: usize,
        inputs: usize, stride: usize, width: usize,
    ) = multiply_strided_with
}
dispatched! {
    pub(crate) unsafe fn multiply_panel(
        x: *const f32, panel: *const f32, bias: *const f32, out: *mut f32, rows: usize, inputs: usize,
        stride: usize, width: usize,
    ) = multiply_panel_with
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::cpu::test_numbers::numbers;

    #[test]
    fn every_instruction_set_multiplies_like_the_definition() {
        let shapes = [
            (1, 1, 1),
            (7, 5, 31),
            (13, 33, 65),
            (12, 64, 32),
            (100, 17, 200),
            (193, 40, 161),
        ];
        for (rows, inputs, outputs) in shapes {
            let (x, weight) = (numbers(rows * inputs, 1), numbers(outputs * inputs, 2));
            let (bias, residual) = (numbers(outputs, 3), numbers(rows * outputs, 4));
            let packed = PackedMatrix::new(&weight, inputs, outputs).unwrap();
            let epilogue = GemmEpilogue {
                bias: Some(&bias),
                activation: Some(Activation::Relu),
                residual: Some(&residual),
            };
            for &isa in Isa::available() {
                let full = packed.multiply(isa, &x, rows, &epilogue);
                let plain = packed.multiply(isa, &x, rows, &GemmEpilogue::default());
                for r in 0..rows {
                    for o in 0..outputs {
                        let dot: f64 = (0..inputs)
                            .map(|i| {
                                f64::from(x[r * inputs + i]) * f64::from(weight[o * inputs + i])
                            })
                            .sum();
                        let at = r * outputs + o;
                        assert!((f64::from(plain[at]) - dot).abs() < 1e-4, "{}", isa.name());
                        let want = (dot + f64::from(bias[o])).max(0.0) + f64::from(residual[at]);
                        assert!((f64::from(full[at]) - want).abs() < 1e-4, "{}", isa.name());
                    }
                }
            }
        }
    }
}
