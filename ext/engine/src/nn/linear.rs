//! A linear layer that owns its weight in the layout its backend likes.

use candle_core::{DType, Tensor};

use crate::kernels::{self, Activation};
use crate::{Error, Result};

/// What follows the product, in this order: bias (the layer's own), activation, residual.
#[derive(Clone, Copy, Default)]
pub struct Epilogue<'a> {
    pub activation: Option<Activation>,
    /// Added last; shaped like the output.
    pub residual: Option<&'a Tensor>,
}

#[derive(Clone, Debug)]
pub struct Linear {
    /// [in, out], a transposed view of what the file holds.
    weight: Tensor,
    bias: Option<Tensor>,
    inputs: usize,
    outputs: usize,
}

impl Linear {
    /// `weight` is [out, in], as checkpoints store it; `bias` is [out].
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        let (outputs, inputs) = weight.dims2()?;
        if let Some(bias) = &bias {
            if bias.dims() != [outputs] {
                return Err(Error::InvalidInput(format!(
                    "a bias of shape {:?} does not fit a linear weight of shape {:?}",
                    bias.dims(),
                    weight.dims()
                )));
            }
        }
        Ok(Self {
            weight: weight.t()?,
            bias,
            inputs,
            outputs,
        })
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    pub fn dtype(&self) -> DType {
        self.weight.dtype()
    }

    /// x · weightᵀ + bias; `x` is [.., in].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &Epilogue::default())
    }

    /// `forward`, followed by the epilogue.
    pub fn forward_with(&self, x: &Tensor, epilogue: &Epilogue<'_>) -> Result<Tensor> {
        let (shape, rows) = self.output_shape(x)?;
        let product = x.reshape((rows, self.inputs))?.matmul(&self.weight)?;
        let product = match &self.bias {
            Some(bias) => product.broadcast_add(bias)?,
            None => product,
        };
        let product = product.reshape(shape)?;
        let product = match epilogue.activation {
            Some(activation) => kernels::activate(&product, activation)?,
            None => product,
        };
        match epilogue.residual {
            Some(residual) => Ok((product + residual)?),
            None => Ok(product),
        }
    }

    fn output_shape(&self, x: &Tensor) -> Result<(Vec<usize>, usize)> {
        let mut shape = x.dims().to_vec();
        match shape.last_mut() {
            Some(last) if *last == self.inputs => *last = self.outputs,
            _ => {
                return Err(Error::InvalidInput(format!(
                    "a linear layer of {} inputs got a tensor of shape {:?}",
                    self.inputs,
                    x.dims()
                )))
            }
        }
        let rows = shape.iter().rev().skip(1).product();
        Ok((shape, rows))
    }
}
