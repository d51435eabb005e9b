//! Words on their way to the device. It copies them itself from memory that stays where it is; from any other the host
//! would have to wait for a long copy.

use std::collections::HashMap;
use std::sync::Mutex;

use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaSlice, PinnedHostSlice};
use candle_core::cuda_backend::{DeviceId, WrapErr};
use candle_core::{CudaDevice, Result};

/// Room for this many words at least, and the most that are kept.
const LEAST: usize = 1 << 16;
const MOST: usize = 1 << 22;

struct Stage {
    words: PinnedHostSlice<u32>,
    /// When the device has read them.
    read: CudaEvent,
}

impl Stage {
    fn new(words: usize, device: &CudaDevice) -> Result<Self> {
        let context = device.cuda_stream().context().clone();
        Ok(Self {
            // SAFETY: the pinned memory is uninitialized; the device reads only words that the host has written.
            words: unsafe { context.alloc_pinned_with_flags(words, 0) }.w()?,
            read: context.new_event(None).w()?,
        })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // The device may still read there.
        let _ = self.read.synchronize();
    }
}

/// The words of all parts, one after the other.
pub(super) fn upload(device: &CudaDevice, parts: &[&[u32]]) -> Result<CudaSlice<u32>> {
    static STAGES: Mutex<Option<HashMap<DeviceId, Stage>>> = Mutex::new(None);
    let count: usize = parts.iter().map(|part| part.len()).sum();
    if count > MOST {
        return device.clone_htod(&parts.concat());
    }
    let stream = device.cuda_stream();
    // SAFETY: all that is read of it is written below.
    let mut on_device = unsafe { device.alloc::<u32>(count.max(1))? };
    let mut guard = STAGES.lock().unwrap_or_else(|e| e.into_inner());
    let stages = guard.get_or_insert_default();
    if stages
        .get(&device.id())
        .is_none_or(|stage| stage.words.len() < count)
    {
        let room = count.next_power_of_two().max(LEAST);
        stages.insert(device.id(), Stage::new(room, device)?);
    }
    let Some(stage) = stages.get_mut(&device.id()) else {
        candle_core::bail!("no memory to copy from");
    };
    stage.read.synchronize().w()?;
    let mut rest = &mut stage.words.as_mut_slice().w()?[..count];
    for part in parts {
        let (to, after) = rest.split_at_mut(part.len());
        to.copy_from_slice(part);
        rest = after;
    }
    let words = &stage.words.as_slice().w()?[..count];
    if !words.is_empty() {
        let mut to = on_device.slice_mut(..count);
        stream.memcpy_htod(words, &mut to).w()?;
    }
    stage.read.record(&stream).w()?;
    Ok(on_device)
}
