//! What suits a device: how much work at a time, by which threads, and in which precision.

use candle_core::{DType, Tensor};

use super::Device;
use crate::runtime::autorelease::pooled;
use crate::runtime::{memory, threads};
use crate::Result;

impl Device {
    /// How many tokens one forward over many texts takes.
    pub fn batch_tokens(self) -> usize {
        match self {
            Self::Cpu => 4096,
            Self::Cuda(_) | Self::Metal(_) => 32_768,
        }
    }

    /// How many tokens of a prompt are read at once: enough for fast products, and few enough to stop
    /// quickly. A GPU is idle with less.
    pub fn prompt_tokens(self) -> usize {
        match self {
            Self::Cpu => 256,
            Self::Cuda(_) => 2048,
            Self::Metal(_) => 1024,
        }
    }

    /// How many tokens of prompts go at least into a step beside the tokens of others where nobody watches those come:
    /// then it matters when requests end, not how long a step takes. On a GPU the sooner all decode the better.
    pub fn unwatched_part(self) -> usize {
        match self {
            Self::Cpu => 64,
            Self::Cuda(_) | Self::Metal(_) => self.prompt_tokens(),
        }
    }

    /// Of how many numbers a thread of a caller's works out the rest by itself, after others' forward: to
    /// hand so few to the pool takes longer. A GPU is the pool's alone.
    pub fn light(self) -> usize {
        match self {
            Self::Cpu => 64 * 1024,
            Self::Cuda(_) | Self::Metal(_) => 0,
        }
    }

    /// How many tokens of a prompt go at least into a pass beside the tokens of others. A GPU waits for its
    /// weights longer than it takes to multiply so many rows with them, and any part at all costs it some
    /// launches: shorter ones would keep a prompt waiting and spare the others nothing.
    pub fn least_part(self) -> usize {
        match self {
            Self::Cpu => 1,
            Self::Cuda(_) | Self::Metal(_) => 64,
        }
    }

    /// Within how many steps the prompts that wait are to be read, though the gaps between the tokens of others become
    /// longer. A GPU reads many rows at once faster than few after each other, so that a growing queue is worth longer
    /// steps; a CPU gains nothing by them.
    pub fn backlog_steps(self) -> Option<usize> {
        match self {
            Self::Cpu => None,
            Self::Cuda(_) | Self::Metal(_) => Some(16),
        }
    }

    /// How much free memory counts where nobody has said how much to take of it: the host's is for others, too.
    pub fn most_memory(self) -> usize {
        match self {
            Self::Cpu => 64 << 30,
            Self::Cuda(_) | Self::Metal(_) => usize::MAX,
        }
    }

    /// Whether the engine's threads compute; a GPU is handed one operation after the other.
    pub fn computes_on_threads(self) -> bool {
        self == Self::Cpu
    }

    /// Runs `work` with the threads that compute kept awake, where there are any.
    fn keeping_awake<T>(self, work: impl FnOnce() -> T) -> T {
        if self.computes_on_threads() {
            threads::awake(work)
        } else {
            work()
        }
    }

    /// Runs `work` in the thread pool, with its threads kept awake where they compute. What Metal autoreleases meanwhile
    /// is released at the end: a call may consist of many of these.
    pub fn compute<T: Send>(self, work: impl FnOnce() -> T + Send) -> Result<T> {
        threads::install(|| pooled(|| self.keeping_awake(work)))
    }

    /// What a model computes in unless told, by the type that its checkpoint has.
    pub fn default_dtype(self, stored: DType) -> DType {
        match self {
            Self::Cpu => DType::F32,
            Self::Cuda(_) | Self::Metal(_) => stored,
        }
    }

    /// Whether linear layers can compute on bytes.
    pub fn computes_int8(self) -> bool {
        self == Self::Cpu
    }

    /// Whether a model is compared with the CPU after loading, unless told.
    pub fn is_checked_on_load(self) -> bool {
        self != Self::Cpu
    }
}

/// The bytes that a device has left for tensors; `None` where it does not say. A GPU has memory of its own,
/// or a share of the machine's.
pub fn free_bytes(device: &candle_core::Device) -> Option<usize> {
    match device {
        candle_core::Device::Cpu => Some(memory::available_bytes()),
        candle_core::Device::Cuda(_) => super::cuda::free_bytes(device),
        #[cfg(feature = "metal")]
        candle_core::Device::Metal(metal) => {
            let metal = metal.metal_device();
            let most = metal.recommended_max_working_set_size();
            let free = most.saturating_sub(metal.current_allocated_size());
            Some(free.min(memory::available_bytes()))
        }
        #[cfg(not(feature = "metal"))]
        candle_core::Device::Metal(_) => None,
    }
}

/// A tensor of zeros for a run's state; `what` completes "not enough memory for". A GPU refuses by
/// itself what it does not have.
pub fn zeros(
    shape: &[usize],
    dtype: DType,
    device: &candle_core::Device,
    what: &str,
) -> Result<Tensor> {
    if device.is_cpu() {
        memory::ensure_elements(shape, dtype.size_in_bytes(), what)?;
    }
    Ok(Tensor::zeros(shape, dtype, device)?)
}

/// An `OutOfMemory` error unless `tokens` rows of a model of this width can be computed at once: what a layer
/// holds of each at the same time is about eight such rows. A GPU refuses by itself what it does not have.
pub fn ensure_activations(
    tokens: usize,
    width: usize,
    dtype: DType,
    device: &candle_core::Device,
) -> Result<()> {
    const ROWS: usize = 8;
    if !device.is_cpu() {
        return Ok(());
    }
    let what = format_args!("{tokens} tokens at once");
    memory::ensure_elements(&[tokens, width, ROWS], dtype.size_in_bytes(), what)
}

/// The device that a model waits for when its layers are on several: the CPU.
pub fn slowest<'a>(
    mut devices: impl Iterator<Item = &'a candle_core::Device>,
) -> Option<&'a candle_core::Device> {
    devices.find(|device| device.is_cpu())
}

/// The tensor on the device. Of what has no elements nothing is copied: Metal has no buffers of no bytes, and candle
/// asks for one.
pub fn placed(tensor: &Tensor, device: &candle_core::Device) -> Result<Tensor> {
    match tensor.elem_count() {
        0 => Ok(Tensor::zeros(tensor.shape(), tensor.dtype(), device)?),
        _ => Ok(tensor.to_device(device)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_gets_more_at_a_time_than_the_cpu() {
        let gpu = Device::Cuda(0);
        assert!(gpu.batch_tokens() > Device::Cpu.batch_tokens());
        assert!(gpu.prompt_tokens() > Device::Cpu.prompt_tokens());
        assert!(gpu.least_part() > Device::Cpu.least_part());
        assert_eq!(gpu.default_dtype(DType::BF16), DType::BF16);
        assert_eq!(Device::Cpu.default_dtype(DType::BF16), DType::F32);
    }

    #[test]
    fn a_device_says_what_it_has_left() {
        let free = free_bytes(&candle_core::Device::Cpu).unwrap();
        assert!(free > 0 && free <= memory::available_bytes().saturating_mul(2));
        #[cfg(feature = "metal")]
        {
            let device = Device::Metal(0).open().unwrap();
            let metal = device.as_metal_device().unwrap().metal_device();
            let free = free_bytes(&device).unwrap();
            assert!(free > 0 && free <= metal.recommended_max_working_set_size());
        }
    }

    #[test]
    fn more_than_the_memory_is_refused_before_it_is_asked_for() {
        let cpu = candle_core::Device::Cpu;
        let message = zeros(&[1 << 40, 64], DType::F32, &cpu, "the KV cache")
            .unwrap_err()
            .to_string();
        assert!(message.contains("not enough memory for the KV cache"));
        assert!(ensure_activations(4096, 768, DType::F32, &cpu).is_ok());
        let message = ensure_activations(1 << 30, 4096, DType::F32, &cpu)
            .unwrap_err()
            .to_string();
        assert!(message.contains("not enough memory for 1073741824 tokens at once"));
    }
}
