//! Quantized blocks times many rows on tensor cores: panels of outputs, whose weights are unpacked in registers.

use candle_core::cuda_backend::cudarc::driver::sys::CUdevice_attribute;
use candle_core::cuda_backend::cudarc::driver::LaunchConfig;
use candle_core::{CudaDevice, DType, Result};

use super::blocks::definitions;
use super::compile::{attribute, capability, function, BLOCK_PANELS, HOPPER};
use super::device::{address, ALIGNMENT};
use super::launch::{argument, launch_early};
use super::product::Parameters;
use super::recording::is_older;
use super::small;
use crate::blocks::{BlockFactor, DeviceBlocks};
use base::quant::BlockType;

/// Whose tensor cores and copies the kernel uses.
const CAPABILITY: i32 = 80;
/// Rows of weights of a panel, by so many warps.
const PANEL: usize = 128;
const WARPS: usize = 8;
/// Elements of a step.
const DEPTH: usize = 256;
/// Rows that a thread block takes at once; more are left to other blocks.
const ROWS: std::ops::RangeInclusive<usize> = 8..=64;
/// Of shared memory that steps ahead take, so that two thread blocks share a processor.
const STEPS_BYTES: usize = 108 << 10;
const STEPS: std::ops::RangeInclusive<usize> = 2..=4;
/// The most thread blocks of a cluster that every GPU takes.
const MOST_SPLITS: usize = 8;
/// The starts of a panel's rows, and levels.
const STATIC_BYTES: usize = 4 << 10;

/// How a product is cut: rows of x at a time, steps that are copied ahead, and thread blocks that share the depth.
struct Plan {
    rows: usize,
    steps: usize,
    splits: usize,
    shared: usize,
}

/// Bytes of a step of `rows` rows and of a panel whose rows have `bytes` of it.
fn step_bytes(bytes: usize, rows: usize) -> usize {
    let copies = bytes / 16 + if bytes.is_multiple_of(16) { 0 } else { 2 };
    PANEL * 16 * (copies | 1) + rows * DEPTH * size_of::<u16>()
}

impl Plan {
    /// The splits depend on the matrices alone, so that the bits of a row are the same beside any others.
    fn of(bytes: usize, rows: usize, panels: usize, depth: usize, processors: usize) -> Self {
        let rows = rows.next_power_of_two().clamp(*ROWS.start(), *ROWS.end());
        let step = step_bytes(bytes, rows);
        let steps = (STEPS_BYTES / step).clamp(*STEPS.start(), *STEPS.end());
        let most = (2 * processors / panels.max(1)).clamp(1, MOST_SPLITS.min(depth));
        Self {
            rows,
            steps,
            splits: 1 << most.ilog2(),
            shared: steps * step,
        }
    }
}

/// Bytes of a row of a kind's blocks in a step.
fn row_bytes(kind: BlockType) -> usize {
    DEPTH / kind.elements() * kind.bytes()
}

/// Whether the kernel multiplies such a matrix with rows of the type.
pub(super) fn takes(device: &CudaDevice, dtype: DType, blocks: &DeviceBlocks) -> Result<bool> {
    let bytes = row_bytes(blocks.kind());
    let aligned = !bytes.is_multiple_of(16) || address(blocks.bytes())?.is_multiple_of(ALIGNMENT);
    if dtype == DType::F32 || !blocks.inputs().is_multiple_of(DEPTH) || !aligned {
        return Ok(false);
    }
    let most = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
    let needed = STEPS.start() * step_bytes(bytes, *ROWS.end()) + STATIC_BYTES;
    Ok(capability(device)? >= CAPABILITY && attribute(device, most)? as usize >= needed)
}

/// Products of one to three matrices of a kind that the kernel takes with any rows.
pub(super) fn launch(
    device: &CudaDevice,
    dtype: DType,
    matrices: &[BlockFactor<'_>],
    gated: bool,
    parameters: &Parameters,
) -> Result<()> {
    let kind = matrices[0].blocks.kind();
    let (inputs, outputs) = (parameters.inputs as usize, parameters.outputs as usize);
    let processors = match capability(device)? {
        HOPPER.. => attribute(
            device,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        )? as usize,
        _ => 0,
    };
    let panels = outputs.div_ceil(if gated { PANEL / 2 } else { PANEL });
    let rows = parameters.rows as usize;
    let plan = Plan::of(row_bytes(kind), rows, panels, inputs / DEPTH, processors);
    let definitions: Vec<_> = definitions((kind, inputs), plan.rows, gated)
        .into_iter()
        .chain([("SPLITS", plan.splits), ("STAGES", plan.steps)])
        .collect();
    let shared = small(plan.shared)?;
    let kernel = "panels_of_blocks";
    let function = function(device, BLOCK_PANELS, kernel, dtype, &definitions, shared)?;
    let grid = LaunchConfig {
        grid_dim: (
            small(panels)?,
            small(plan.splits)?,
            small(rows.div_ceil(plan.rows))?,
        ),
        block_dim: ((WARPS * 32) as u32, 1, 1),
        shared_mem_bytes: shared,
    };
    let is_there = matrices
        .iter()
        .all(|factor| is_older(factor.blocks.bytes()));
    // SAFETY: the argument is the kernel's; its addresses are of tensors of the shapes it says, which live
    // until after the launch; blocks are all that it reads ahead.
    unsafe { launch_early(device, &function, grid, &[argument(parameters)], is_there) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_thread_blocks_share_a_processor_and_splits_do_not_depend_on_rows() {
        for bytes in [84, 110, 136, 144, 160, 176, 210, 272, 288, 292, 320] {
            for panels in [1, 7, 32, 48, 112, 224, 1000] {
                let splits = Plan::of(bytes, 1, panels, 16, 132).splits;
                for rows in [1, 3, 8, 9, 33, 64, 200] {
                    let plan = Plan::of(bytes, rows, panels, 16, 132);
                    assert!(plan.rows >= rows.min(64) && STEPS.contains(&plan.steps));
                    assert_eq!(plan.splits, splits);
                    assert!(plan.steps == 2 || plan.shared <= STEPS_BYTES);
                    // What a thread block needs at the end to add up fits where steps were.
                    assert!(PANEL * (plan.rows + 1) * 4 <= plan.shared);
                }
                assert!(splits * panels <= 264 || splits == 1);
            }
        }
        assert_eq!(Plan::of(144, 32, 32, 2, 132).splits, 2);
        assert_eq!(Plan::of(144, 32, 32, 56, 0).splits, 1);
    }
}
