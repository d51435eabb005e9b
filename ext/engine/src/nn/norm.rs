//! A norm with its weights.

use candle_core::Tensor;

use crate::{kernels, Result};

#[derive(Clone, Debug)]
pub enum Norm {
    Layer {
        weight: Tensor,
        bias: Option<Tensor>,
        epsilon: f32,
    },
    Rms {
        weight: Tensor,
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

    pub fn rms(weight: Tensor, epsilon: f32) -> Self {
        Self::Rms { weight, epsilon }
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
            Self::Rms { weight, epsilon } => kernels::rms_norm(x, weight, *epsilon),
        }
    }
}
