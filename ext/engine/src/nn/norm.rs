//! A norm with its weights.

use crate::Result;
use candle_core::Tensor;

#[derive(Clone, Debug)]
pub enum Norm {
    Layer {
        weight: Tensor,
        bias: Option<Tensor>,
        epsilon: f32,
    },
    /// `offset` is added to the weight.
    Rms {
        weight: Tensor,
        offset: f32,
        epsilon: f32,
    },
}

impl Norm {
    pub fn layer(weight: Tensor, bias: Option<Tensor>, epsilon: f32) -> Self {
        Self::Layer {
            weight,
            bias,
            epsilon,
        }
    }

    pub fn rms(weight: Tensor, offset: f32, epsilon: f32) -> Self {
        Self::Rms {
            weight,
            offset,
            epsilon,
        }
    }

    /// The width of the rows it takes.
    pub fn width(&self) -> usize {
        match self {
            Self::Layer { weight, .. } | Self::Rms { weight, .. } => weight.elem_count(),
        }
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Layer {
                weight,
                bias,
                epsilon,
            } => kernels::layer_norm(x, weight, bias.as_ref(), *epsilon),
            Self::Rms {
                weight,
                offset,
                epsilon,
            } => kernels::rms_norm_offset(x, weight, *epsilon, *offset),
        }
    }

    /// `x + residual`, written over `x`, and the norm of it.
    pub fn add_forward(&self, x: Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        match self {
            Self::Layer {
                weight,
                bias,
                epsilon,
            } => kernels::add_layer_norm(x, residual, weight, bias.as_ref(), *epsilon),
            Self::Rms {
                weight,
                offset,
                epsilon,
            } => kernels::add_rms_norm(x, residual, weight, *epsilon, *offset),
        }
    }
}
