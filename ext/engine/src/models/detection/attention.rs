//! Attention whose queries and keys, but not its values, know their places; and the layers around it.

use candle_core::Tensor;

use crate::models::modules::Modules;
use crate::nn::{attention, elementwise, AttentionKind, AttentionOptions};
use crate::nn::{Epilogue, Inventory, Linear, Norm};
use crate::{Error, Result};
use kernels::Activation;

#[derive(Debug)]
pub struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    heads: usize,
}

impl Attention {
    pub fn load(modules: &Modules<'_>, width: usize, heads: usize) -> Result<Self> {
        let names = ["q_proj", "k_proj", "v_proj", "o_proj|out_proj"];
        Self::named(modules, names, width, heads)
    }

    /// Of modules with other names.
    pub fn named(
        modules: &Modules<'_>,
        [query, key, value, output]: [&str; 4],
        width: usize,
        heads: usize,
    ) -> Result<Self> {
        check_heads(modules, width, heads)?;
        let linear = |names: &str| modules.sized_linear(names, width, width);
        Ok(Self {
            query: linear(query)?,
            key: linear(key)?,
            value: linear(value)?,
            output: linear(output)?,
            heads,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        [&self.query, &self.key, &self.value, &self.output]
            .into_iter()
            .try_for_each(|linear| inventory.add_linear(linear))
    }

    /// What queries find among keys, and get of values.
    pub fn forward(&self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        let ends = [0, queries.dim(0)? as u32];
        self.within([queries, keys, values], &ends, &[0, keys.dim(0)? as u32])
    }

    /// The same of several sequences, each of which sees its own keys.
    pub fn within(
        &self,
        [queries, keys, values]: [&Tensor; 3],
        ends: &[u32],
        key_ends: &[u32],
    ) -> Result<Tensor> {
        let split = |linear: &Linear, x: &Tensor| -> Result<Tensor> {
            let rows = linear.forward(x)?;
            let (count, width) = rows.dims2()?;
            Ok(rows.reshape((count, self.heads, width / self.heads))?)
        };
        let q = split(&self.query, queries)?;
        let k = split(&self.key, keys)?;
        let v = split(&self.value, values)?;
        let (count, _, width) = q.dims3()?;
        let scale = 1.0 / (width as f32).sqrt();
        let options = AttentionOptions::new(AttentionKind::Bidirectional, scale);
        let mixed = attention(&q, &k, &v, ends, key_ends, &options)?;
        self.output
            .forward(&mixed.reshape((count, self.heads * width))?)
    }
}

pub fn check_heads(modules: &Modules<'_>, width: usize, heads: usize) -> Result<()> {
    if heads > 0 && width.is_multiple_of(heads) {
        return Ok(());
    }
    Err(modules.corrupt(format!(
        "{width} channels can't be divided into {heads} heads"
    )))
}

/// Linear layers with an activation between them.
#[derive(Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
    activation: Activation,
}

impl Mlp {
    /// `layers.0`, `layers.1` … as many as there are.
    pub fn numbered(modules: &Modules<'_>, inputs: usize, activation: Activation) -> Result<Self> {
        let mut layers: Vec<Linear> = Vec::new();
        let mut width = inputs;
        while layers.is_empty() || modules.has(&format!("layers.{}", layers.len())) {
            let linear = modules.linear(&format!("layers.{}", layers.len()), width)?;
            width = linear.outputs();
            layers.push(linear);
        }
        Ok(Self { layers, activation })
    }

    /// As many as there are names.
    pub fn named(
        modules: &Modules<'_>,
        inputs: usize,
        names: &[&str],
        activation: Activation,
    ) -> Result<Self> {
        let mut layers: Vec<Linear> = Vec::new();
        for name in names {
            let width = layers.last().map_or(inputs, Linear::outputs);
            layers.push(modules.linear(name, width)?);
        }
        Ok(Self { layers, activation })
    }

    /// The two of a transformer's layer.
    pub fn pair(modules: &Modules<'_>, width: usize, activation: Activation) -> Result<Self> {
        let up = modules.linear("mlp.fc1|mlp.layers.0|fc1", width)?;
        let down = modules.sized_linear("mlp.fc2|mlp.layers.1|fc2", up.outputs(), width)?;
        Ok(Self {
            layers: vec![up, down],
            activation,
        })
    }

    pub fn outputs(&self) -> usize {
        self.layers.last().map_or(0, Linear::outputs)
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let mut layers = self.layers.iter();
        layers.try_for_each(|linear| inventory.add_linear(linear))
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for (number, layer) in self.layers.iter().enumerate() {
            let inside = number + 1 < self.layers.len();
            let epilogue = Epilogue {
                activation: inside.then_some(self.activation),
                ..Epilogue::default()
            };
            x = layer.forward_with(&x, &epilogue)?;
        }
        Ok(x)
    }
}

/// Where the norms of a layer stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Behind what a sublayer adds to.
    Post,
    /// Before each sublayer (Table Transformer).
    Pre,
    /// Before each sublayer, and the MLP adds to what it reads (RT-DETR's `normalize_before`).
    PreReplaced,
}

/// A sublayer's norm, by the order of its layer.
pub fn residual(
    x: &Tensor,
    norm: &Norm,
    order: Order,
    sublayer: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    match order {
        Order::Post => norm.forward(&elementwise::add(x, &sublayer(x)?)?),
        Order::Pre | Order::PreReplaced => elementwise::add(x, &sublayer(&norm.forward(x)?)?),
    }
}

/// Self-attention and an MLP.
#[derive(Debug)]
pub struct EncoderLayer {
    attention: Attention,
    attention_norm: Norm,
    mlp: Mlp,
    mlp_norm: Norm,
    order: Order,
}

/// Of the sines of DETR's positions.
pub const TEMPERATURE: f32 = 10_000.0;

/// What the layers of a stack have in common.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub width: usize,
    pub heads: usize,
    pub activation: Activation,
    pub epsilon: f32,
    pub order: Order,
}

impl EncoderLayer {
    pub fn load(modules: &Modules<'_>, sizes: Sizes) -> Result<Self> {
        let norm = |name: &str| modules.layer_norm(name, sizes.width, sizes.epsilon);
        Ok(Self {
            attention: Attention::load(&modules.at("self_attn"), sizes.width, sizes.heads)?,
            attention_norm: norm("self_attn_layer_norm")?,
            mlp: Mlp::pair(modules, sizes.width, sizes.activation)?,
            mlp_norm: norm("final_layer_norm")?,
            order: sizes.order,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.attention.list(inventory)?;
        self.mlp.list(inventory)?;
        inventory.add_norm(&self.attention_norm)?;
        inventory.add_norm(&self.mlp_norm)
    }

    pub fn forward(&self, x: &Tensor, positions: Option<&Tensor>) -> Result<Tensor> {
        let x = residual(x, &self.attention_norm, self.order, |x| {
            let placed = placed(x, positions)?;
            self.attention.forward(&placed, &placed, x)
        })?;
        match self.order {
            Order::PreReplaced => {
                let x = self.mlp_norm.forward(&x)?;
                elementwise::add(&x, &self.mlp.forward(&x)?)
            }
            order => residual(&x, &self.mlp_norm, order, |x| self.mlp.forward(x)),
        }
    }
}

/// Rows with their positions.
pub fn placed(x: &Tensor, positions: Option<&Tensor>) -> Result<Tensor> {
    match positions {
        Some(positions) => elementwise::add(x, positions),
        None => Ok(x.clone()),
    }
}

/// What angles are divided by before their sines and cosines are taken, in turns.
pub fn divisors(count: usize, temperature: f32) -> Vec<f32> {
    let divisor = |at: usize| temperature.powf(2.0 * (at / 2) as f32 / count as f32);
    (0..count).map(divisor).collect()
}

/// Sines and cosines of an angle, in turns.
pub fn turns(angle: f32, divisors: &[f32]) -> impl Iterator<Item = f32> + '_ {
    let turn = move |(at, divisor): (usize, &f32)| match at % 2 {
        0 => (angle / divisor).sin(),
        _ => (angle / divisor).cos(),
    };
    divisors.iter().enumerate().map(turn)
}

/// Sines and cosines of the rows and columns of a map, as DETR has them: of places between 0 and 2π.
pub fn normalized_sines(
    (height, width): (usize, usize),
    channels: usize,
    temperature: f32,
) -> Result<Vec<f32>> {
    let half = channels / 2;
    if half == 0 || !channels.is_multiple_of(4) {
        let reason = format!("{channels} channels can't hold the sines of rows and columns");
        return Err(Error::CorruptModel(reason));
    }
    let angle = |at: usize, count: usize| {
        (at + 1) as f32 / (count as f32 + 1e-6) * (2.0 * std::f64::consts::PI) as f32
    };
    let divisors = divisors(half, temperature);
    let mut values = Vec::with_capacity(height * width * channels);
    for y in 0..height {
        for x in 0..width {
            for angle in [angle(y, height), angle(x, width)] {
                values.extend(turns(angle, &divisors));
            }
        }
    }
    Ok(values)
}

/// The same as RT-DETR has them: sines, then cosines, of rows and then of columns.
pub fn counted_sines(
    (height, width): (usize, usize),
    channels: usize,
    temperature: f64,
) -> Result<Vec<f32>> {
    let quarter = channels / 4;
    if quarter == 0 || !channels.is_multiple_of(4) {
        let reason = format!("{channels} channels can't hold the sines of rows and columns");
        return Err(Error::CorruptModel(reason));
    }
    let frequencies: Vec<f64> = (0..quarter)
        .map(|at| 1.0 / temperature.powf(at as f64 / quarter as f64))
        .collect();
    let mut values = Vec::with_capacity(height * width * channels);
    for y in 0..height {
        for x in 0..width {
            for at in [y, x] {
                let angles = frequencies.iter().map(|frequency| at as f64 * frequency);
                values.extend(angles.clone().map(|angle| angle.sin() as f32));
                values.extend(angles.map(|angle| angle.cos() as f32));
            }
        }
    }
    Ok(values)
}
