//! The one driver of products: it cuts them into tasks of some rows and panels, gives every task its
//! rows, its place for the sums and, where the matrix uses them, the CPU's tile registers, and lets the
//! epilogue follow. What differs between the types of weights is their `WeightMatrix`.
//!
//! A row's sums are added in one order, however many rows are multiplied with it and however they are
//! cut into tasks: a row's results depend on the row alone, bit for bit.

use std::ops::Range;

use crate::cpu::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::cpu::product::amx::Tiles;
use crate::cpu::product::epilogue::{Finish, GemmEpilogue};
use crate::cpu::product::panels;
use crate::cpu::{for_each_range, with_scratch, Element, Output};
use base::runtime::{prefetch::Span, threads};

/// Columns of a task at most.
pub(super) const TASK_COLUMNS: usize = 128;

/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Tasks that are enough for a thread: with fewer, some threads would wait for the last.
const TASKS_PER_THREAD: usize = 8;

/// However few its rows, a task reads its panels, which takes as long as multiplying this many.
const LEAST_COST_ROWS: usize = 32;

/// How many rows of x a matrix wants in a task.
#[derive(Clone, Copy)]
pub struct TaskRows {
    /// At most: with a panel, they stay in the second-level cache.
    pub most: usize,
    /// A task has a multiple of this, but for the last.
    pub unit: usize,
    /// So many are multiplied with all of a task's panels, and finished, before the next: the caches still
    /// have their sums.
    pub together: usize,
    /// Whether kernels write the sums of as many even where there are fewer.
    pub padded: bool,
}

/// A matrix [outputs, inputs] whose outputs lie in panels, for rows of `T`.
pub trait WeightMatrix<T: Element>: Sync + Sized {
    /// Outputs of a panel: whole vectors of every instruction set.
    const PANEL: usize;
    /// Panels that a tile has at most.
    const PANELS: usize = 1;
    /// Rows of x as the kernels read them: widened, rounded, padded.
    type Rows<'a>: Sync;
    /// What a thread keeps from task to task of a product.
    type Workspace: Default;

    fn inputs(&self) -> usize;
    fn outputs(&self) -> usize;
    fn task_rows(&self, isa: Isa) -> TaskRows;

    /// Where it lies, if it is worth reading ahead.
    fn span(&self) -> Option<Span> {
        None
    }

    /// `x` is [rows, inputs].
    fn prepare<'a>(&self, isa: Isa, x: &'a [T], rows: usize) -> Self::Rows<'a>;

    /// Whether `multiply_tile` needs tile registers.
    fn takes_tile_registers(&self, _isa: Isa) -> bool {
        false
    }

    /// The sums of some rows and panels, all of their columns.
    ///
    /// # Safety
    /// The rows are prepared by a matrix of as many inputs, the panels exist, and the sums have room
    /// for the tile's rows (as many as are multiplied together, where those are padded) and the panels'
    /// columns. The workspace saw no rows but these and those of the same preparation.
    unsafe fn multiply_tile(
        &self,
        context: &Context,
        workspace: &mut Self::Workspace,
        x: &Self::Rows<'_>,
        tile: Tile,
    );

    /// x · matrixᵀ and the epilogue, for `rows` rows of x.
    fn multiply(&self, isa: Isa, x: &[T], rows: usize, epilogue: &GemmEpilogue<'_, T>) -> Vec<T> {
        multiply_each(isa, x, rows, &[(self, *epilogue)]).remove(0)
    }
}

/// Some rows of x and some panels.
#[derive(Clone, Copy)]
pub struct Tile {
    pub row: usize,
    pub rows: usize,
    /// The first panel.
    pub panel: usize,
    pub panels: usize,
    pub sums: Sums,
}

/// Where the rows of a tile's sums begin, and how far they are apart.
#[derive(Clone, Copy)]
pub struct Sums {
    pub start: *mut f32,
    pub stride: usize,
}

impl Sums {
    /// # Safety
    /// The row lies within the sums.
    #[inline(always)]
    pub unsafe fn row(self, row: usize) -> *mut f32 {
        // SAFETY: the caller vouches for the row.
        unsafe { self.start.add(row * self.stride) }
    }

    /// # Safety
    /// The place lies within the sums.
    #[inline(always)]
    pub unsafe fn at(self, row: usize, column: usize) -> Self {
        Self {
            // SAFETY: the caller vouches for the place.
            start: unsafe { self.row(row).add(column) },
            ..self
        }
    }
}

/// What a thread has while it works on tasks.
pub struct Context {
    pub isa: Isa,
    /// Where the matrix takes them.
    #[cfg(target_arch = "x86_64")]
    pub tiles: Option<Tiles>,
}

impl Context {
    /// For so many rows of x in all.
    fn new(isa: Isa, takes_tile_registers: bool, rows: usize) -> Self {
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (takes_tile_registers, rows);
        Self {
            isa,
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the CPU has AMX, since the set of this name is only available where tiles are usable; no
            // pointer is passed.
            tiles: (takes_tile_registers && isa == Isa::Amx)
                .then(|| unsafe { Tiles::configure(rows) }),
        }
    }
}

/// A matrix, and what follows its product.
pub type Factor<'a, T, M> = (&'a M, GemmEpilogue<'a, T>);

/// x · matrixᵀ and the epilogue, for `rows` rows of x and every matrix, at once.
pub fn multiply_each<T: Element, M: WeightMatrix<T>>(
    isa: Isa,
    x: &[T],
    rows: usize,
    factors: &[Factor<'_, T, M>],
) -> Vec<Vec<T>> {
    let Some((first, _)) = factors.first() else {
        return Vec::new();
    };
    for (matrix, _) in factors {
        assert_eq!(x.len(), rows * matrix.inputs());
    }
    multiply_prepared(isa, &first.prepare(isa, x, rows), rows, factors)
}

/// `multiply_each` on rows that one of the matrices has prepared.
pub(super) fn multiply_prepared<T: Element, M: WeightMatrix<T>>(
    isa: Isa,
    x: &M::Rows<'_>,
    rows: usize,
    factors: &[Factor<'_, T, M>],
) -> Vec<Vec<T>> {
    for (matrix, epilogue) in factors {
        epilogue.check(rows, matrix.outputs());
    }
    let room = |(matrix, _): &Factor<'_, T, M>| rows * matrix.outputs();
    let mut products: Vec<Vec<T>> = factors
        .iter()
        .map(|factor| Vec::with_capacity(room(factor)))
        .collect();
    let outputs: Vec<_> = products
        .iter_mut()
        .map(|product| Output(product.as_mut_ptr()))
        .collect();
    if rows == 1 {
        let mut spans = factors.iter().map_while(|(matrix, _)| matrix.span());
        if let Some(first) = spans.next() {
            threads::reads(spans.try_fold(first, Span::joined).unwrap_or(first));
        }
    }
    let cut = Cut::new(isa, rows, factors);
    let tiles = factors.iter().any(|(m, _)| m.takes_tile_registers(isa));
    for_each_range(cut.tasks(), cut.cost(), |range| {
        let context = Context::new(isa, tiles, rows);
        let mut workspace = M::Workspace::default();
        with_scratch(cut.most_rows.together * TASK_COLUMNS, |scratch| {
            let mut rest = range;
            while let Some(task) = cut.next_task(&mut rest, factors) {
                let (factor, out) = (&factors[task.factor], outputs[task.factor]);
                for tile in cut.tiles(&task) {
                    // SAFETY: this task alone has these rows and columns, which lie within the
                    // product; the scratch has room for those of any task.
                    unsafe { run(&context, &mut workspace, x, (factor, out), &tile, scratch) };
                }
            }
        })
    });
    for (product, factor) in products.iter_mut().zip(factors) {
        // SAFETY: the capacity is there, and the tasks cover every row and column once.
        unsafe { product.set_len(room(factor)) };
    }
    products
}

/// The sums of one task and what follows them.
///
/// # Safety
/// `out` holds the product, of which nobody else has the task's part; the scratch has room for
/// as many rows as are finished together, of `TASK_COLUMNS`.
unsafe fn run<T: Element, M: WeightMatrix<T>>(
    context: &Context,
    workspace: &mut M::Workspace,
    x: &M::Rows<'_>,
    ((matrix, epilogue), out): (&Factor<'_, T, M>, Output<T>),
    task: &Task,
    scratch: &mut [f32],
) {
    let (outputs, columns) = (matrix.outputs(), &task.columns);
    let at = task.rows.start * outputs + columns.start;
    // Sums that are numbers of the product go straight there, unless the kernels, which know whole
    // panels alone, would write beyond the task's own.
    let whole = !task.padded && columns.len().is_multiple_of(M::PANEL);
    // SAFETY: the caller vouches for the room.
    unsafe {
        let to = out.at(at);
        let in_place = T::IS_F32 && whole;
        let sums = if in_place {
            Sums {
                start: to.cast(),
                stride: outputs,
            }
        } else {
            Sums {
                start: scratch.as_mut_ptr(),
                stride: columns.len().next_multiple_of(M::PANEL),
            }
        };
        let panels = columns.start / M::PANEL..columns.end.div_ceil(M::PANEL);
        for panel in panels.clone().step_by(M::PANELS) {
            let count = M::PANELS.min(panels.end - panel);
            if !in_place {
                let to = to.wrapping_add(panel * M::PANEL - columns.start);
                ask_for(to, (task.rows.len(), outputs), count * M::PANEL);
            }
            let tile = Tile {
                row: task.rows.start,
                rows: task.rows.len(),
                panel,
                panels: count,
                sums: sums.at(0, panel * M::PANEL - columns.start),
            };
            matrix.multiply_tile(context, workspace, x, tile);
        }
        let finish = Finish {
            sums,
            rows: task.rows.len(),
            columns: columns.len(),
            bias: epilogue
                .bias
                .map_or(std::ptr::null(), |bias| bias[columns.start..].as_ptr()),
            activation: epilogue.activation,
            residual: epilogue
                .residual
                .map_or(std::ptr::null(), |residual| residual[at..].as_ptr().cast()),
            out: to.cast(),
            stride: outputs,
            stored: T::STORED,
        };
        finish.run(context.isa);
    }
}

/// Asks for some rows of so many numbers, `stride` apart: while their sums are made, the lines that they will be
/// written to come into the cache. They may lie anywhere.
fn ask_for<T>(start: *const T, (rows, stride): (usize, usize), columns: usize) {
    #[cfg(target_arch = "x86_64")]
    for row in 0..rows {
        let from = start.wrapping_add(row * stride);
        for at in (0..columns).step_by(LINE / size_of::<T>()) {
            use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
            // SAFETY: a prefetch reads nothing and cannot fault; SSE belongs to every x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at).cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, rows, stride, columns);
}

/// Some rows and columns of one product; the columns begin with a panel.
#[derive(Clone)]
struct Task {
    factor: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    /// Whether kernels write the sums of more rows.
    padded: bool,
}

/// How the products with several matrices are cut into tasks: rows by rows, and for the same rows
/// columns by columns, of one matrix after the other.
struct Cut {
    rows: usize,
    most_rows: TaskRows,
    task_rows: usize,
    task_columns: usize,
    inputs: usize,
    /// Where the tasks of each matrix end in the list of all that have the same rows.
    ends: Vec<usize>,
}

impl Cut {
    /// Of what matrices want of a task, the largest unit counts.
    fn new<T: Element, M: WeightMatrix<T>>(
        isa: Isa,
        rows: usize,
        factors: &[Factor<'_, T, M>],
    ) -> Self {
        let one = TaskRows {
            most: 1,
            unit: 1,
            together: 1,
            padded: false,
        };
        let wanted = factors.iter().map(|(matrix, _)| matrix.task_rows(isa));
        let most_rows = wanted.fold(one, |a, b| if a.unit > b.unit { a } else { b });
        let TaskRows { most, unit, .. } = most_rows;
        let row_tasks = rows.div_ceil(most).max(1);
        let panels: usize = factors
            .iter()
            .map(|(matrix, _)| matrix.outputs().div_ceil(M::PANEL))
            .sum();
        // Panels that are multiplied at once are put together from tasks of one, so that ranges of tasks
        // can be of equal length.
        let most_panels = if rows == 1 && M::PANELS > 1 {
            1
        } else {
            TASK_COLUMNS / M::PANEL
        };
        let task_columns = M::PANEL * panels_per_task(row_tasks * panels, most_panels);
        let ends = factors.iter().scan(0, |end, (matrix, _)| {
            *end += matrix.outputs().div_ceil(task_columns);
            Some(*end)
        });
        Self {
            rows,
            most_rows,
            task_rows: rows.div_ceil(row_tasks).next_multiple_of(unit).max(unit),
            task_columns,
            inputs: factors.first().map_or(0, |(matrix, _)| matrix.inputs()),
            ends: ends.collect(),
        }
    }

    fn column_tasks(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn tasks(&self) -> usize {
        self.rows.div_ceil(self.task_rows) * self.column_tasks()
    }

    /// Of a task, by what a dense panel costs.
    fn cost(&self) -> usize {
        let panels = self.task_columns.div_ceil(panels::PANEL);
        self.task_rows.max(LEAST_COST_ROWS) * self.inputs * panels
    }

    /// Takes the first of some tasks, or, where one row is multiplied with panels that a matrix takes at
    /// once, all that are of the same matrix and need no scratch.
    fn next_task<T: Element, M: WeightMatrix<T>>(
        &self,
        rest: &mut Range<usize>,
        factors: &[Factor<'_, T, M>],
    ) -> Option<Task> {
        let mut task = self.task(rest.next()?, factors);
        let outputs = factors[task.factor].0.outputs();
        let whole = outputs - outputs % M::PANEL;
        if self.rows == 1 && M::PANELS > 1 && T::IS_F32 && !task.padded && task.columns.end <= whole
        {
            let more = (whole - task.columns.end) / self.task_columns;
            let more = more.min(rest.len());
            task.columns.end += more * self.task_columns;
            rest.start += more;
        }
        Some(task)
    }

    fn task<T: Element, M: WeightMatrix<T>>(
        &self,
        number: usize,
        factors: &[Factor<'_, T, M>],
    ) -> Task {
        let (row, column) = (number / self.column_tasks(), number % self.column_tasks());
        let factor = self.ends.partition_point(|&end| end <= column);
        let begin = factor.checked_sub(1).map_or(0, |before| self.ends[before]);
        let (row, column) = (row * self.task_rows, (column - begin) * self.task_columns);
        let outputs = factors[factor].0.outputs();
        Task {
            factor,
            rows: row..(row + self.task_rows).min(self.rows),
            columns: column..(column + self.task_columns).min(outputs),
            padded: self.most_rows.padded,
        }
    }

    /// What of a task is multiplied and finished together.
    fn tiles(&self, task: &Task) -> impl Iterator<Item = Task> {
        let (rows, task) = (self.most_rows.together, task.clone());
        task.rows.clone().step_by(rows).map(move |first| Task {
            rows: first..task.rows.end.min(first + rows),
            columns: task.columns.clone(),
            ..task
        })
    }
}

/// How many of the panels that are to be multiplied a task takes: some, so that an epilogue works on
/// long runs, but no more than keep every thread busy to the end.
fn panels_per_task(panels: usize, most: usize) -> usize {
    let threads = if threads::is_alone() {
        1
    } else {
        threads::count()
    };
    (panels / (TASKS_PER_THREAD * threads)).clamp(1, most)
}
