//! The largest number of each row.

use candle_core::cuda_backend::cudarc::driver::{
    CudaEvent, LaunchConfig, PinnedHostSlice, PushKernelArg,
};
use candle_core::cuda_backend::WrapErr;
use candle_core::{CudaDevice, DType, Result, Tensor};

use super::compile::{function, ROWS};
use super::device::{address, device_of};
use super::launch::{argument, launch_early};
use super::small;
use crate::Largest;

/// Threads of a block, which has a part of a row.
const THREADS: u32 = 1024;
/// Elements of a part, and parts of a row at most.
const PART: usize = 4096;
const MOST_PARTS: usize = 64;

/// `None` where the rows ask for another way.
pub fn largest(x: &Tensor) -> Result<Option<Vec<Largest>>> {
    let (rows, width) = x.dims2()?;
    if x.dtype() != DType::F32 || !x.is_contiguous() || rows == 0 || width == 0 {
        return Ok(None);
    }
    let found = found(rows, width, x.device().as_cuda_device()?)?;
    find(x, 0, &found)?;
    let found: Vec<u32> = found.to_vec1()?;
    let rows = found.chunks(2 * parts(width));
    Ok(Some(rows.map(|parts| pair(best(parts), width)).collect()))
}

/// Of how many parts the best of a row is found.
fn parts(width: usize) -> usize {
    width.div_ceil(PART).min(MOST_PARTS)
}

/// Room for the best of each part of each row: the bits of a number and its place.
fn found(rows: usize, width: usize, device: &CudaDevice) -> Result<Tensor> {
    let count = rows * parts(width) * 2;
    Tensor::zeros(
        count,
        DType::U32,
        &candle_core::Device::Cuda(device.clone()),
    )
}

/// Leaves the best of each part of each row in `found`, and the rows in f32 at `kept`, unless that is 0.
fn find(x: &Tensor, kept: u64, found: &Tensor) -> Result<()> {
    let (rows, width) = x.dims2()?;
    let device = device_of(x)?;
    let function = function(&device, ROWS, "largest", x.dtype(), &[], 0)?;
    let config = LaunchConfig {
        grid_dim: (small(rows)?, parts(width) as u32, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    let (from, to, width) = (address(x)?, address(found)?, small(width)?);
    let arguments = [
        argument(&from),
        argument(&kept),
        argument(&to),
        argument(&width),
    ];
    // SAFETY: the arguments are those of the kernel, and the rows are as many and as wide as it is told.
    unsafe { launch_early(&device, &function, config, &arguments, true) }
}

fn best(parts: &[u32]) -> [u32; 2] {
    let mut found: Option<[u32; 2]> = None;
    for part in parts.chunks(2) {
        let above = |best: [u32; 2]| f32::from_bits(part[0]) > f32::from_bits(best[0]);
        if part[1] != u32::MAX && found.is_none_or(above) {
            found = Some([part[0], part[1]]);
        }
    }
    found.unwrap_or([0, u32::MAX])
}

fn pair([bits, place]: [u32; 2], width: usize) -> Largest {
    if (place as usize) < width {
        vec![(place, f32::from_bits(bits))]
    } else {
        Vec::new()
    }
}

/// The largest number of each row, which the device itself goes on with while the host waits for it.
pub struct Choices {
    device: CudaDevice,
    rows: usize,
    width: usize,
    found: Tensor,
    /// How many were chosen last, and what the device writes of them to the host's memory.
    chosen: usize,
    told: PinnedHostSlice<u32>,
    /// When it has been written.
    written: CudaEvent,
}

impl Choices {
    /// For so many rows at most, each of this width.
    pub fn new(rows: usize, width: usize, device: &CudaDevice) -> Result<Self> {
        let context = device.cuda_stream().context().clone();
        Ok(Self {
            device: device.clone(),
            rows,
            width,
            found: found(rows, width, device)?,
            chosen: 0,
            // SAFETY: the pinned memory is uninitialized; the host reads only what a kernel has written, after the
            // event `written`.
            told: unsafe { context.alloc_pinned_with_flags(rows * 2, 0) }.w()?,
            written: context.new_event(None).w()?,
        })
    }

    /// Keeps the numbers of [rows, width] in f32, and finds the largest.
    pub fn keep(&self, x: &Tensor, kept: &Tensor) -> Result<()> {
        let (rows, width) = x.dims2()?;
        let fits = width == self.width
            && rows <= self.rows
            && x.is_contiguous()
            && kept.is_contiguous()
            && kept.dtype() == DType::F32
            && kept.elem_count() >= rows * width;
        if !fits {
            candle_core::bail!("{:?} can't be chosen from", x.shape());
        }
        find(x, address(kept)?, &self.found)
    }

    /// Writes the places of the largest of the rows that were kept last to u32 [rows], 0 where there is none, and tells
    /// the host.
    pub fn choose(&mut self, places: &Tensor) -> Result<()> {
        self.chosen = places.dims1()?;
        if self.chosen > self.rows {
            candle_core::bail!("{} rows were not kept", self.chosen);
        }
        let stream = self.device.cuda_stream();
        let function = function(&self.device, ROWS, "choose", DType::F32, &[], 0)?;
        // The host's memory has the same address on the device.
        let told = self.told.as_ptr().w()? as u64;
        let (found, to) = (address(&self.found)?, address(places)?);
        let (parts, width) = (small(parts(self.width))?, small(self.width)?);
        let mut builder = stream.launch_builder(&function);
        builder.arg(&found);
        builder.arg(&to);
        builder.arg(&told);
        builder.arg(&parts);
        builder.arg(&width);
        // SAFETY: the arguments are those of the kernel, and there is a place for each row.
        unsafe {
            builder.launch(LaunchConfig {
                grid_dim: (small(self.chosen)?, 1, 1),
                block_dim: (32, 1, 1),
                shared_mem_bytes: 0,
            })
        }
        .w()?;
        self.written.record(&stream).w()
    }

    /// What was chosen, as soon as it is known, whatever the device does after it.
    pub fn read(&self) -> Result<Vec<Largest>> {
        self.written.synchronize().w()?;
        let told = &self.told.as_slice().w()?[..2 * self.chosen];
        let rows = told.chunks(2);
        Ok(rows.map(|row| pair([row[0], row[1]], self.width)).collect())
    }
}

impl Drop for Choices {
    fn drop(&mut self) {
        // The device may still write there.
        let _ = self.written.synchronize();
    }
}
