//! Products with a matrix of bytes: weights with one scale per output, rows of x rounded to bytes as
//! they come, with one scale per row. The sums are exact, so every instruction set gives the same.

#[cfg(target_arch = "x86_64")]
mod groups;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod words;

use std::sync::Arc;

use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::lanes::for_lanes;
#[cfg(target_arch = "x86_64")]
use crate::cpu::product::amx;
#[cfg(target_arch = "aarch64")]
use crate::cpu::product::arm;
#[cfg(target_arch = "x86_64")]
use crate::cpu::product::driver::TASK_COLUMNS;
use crate::cpu::product::driver::{Context, Sums, TaskRows, Tile, WeightMatrix};
use crate::cpu::product::panels::{pack_panels, PANEL};
use crate::cpu::product::store::Panels;
use crate::cpu::simd::stored::{for_stored, Vectors};
use crate::cpu::simd::{Simd, MOST_LANES};
use crate::cpu::{build, for_each_range, Element, Output, Stored};
use crate::Result;

/// The depth of a tile; rows of both factors are padded to it.
const DEPTH: usize = 64;

/// Rows that are multiplied together: two tiles.
const BLOCK: usize = if cfg!(target_arch = "aarch64") {
    48
} else {
    32
};

/// Rows of x are filled up to a multiple of this: kernels read whole blocks, or pairs.
const FILLED: usize = if cfg!(target_arch = "aarch64") {
    2
} else {
    BLOCK
};

/// Bytes of a task's rows at most: half of the second-level cache, which the weights and the sums pass
/// through too.
const CACHE: usize = 1 << 20;

/// Rows of a task at most, but for what the cache says.
const MOST_ROWS: usize = 256 / BLOCK * BLOCK;

/// Rounded numbers lie within ±127.
const LARGEST: f32 = 127.0;

/// What is added to a rounded number of x where instructions multiply unsigned bytes by signed ones.
const OFFSET: i32 = if cfg!(target_arch = "x86_64") { 128 } else { 0 };

/// The deepest product whose sums fit 32 bits.
pub const MOST_INPUTS: usize = 65_536;

/// A matrix [outputs, inputs] as panels of 32 outputs, each [inputs / 4, 32] groups of four
/// neighbouring inputs. Every instruction set reads this one layout.
#[derive(Clone)]
pub struct ByteMatrix {
    weights: Arc<Weights>,
    pub inputs: usize,
    pub outputs: usize,
}

struct Weights {
    panels: Panels<[i8; 4]>,
    /// Of each output, padded to whole panels like `offsets`.
    scales: Vec<f32>,
    /// What the offset of x adds to an output's sum.
    offsets: Vec<i32>,
}

impl std::fmt::Debug for ByteMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ByteMatrix[{}, {}]", self.outputs, self.inputs)
    }
}

/// Rows of x as bytes, filled up, and a scale for each. For small matrices they are in pairs.
pub struct ByteRows {
    /// `size` for each number.
    bytes: Vec<u8>,
    size: usize,
    scales: Vec<f32>,
}

/// Bytes of a rounded number of x. Two, without the offset, where no instruction multiplies bytes without a detour.
fn size_of_number(isa: Isa) -> usize {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512 {
        return 2;
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = isa;
    1
}

/// What rounds the numbers of a row to bytes, and what takes the bytes back.
fn scales_of(highest: f32) -> (f32, f32) {
    if highest > 0.0 {
        (LARGEST / highest, highest / LARGEST)
    } else {
        (0.0, 0.0)
    }
}

fn highest(row: &[f32]) -> f32 {
    row.iter().fold(0f32, |most, value| most.max(value.abs()))
}

impl ByteMatrix {
    /// `weight` is [outputs, inputs], row after row, at most `MOST_INPUTS` wide.
    pub fn new(weight: &[f32], inputs: usize, outputs: usize) -> Result<Self> {
        assert!(inputs <= MOST_INPUTS);
        let groups = inputs.next_multiple_of(DEPTH) / 4;
        let rows = || weight.chunks(inputs.max(1)).take(outputs);
        let panels = pack_panels(outputs, groups * PANEL, |panel: &mut [[i8; 4]], first| {
            for (column, row) in rows().skip(first).take(PANEL).enumerate() {
                let (inverse, _) = scales_of(highest(row));
                for (i, value) in row.iter().enumerate() {
                    let byte = (value * inverse).round_ties_even() as i8;
                    panel[i / 4 * PANEL + column][i % 4] = byte;
                }
            }
        })?;
        let mut scales = vec![0.0; outputs.next_multiple_of(PANEL)];
        for (to, row) in scales.iter_mut().zip(rows()) {
            let finite = row.iter().all(|value| value.is_finite());
            let (_, scale) = scales_of(highest(row));
            *to = if finite { scale } else { f32::NAN };
        }
        let mut offsets = vec![0; scales.len()];
        for (panel, offsets) in panels
            .chunks((groups * PANEL).max(1))
            .zip(offsets.chunks_mut(PANEL))
        {
            for bytes in panel.chunks(PANEL) {
                for (offset, bytes) in offsets.iter_mut().zip(bytes) {
                    *offset += OFFSET * bytes.iter().map(|&byte| i32::from(byte)).sum::<i32>();
                }
            }
        }
        Ok(Self {
            weights: Arc::new(Weights {
                panels,
                scales,
                offsets,
            }),
            inputs,
            outputs,
        })
    }

    fn depth(&self) -> usize {
        self.inputs.next_multiple_of(DEPTH)
    }

    fn quantize<T: Element>(&self, isa: Isa, x: &[T], rows: usize) -> ByteRows {
        let (depth, padded) = (self.depth(), rows.next_multiple_of(FILLED));
        let size = size_of_number(isa);
        let mut scales = Vec::new();
        // SAFETY: every row is written once, its padding included, and so is every scale. Where numbers are words,
        // a row's bytes are the second half of its place.
        let bytes = unsafe {
            build(padded * depth * size, |bytes: Output<u8>| {
                scales = build(padded, |scales: Output<f32>| {
                    for_each_range(padded, depth, |range| {
                        let mut alone = vec![0u8; if has_pairs(isa) { depth } else { 0 }];
                        for row in range {
                            let place = bytes.at(row * depth * size);
                            let (mut to, scale) = (place.add(depth * (size - 1)), scales.at(row));
                            if has_pairs(isa) {
                                to = alone.as_mut_ptr();
                            }
                            let width = if row < rows { self.inputs } else { 0 };
                            std::ptr::write_bytes(to.add(width), OFFSET as u8, depth - width);
                            *scale = 0.0;
                            if row < rows {
                                let from = x[row * width..][..width].as_ptr().cast();
                                *scale = quantize_row(isa, (from, T::STORED), to, width);
                            }
                            #[cfg(target_arch = "x86_64")]
                            if size == 2 {
                                words::widen(place.cast(), depth);
                            }
                            #[cfg(target_arch = "aarch64")]
                            if has_pairs(isa) {
                                arm::put_into_pair(to, depth / 4, bytes.at(0), row);
                            }
                        }
                    })
                })
            })
        };
        ByteRows {
            bytes,
            size,
            scales,
        }
    }
}

impl<T: Element> WeightMatrix<T> for ByteMatrix {
    const PANEL: usize = PANEL;
    type Rows<'a> = ByteRows;
    type Workspace = ();

    fn inputs(&self) -> usize {
        self.inputs
    }

    fn outputs(&self) -> usize {
        self.outputs
    }

    fn task_rows(&self, isa: Isa) -> TaskRows {
        // Processors that need words have half the cache.
        let size = size_of_number(isa);
        let rows = CACHE / (self.depth() * size * size).max(1);
        TaskRows {
            most: (rows / BLOCK * BLOCK).clamp(BLOCK, MOST_ROWS),
            unit: BLOCK,
            together: BLOCK,
            padded: true,
        }
    }

    fn prepare(&self, isa: Isa, x: &[T], rows: usize) -> ByteRows {
        self.quantize(isa, x, rows)
    }

    fn takes_tile_registers(&self, _: Isa) -> bool {
        true
    }

    unsafe fn multiply_tile(&self, context: &Context, (): &mut (), x: &ByteRows, tile: Tile) {
        let depth = self.depth();
        let length = depth / 4 * PANEL;
        let panel = self.weights.panels[tile.panel * length..][..length].as_ptr();
        let columns = tile.panel * PANEL..(tile.panel + 1) * PANEL;
        let operands = Operands {
            x: x.bytes[tile.row * depth * x.size..]
                [..tile.rows.next_multiple_of(FILLED) * depth * x.size]
                .as_ptr(),
            panel,
            depth,
        };
        // SAFETY: the bytes are filled up, the panel is as deep, and the caller vouches for the
        // sums; the instruction set is there.
        unsafe {
            let keeps_offset = multiply(context, operands, &tile);
            let scaling = Scaling {
                rows: x.scales[tile.row..][..tile.rows].as_ptr(),
                columns: self.weights.scales[columns.clone()].as_ptr(),
                offsets: if keeps_offset {
                    self.weights.offsets[columns].as_ptr()
                } else {
                    std::ptr::null()
                },
            };
            scale_sums(context.isa, scaling, tile.rows, tile.sums);
        }
    }
}

/// Whether rows of x are multiplied in pairs.
fn has_pairs(isa: Isa) -> bool {
    match isa {
        #[cfg(target_arch = "aarch64")]
        Isa::I8mm | Isa::Bf16 => true,
        _ => false,
    }
}

/// Rows of x and one panel, as deep as one another.
#[derive(Clone, Copy)]
struct Operands {
    /// [rows, depth]; words where `size_of_number` says so.
    x: *const u8,
    /// [depth / 4, 32]
    panel: *const [i8; 4],
    depth: usize,
}

/// The sums of bytes, as i32; whether they still hold what the offset of x added.
///
/// # Safety
/// x has the tile's rows, filled up, the sums have room for `BLOCK`, and the CPU has the instruction set.
unsafe fn multiply(context: &Context, operands: Operands, tile: &Tile) -> bool {
    let (rows, sums) = (tile.rows, tile.sums);
    // SAFETY: x, the panel and the sums have the rows and the depth, as the caller vouches, who has the instructions.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        match (&context.tiles, context.isa) {
            (Some(tiles), _) => {
                let bytes = operands.depth * PANEL;
                let panel: *const u8 = operands.panel.cast();
                let operands = amx::Operands {
                    a: operands.x,
                    a_stride: operands.depth,
                    b: panel,
                    steps: operands.depth / DEPTH,
                    sums: sums.start.cast(),
                    stride: sums.stride * size_of::<i32>(),
                    later: Some(amx::later(panel, bytes, TASK_COLUMNS / PANEL, tile.row)),
                };
                amx::multiply_bytes(tiles, rows, operands);
                return true;
            }
            (None, Isa::Avx512Vnni | Isa::Avx512Bf16) => {
                groups::multiply_vnni(operands, rows, sums);
                return true;
            }
            (None, Isa::AvxVnni) => {
                groups::multiply_avx_vnni(operands, rows, sums);
                return true;
            }
            (None, Isa::Avx512) => {
                words::multiply(operands, rows, sums);
                return false;
            }
            (None, Isa::Avx2) => {
                groups::multiply_avx2(operands, rows, sums);
                return false;
            }
            _ => {}
        }
        #[cfg(target_arch = "aarch64")]
        {
            let words = arm::Operands {
                x: operands.x,
                stride: operands.depth / 4,
                panel: operands.panel.cast(),
                words: operands.depth / 4,
            };
            match context.isa {
                Isa::DotProd => {
                    arm::multiply_dots(words, rows, sums);
                    return false;
                }
                Isa::I8mm | Isa::Bf16 => {
                    arm::multiply_matrices_of_bytes(words, rows, sums);
                    return false;
                }
                _ => {}
            }
        }
        multiply_plainly(context.isa, operands, rows, sums);
        false
    }
}

/// Writes a row as bytes; the scale that takes them back, NaN where the row holds what is not finite.
#[inline(always)]
unsafe fn quantize_row_with<S: Simd>(
    (x, stored): (*const u8, Stored),
    to: *mut u8,
    width: usize,
) -> f32 {
    // SAFETY: `x` has `width` numbers of the type that `stored` says, and `to` room for as many bytes, as the
    // caller vouches, who has the instruction set.
    unsafe { for_stored!(stored, N => quantize_numbers::<S, N>(x.cast(), to, width)) }
}

#[inline(always)]
unsafe fn quantize_numbers<S: Simd, N: Vectors<S>>(
    x: *const N::Number,
    to: *mut u8,
    width: usize,
) -> f32 {
    // SAFETY: `x` has `width` numbers and `to` room for as many bytes, as the caller vouches, who has the
    // instruction set; the last bytes go through an array of a whole vector.
    unsafe {
        let farthest = N::farthest(x, width);
        let (inverse, scale) = if farthest.is_finite() {
            scales_of(farthest)
        } else {
            (0.0, f32::NAN)
        };
        let inverse = S::splat(inverse);
        for_lanes!(S, width, lanes => {
            let v = S::mul(lanes.load_stored::<S, N>(x), inverse);
            if lanes.count == 0 {
                store_bytes::<S>(to.add(lanes.at), v);
            } else {
                let mut bytes = [0u8; MOST_LANES];
                store_bytes::<S>(bytes.as_mut_ptr(), v);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.add(lanes.at), lanes.count);
            }
        });
        scale
    }
}

/// LANES numbers of −127 to 127 as the bytes of the nearest whole ones.
#[inline(always)]
unsafe fn store_bytes<S: Simd>(to: *mut u8, v: S::V) {
    // SAFETY: the caller has room for LANES bytes, and the instruction set.
    unsafe {
        match OFFSET {
            0 => S::store_nearest_bytes(to.cast(), v),
            _ => S::store_raised_bytes(to, v),
        }
    }
}

/// What takes sums of bytes back to numbers.
#[derive(Clone, Copy)]
struct Scaling {
    rows: *const f32,
    columns: *const f32,
    /// Of the columns; null where the sums hold none.
    offsets: *const i32,
}

/// Sums of bytes, in place, to numbers.
#[inline(always)]
unsafe fn scale_sums_with<S: Simd>(scaling: Scaling, rows: usize, sums: Sums) {
    // SAFETY: the sums have `rows` rows of a panel, which hold integers of the same size, and the scales and,
    // unless null, the offsets as many numbers, as the caller vouches.
    unsafe {
        for row in 0..rows {
            let (sums, scale) = (sums.row(row), *scaling.rows.add(row));
            for column in 0..PANEL {
                let sum = *sums.add(column).cast::<i32>();
                let offset = if scaling.offsets.is_null() {
                    0
                } else {
                    *scaling.offsets.add(column)
                };
                *sums.add(column) = (sum - offset) as f32 * (scale * *scaling.columns.add(column));
            }
        }
    }
}

/// Without instructions for it: the compiler's own way.
#[inline(always)]
unsafe fn multiply_plainly_with<S: Simd>(operands: Operands, rows: usize, sums: Sums) {
    let Operands { x, panel, depth } = operands;
    // SAFETY: x has `rows` rows of `depth` bytes, the panel `depth` / 4 rows of 32 groups, and the sums room for
    // the rows, as the caller vouches.
    unsafe {
        for row in 0..rows {
            let mut totals = [0i32; PANEL];
            for group in 0..depth / 4 {
                let four = x
                    .add(row * depth + 4 * group)
                    .cast::<[u8; 4]>()
                    .read_unaligned();
                let four = four.map(|byte| i32::from(byte.wrapping_sub(OFFSET as u8) as i8));
                for (column, total) in totals.iter_mut().enumerate() {
                    let weights = *panel.add(group * PANEL + column);
                    for (x, weight) in four.iter().zip(weights) {
                        *total += x * i32::from(weight);
                    }
                }
            }
            std::ptr::copy_nonoverlapping(totals.as_ptr(), sums.row(row).cast(), PANEL);
        }
    }
}

dispatched! {
    unsafe fn quantize_row(x: (*const u8, Stored), to: *mut u8, width: usize) -> f32
        = quantize_row_with
}
dispatched! {
    unsafe fn scale_sums(scaling: Scaling, rows: usize, sums: Sums) = scale_sums_with
}
dispatched! {
    unsafe fn multiply_plainly(operands: Operands, rows: usize, sums: Sums) = multiply_plainly_with
}
