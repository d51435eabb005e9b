//! Mixture of experts: each token passes the few MLPs that a router picks for it.

use candle_core::{DType, Tensor};

use super::adapter::LayerAdapter;
use super::layer::MlpLayer;
use crate::kernels::{self, Activation};
use crate::nn::{elementwise, Inventory, Linear};
use crate::{CancelToken, Result};

pub struct ExpertLayer {
    pub router: Linear,
    pub experts: Vec<MlpLayer>,
    pub used: usize,
    pub normalize: bool,
    /// An expert for every token, with the gate that weighs it.
    pub shared: Option<(MlpLayer, Linear)>,
}

impl ExpertLayer {
    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.router)?;
        for expert in &self.experts {
            expert.list(inventory)?;
        }
        if let Some((shared, gate)) = &self.shared {
            shared.list(inventory)?;
            inventory.add_linear(gate)?;
        }
        Ok(())
    }

    /// `x` is `[tokens, hidden]`.
    pub fn forward(&self, x: &Tensor, cancel: &CancelToken) -> Result<Tensor> {
        let logits = self.router.forward(x)?.to_dtype(DType::F32)?;
        let probabilities: Vec<Vec<f32>> = kernels::softmax(&logits)?.to_vec2()?;
        let mut output = x.zeros_like()?;
        for (expert, rows, weights) in self.assignments(&probabilities) {
            cancel.check()?;
            let count = rows.len();
            let rows = Tensor::from_vec(rows, count, x.device())?;
            let weights = Tensor::from_vec(weights, (count, 1), x.device())?.to_dtype(x.dtype())?;
            let result =
                self.experts[expert].forward(&x.index_select(&rows, 0)?, &LayerAdapter::NONE)?;
            output = output.index_add(&rows, &elementwise::multiply(&result, &weights)?, 0)?;
        }
        if let Some((shared, gate)) = &self.shared {
            let weight = kernels::activate(&gate.forward(x)?, Activation::Sigmoid)?;
            let weighed = elementwise::multiply(&shared.forward(x, &LayerAdapter::NONE)?, &weight)?;
            output = elementwise::add(&output, &weighed)?;
        }
        Ok(output)
    }

    /// For each expert in use: the rows it gets and the weights of its results.
    fn assignments(&self, probabilities: &[Vec<f32>]) -> Vec<(usize, Vec<u32>, Vec<f32>)> {
        let mut per_expert = vec![(Vec::new(), Vec::new()); self.experts.len()];
        for (row, probabilities) in probabilities.iter().enumerate() {
            let mut order: Vec<usize> = (0..probabilities.len()).collect();
            order.sort_by(|&a, &b| {
                probabilities[b]
                    .total_cmp(&probabilities[a])
                    .then(a.cmp(&b))
            });
            order.truncate(self.used);
            let total: f32 = if self.normalize {
                order.iter().map(|&expert| probabilities[expert]).sum()
            } else {
                1.0
            };
            for expert in order {
                per_expert[expert].0.push(row as u32);
                per_expert[expert].1.push(probabilities[expert] / total);
            }
        }
        per_expert
            .into_iter()
            .enumerate()
            .filter(|(_, (rows, _))| !rows.is_empty())
            .map(|(expert, (rows, weights))| (expert, rows, weights))
            .collect()
    }
}
