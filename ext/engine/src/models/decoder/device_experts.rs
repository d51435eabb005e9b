//! Experts on a GPU that has kernels for them: rows pass them without the host.

use candle_core::{DType, Tensor};

use super::adapter::MlpOf;
use super::adapter_rows::LayerUpdates;
use super::config::{Experts, Scoring};
use super::experts::{ExpertLayer, SharedExpert};
use super::layer::{MlpActivation, MlpLayer};
use crate::nn::Linear;
use crate::{Error, Result};
use kernels::experts::{ExpertMatrices, RouteGroups, RouteRule, RouteScores, Router, Routes};

pub struct DeviceExperts {
    router: Router,
    input: ExpertMatrices,
    /// Of gate and up, or of what is activated.
    widths: Vec<usize>,
    activation: MlpActivation,
    output: ExpertMatrices,
}

impl DeviceExperts {
    /// `None` where the device has no kernels for these experts.
    pub fn new(layer: &ExpertLayer) -> Result<Option<Self>> {
        let (Some(first), Some(rule)) = (layer.experts.first(), rule(&layer.config)) else {
            return Ok(None);
        };
        let plain = matches!(
            first.activation,
            MlpActivation::Plain(_) | MlpActivation::Clamped(_)
        );
        let alike = |expert: &MlpLayer| {
            expert.activation == first.activation
                && expert.sub_norm.is_none()
                && expert.input.widths() == first.input.widths()
        };
        if !plain || !layer.experts.iter().all(alike) {
            return Ok(None);
        }
        let device = layer.router.device();
        let (bias, scales) = (layer.bias.as_deref(), layer.scales.as_deref());
        let Some(router) = Router::new(rule, bias, scales, &device)? else {
            return Ok(None);
        };
        let inputs = layer.experts.iter().map(|expert| expert.input.matrices());
        let outputs = layer.experts.iter();
        let outputs = outputs.map(|expert| std::slice::from_ref(&expert.output));
        let widths = first.input.widths();
        let input = Linear::of_experts(inputs, widths, &device)?;
        let output = Linear::of_experts(outputs, &[first.output.outputs()], &device)?;
        let (Some(input), Some(output)) = (input, output) else {
            return Ok(None);
        };
        Ok(Some(Self {
            router,
            input,
            widths: widths.to_vec(),
            activation: first.activation,
            output,
        }))
    }

    /// Whether it takes so many rows of this type.
    pub fn takes(&self, rows: usize, dtype: DType, config: &Experts) -> bool {
        let most = |matrices: &ExpertMatrices| matrices.most_choices(dtype);
        rows > 0 && rows * config.used <= most(&self.input).min(most(&self.output))
    }

    /// Given what the router says of rows of this type.
    pub fn route(&self, logits: &Tensor, dtype: DType, config: &Experts) -> Result<Routes> {
        let choices = logits.dim(0)? * config.used;
        let together = |matrices: &ExpertMatrices| matrices.together(choices, dtype);
        let together = together(&self.input).min(together(&self.output));
        self.router.route(logits, together)
    }

    /// The sums of what the chosen experts give for rows, and of what the shared one does.
    pub fn forward(
        &self,
        x: &Tensor,
        routes: &Routes,
        shared: Option<(&SharedExpert, &Tensor)>,
    ) -> Result<Tensor> {
        let inner = match (self.activation, &self.widths[..]) {
            (MlpActivation::Plain(activation), [_]) => {
                kernels::activate(&self.input.multiply(x, routes, None)?, activation)?
            }
            (MlpActivation::Plain(activation), [_, _]) => {
                self.input.multiply(x, routes, Some(activation))?
            }
            (MlpActivation::Clamped(glu), &[gate, up]) => {
                let read = self.input.multiply(x, routes, None)?;
                kernels::clamped_glu(&read.narrow(1, 0, gate)?, &read.narrow(1, gate, up)?, glu)?
            }
            _ => return Err(Error::Internal("an expert of other parts".into())),
        };
        let given = self.output.multiply(&inner, routes, None)?;
        let Some((shared, x)) = shared else {
            return routes.combine(&given, None);
        };
        let none = LayerUpdates::default();
        let beside = shared.mlp.forward(x, &none, MlpOf::SharedExpert)?;
        let gate = shared.gate.as_ref().map(|gate| gate.forward(x));
        let gate = gate.transpose()?;
        routes.combine(&given, Some((&beside, gate.as_ref())))
    }
}

/// As a device's kernel has it; `None` for another rule.
fn rule(experts: &Experts) -> Option<RouteRule> {
    let scores = match experts.scoring {
        Scoring::Softmax => RouteScores::Softmax,
        Scoring::Sigmoid => RouteScores::Sigmoid,
        Scoring::SigmoidOfChosen => RouteScores::SigmoidOfChosen,
        Scoring::SparseMixer { .. } => return None,
    };
    let plain = experts.identities == 0 && !experts.weighs_input;
    plain.then(|| RouteRule {
        experts: experts.count,
        used: experts.used,
        scores,
        soft_cap: experts.soft_cap,
        groups: experts.groups.map(|groups| RouteGroups {
            count: groups.count,
            used: groups.used,
            best_of: groups.best_of,
            left_out: groups.left_out,
        }),
        least_total: experts.normalize.then_some(experts.least_total),
        scale: experts.scale,
    })
}
