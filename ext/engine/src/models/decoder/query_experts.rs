//! Mixture of attention heads: a router picks for each token the matrices that make its queries, and those that
//! lead back from what these find. All share the keys and values (JetMoE).

use candle_core::{DType, Tensor};

use super::config::{DecoderConfig, Experts};
use super::router::choose;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{elementwise, Inventory, Linear, Projection, ProjectionUpdates};
use crate::{CancelToken, Error, Result};

pub struct QueryExperts {
    config: Experts,
    /// Keys and values.
    pub shared: Projection,
    router: Linear,
    inputs: Vec<Linear>,
    outputs: Vec<Linear>,
    /// `[hidden]`
    bias: Option<Tensor>,
}

/// What one expert gets: the tokens, their choices as rows of `[tokens · chosen, …]`, and what each counts.
struct Route {
    expert: usize,
    tokens: Tensor,
    choices: Tensor,
    weights: Tensor,
}

/// The routes of all tokens.
#[derive(Default)]
pub struct Routes(Vec<Route>);

impl QueryExperts {
    pub fn load(
        parameters: &Parameters<'_>,
        index: usize,
        experts: &Experts,
        config: &DecoderConfig,
    ) -> Result<Self> {
        let (hidden, width) = (
            config.hidden_size,
            config.attention_shape(index).key_width(),
        );
        let stack = |part: Part, inputs: usize, outputs: usize| -> Result<Vec<Linear>> {
            let place = part.at(index);
            match parameters.shape(place)?[..] {
                [_, rows, columns] if (rows, columns) == (outputs, inputs) => {}
                _ => return Err(parameters.misfit(place, &[experts.count, outputs, inputs])),
            }
            parameters.stacked_linears(place, experts.count)
        };
        let router = Part::QueryRouter.at(index);
        let shared = parameters.linear(Part::Qkv.at(index), hidden, 2 * width)?;
        Ok(Self {
            config: experts.clone(),
            shared: Projection::fused(shared, &[width; 2])?,
            router: parameters.exact_linear(router, hidden, experts.count)?,
            inputs: stack(Part::QueryExpertsIn, hidden, width)?,
            outputs: stack(Part::QueryExpertsOut, width, hidden)?,
            bias: parameters.optional_tensor(Part::AttentionOutputBias.at(index))?,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_projection(&self.shared)?;
        inventory.add_linear(&self.router)?;
        for linear in self.inputs.iter().chain(&self.outputs) {
            inventory.add_linear(linear)?;
        }
        Ok(())
    }

    /// `x` is `[tokens, hidden]`.
    pub fn route(&self, x: &Tensor) -> Result<Routes> {
        let logits: Vec<Vec<f32>> = self.router.forward(x)?.to_dtype(DType::F32)?.to_vec2()?;
        let chosen = logits
            .iter()
            .map(|logits| choose(&self.config, logits, None));
        let chosen: Vec<_> = chosen.collect();
        let mut routes = Vec::new();
        for expert in 0..self.inputs.len() {
            let (mut tokens, mut choices, mut weights) = (Vec::new(), Vec::new(), Vec::new());
            for (token, choice) in chosen.iter().enumerate() {
                let at = choice.iter().position(|&(found, _)| found == expert);
                if let Some(at) = at {
                    tokens.push(token as u32);
                    choices.push((token * self.config.used + at) as u32);
                    weights.push(choice[at].1);
                }
            }
            let count = tokens.len();
            if count > 0 {
                let weights = Tensor::from_vec(weights, (count, 1), x.device())?;
                routes.push(Route {
                    expert,
                    tokens: Tensor::from_vec(tokens, count, x.device())?,
                    choices: Tensor::from_vec(choices, count, x.device())?,
                    weights: weights.to_dtype(x.dtype())?,
                });
            }
        }
        Ok(Routes(routes))
    }

    /// Keys and values, `[tokens, heads, head size]` each.
    pub fn shared(
        &self,
        x: &Tensor,
        head_size: usize,
        updates: &ProjectionUpdates<'_>,
    ) -> Result<[Tensor; 2]> {
        let parts = self.shared.heads(x, head_size, updates)?;
        <[Tensor; 2]>::try_from(parts)
            .map_err(|_| Error::Internal("experts share two projections".into()))
    }

    /// Queries `[tokens, heads, head size]`; those that share a key stand side by side.
    pub fn queries(
        &self,
        x: &Tensor,
        routes: &Routes,
        head_size: usize,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let (tokens, used) = (x.dim(0)?, self.config.used);
        let width = self.inputs.first().map_or(0, Linear::outputs);
        let mut queries = Tensor::zeros((tokens * used, width), x.dtype(), x.device())?;
        for route in &routes.0 {
            cancel.check()?;
            let input = x.index_select(&route.tokens, 0)?;
            let found = self.inputs[route.expert].forward(&input)?;
            queries = queries.index_add(&route.choices, &found, 0)?;
        }
        let heads = width / head_size;
        let queries = queries.reshape((tokens, used, heads, head_size))?;
        let queries = queries.transpose(1, 2)?.contiguous()?;
        Ok(queries.reshape((tokens, heads * used, head_size))?)
    }

    /// What the heads add to the residual stream, `[tokens, hidden]`, of what they found.
    pub fn output(
        &self,
        attended: &Tensor,
        routes: &Routes,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let (tokens, heads, size) = attended.dims3()?;
        let used = self.config.used;
        let found = attended.reshape((tokens, heads / used, used, size))?;
        let found = found.transpose(1, 2)?.contiguous()?;
        let found = found.reshape((tokens * used, heads / used * size))?;
        let hidden = self.outputs.first().map_or(0, Linear::outputs);
        let mut output = Tensor::zeros((tokens, hidden), found.dtype(), found.device())?;
        for route in &routes.0 {
            cancel.check()?;
            let input = found.index_select(&route.choices, 0)?;
            let result = self.outputs[route.expert].forward(&input)?;
            let result = elementwise::multiply(&result, &route.weights)?;
            output = output.index_add(&route.tokens, &result, 0)?;
        }
        match &self.bias {
            Some(bias) => elementwise::add(&output, bias),
            None => Ok(output),
        }
    }
}
