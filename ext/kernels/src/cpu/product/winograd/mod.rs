//! Convolutions of 3 × 3 without strides by Winograd's method: tiles of a map and the kernel are transformed, multiplied
//! point by point, and the sums transformed back. F(4×4) makes 16 places of a channel from 36 products, where windows
//! take 144; F(2×2) makes 4 from 16.
//!
//! A place is computed from its tile alone, in one order: its bits depend neither on other tiles nor on threads.

mod transform;

use std::ops::Range;

use crate::cpu::isa::Isa;
use crate::cpu::product::driver::Sums;
use crate::cpu::product::gemm::{multiply_ahead, Operands};
use crate::cpu::product::panels::{pack_panels, PANEL};
use crate::cpu::product::store::Panels;
use crate::cpu::rows::activation::activate_row;
use crate::cpu::simd::MOST_LANES;
use crate::cpu::windows::Windows;
use crate::cpu::{build, for_each_range, with_scratch, Output};
use crate::{Activation, Result};
use base::runtime::threads;
use transform::{kernel_factors, read_tile, write_tile, Reading, Writing, MOST_EDGE};

/// Kernels of more channels take F(2×2), whose weights are 16 instead of 36 numbers: with few tiles, reading them takes
/// longer than what F(4×4) saves.
const MOST_FOR_FOUR: usize = 256 * 512;

/// Tiles that are multiplied with a panel at once: whole tiles of the products. What a thread transforms for itself
/// stays in its cache.
const TILES: usize = 24;
const FEWEST_TILES: usize = 12;
/// Where all threads read what all have transformed.
const SHARED_TILES: usize = 48;

/// With fewer blocks of tiles for a thread, tasks are panels.
const BLOCKS_PER_THREAD: usize = 4;

/// Between points, so that those of a tile do not share a set of the cache.
const APART: usize = MOST_LANES;

/// The kernels of a convolution at the points of a tile.
#[derive(Clone)]
pub struct Winograd {
    /// For every 32 outputs and every point, [inputs, 32].
    panels: Panels<f32>,
    /// One for each column of the panels.
    bias: Vec<f32>,
    pub inputs: usize,
    pub outputs: usize,
    /// Of a tile, in points.
    edge: usize,
}

impl std::fmt::Debug for Winograd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Winograd[{}, {}]", self.outputs, self.inputs)
    }
}

/// Where points lie: [points, tiles, channels].
#[derive(Clone, Copy)]
struct Points {
    start: *mut f32,
    /// From point to point.
    step: usize,
}
// SAFETY: tasks write the points of tiles that are theirs alone, and read after all are written.
unsafe impl Send for Points {}
// SAFETY: as for `Send`.
unsafe impl Sync for Points {}

/// A map and what becomes of it.
struct Job<'a> {
    isa: Isa,
    x: &'a [f32],
    /// As many as there are channels.
    zeros: &'a [f32],
    windows: &'a Windows,
    /// Tiles side by side, and all.
    across: usize,
    tiles: usize,
    activation: Activation,
    out: Output<f32>,
}

impl Winograd {
    /// Whether a kernel of [outputs, inputs, 3, 3] can be transformed.
    pub fn takes(inputs: usize, outputs: usize) -> bool {
        let whole = |channels: usize| channels > 0 && channels.is_multiple_of(MOST_LANES);
        whole(inputs) && whole(outputs)
    }

    /// `weight` is [outputs, inputs, 3, 3].
    pub fn new(
        weight: &[f32],
        bias: Option<&[f32]>,
        (inputs, outputs): (usize, usize),
    ) -> Result<Self> {
        let edge = if inputs * outputs > MOST_FOR_FOUR {
            4
        } else {
            MOST_EDGE
        };
        Self::with_edge(weight, bias, (inputs, outputs), edge)
    }

    fn with_edge(
        weight: &[f32],
        bias: Option<&[f32]>,
        (inputs, outputs): (usize, usize),
        edge: usize,
    ) -> Result<Self> {
        assert!(Self::takes(inputs, outputs) && weight.len() == outputs * inputs * 9);
        assert!(bias.is_none_or(|bias| bias.len() == outputs));
        let factors = kernel_factors(edge);
        let length = edge * edge * inputs * PANEL;
        let panels = pack_panels(outputs, length, |panel: &mut [f32], first| {
            let rows = weight.chunks_exact(inputs * 9).skip(first).take(PANEL);
            for (column, row) in rows.enumerate() {
                for (input, kernel) in row.chunks_exact(9).enumerate() {
                    for (point, value) in at_points(kernel, &factors).enumerate() {
                        panel[(point * inputs + input) * PANEL + column] = value;
                    }
                }
            }
        })?;
        let mut columns = bias.map_or_else(Vec::new, <[f32]>::to_vec);
        columns.resize(outputs.next_multiple_of(PANEL), 0.0);
        Ok(Self {
            panels,
            bias: columns,
            inputs,
            outputs,
            edge,
        })
    }

    /// What the transformed weight takes.
    pub fn bytes(&self) -> usize {
        (self.edge * self.edge * self.inputs + 1) * self.outputs * size_of::<f32>()
    }

    /// activation(convolution of x + bias): [windows, outputs] of [places, inputs].
    pub fn convolve(
        &self,
        isa: Isa,
        x: &[f32],
        windows: &Windows,
        activation: Activation,
    ) -> Vec<f32> {
        assert!((windows.kernel, windows.stride, windows.dilation) == (3, 1, 1));
        assert!(x.len() == windows.height * windows.width * self.inputs);
        let given = self.edge - 2;
        let (down, across) = (windows.down.div_ceil(given), windows.across.div_ceil(given));
        let zeros = vec![0.0; self.inputs];
        // SAFETY: every place lies in one tile, and every tile is written by the task that has it.
        unsafe {
            build(windows.down * windows.across * self.outputs, |out| {
                let job = Job {
                    isa,
                    x,
                    zeros: &zeros,
                    windows,
                    across,
                    tiles: down * across,
                    activation,
                    out,
                };
                if threads::is_alone() || threads::count() == 1 {
                    return self.by_blocks(&job, TILES);
                }
                let each = job.tiles / (BLOCKS_PER_THREAD * threads::count());
                match each / FEWEST_TILES * FEWEST_TILES {
                    0 => self.by_panels(&job),
                    tiles => self.by_blocks(&job, tiles.min(TILES)),
                }
            })
        }
    }

    /// Tasks of some tiles, each with all panels.
    fn by_blocks(&self, job: &Job<'_>, tiles: usize) {
        let step = tiles * self.inputs + APART;
        let room = self.points() * (step + sums_step(tiles));
        let panels = self.outputs.div_ceil(PANEL);
        let cost = self.cost(tiles) * panels;
        for_each_range(job.tiles.div_ceil(tiles), cost, |blocks| {
            with_scratch(room, |scratch| {
                let (points, sums) = scratch.split_at_mut(self.points() * step);
                let points = Points {
                    start: points.as_mut_ptr(),
                    step,
                };
                for block in blocks {
                    let block = block * tiles..((block + 1) * tiles).min(job.tiles);
                    // SAFETY: points and sums have room for as many tiles, and no other task has these.
                    unsafe {
                        self.read(job, block.clone(), points);
                        for panel in 0..panels {
                            self.multiply(job, block.clone(), panel, points, sums);
                        }
                    }
                }
            });
        });
    }

    /// All tiles are transformed first; then come tasks of some tiles and one panel.
    fn by_panels(&self, job: &Job<'_>) {
        let step = job.tiles * self.inputs + APART;
        let mut room = Vec::<f32>::with_capacity(self.points() * step);
        let all = Points {
            start: room.as_mut_ptr(),
            step,
        };
        for_each_range(job.tiles, self.points() * self.inputs, |tiles| {
            // SAFETY: there is room for all tiles, and each range has its own.
            unsafe { self.read(job, tiles.clone(), all.of(tiles.start, self.inputs)) };
        });
        let blocks = job.tiles.div_ceil(SHARED_TILES);
        let tiles = job.tiles.div_ceil(blocks);
        let panels = self.outputs.div_ceil(PANEL);
        for_each_range(blocks * panels, self.cost(tiles), |tasks| {
            with_scratch(self.points() * sums_step(tiles), |sums| {
                for task in tasks {
                    let first = task / panels * tiles;
                    let block = first..(first + tiles).min(job.tiles);
                    let points = all.of(first, self.inputs);
                    // SAFETY: the points of all tiles were written; the sums have room for as many tiles; no other task
                    // has these tiles and this panel.
                    unsafe { self.multiply(job, block, task % panels, points, sums) };
                }
            });
        });
    }

    fn points(&self) -> usize {
        self.edge * self.edge
    }

    /// Of a panel and so many tiles.
    fn cost(&self, tiles: usize) -> usize {
        tiles * self.inputs * self.points()
    }

    /// Transforms some tiles.
    ///
    /// # Safety
    /// There is room for their points, which nobody else has.
    unsafe fn read(&self, job: &Job<'_>, tiles: Range<usize>, points: Points) {
        for (number, tile) in tiles.enumerate() {
            let reading = Reading {
                places: job.places(tile, self.edge, self.inputs),
                edge: self.edge,
                channels: self.inputs,
                to: points.of(number, self.inputs).start,
                step: points.step,
            };
            // SAFETY: each place has the channels, on the map or of zeros; the caller vouches for the points; `isa` was
            // detected.
            unsafe { read_tile(job.isa, &reading) };
        }
    }

    /// Some tiles times a panel, and what follows.
    ///
    /// # Safety
    /// Their points were written, the sums have room for them, and nobody else writes the places of these tiles and
    /// outputs.
    unsafe fn multiply(
        &self,
        job: &Job<'_>,
        tiles: Range<usize>,
        panel: usize,
        points: Points,
        sums: &mut [f32],
    ) {
        let (length, step) = (self.inputs * PANEL, sums_step(tiles.len()));
        let sums = &mut sums[..self.points() * step];
        let panels = &self.panels[panel * self.points() * length..][..self.points() * length];
        for (point, numbers) in panels.chunks_exact(length).enumerate() {
            let sums = Sums {
                start: sums[point * step..].as_mut_ptr(),
                stride: PANEL,
            };
            // SAFETY: the points have as many tiles of `inputs` numbers, and the sums as many rows; `isa` was detected.
            unsafe {
                let operands = Operands {
                    x: points.start.add(point * points.step),
                    x_stride: self.inputs,
                    panel: numbers.as_ptr(),
                    inputs: self.inputs,
                };
                multiply_ahead(job.isa, operands, tiles.len(), sums);
            }
        }
        let first = panel * PANEL;
        let width = PANEL.min(self.outputs - first);
        for (number, tile) in tiles.enumerate() {
            let sums = sums[number * PANEL..].as_ptr();
            // SAFETY: the sums of the tile were written; the caller has its places.
            unsafe { self.write(job, tile, (sums, step), first..first + width) };
        }
    }

    /// # Safety
    /// The sums are those of the tile and the columns, and nobody else writes its places.
    unsafe fn write(
        &self,
        job: &Job<'_>,
        tile: usize,
        (sums, step): (*const f32, usize),
        columns: Range<usize>,
    ) {
        let (windows, given) = (job.windows, self.edge - 2);
        let (y, x) = job.corner(tile, self.edge);
        let kept = (given.min(windows.down - y), given.min(windows.across - x));
        let line = windows.across * self.outputs;
        let bounds = match job.activation {
            Activation::Relu => (0.0, f32::INFINITY),
            Activation::Relu6 => (0.0, 6.0),
            _ => (f32::NEG_INFINITY, f32::INFINITY),
        };
        // SAFETY: the kept places lie within the map of `down` and `across`, and the columns within a place; there is a
        // bias for every column; `isa` was detected. Places are activated after they were written.
        unsafe {
            let out = job.out.at(y * line + x * self.outputs + columns.start);
            let writing = Writing {
                sums,
                step,
                edge: self.edge,
                bias: self.bias[columns.clone()].as_ptr(),
                bounds,
                out,
                width: columns.len(),
                kept,
                place: self.outputs,
                line,
            };
            write_tile(job.isa, &writing);
            if bounds.0 == 0.0 || job.activation == Activation::Identity {
                return;
            }
            for at in 0..kept.0 * kept.1 {
                let (down, across) = (at / kept.1, at % kept.1);
                let row = out.add(down * line + across * self.outputs);
                activate_row(
                    job.isa,
                    row,
                    std::ptr::null(),
                    row,
                    columns.len(),
                    job.activation,
                );
            }
        }
    }
}

impl Points {
    /// From a tile on.
    fn of(self, tile: usize, channels: usize) -> Self {
        Self {
            start: self.start.wrapping_add(tile * channels),
            ..self
        }
    }
}

impl Job<'_> {
    /// The first place that a tile gives.
    fn corner(&self, tile: usize, edge: usize) -> (usize, usize) {
        (
            tile / self.across * (edge - 2),
            tile % self.across * (edge - 2),
        )
    }

    /// The channels of the places that a tile sees.
    fn places(
        &self,
        tile: usize,
        edge: usize,
        channels: usize,
    ) -> [[*const f32; MOST_EDGE]; MOST_EDGE] {
        let windows = self.windows;
        let (top, left) = self.corner(tile, edge);
        let on_map = |at: usize, size: usize| {
            let at = at.checked_sub(windows.padding)?;
            (at < size).then_some(at)
        };
        let mut places = [[self.zeros.as_ptr(); MOST_EDGE]; MOST_EDGE];
        for (y, line) in places.iter_mut().enumerate().take(edge) {
            let Some(y) = on_map(top + y, windows.height) else {
                continue;
            };
            for (x, place) in line.iter_mut().enumerate().take(edge) {
                if let Some(x) = on_map(left + x, windows.width) {
                    let start = (y * windows.width + x) * channels;
                    *place = self.x[start..start + channels].as_ptr();
                }
            }
        }
        places
    }
}

/// From point to point of the sums of so many tiles.
fn sums_step(tiles: usize) -> usize {
    tiles * PANEL + APART
}

/// A kernel of 3 × 3 at the points of a tile.
fn at_points<'a>(kernel: &'a [f32], factors: &'a [[f64; 3]]) -> impl Iterator<Item = f32> + 'a {
    factors.iter().flat_map(move |down| {
        factors.iter().map(move |across| {
            let products = kernel.iter().enumerate();
            let sum = products.map(|(at, &value)| down[at / 3] * f64::from(value) * across[at % 3]);
            sum.sum::<f64>() as f32
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::test_numbers::numbers;
    use crate::reference;

    fn windows((height, width): (usize, usize), padding: usize) -> Windows {
        Windows {
            height,
            width,
            kernel: 3,
            stride: 1,
            padding,
            dilation: 1,
            down: height + 2 * padding - 2,
            across: width + 2 * padding - 2,
        }
    }

    /// A convolution in f64.
    fn defined(x: &[f32], weight: &[f32], windows: &Windows, shape: (usize, usize)) -> Vec<f64> {
        let (inputs, outputs) = shape;
        let mut sums = vec![0.0; windows.down * windows.across * outputs];
        for (number, sums) in sums.chunks_exact_mut(outputs).enumerate() {
            let (top, left) = (number / windows.across, number % windows.across);
            for tap in 0..9 {
                let y = (top + tap / 3).wrapping_sub(windows.padding);
                let x_at = (left + tap % 3).wrapping_sub(windows.padding);
                if y >= windows.height || x_at >= windows.width {
                    continue;
                }
                let seen = &x[(y * windows.width + x_at) * inputs..][..inputs];
                for (sum, kernels) in sums.iter_mut().zip(weight.chunks_exact(9 * inputs)) {
                    let products = seen.iter().enumerate();
                    *sum += products
                        .map(|(input, &seen)| f64::from(seen) * f64::from(kernels[input * 9 + tap]))
                        .sum::<f64>();
                }
            }
        }
        sums
    }

    #[test]
    fn every_instruction_set_convolves_like_the_definition() {
        let sizes = [
            (1, 1),
            (1, 7),
            (2, 3),
            (3, 3),
            (4, 5),
            (6, 6),
            (9, 13),
            (25, 31),
        ];
        let shapes = [(16, 16), (16, 48), (48, 32)];
        let activations = [
            Activation::Identity,
            Activation::Relu,
            Activation::Relu6,
            Activation::Silu,
        ];
        let mut turn = 0;
        for (size, padding) in sizes
            .into_iter()
            .flat_map(|size| [0, 1, 2].map(|p| (size, p)))
        {
            if size.0.min(size.1) + 2 * padding < 3 {
                continue;
            }
            let (inputs, outputs) = shapes[turn % shapes.len()];
            let activation = activations[turn % activations.len()];
            turn += 1;
            let windows = windows(size, padding);
            let x = numbers(size.0 * size.1 * inputs, 1);
            let weight = numbers(outputs * inputs * 9, 2);
            let bias = numbers(outputs, 3);
            let bias = (turn % 3 > 0).then_some(&bias[..]);
            let wanted = defined(&x, &weight, &windows, (inputs, outputs));
            for edge in [4, 6] {
                let ours = Winograd::with_edge(&weight, bias, (inputs, outputs), edge).unwrap();
                for isa in Isa::for_rows().unwrap() {
                    let found = ours.convolve(isa, &x, &windows, activation);
                    assert_eq!(found.len(), wanted.len());
                    for (at, (&found, &sum)) in found.iter().zip(&wanted).enumerate() {
                        let added = bias.map_or(0.0, |bias| f64::from(bias[at % outputs]));
                        let wanted = reference::activation(sum + added, activation);
                        assert!(
                            (f64::from(found) - wanted).abs() < 1e-4,
                            "{} {size:?} {padding} {edge} {activation:?}: {found} {wanted}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn sums_of_many_channels_keep_their_digits() {
        let (inputs, outputs) = (256, 32);
        let windows = windows((8, 9), 1);
        let x = numbers(72 * inputs, 1);
        let weight = numbers(outputs * inputs * 9, 2);
        let wanted = defined(&x, &weight, &windows, (inputs, outputs));
        let square = wanted.iter().map(|x| x * x).sum::<f64>() / wanted.len() as f64;
        for edge in [4, 6] {
            let ours = Winograd::with_edge(&weight, None, (inputs, outputs), edge).unwrap();
            for isa in Isa::for_rows().unwrap() {
                let found = ours.convolve(isa, &x, &windows, Activation::Identity);
                let apart = found.iter().zip(&wanted);
                let most = apart
                    .map(|(&a, b)| (f64::from(a) - b).abs())
                    .fold(0.0, f64::max);
                assert!(most < 2e-5 * square.sqrt(), "{} {edge}: {most}", isa.name());
            }
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let (inputs, outputs) = (32, 48);
        let weight = numbers(outputs * inputs * 9, 2);
        let ours = Winograd::new(&weight, None, (inputs, outputs)).unwrap();
        for size in [(5, 6), (27, 30), (60, 70)] {
            let windows = windows(size, 1);
            let x = numbers(size.0 * size.1 * inputs, 1);
            for isa in Isa::for_rows().unwrap() {
                let run = || ours.convolve(isa, &x, &windows, Activation::Relu);
                let bits =
                    |all: Vec<f32>| -> Vec<u32> { all.into_iter().map(f32::to_bits).collect() };
                assert!(bits(run()) == bits(threads::alone(run)), "{size:?}");
            }
        }
    }

    #[test]
    fn kernels_of_many_channels_take_less_memory() {
        let edge = |inputs: usize, outputs: usize| {
            let weight = vec![0.0; outputs * inputs * 9];
            Winograd::new(&weight, None, (inputs, outputs))
                .unwrap()
                .edge
        };
        assert_eq!((edge(16, 32), edge(272, 496)), (6, 4));
        assert!(!Winograd::takes(24, 32) && !Winograd::takes(32, 8) && !Winograd::takes(0, 16));
    }
}
