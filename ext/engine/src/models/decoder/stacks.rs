//! Two stacks of layers that run in turns, several times per token (HRM).
//!
//! The low stack refines its state, which starts as a learned row, by what the high one says; the high one, whose
//! state starts as the embeddings, goes on from that. Each run of a layer has a place of its own in the KV cache.

use candle_core::Tensor;

use super::batch::Past;
use super::config::Stacks;
use super::layer::{Layer, Step, Stream};
use crate::nn::{elementwise, Norm};
use crate::Result;

/// Of a model's layers the first half is the low stack, the second the high one.
pub struct StackRun<'a> {
    pub stacks: Stacks,
    pub layers: &'a [Layer],
    /// After every run of a stack.
    pub norm: Option<&'a Norm>,
    /// Where the low state starts, `[hidden]`.
    pub low_start: &'a Tensor,
}

impl Stacks {
    /// The layer of every run of one.
    pub fn runs(&self) -> Vec<usize> {
        let low = (0..self.low_cycles).flat_map(|_| 0..self.layers);
        let cycle: Vec<_> = low.chain(self.layers..2 * self.layers).collect();
        cycle.repeat(self.high_cycles)
    }
}

impl StackRun<'_> {
    /// The high state after all cycles.
    pub fn run(&self, embedded: Tensor, past: &mut Past<'_>, step: &Step<'_>) -> Result<Tensor> {
        let (low_layers, high_layers) = self.layers.split_at(self.stacks.layers);
        let mut low = self
            .low_start
            .broadcast_as(embedded.shape())?
            .contiguous()?;
        let mut high = embedded;
        let mut first = 0;
        for _ in 0..self.stacks.high_cycles {
            for _ in 0..self.stacks.low_cycles {
                let sum = elementwise::add(&low, &high)?;
                low = self.run_stack(low_layers, &mut first, sum, past, step)?;
            }
            let sum = elementwise::add(&high, &low)?;
            high = self.run_stack(high_layers, &mut first, sum, past, step)?;
        }
        Ok(high)
    }

    /// `first` is the place of the stack's first layer in this run.
    fn run_stack(
        &self,
        layers: &[Layer],
        first: &mut usize,
        input: Tensor,
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        let mut stream = Stream::new(input);
        for layer in layers {
            layer.forward(*first, &mut stream, past, step)?;
            *first += 1;
        }
        stream.read(self.norm)
    }
}
