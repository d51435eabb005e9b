//! Matrices of GGUF's quantized blocks in a GPU's memory, as they lie in their file.

use candle_core::{DType, Device, Tensor};

use crate::quant::{BlockType, QuantizedTensor};
use crate::runtime::device::placed;
use crate::{Error, Result};

/// [outputs, inputs], row after row of whole blocks.
#[derive(Clone, Debug)]
pub struct DeviceBlocks {
    kind: BlockType,
    shape: [usize; 2],
    /// u8 [bytes].
    bytes: Tensor,
}

impl DeviceBlocks {
    /// Whether a device has kernels that compute on blocks, for a model of this type.
    pub fn computed_by(device: &Device, dtype: DType) -> bool {
        cfg!(feature = "metal")
            && device.is_metal()
            && matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Copies the blocks, and lets go of the file's pages.
    pub fn new(blocks: &QuantizedTensor, device: &Device) -> Result<Self> {
        let [outputs, inputs] = blocks.shape[..] else {
            return Err(Error::InvalidInput(format!(
                "blocks on a device are a matrix, not a tensor of shape {:?}",
                blocks.shape
            )));
        };
        let row = inputs / blocks.kind.elements() * blocks.kind.bytes();
        let length = outputs.checked_mul(row);
        let held = length.and_then(|length| blocks.bytes.get(..length));
        let (Some(held), 0) = (held, inputs % blocks.kind.elements()) else {
            return Err(Error::InvalidInput(format!(
                "{} bytes of {} do not hold a matrix of shape {:?}",
                blocks.bytes.len(),
                blocks.kind.name(),
                blocks.shape
            )));
        };
        let bytes = match held.is_empty() {
            true => placed(&Tensor::zeros(0, DType::U8, &Device::Cpu)?, device)?,
            false => Tensor::from_slice(held, held.len(), device)?,
        };
        blocks.release_rows(0..outputs);
        Ok(Self {
            kind: blocks.kind,
            shape: [outputs, inputs],
            bytes,
        })
    }

    pub fn kind(&self) -> BlockType {
        self.kind
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn outputs(&self) -> usize {
        self.shape[0]
    }

    pub fn inputs(&self) -> usize {
        self.shape[1]
    }

    /// The blocks, u8.
    pub fn bytes(&self) -> &Tensor {
        &self.bytes
    }

    /// x · matrixᵀ + bias + residual; `x` is [rows, inputs], `residual` [rows, outputs].
    pub fn multiply(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (rows, _) = x.dims2()?;
        if rows * self.outputs() * self.inputs() == 0 {
            return Ok(Tensor::zeros(
                (rows, self.outputs()),
                x.dtype(),
                x.device(),
            )?);
        }
        #[cfg(feature = "metal")]
        if x.device().is_metal() {
            let residual = residual.map(Tensor::contiguous).transpose()?;
            let x = x.contiguous()?;
            return Ok(super::metal::blocks::multiply(
                self,
                &x,
                bias,
                residual.as_ref(),
            )?);
        }
        let _ = (bias, residual);
        Err(self.without_kernels())
    }

    /// Some rows, which must be within the matrix: [rows, inputs].
    pub fn rows(&self, rows: &[u32], dtype: DType) -> Result<Tensor> {
        let device = self.bytes.device();
        if rows.is_empty() || self.inputs() == 0 {
            return Ok(Tensor::zeros((rows.len(), self.inputs()), dtype, device)?);
        }
        #[cfg(feature = "metal")]
        if device.is_metal() {
            return Ok(super::metal::blocks::rows(self, rows, dtype)?);
        }
        Err(self.without_kernels())
    }

    fn without_kernels(&self) -> Error {
        Error::Internal(format!(
            "there are no kernels for {} blocks on this device",
            self.kind.name()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::bytes::Bytes;

    #[test]
    fn the_cpu_has_other_kernels_for_blocks() {
        assert!(!DeviceBlocks::computed_by(&Device::Cpu, DType::F32));
    }

    #[test]
    fn blocks_that_do_not_make_a_matrix_are_refused() {
        let blocks = |shape: &[usize], length: usize| QuantizedTensor {
            kind: BlockType::Q4_0,
            shape: shape.to_vec(),
            bytes: Bytes::unpacked(vec![0; length]),
        };
        let held = DeviceBlocks::new(&blocks(&[2, 64], 72), &Device::Cpu).unwrap();
        assert_eq!((held.outputs(), held.inputs()), (2, 64));
        assert_eq!(held.bytes().elem_count(), 72);
        for (shape, length) in [
            (&[2, 64][..], 71),
            (&[2, 48], 72),
            (&[64], 72),
            (&[usize::MAX, 64], 72),
        ] {
            assert!(DeviceBlocks::new(&blocks(shape, length), &Device::Cpu).is_err());
        }
    }
}
