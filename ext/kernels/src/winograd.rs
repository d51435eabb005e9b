//! The weight of a convolution of 3 × 3 on the CPU, transformed for Winograd's method.

use candle_core::{DType, Tensor};

use crate::cpu::isa::Isa;
use crate::cpu::product::winograd::Winograd;
use crate::cpu::windows::Windows;
use crate::packed_weight::with_values;
use crate::{Activation, Error, Result};

#[derive(Clone, Debug)]
pub struct WinogradWeight(Winograd);

impl WinogradWeight {
    /// Transforms a weight, [outputs, inputs, 3, 3]; `None` where windows are multiplied as they are: numbers other than
    /// f32, other devices, and channels that are not whole vectors.
    pub fn new(weight: &Tensor, bias: Option<&Tensor>) -> Result<Option<Self>> {
        let (outputs, inputs, down, across) = weight.dims4()?;
        let is_there = weight.device().is_cpu() && weight.dtype() == DType::F32;
        if !is_there || (down, across) != (3, 3) || !Winograd::takes(inputs, outputs) {
            return Ok(None);
        }
        let bias = bias.map(|bias| bias.to_dtype(DType::F32)?.to_vec1::<f32>());
        let bias = bias.transpose()?;
        if let Some(bias) = bias.as_ref().filter(|bias| bias.len() != outputs) {
            return Err(Error::InvalidInput(format!(
                "a bias of {} values does not fit a convolution of {outputs} outputs",
                bias.len()
            )));
        }
        let transformed = with_values(weight, |values| {
            Winograd::new(values, bias.as_deref(), (inputs, outputs))
        })?;
        Ok(Some(Self(transformed)))
    }

    pub fn outputs(&self) -> usize {
        self.0.outputs
    }

    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// activation(convolution of x + bias): [windows, outputs] of a map, [places, inputs].
    pub fn convolve(
        &self,
        x: &Tensor,
        windows: &Windows,
        activation: Activation,
    ) -> Result<Tensor> {
        let channels = windows.channels(x)?;
        if channels != self.0.inputs || windows.kernel != 3 {
            return Err(Error::Internal(format!(
                "a convolution of {} channels got {channels}",
                self.0.inputs
            )));
        }
        let isa = Isa::current()?;
        let places = with_values(x, |x| Ok(self.0.convolve(isa, x, windows, activation)))?;
        let shape = (windows.down * windows.across, self.0.outputs);
        Ok(Tensor::from_vec(places, shape, x.device())?)
    }
}
