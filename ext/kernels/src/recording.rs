//! Work that is recorded once and replayed as one launch, on devices that do that.

use candle_core::{Device, Tensor};

#[cfg(feature = "cuda")]
use super::cuda::{columns, largest::Choices as Found, recording as backend};
use super::Largest;
use crate::cuda_graphs;
use crate::Result;

/// Whether a device records, and is meant to.
pub fn is_possible(device: &Device) -> bool {
    cfg!(feature = "cuda") && device.is_cuda() && cuda_graphs::are_wanted()
}

#[cfg(not(feature = "cuda"))]
fn without_recordings() -> crate::Error {
    crate::Error::Internal("a device that records nothing was asked to".into())
}

/// Where a tensor lies, on a device that records.
pub fn address(tensor: &Tensor) -> Result<u64> {
    #[cfg(feature = "cuda")]
    return Ok(super::cuda::device::address(tensor)?);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = tensor;
        Err(without_recordings())
    }
}

/// Copies a matrix into one of the same shape that outlives the recording, which may be of another type.
pub fn keep(matrix: &Tensor, kept: &Tensor) -> Result<()> {
    #[cfg(feature = "cuda")]
    return Ok(columns::copy_matrix(matrix, kept)?);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (matrix, kept);
        Err(without_recordings())
    }
}

/// Launches that can be made again. What they read and write has the same addresses each time.
pub struct Recording {
    #[cfg(feature = "cuda")]
    held: backend::Recording,
}

impl Recording {
    /// Does `work` and records how. Its steps must depend on nothing but what lies in tensors of `device` that `work` is
    /// made of.
    pub fn new(device: &Device, work: impl FnMut() -> Result<()>) -> Result<Self> {
        #[cfg(feature = "cuda")]
        return Ok(Self {
            held: backend::Recording::new(device.as_cuda_device()?, work)?,
        });
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (device, work);
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
pub struct Words {
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

    /// Writes those from the `first` on.
    pub fn write(&self, first: usize, words: &[u32]) -> Result<()> {
        #[cfg(feature = "cuda")]
        return Ok(backend::write(&self.part(first, words.len())?, words)?);
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (first, words);
            Err(without_recordings())
        }
    }
}

/// The largest logit of each row, whose token the device itself goes on with while the host waits for it.
pub struct Choices {
    #[cfg(feature = "cuda")]
    held: Found,
}

impl Choices {
    /// For so many rows at most.
    pub fn new(rows: usize, vocabulary: usize, device: &Device) -> Result<Self> {
        #[cfg(feature = "cuda")]
        return Ok(Self {
            held: Found::new(rows, vocabulary, device.as_cuda_device()?)?,
        });
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (rows, vocabulary, device);
            Err(without_recordings())
        }
    }

    /// Keeps logits [rows, vocabulary] in f32 [at least as many, vocabulary], and finds the likeliest tokens.
    pub fn keep(&self, logits: &Tensor, kept: &Tensor) -> Result<()> {
        #[cfg(feature = "cuda")]
        return Ok(self.held.keep(logits, kept)?);
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (logits, kept);
            Err(without_recordings())
        }
    }

    /// Writes the likeliest tokens of the rows that were kept last to u32 [rows], 0 where no logit is finite, and tells
    /// the host.
    pub fn choose(&mut self, tokens: &Tensor) -> Result<()> {
        #[cfg(feature = "cuda")]
        return Ok(self.held.choose(tokens)?);
        #[cfg(not(feature = "cuda"))]
        {
            let _ = tokens;
            Err(without_recordings())
        }
    }

    /// What was chosen, as soon as it is known, whatever the device does after it.
    pub fn read(&self) -> Result<Vec<Largest>> {
        #[cfg(feature = "cuda")]
        return Ok(self.held.read()?);
        #[cfg(not(feature = "cuda"))]
        Err(without_recordings())
    }
}
