//! Maps of several sizes whose places look at each other.

use candle_core::Tensor;

use super::attention::{normalized_sines, placed, residual, Mlp, Order, Sizes};
use super::deformable::{Deformable, Levels, Settings};
use crate::models::modules::{Convolution, Modules};
use crate::nn::feature_map::FeatureMap;
use crate::nn::{elementwise, Conv2d, GroupNorm, Inventory, Norm};
use crate::Result;
use kernels::Activation;

/// A map of the width of the model.
#[derive(Debug)]
pub struct Projection {
    convolution: Conv2d,
    norm: GroupNorm,
    activation: Option<Activation>,
}

/// The groups of norms behind projections.
const GROUPS: usize = 32;
const EPSILON: f32 = 1e-5;

impl Projection {
    /// A convolution `0` and its norm `1`.
    pub fn load(
        modules: &Modules<'_>,
        (inputs, width): (usize, usize),
        stride: usize,
    ) -> Result<Self> {
        let of = Convolution {
            stride,
            ..Convolution::new("0", "", None)
        };
        Self::activated(modules, (inputs, width), of, None)
    }

    /// The same with an activation behind it.
    pub fn activated(
        modules: &Modules<'_>,
        (inputs, width): (usize, usize),
        of: Convolution<'_>,
        activation: Option<Activation>,
    ) -> Result<Self> {
        let convolution = modules.convolution(inputs, of)?;
        let weight = modules.shaped("1.weight", &[width])?;
        let bias = modules.shaped("1.bias", &[width])?;
        if convolution.outputs() != width {
            let reason = format!(
                "{} makes {} channels",
                modules.path(),
                convolution.outputs()
            );
            return Err(modules.corrupt(reason));
        }
        Ok(Self {
            convolution,
            norm: GroupNorm::new(&weight, &bias, GROUPS, EPSILON)?,
            activation,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.norm.list(inventory);
        self.convolution.list(inventory)
    }

    pub fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let map = self.norm.forward(&self.convolution.forward(map)?)?;
        match self.activation {
            Some(activation) => map.activated(activation),
            None => Ok(map),
        }
    }
}

/// Attention of all places to some places around each, and an MLP.
#[derive(Debug)]
pub struct DeformableLayer {
    attention: Deformable,
    attention_norm: Norm,
    mlp: Mlp,
    mlp_norm: Norm,
}

impl DeformableLayer {
    pub fn load(modules: &Modules<'_>, sizes: Sizes, settings: &Settings) -> Result<Self> {
        let norm = |name: &str| modules.layer_norm(name, sizes.width, sizes.epsilon);
        let attention = modules.at("self_attn");
        let places = (sizes.width, sizes.heads);
        Ok(Self {
            attention: Deformable::load(&attention, places, settings.clone())?,
            attention_norm: norm("self_attn_layer_norm")?,
            mlp: Mlp::pair(modules, sizes.width, sizes.activation)?,
            mlp_norm: norm("final_layer_norm")?,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.attention.list(inventory)?;
        self.mlp.list(inventory)?;
        inventory.add_norm(&self.attention_norm)?;
        inventory.add_norm(&self.mlp_norm)
    }

    /// The places of all levels, with what is added to them as queries and where the middle of each is.
    pub fn forward(
        &self,
        levels: &Levels,
        positions: &Tensor,
        centres: &[[f32; 4]],
    ) -> Result<Tensor> {
        let x = residual(&levels.rows, &self.attention_norm, Order::Post, |x| {
            self.attention
                .forward(&placed(x, Some(positions))?, centres, levels)
        })?;
        residual(&x, &self.mlp_norm, Order::Post, |x| self.mlp.forward(x))
    }
}

/// The middle of every place of all levels, as parts of the picture; such a place has no size.
pub fn centres(sizes: &[(usize, usize)]) -> Vec<[f32; 4]> {
    let mut centres = Vec::new();
    for &(height, width) in sizes {
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
            let part = |at: usize, count: usize| (at as f32 + 0.5) / count as f32;
            centres.push([part(x, width), part(y, height), 0.0, 0.0]);
        }
    }
    centres
}

/// What is added to the places of all levels: sines of rows and columns, and the level's own row of `levels`.
pub fn level_positions(
    sizes: &[(usize, usize)],
    levels: &Tensor,
    temperature: f32,
) -> Result<Tensor> {
    let width = levels.dim(1)?;
    let mut parts = Vec::with_capacity(sizes.len());
    for (number, &size) in sizes.iter().enumerate() {
        let sines = normalized_sines(size, width, temperature)?;
        let sines = Tensor::from_vec(sines, (size.0 * size.1, width), levels.device())?;
        let sines = sines.to_dtype(levels.dtype())?;
        parts.push(elementwise::add(&sines, &levels.get(number)?)?);
    }
    Ok(Tensor::cat(&parts, 0)?.contiguous()?)
}
