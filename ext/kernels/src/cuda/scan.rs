//! Launches scans.

use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig};
use candle_core::{DType, Result, Tensor};

use super::compile::{function, SCAN};
use super::device::{address, device_of, result};
use super::launch::{argument, launch_early};
use super::small;
use crate::scan::launch::{geometry, kernel, ScanParameters, ScanSource, SCAN_LANES};
use crate::scan::{Kind, Rule, Scan, SlotStates};

/// As `ScanBuffers` in the CUDA source.
#[derive(Clone, Copy)]
#[repr(C)]
struct Buffers {
    inputs: u64,
    words: u64,
    numbers: u64,
    states: u64,
    trails: u64,
    table: u64,
    out: u64,
}

// SAFETY: plain addresses, laid out as in the CUDA source.
unsafe impl DeviceRepr for Buffers {}
// SAFETY: plain numbers, laid out as in the CUDA source.
unsafe impl DeviceRepr for ScanParameters {}

/// With more rows than this for each sequence, a row is read while the one before it is computed. It costs registers,
/// which keep the loads of many short sequences apart.
const FEW_ROWS: usize = 4;
/// The most numbers of a row that a thread reads ahead.
const MOST_AHEAD: usize = 64;

/// What the source is compiled with for a scan.
fn definitions(kind: &Kind, many_rows: bool) -> Vec<(&'static str, usize)> {
    match (ScanSource::of(kind), kind) {
        (ScanSource::Matrix { rule, keys, groups }, _) => {
            let read = match rule {
                Rule::Replace => 5,
                Rule::FactorEach | Rule::Earlier => 3,
                Rule::Plain | Rule::Steps | Rule::OneFactor => 2,
            };
            let ahead = many_rows && read * keys.div_ceil(groups) <= MOST_AHEAD;
            vec![
                ("RULE", rule as usize),
                ("KEYS", keys),
                ("GROUPS", groups),
                ("AHEAD", usize::from(ahead)),
            ]
        }
        (ScanSource::Selective { kept }, _) => vec![("KEPT", kept)],
        (ScanSource::Channels, Kind::Rwkv(_)) => vec![("KEPT", 3)],
        (ScanSource::Channels, _) => vec![("KEPT", 1)],
    }
}

/// As [`Scan::forward`].
pub fn scan(scan: &Scan, inputs: &Tensor, places: &SlotStates<'_>) -> Result<Tensor> {
    let tokens = inputs.dim(0)?;
    let device = device_of(inputs)?;
    let (parameters, groups) = geometry(scan, places)?;
    let (out, to) = result(&device, (tokens, scan.outputs()), DType::F32)?;
    if groups * places.table.sequences * tokens == 0 {
        return Ok(out);
    }
    let constants = scan.constants()?;
    // Without trails none is read or written.
    let trails = places.trails.map_or(places.states, |(trails, _)| trails);
    let buffers = Buffers {
        inputs: address(inputs)?,
        words: address(&constants.words)?,
        numbers: address(&constants.numbers)?,
        states: address(places.states)?,
        trails: address(trails)?,
        table: address(&places.table.words)?,
        out: to,
    };
    let (kernel, definitions) = (
        kernel(scan.kind()),
        definitions(scan.kind(), tokens > FEW_ROWS * places.table.sequences),
    );
    let function = function(&device, SCAN, kernel, DType::F32, &definitions, 0)?;
    let grid = LaunchConfig {
        grid_dim: (small(groups)?, small(places.table.sequences)?, 1),
        block_dim: (SCAN_LANES as u32, 1, 1),
        shared_mem_bytes: 0,
    };
    let arguments = [argument(&buffers), argument(&parameters)];
    // SAFETY: the arguments are the kernel's, their addresses are of tensors of the shapes they say, and the table's slots,
    // trails and rows are within these; nothing is read ahead.
    unsafe { launch_early(&device, &function, grid, &arguments, true) }?;
    Ok(out)
}
