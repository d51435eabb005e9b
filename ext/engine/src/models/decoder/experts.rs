//! Mixture of experts: each token passes the few MLPs that a router picks for it.

use candle_core::{DType, Tensor};

use super::adapter::MlpOf;
use super::adapter_rows::LayerUpdates;
use super::config::Experts;
use super::device_experts::DeviceExperts;
use super::layer::MlpLayer;
use super::router::choose;
use crate::models::parts::Part;
use crate::nn::{elementwise, Inventory, Linear, Norm};
use crate::{CancelToken, Result};
use kernels::Activation;

pub struct ExpertLayer {
    pub config: Experts,
    pub router: Linear,
    /// Added to scores where experts are chosen.
    pub bias: Option<Vec<f32>>,
    pub experts: Vec<MlpLayer>,
    pub shared: Option<SharedExpert>,
    /// Added to what all give, `[hidden]` (JetMoE).
    pub total_bias: Option<Tensor>,
    pub norms: Option<ExpertNorms>,
    /// What leads to the narrower rows that experts read, and back.
    pub latent: Option<(Linear, Linear)>,
    /// Factors on the weights of experts.
    pub scales: Option<Vec<f32>>,
    /// On a GPU that has kernels for them.
    pub device: Option<DeviceExperts>,
}

/// What experts beside an MLP are normalized by.
pub struct ExpertNorms {
    pub router: Norm,
    pub input: Norm,
    pub output: Norm,
}

/// An expert that every token passes.
pub struct SharedExpert {
    pub mlp: MlpLayer,
    /// The gate that weighs it (Qwen2-MoE).
    pub gate: Option<Linear>,
}

/// The rows that one expert gets, and what each counts.
struct Assignment {
    expert: usize,
    rows: Vec<u32>,
    weights: Vec<f32>,
}

impl ExpertLayer {
    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.router)?;
        if let Some(norms) = &self.norms {
            for norm in [&norms.router, &norms.input, &norms.output] {
                inventory.add_norm(norm)?;
            }
        }
        if let Some((down, up)) = &self.latent {
            inventory.add_linear(down)?;
            inventory.add_linear(up)?;
        }
        for expert in &self.experts {
            expert.list(inventory)?;
        }
        if let Some(shared) = &self.shared {
            shared.mlp.list(inventory)?;
            if let Some(gate) = &shared.gate {
                inventory.add_linear(gate)?;
            }
        }
        Ok(())
    }

    /// `x` is `[tokens, hidden]`.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        updates: &LayerUpdates<'_>,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let Some(norms) = &self.norms else {
            return self.forward_normalized(x, x, updates, cancel);
        };
        let routed = norms.router.forward(x)?;
        let input = norms.input.forward(x)?;
        let found = self.forward_normalized(&routed, &input, updates, cancel)?;
        norms.output.forward(&found)
    }

    fn forward_normalized(
        &self,
        routed: &Tensor,
        x: &Tensor,
        updates: &LayerUpdates<'_>,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let update = |part: Part| updates.part(part);
        let logits = self.router.forward_updated(routed, &update(Part::Router))?;
        let read = match &self.latent {
            Some((down, _)) => &down.forward_updated(x, &update(Part::ExpertLatentDown))?,
            None => x,
        };
        let device = self.device.as_ref().filter(|device| {
            let takes = |rows| device.takes(rows, x.dtype(), &self.config);
            updates.is_empty() && x.dim(0).is_ok_and(takes)
        });
        let output = match device {
            Some(device) => {
                let routes = device.route(&logits, x.dtype(), &self.config)?;
                let together = self.latent.is_none();
                let shared = self.shared.as_ref().filter(|_| together);
                let output = device.forward(read, &routes, shared.map(|shared| (shared, x)))?;
                if together {
                    return self.finish(output);
                }
                output
            }
            None => self.by_experts(&logits, read, updates, cancel)?,
        };
        let output = match &self.latent {
            Some((_, up)) => up.forward_updated(&output, &update(Part::ExpertLatentUp))?,
            None => output,
        };
        let output = match &self.shared {
            Some(shared) => elementwise::add(&output, &shared.forward(x, updates)?)?,
            None => output,
        };
        self.finish(output)
    }

    fn finish(&self, output: Tensor) -> Result<Tensor> {
        let output = match &self.total_bias {
            Some(bias) => elementwise::add(&output, bias)?,
            None => output,
        };
        elementwise::scale(&output, self.config.total_scale)
    }

    /// One expert after the other, with all rows that chose it.
    fn by_experts(
        &self,
        logits: &Tensor,
        read: &Tensor,
        updates: &LayerUpdates<'_>,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let logits: Vec<Vec<f32>> = logits.to_dtype(DType::F32)?.to_vec2()?;
        let mut output = read.zeros_like()?;
        for Assignment {
            expert,
            rows,
            weights,
        } in self.assignments(&logits)
        {
            cancel.check()?;
            let (count, own) = (rows.len(), updates.picked(&rows));
            let device = read.device();
            let rows = Tensor::from_vec(rows, count, device)?;
            let weights = Tensor::from_vec(weights, (count, 1), device)?.to_dtype(read.dtype())?;
            let mut input = read.index_select(&rows, 0)?;
            if self.config.weighs_input {
                input = elementwise::multiply(&input, &weights)?;
            }
            let mut result = match self.experts.get(expert) {
                Some(mlp) => mlp.forward(&input, &own, MlpOf::Expert(expert))?,
                None => input,
            };
            if !self.config.weighs_input {
                result = elementwise::multiply(&result, &weights)?;
            }
            output = output.index_add(&rows, &result, 0)?;
        }
        Ok(output)
    }

    fn assignments(&self, logits: &[Vec<f32>]) -> Vec<Assignment> {
        let mut assignments: Vec<Assignment> = (0..self.experts.len() + self.config.identities)
            .map(|expert| Assignment {
                expert,
                rows: Vec::new(),
                weights: Vec::new(),
            })
            .collect();
        for (row, logits) in logits.iter().enumerate() {
            for (expert, weight) in choose(&self.config, logits, self.bias.as_deref()) {
                let scale = self.scales.as_ref().map_or(1.0, |scales| scales[expert]);
                let weight = weight * scale;
                assignments[expert].rows.push(row as u32);
                assignments[expert].weights.push(weight);
            }
        }
        assignments.retain(|assignment| !assignment.rows.is_empty());
        assignments
    }
}

impl SharedExpert {
    fn forward(&self, x: &Tensor, updates: &LayerUpdates<'_>) -> Result<Tensor> {
        let result = self.mlp.forward(x, updates, MlpOf::SharedExpert)?;
        match &self.gate {
            Some(gate) => {
                let weight = gate.forward_updated(x, &updates.part(Part::SharedRouter))?;
                let weight = kernels::activate(&weight, Activation::Sigmoid)?;
                elementwise::multiply(&result, &weight)
            }
            None => Ok(result),
        }
    }
}
