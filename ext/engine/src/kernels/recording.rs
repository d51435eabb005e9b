//! Work that is recorded once and replayed as one launch, on devices that do that.

use candle_core::{Device, Tensor};

#[cfg(feature = "cuda")]
use super::cuda::recording as backend;
use crate::runtime::cuda_graphs;
use crate::Result;

/// Whether a device records, and is meant to.
pub(crate) fn is_possible(device: &Device) -> bool {
    cfg!(feature = "cuda") && device.is_cuda() && cuda_graphs::are_wanted()
}

#[cfg(not(feature = "cuda"))]
fn without_recordings() -> crate::Error {
    crate::Error::Internal("a device that records nothing was asked to".into())
}

/// Launches that can be made again. What they read and write has the same addresses each time.
pub(crate) struct Recording {
    #[cfg(feature = "cuda")]
    held: backend::Recording,
}

impl Recording {
    /// Runs `work` for its result, which goes to `out`, and records how it was made. Its steps must depend on
    /// nothing but what lies in tensors of `device` that `work` is made of.
    pub fn new(
        device: &Device,
        out: &Tensor,
        work: impl FnMut() -> Result<Tensor>,
    ) -> Result<Self> {
        #[cfg(feature = "cuda")]
        return Ok(Self {
            held: backend::Recording::new(device.as_cuda_device()?, out, work)?,
        });
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (device, out, work);
            Err(without_recordings())
        }
    }

    /// Does the work again, with what lies in its tensors now.
    pub fn replay(&self) -> Result<()> {
        #[cfg(feature = "cuda")]
        return Ok(self.held.replay()?);
        #[cfg(not(feature = "cuda"))]
        Err(without_recordings())
    }
}

/// Numbers on a device that are written again before each replay.
pub(crate) struct Words {
    tensor: Tensor,
}

impl Words {
    pub fn new(count: usize, device: &Device) -> Result<Self> {
        Ok(Self {
            tensor: Tensor::zeros(count, candle_core::DType::U32, device)?,
        })
    }

    /// Some of them, u32 [count].
    pub fn part(&self, first: usize, count: usize) -> Result<Tensor> {
        Ok(self.tensor.narrow(0, first, count)?)
    }

    /// Writes the first ones.
    pub fn write(&self, words: &[u32]) -> Result<()> {
        #[cfg(feature = "cuda")]
        return Ok(backend::write(&self.tensor, words)?);
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (&self.tensor, words);
            Err(without_recordings())
        }
    }
}
