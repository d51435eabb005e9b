//! What the layers of both image encoders have in common.

use candle_core::Tensor;

use crate::models::detection::attention::check_heads;
use crate::models::modules::Modules;
use crate::nn::{elementwise, Epilogue, Inventory, Linear, Norm};
use crate::Result;
use kernels::Activation;

/// The norms of a layer, the matrices of its attention, and its feed-forward part.
#[derive(Debug)]
pub(super) struct Block {
    pub before: Norm,
    pub qkv: Linear,
    pub output: Linear,
    after: Norm,
    up: Linear,
    down: Linear,
    activation: Activation,
    pub heads: usize,
}

/// Heads of attention, the epsilon of norms, and the activation.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    pub heads: usize,
    pub epsilon: f32,
    pub activation: Activation,
}

impl Block {
    /// `feed` are the names of the feed-forward matrices.
    pub fn load(
        modules: &Modules<'_>,
        feed: [&str; 2],
        (inputs, width): (usize, usize),
        settings: Settings,
    ) -> Result<Self> {
        let Settings { heads, epsilon, .. } = settings;
        check_heads(modules, width, heads)?;
        let up = modules.linear(feed[0], width)?;
        Ok(Self {
            before: modules.layer_norm("layer_norm1", inputs, epsilon)?,
            qkv: modules.sized_linear("attn.qkv", inputs, 3 * width)?,
            output: modules.sized_linear("attn.proj", width, width)?,
            after: modules.layer_norm("layer_norm2", width, epsilon)?,
            down: modules.sized_linear(feed[1], up.outputs(), width)?,
            up,
            activation: settings.activation,
            heads,
        })
    }

    /// The feed-forward part, added to `x`.
    pub fn fed(&self, x: &Tensor) -> Result<Tensor> {
        let epilogue = Epilogue {
            activation: Some(self.activation),
            ..Epilogue::default()
        };
        let inner = self.up.forward_with(&self.after.forward(x)?, &epilogue)?;
        elementwise::add(x, &self.down.forward(&inner)?)
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for linear in [&self.qkv, &self.output, &self.up, &self.down] {
            inventory.add_linear(linear)?;
        }
        inventory.add_norm(&self.before)?;
        inventory.add_norm(&self.after)
    }
}
