//! SigLIP's pooling: a learned query attends to the patches, and an MLP follows.

use candle_core::Tensor;

use super::Seen;
use crate::models::config::MlpKind;
use crate::models::encoder::EncoderConfig;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::projections::{Join, MlpParts};
use crate::nn::{
    attention, AttentionKind, AttentionOptions, Epilogue, Inventory, Linear, Norm, Projection,
};
use crate::{Error, Result};
use kernels::Activation;

#[derive(Debug)]
pub struct AttentionPooling {
    /// As attention reads it: [1, heads, head size]. It is the same for every image.
    query: Tensor,
    keys_and_values: Projection,
    output: Linear,
    norm: Norm,
    up: Projection,
    down: Linear,
    activation: Activation,
    head_size: usize,
}

impl AttentionPooling {
    pub fn load(config: &EncoderConfig, parameters: &Parameters<'_>) -> Result<Self> {
        let hidden = config.hidden_size;
        let weight = parameters.shaped(Part::PoolingQkv, &[3 * hidden, hidden])?;
        let bias = parameters.shaped(Part::PoolingQkvBias, &[3 * hidden])?;
        let part = |start: usize, count: usize| -> Result<(Tensor, Option<Tensor>)> {
            let cut = |all: &Tensor| all.narrow(0, start * hidden, count * hidden)?.contiguous();
            Ok((cut(&weight)?, Some(cut(&bias)?)))
        };
        let probe = parameters.tensor(Part::PoolingQuery)?;
        if probe.elem_count() != hidden {
            return Err(parameters.misfit(Part::PoolingQuery, &[1, 1, hidden]));
        }
        let (query_weight, query_bias) = part(0, 1)?;
        let query = Linear::new(query_weight, query_bias)?.forward(&probe.reshape((1, hidden))?)?;
        let (weight, bias) = part(1, 2)?;
        let mlp = MlpParts {
            up: Part::PoolingUp.into(),
            down: Part::PoolingDown.into(),
            ..MlpParts::of(0)
        };
        let (up, down) = parameters.mlp(mlp, hidden, MlpKind::Plain, Join::Dense)?;
        Ok(Self {
            query: query.reshape((1, config.head_count, config.head_size))?,
            keys_and_values: Projection::fused(
                parameters.assemble(weight, bias)?,
                &[hidden, hidden],
            )?,
            output: parameters.linear(Part::PoolingOutput, hidden, hidden)?,
            norm: parameters.norm(Part::PoolingNorm, &[hidden], config.norm)?,
            up,
            down,
            activation: config.mlp.activation,
            head_size: config.head_size,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_tensor(&self.query);
        inventory.add_projection(&self.keys_and_values)?;
        inventory.add_linear(&self.output)?;
        inventory.add_norm(&self.norm)?;
        inventory.add_projection(&self.up)?;
        inventory.add_linear(&self.down)
    }

    /// One row per image.
    pub fn forward(&self, seen: &Seen) -> Result<Tensor> {
        let count = seen.boundaries.len() - 1;
        let parts = self
            .keys_and_values
            .heads(&seen.states, self.head_size, &[])?;
        let Ok([k, v]) = <[Tensor; 2]>::try_from(parts) else {
            return Err(Error::Internal("pooling needs two projections".into()));
        };
        let q = Tensor::cat(&vec![&self.query; count], 0)?;
        let queries: Vec<u32> = (0..=count as u32).collect();
        let scale = 1.0 / (self.head_size as f32).sqrt();
        let options = AttentionOptions::new(AttentionKind::Bidirectional, scale);
        let mixed = attention(&q, &k, &v, &queries, &seen.boundaries, &options)?;
        let pooled = self.output.forward(&mixed.flatten_from(1)?)?;
        let inner = self.norm.forward(&pooled)?;
        let inner = self.up.activated(&inner, self.activation, &[])?;
        let epilogue = Epilogue {
            residual: Some(&pooled),
            ..Epilogue::default()
        };
        self.down.forward_with(&inner, &epilogue)
    }
}
