//! The transformer of Mask2Former: queries look at the places that their own masks cover.

use candle_core::Tensor;

use super::pixels::{Pixels, LEVELS};
use crate::models::config::activation;
use crate::models::detection::attention::{
    check_heads, normalized_sines, placed, residual, Attention, Mlp, Order, Sizes, TEMPERATURE,
};
use crate::models::detection::numbers;
use crate::models::modules::{Convolution, Modules};
use crate::models::towers::scores::{mixed, Scores};
use crate::nn::feature_map::FeatureMap;
use crate::nn::{elementwise, Conv2d, Inventory, Linear, Norm};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::{RawConfig, HEADS, WIDTH};
use kernels::tensor::matmul::matmul;
use kernels::Activation;

const EPSILON: f32 = 1e-5;
/// Added to the scores of places that a query must not see.
const UNSEEN: f32 = -1e30;

#[derive(Debug)]
pub struct MaskDecoder {
    /// [queries, width] both.
    queries: Tensor,
    positions: Tensor,
    /// Of the maps, where these have another width.
    inputs: Vec<Option<Conv2d>>,
    /// [levels, width]
    levels: Tensor,
    layers: Vec<Layer>,
    norm: Norm,
    masks: Mlp,
    width: usize,
}

#[derive(Debug)]
struct Layer {
    cross: [Linear; 4],
    cross_norm: Norm,
    attention: Attention,
    attention_norm: Norm,
    mlp: Mlp,
    mlp_norm: Norm,
    sizes: Sizes,
}

/// What the last layer made of the queries, and their masks.
pub struct Decoded {
    /// [queries, width]
    pub queries: Tensor,
    /// Its channels are the masks of queries, before the sigmoid.
    pub masks: FeatureMap,
}

impl Layer {
    fn load(modules: &Modules<'_>, sizes: Sizes) -> Result<Self> {
        let width = sizes.width;
        check_heads(modules, width, sizes.heads)?;
        let norm = |name: &str| modules.layer_norm(name, width, sizes.epsilon);
        let cross = modules.at("cross_attn");
        let weight = cross.shaped("in_proj_weight", &[3 * width, width])?;
        let bias = cross.shaped("in_proj_bias", &[3 * width])?;
        let part = |number: usize| -> Result<Linear> {
            let own = |x: &Tensor| x.narrow(0, number * width, width)?.contiguous();
            Linear::new(own(&weight)?, Some(own(&bias)?))
        };
        let output = cross.sized_linear("out_proj", width, width)?;
        Ok(Self {
            cross: [part(0)?, part(1)?, part(2)?, output],
            cross_norm: norm("cross_attn_layer_norm")?,
            attention: Attention::load(&modules.at("self_attn"), width, sizes.heads)?,
            attention_norm: norm("self_attn_layer_norm")?,
            mlp: Mlp::pair(modules, width, sizes.activation)?,
            mlp_norm: norm("final_layer_norm")?,
            sizes,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for linear in &self.cross {
            inventory.add_linear(linear)?;
        }
        self.attention.list(inventory)?;
        self.mlp.list(inventory)?;
        [&self.cross_norm, &self.attention_norm, &self.mlp_norm]
            .into_iter()
            .try_for_each(|norm| inventory.add_norm(norm))
    }

    /// `hidden` is added to the scores of queries and places: [1, 1, queries, places].
    fn forward(
        &self,
        x: &Tensor,
        positions: &Tensor,
        (keys, values): (&Tensor, &Tensor),
        hidden: &Tensor,
    ) -> Result<Tensor> {
        let order = self.sizes.order;
        let split = |linear: &Linear, x: &Tensor| -> Result<Tensor> {
            let rows = linear.forward(x)?;
            let (count, width) = rows.dims2()?;
            let shape = (1, count, self.sizes.heads, width / self.sizes.heads);
            Ok(rows.reshape(shape)?.transpose(1, 2)?.contiguous()?)
        };
        let x = residual(x, &self.cross_norm, order, |x| {
            let [query, key, value, output] = &self.cross;
            let q = split(query, &placed(x, Some(positions))?)?;
            let (k, v) = (split(key, keys)?, split(value, values)?);
            output.forward(&mixed([&q, &k, &v], Scores::Product, &[hidden])?)
        })?;
        let x = residual(&x, &self.attention_norm, order, |x| {
            let placed = placed(x, Some(positions))?;
            self.attention.forward(&placed, &placed, x)
        })?;
        residual(&x, &self.mlp_norm, order, |x| self.mlp.forward(x))
    }
}

impl MaskDecoder {
    /// Of maps with `inputs` channels, whose masks are products with `mask_width` numbers.
    pub fn load(
        raw: &RawConfig,
        modules: &Modules<'_>,
        (inputs, mask_width): (usize, usize),
        cancel: &CancelToken,
    ) -> Result<Self> {
        let width = raw.opt_usize_in("hidden_dim", WIDTH)?.unwrap_or(256);
        let count = raw.opt_usize_in("num_queries", 1..=1 << 12)?.unwrap_or(100);
        let name = raw.opt_string("activation_function")?.unwrap_or("relu");
        let sizes = Sizes {
            width,
            heads: raw.opt_usize_in("num_attention_heads", HEADS)?.unwrap_or(8),
            activation: activation(name, raw.file())?,
            epsilon: EPSILON,
            order: if raw.opt_bool("pre_norm")?.unwrap_or(false) {
                Order::Pre
            } else {
                Order::Post
            },
        };
        let decoder = modules.at("decoder");
        let masks = decoder.at("mask_predictor.mask_embedder");
        let names = ["0.0", "1.0", "2.0"];
        let masks = Mlp::named(&masks, width, &names, Activation::Relu)?;
        if masks.outputs() != mask_width {
            let reason = format!(
                "masks of {} numbers where {mask_width} are wanted",
                masks.outputs()
            );
            return Err(modules.corrupt(reason));
        }
        let mut layers = Vec::new();
        for number in 0..raw.opt_usize_in("decoder_layers", 1..=4096)?.unwrap_or(10) - 1 {
            cancel.check()?;
            let modules = decoder.at(format!("layers.{number}"));
            layers.push(Layer::load(&modules, sizes)?);
        }
        let projected =
            inputs != width || raw.opt_bool("enforce_input_projection")?.unwrap_or(false);
        let projection = |number: usize| -> Result<Option<Conv2d>> {
            let name = format!("input_projections.{number}");
            let own = projected.then(|| {
                let convolution = modules.convolution(inputs, Convolution::new(&name, "", None))?;
                match convolution.outputs() {
                    found if found == width => Ok(convolution),
                    found => Err(modules.corrupt(format!("{name} makes {found} channels"))),
                }
            });
            own.transpose()
        };
        Ok(Self {
            queries: modules.shaped("queries_features.weight", &[count, width])?,
            positions: modules.shaped("queries_embedder.weight", &[count, width])?,
            inputs: (0..LEVELS).map(projection).collect::<Result<_>>()?,
            levels: modules.shaped("level_embed.weight", &[LEVELS, width])?,
            layers,
            norm: decoder.layer_norm("layernorm", width, EPSILON)?,
            masks,
            width,
        })
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for tensor in [&self.queries, &self.positions, &self.levels] {
            inventory.add_tensor(tensor);
        }
        for convolution in self.inputs.iter().flatten() {
            convolution.list(inventory)?;
        }
        for layer in &self.layers {
            layer.list(inventory)?;
        }
        inventory.add_norm(&self.norm)?;
        self.masks.list(inventory)
    }

    pub fn forward(&self, pixels: &Pixels, cancel: &CancelToken) -> Result<Decoded> {
        let mut levels = Vec::with_capacity(LEVELS);
        for (number, (map, input)) in pixels.maps.iter().zip(&self.inputs).enumerate() {
            let map = match input {
                Some(convolution) => convolution.forward(map)?,
                None => map.clone(),
            };
            let values = elementwise::add(&map.rows, &self.levels.get(number)?)?;
            let sines = normalized_sines(map.size(), self.width, TEMPERATURE)?;
            let sines = Tensor::from_vec(sines, values.shape(), values.device())?;
            let keys = elementwise::add(&values, &sines.to_dtype(values.dtype())?)?;
            levels.push((map.size(), keys, values));
        }
        let mut x = self.queries.clone();
        for (number, layer) in self.layers.iter().enumerate() {
            cancel.check()?;
            let level = levels.get(number % LEVELS);
            let (size, keys, values) =
                level.ok_or_else(|| Error::Internal("a level without a map".into()))?;
            let masks = self.masks_of(&self.norm.forward(&x)?, &pixels.finest)?;
            let hidden = hidden(&masks.stretched(*size)?)?;
            x = layer.forward(&x, &self.positions, (keys, values), &hidden)?;
        }
        let queries = self.norm.forward(&x)?;
        Ok(Decoded {
            masks: self.masks_of(&queries, &pixels.finest)?,
            queries,
        })
    }

    fn masks_of(&self, queries: &Tensor, finest: &FeatureMap) -> Result<FeatureMap> {
        let masks = self.masks.forward(queries)?.t()?.contiguous()?;
        let rows = finest.rows.contiguous()?;
        finest.with(matmul(&rows, &masks, &CancelToken::new())?)
    }
}

/// What hides the places outside of its mask from each query; one whose mask is empty sees all.
fn hidden(masks: &FeatureMap) -> Result<Tensor> {
    let (places, queries) = masks.rows.dims2()?;
    let values = numbers(&masks.rows)?;
    let mut hidden = vec![0f32; queries * places];
    for (query, row) in hidden.chunks_mut(places.max(1)).enumerate() {
        let own = || values.iter().skip(query).step_by(queries);
        if own().all(|&value| value < 0.0) {
            continue;
        }
        for (place, _) in own().enumerate().filter(|(_, &value)| value < 0.0) {
            row[place] = UNSEEN;
        }
    }
    let device = masks.rows.device();
    Ok(Tensor::from_vec(hidden, (1, 1, queries, places), device)?)
}
