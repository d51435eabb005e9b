//! Lightning attention: without a softmax, all keys and values before a token add up to one matrix per head, which
//! fades at a fixed rate.

use candle_core::Tensor;

use super::{as_type, StateMixer};
use crate::models::config::{check_size, Checked, NormConfig};
use crate::models::decoder::adaptable::Module;
use crate::models::decoder::batch::Past;
use crate::models::decoder::config::DecoderConfig;
use crate::models::decoder::layer::Step;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{Inventory, Linear, Norm};
use crate::Result;
use formats::files::raw_config::{HEADS, WIDTH};
use kernels::scan::{MatrixHead, MatrixRule, MatrixShape, Scan};
use kernels::Activation;

/// A layer of lightning attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearAttention {
    pub heads: usize,
    /// Of queries, keys and values.
    pub size: usize,
    /// Of all heads together, before the gate.
    pub norm: NormConfig,
}

impl LinearAttention {
    fn width(&self) -> usize {
        self.heads * self.size
    }

    /// How many numbers a sequence keeps in a layer.
    pub fn sizes(&self) -> Vec<usize> {
        vec![self.width() * self.size]
    }

    pub fn check(&self) -> Checked {
        check_size("number of heads", self.heads, HEADS)?;
        check_size("size of heads", self.size, WIDTH)?;
        check_size("width of attention", 3 * self.width(), WIDTH)
    }

    /// What the states of a head keep from one token to the next; later layers keep more.
    fn kept(&self, head: usize, layer: usize, layer_count: usize) -> f32 {
        let slope = 0.5_f64.powf(8.0 * (head + 1) as f64 / self.heads as f64);
        let depth = layer as f64 / (layer_count as f64 - 1.0 + 1e-5);
        (-slope * (1.0 - depth + 1e-5)).exp() as f32
    }
}

struct LinearAttentionLayer {
    qkv: Linear,
    gate: Linear,
    norm: Norm,
    output: Linear,
    /// Of the queries, keys and values of each head.
    heads: Scan,
}

impl LinearAttention {
    pub fn load(
        &self,
        parameters: &Parameters<'_>,
        index: usize,
        config: &DecoderConfig,
    ) -> Result<Box<dyn StateMixer>> {
        let (hidden, width) = (config.hidden_size, self.width());
        let size = self.size;
        let heads = (0..self.heads).map(|head| MatrixHead {
            query: 3 * head * size,
            key: (3 * head + 1) * size,
            value: (3 * head + 2) * size,
            rule: MatrixRule::Plain {
                kept: self.kept(head, index, config.layer_count),
            },
        });
        let shape = MatrixShape {
            inputs: 3 * width,
            keys: size,
            size,
        };
        let linear =
            |part: Part, inputs, outputs| parameters.linear(part.at(index), inputs, outputs);
        Ok(Box::new(LinearAttentionLayer {
            qkv: linear(Part::StateQkv, hidden, 3 * width)?,
            gate: linear(Part::StateGate, hidden, width)?,
            norm: parameters.norm(Part::StateNorm.at(index), &[width], self.norm)?,
            output: linear(Part::StateOutput, width, hidden)?,
            heads: Scan::matrix(shape, heads.collect(), parameters.device())?,
        }))
    }
}

impl StateMixer for LinearAttentionLayer {
    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_norm(&self.norm)?;
        let linears = [&self.qkv, &self.gate, &self.output];
        linears
            .into_iter()
            .try_for_each(|linear| inventory.add_linear(linear))
    }

    fn modules(&self) -> Vec<Module> {
        vec![
            Module::single(Part::StateQkv, 0, &self.qkv),
            Module::single(Part::StateGate, 0, &self.gate),
            Module::single(Part::StateOutput, 0, &self.output),
        ]
    }

    fn forward(
        &self,
        index: usize,
        x: &Tensor,
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        let function = step.config.mlp.activation;
        let qkv = step.activated(index, Part::StateQkv, &self.qkv, x, function)?;
        let read = past.scan((index, 0), &self.heads, &qkv, step.batch)?;
        let read = self.norm.forward(&as_type(&read, x.dtype())?)?;
        let gate = step.through(index, Part::StateGate, &self.gate, x)?;
        let gated = kernels::gated(&gate, &read, Activation::Sigmoid)?;
        step.through(index, Part::StateOutput, &self.output, &gated)
    }
}
