//! One layer of a tower: attention and an MLP, each behind a norm.

use candle_core::Tensor;

use super::bias::BiasTable;
use super::scores::{mixed, Scores};
use crate::models::modules::Modules;
use crate::nn::{attention, elementwise, AttentionKind, AttentionOptions};
use crate::nn::{Epilogue, Inventory, Linear, Norm};
use crate::Result;
use kernels::Activation;

/// What the layers of a tower have in common.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub width: usize,
    pub heads: usize,
    pub activation: Activation,
    pub epsilon: f32,
    /// Norms by the root of the mean of squares.
    pub rms: bool,
    /// (rows, columns) of patches that biases were learned for.
    pub grid: (usize, usize),
}

impl Sizes {
    pub fn norm(&self, modules: &Modules<'_>, names: &str) -> Result<Norm> {
        if self.rms {
            modules.rms_norm(names, self.width, self.epsilon)
        } else {
            modules.layer_norm(names, self.width, self.epsilon)
        }
    }
}

/// Cosines and sines by which patches rotate: [patches, 1, half a head] each.
pub struct Rotation {
    pub cosines: Tensor,
    pub sines: Tensor,
}

#[derive(Debug)]
pub struct Block {
    before: Norm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    after: Norm,
    up: Up,
    down: Linear,
    activation: Activation,
    heads: usize,
    pub bias: Option<BiasTable>,
}

#[derive(Debug)]
enum Up {
    Plain(Linear),
    /// A gate, and what it lets through.
    Gated(Linear, Linear),
    /// Both in one matrix.
    Joined(Linear),
}

impl Block {
    pub fn load(modules: &Modules<'_>, sizes: Sizes) -> Result<Self> {
        let (width, heads) = (sizes.width, sizes.heads);
        crate::models::detection::attention::check_heads(modules, width, heads)?;
        let attention = modules.at("attention");
        let linear = |names: &str| attention.sized_linear(names, width, width);
        let factors = |names: &'static str| modules.known(names).unwrap_or("lambda");
        let scaled = |names: &str, scales: &'static str, inputs: usize| {
            modules.scaled_linear(names, factors(scales), (inputs, width))
        };
        let plain = |names: &str| modules.linear(names, width);
        let up = if modules.has("mlp.weights_in") {
            Up::Joined(plain("mlp.weights_in")?)
        } else {
            let up = plain("intermediate.dense|mlp.fc1|mlp.up_proj|ffn.up_proj")?;
            match modules.known("mlp.gate_proj|ffn.gate_proj") {
                Some(name) => Up::Gated(modules.sized_linear(name, width, up.outputs())?, up),
                None => Up::Plain(up),
            }
        };
        let inner = match &up {
            Up::Plain(up) | Up::Gated(_, up) => up.outputs(),
            Up::Joined(up) => up.outputs() / 2,
        };
        let table = "attention.attention.relative_position_bias|relative_position_bias";
        Ok(Self {
            before: sizes.norm(modules, "layernorm_before|norm1|rms_norm1")?,
            query: linear("attention.query|q_proj")?,
            key: linear("attention.key|k_proj")?,
            value: linear("attention.value|v_proj")?,
            output: scaled(
                "attention.output.dense|attention.o_proj|attention.out_proj",
                "lambda_1|layer_scale1.lambda1",
                width,
            )?,
            after: sizes.norm(modules, "layernorm_after|norm2|rms_norm2")?,
            up,
            down: scaled(
                "output.dense|mlp.fc2|mlp.down_proj|ffn.down_proj|mlp.weights_out",
                "lambda_2|layer_scale2.lambda1",
                inner,
            )?,
            activation: sizes.activation,
            heads,
            bias: match modules.known(table) {
                Some(name) => Some(BiasTable::load(&modules.at(name), sizes.grid, heads)?),
                None => None,
            },
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for linear in [
            &self.query,
            &self.key,
            &self.value,
            &self.output,
            &self.down,
        ] {
            inventory.add_linear(linear)?;
        }
        match &self.up {
            Up::Plain(up) | Up::Joined(up) => inventory.add_linear(up)?,
            Up::Gated(gate, up) => {
                inventory.add_linear(gate)?;
                inventory.add_linear(up)?;
            }
        }
        inventory.add_norm(&self.before)?;
        inventory.add_norm(&self.after)
    }

    /// `x` is [tokens, width], and what is added to scores [1, heads, tokens, tokens].
    pub fn forward(
        &self,
        x: &Tensor,
        rotation: Option<&Rotation>,
        added: &[&Tensor],
    ) -> Result<Tensor> {
        let attended = self.attend(&self.before.forward(x)?, rotation, added)?;
        let x = elementwise::add(x, &attended)?;
        let fed = self.feed(&self.after.forward(&x)?)?;
        elementwise::add(&x, &fed)
    }

    fn attend(&self, x: &Tensor, rotation: Option<&Rotation>, added: &[&Tensor]) -> Result<Tensor> {
        let (tokens, width) = x.dims2()?;
        let size = width / self.heads;
        let heads = |linear: &Linear| -> Result<Tensor> {
            Ok(linear.forward(x)?.reshape((tokens, self.heads, size))?)
        };
        let (mut q, mut k, v) = (heads(&self.query)?, heads(&self.key)?, heads(&self.value)?);
        if let Some(rotation) = rotation {
            (q, k) = (rotated(&q, rotation)?, rotated(&k, rotation)?);
        }
        let found = if added.is_empty() {
            let scale = 1.0 / (size as f32).sqrt();
            let options = AttentionOptions::new(AttentionKind::Bidirectional, scale);
            let ends = [0, tokens as u32];
            attention(&q, &k, &v, &ends, &ends, &options)?.reshape((tokens, width))?
        } else {
            let group = |x: &Tensor| -> Result<Tensor> {
                Ok(x.transpose(0, 1)?.contiguous()?.unsqueeze(0)?)
            };
            let inputs = [group(&q)?, group(&k)?, group(&v)?];
            mixed(inputs.each_ref(), Scores::Product, added)?
        };
        self.output.forward(&found)
    }

    fn feed(&self, x: &Tensor) -> Result<Tensor> {
        let activated = Epilogue {
            activation: Some(self.activation),
            ..Epilogue::default()
        };
        let inner = match &self.up {
            Up::Plain(up) => up.forward_with(x, &activated)?,
            Up::Gated(gate, up) => {
                let gate = gate.forward_with(x, &activated)?;
                elementwise::multiply(&gate, &up.forward(x)?)?
            }
            Up::Joined(up) => {
                let both = up.forward(x)?;
                let half = both.dim(1)? / 2;
                let part = |start: usize| both.narrow(1, start, half)?.contiguous();
                let gate = kernels::activate(&part(0)?, Activation::Silu)?;
                elementwise::multiply(&gate, &part(half)?)?
            }
        };
        self.down.forward(&inner)
    }
}

/// The last rows of `x`, [tokens, heads, width], by their rotations; those before stay.
fn rotated(x: &Tensor, rotation: &Rotation) -> Result<Tensor> {
    let (tokens, _, width) = x.dims3()?;
    let count = rotation.cosines.dim(0)?;
    let (first, half) = (tokens - count, width / 2);
    let patches = x.narrow(0, first, count)?;
    let part = |start: usize| patches.narrow(2, start, half)?.contiguous();
    let (one, two) = (part(0)?, part(half)?);
    let (cosines, sines) = (
        rotation.cosines.to_dtype(x.dtype())?,
        rotation.sines.to_dtype(x.dtype())?,
    );
    let turn = |a: &Tensor, b: &Tensor| elementwise::multiply(a, b);
    let ahead = elementwise::subtract(&turn(&one, &cosines)?, &turn(&two, &sines)?)?;
    let behind = elementwise::add(&turn(&two, &cosines)?, &turn(&one, &sines)?)?;
    let patches = Tensor::cat(&[ahead, behind], 2)?;
    if first == 0 {
        return Ok(patches);
    }
    Ok(Tensor::cat(&[x.narrow(0, 0, first)?, patches], 0)?.contiguous()?)
}
