//! Experts in the place of an MLP: each token passes those that a router scores highest.

use candle_core::{DType, Tensor};

use super::config::{EncoderConfig, MlpExperts};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{elementwise, Epilogue, Inventory, Linear};
use crate::Result;
use kernels::Activation;

#[derive(Debug)]
pub struct ExpertFeed {
    router: Linear,
    /// What leads to the inner layer of each, and back.
    experts: Vec<(Linear, Linear)>,
    /// Added once to what the experts give together, `[hidden]`.
    bias: Option<Tensor>,
    used: usize,
    activation: Activation,
}

/// The rows that one expert gets, and what each counts.
#[derive(Default)]
struct Assignment {
    rows: Vec<u32>,
    weights: Vec<f32>,
}

impl ExpertFeed {
    pub fn load(
        experts: &MlpExperts,
        config: &EncoderConfig,
        parameters: &Parameters<'_>,
        number: usize,
    ) -> Result<Self> {
        let (hidden, count) = (config.hidden_size, experts.count);
        let up = matrices(parameters, Part::ExpertUp, number, (count, hidden), false)?;
        let down = matrices(parameters, Part::ExpertDown, number, (count, hidden), true)?;
        for (up, down) in up.iter().zip(&down) {
            if up.inputs() != hidden || [down.inputs(), down.outputs()] != [up.outputs(), hidden] {
                let shape = [count, hidden, up.outputs()];
                return Err(parameters.misfit(Part::ExpertDown.at(number), &shape));
            }
        }
        let bias = Part::ExpertTotalBias.at(number);
        Ok(Self {
            router: parameters.exact_linear(Part::Router.at(number), hidden, count)?,
            experts: up.into_iter().zip(down).collect(),
            bias: if parameters.has(bias) {
                Some(parameters.shaped(bias, &[hidden])?)
            } else {
                None
            },
            used: experts.used,
            activation: config.mlp.activation,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.router)?;
        for (up, down) in &self.experts {
            inventory.add_linear(up)?;
            inventory.add_linear(down)?;
        }
        Ok(())
    }

    /// `x` is [tokens, hidden].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let logits = self.router.forward(x)?.to_dtype(DType::F32)?;
        let mut output = x.zeros_like()?;
        for (assigned, (up, down)) in self.assigned(&logits.to_vec2()?).iter().zip(&self.experts) {
            let count = assigned.rows.len();
            if count == 0 {
                continue;
            }
            let rows = Tensor::from_slice(&assigned.rows, count, x.device())?;
            let weights = Tensor::from_slice(&assigned.weights, (count, 1), x.device())?;
            let epilogue = Epilogue {
                activation: Some(self.activation),
                ..Epilogue::default()
            };
            let inner = up.forward_with(&x.index_select(&rows, 0)?, &epilogue)?;
            let given = down.forward(&inner)?;
            let given = elementwise::multiply(&given, &weights.to_dtype(given.dtype())?)?;
            output = output.index_add(&rows, &given.to_dtype(x.dtype())?, 0)?;
        }
        match &self.bias {
            Some(bias) => elementwise::add(&output, &bias.to_dtype(x.dtype())?),
            None => Ok(output),
        }
    }

    /// The shares of the chosen are those among all experts, and are not scaled to sum to 1.
    fn assigned(&self, logits: &[Vec<f32>]) -> Vec<Assignment> {
        let mut assigned: Vec<_> = self.experts.iter().map(|_| Assignment::default()).collect();
        for (row, logits) in logits.iter().enumerate() {
            let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let powers: Vec<f32> = logits.iter().map(|logit| (logit - top).exp()).collect();
            let total: f32 = powers.iter().sum();
            let mut order: Vec<usize> = (0..powers.len()).collect();
            order.sort_by(|&a, &b| powers[b].total_cmp(&powers[a]).then(a.cmp(&b)));
            for &expert in order.iter().take(self.used) {
                assigned[expert].rows.push(row as u32);
                assigned[expert].weights.push(powers[expert] / total);
            }
        }
        assigned
    }
}

/// The matrices of all experts, one below the other: `[experts · inner, hidden]`. Those that lead back are `transposed`,
/// but in GGUF files, which have an axis for experts.
fn matrices(
    parameters: &Parameters<'_>,
    part: Part,
    number: usize,
    (count, hidden): (usize, usize),
    transposed: bool,
) -> Result<Vec<Linear>> {
    let place = part.at(number);
    let shape = parameters.shape(place)?;
    let rows = match shape[..] {
        [experts, rows, width] if experts == count && rows > 0 && width > 0 => {
            let stack = parameters.shaped(place, &shape)?;
            let each = (0..count).map(|expert| parameters.assemble(stack.get(expert)?, None));
            return each.collect();
        }
        [rows, width] if width == hidden && rows > 0 && rows.is_multiple_of(count) => rows / count,
        _ => return Err(parameters.misfit(place, &[count, hidden])),
    };
    let stack = parameters.shaped(place, &shape)?;
    (0..count)
        .map(|expert| {
            let own = stack.narrow(0, expert * rows, rows)?;
            let own = if transposed { own.t()? } else { own };
            parameters.assemble(own.contiguous()?, None)
        })
        .collect()
}
