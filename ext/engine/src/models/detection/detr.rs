//! DETR and Table Transformer: an encoder over the places of a map, and queries that each find one thing.

use candle_core::Tensor;

use super::attention::{normalized_sines, placed, residual};
use super::attention::{Attention, EncoderLayer, Mlp, Order, Sizes, TEMPERATURE};
use super::{count, layers, Predictions};
use crate::models::config::activation;
use crate::models::convolutional::Backbone;
use crate::models::modules::{Convolution, Modules};
use crate::nn::feature_map::FeatureMap;
use crate::nn::{Conv2d, Inventory, Linear, Norm};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::{RawConfig, HEADS, WIDTH};

#[derive(Debug)]
pub struct Detr {
    backbone: Backbone,
    wanted: Vec<usize>,
    projection: Conv2d,
    encoder: Vec<EncoderLayer>,
    encoder_norm: Option<Norm>,
    decoder: Vec<DecoderLayer>,
    decoder_norm: Norm,
    /// Where each query is, in a manner of speaking: [queries, width].
    queries: Tensor,
    classes: Linear,
    boxes: Mlp,
    width: usize,
    /// Of the decoder, which is run over it once more for each layer's result (`auxiliary_loss`).
    norm_each: bool,
}

#[derive(Debug)]
struct DecoderLayer {
    attention: Attention,
    attention_norm: Norm,
    cross: Attention,
    cross_norm: Norm,
    mlp: Mlp,
    mlp_norm: Norm,
    order: Order,
}

impl DecoderLayer {
    fn load(modules: &Modules<'_>, sizes: Sizes) -> Result<Self> {
        let norm = |name: &str| modules.layer_norm(name, sizes.width, sizes.epsilon);
        let attention = |name: &str| Attention::load(&modules.at(name), sizes.width, sizes.heads);
        Ok(Self {
            attention: attention("self_attn")?,
            attention_norm: norm("self_attn_layer_norm")?,
            cross: attention("encoder_attn")?,
            cross_norm: norm("encoder_attn_layer_norm")?,
            mlp: Mlp::pair(modules, sizes.width, sizes.activation)?,
            mlp_norm: norm("final_layer_norm")?,
            order: sizes.order,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.attention.list(inventory)?;
        self.cross.list(inventory)?;
        self.mlp.list(inventory)?;
        [&self.attention_norm, &self.cross_norm, &self.mlp_norm]
            .into_iter()
            .try_for_each(|norm| inventory.add_norm(norm))
    }

    /// `keys` are the places with their positions, `values` the places.
    fn forward(
        &self,
        x: &Tensor,
        queries: &Tensor,
        keys: &Tensor,
        values: &Tensor,
    ) -> Result<Tensor> {
        let x = residual(x, &self.attention_norm, self.order, |x| {
            let placed = placed(x, Some(queries))?;
            self.attention.forward(&placed, &placed, x)
        })?;
        let x = residual(&x, &self.cross_norm, self.order, |x| {
            self.cross.forward(&placed(x, Some(queries))?, keys, values)
        })?;
        residual(&x, &self.mlp_norm, self.order, |x| self.mlp.forward(x))
    }
}

impl Detr {
    pub fn load(raw: &RawConfig, modules: &Modules<'_>, cancel: &CancelToken) -> Result<Self> {
        let usual = raw.opt_string("position_embedding_type")?.unwrap_or("sine");
        if usual != "sine" || raw.opt_bool("dilation")?.unwrap_or(false) {
            let reason = "learned positions and dilated backbones of DETR are not supported";
            return Err(Error::unsupported(raw.file(), reason));
        }
        let body = modules.at("model");
        let backbone = body.at("backbone.conv_encoder|backbone").at("model");
        let config = raw.opt_nested("backbone_config")?;
        // What timm made has its own names, whatever configuration stands beside it.
        let config = config.filter(|_| backbone.has("encoder"));
        let backbone = Backbone::load(config.as_ref(), &backbone, cancel)?;
        let wanted = match &config {
            Some(_) => backbone.wanted(config.as_ref())?,
            None => backbone.wanted(None)?,
        };
        let width = raw
            .opt_usize_in(["d_model", "hidden_size"], WIDTH)?
            .unwrap_or(256);
        let channels = wanted
            .last()
            .and_then(|&last| backbone.channels().get(last).copied());
        let of = Convolution::new("input_projection", "", None);
        let projection = body.convolution(channels.unwrap_or(0), of)?;
        let sizes = |heads: &str| -> Result<Sizes> {
            let name = raw.opt_string("activation_function")?.unwrap_or("relu");
            Ok(Sizes {
                width,
                heads: raw.opt_usize_in(heads, HEADS)?.unwrap_or(8),
                activation: activation(name, raw.file())?,
                epsilon: 1e-5,
                order: if raw.model_type()? == Some("table-transformer") {
                    Order::Pre
                } else {
                    Order::Post
                },
            })
        };
        let (encoder, decoder) = (
            sizes("encoder_attention_heads")?,
            sizes("decoder_attention_heads")?,
        );
        let queries = count(raw, "num_queries", 100)?;
        let boxes = Mlp::numbered(
            &modules.at("bbox_predictor"),
            width,
            kernels::Activation::Relu,
        )?;
        super::check_outputs(modules, &boxes, 4)?;
        Ok(Self {
            wanted,
            backbone,
            projection,
            encoder: layers(raw, "encoder_layers", 6, cancel, |number| {
                EncoderLayer::load(&body.at(format!("encoder.layers.{number}")), encoder)
            })?,
            encoder_norm: if encoder.order == Order::Pre {
                Some(body.layer_norm("encoder.layernorm", width, 1e-5)?)
            } else {
                None
            },
            decoder: layers(raw, "decoder_layers", 6, cancel, |number| {
                DecoderLayer::load(&body.at(format!("decoder.layers.{number}")), decoder)
            })?,
            decoder_norm: body.layer_norm("decoder.layernorm", width, 1e-5)?,
            queries: body.shaped("query_position_embeddings.weight", &[queries, width])?,
            classes: modules.linear("class_labels_classifier", width)?,
            boxes,
            width,
            norm_each: raw.opt_bool("auxiliary_loss")?.unwrap_or(false),
        })
    }

    pub fn layer_count(&self) -> usize {
        self.encoder.len() + self.decoder.len()
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// How many classes there are, without the one that stands for nothing.
    pub fn classes(&self) -> usize {
        self.classes.outputs().saturating_sub(1)
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.backbone.list(inventory)?;
        self.projection.list(inventory)?;
        self.encoder
            .iter()
            .try_for_each(|layer| layer.list(inventory))?;
        self.decoder
            .iter()
            .try_for_each(|layer| layer.list(inventory))?;
        for norm in self.encoder_norm.iter().chain([&self.decoder_norm]) {
            inventory.add_norm(norm)?;
        }
        inventory.add_tensor(&self.queries);
        inventory.add_linear(&self.classes)?;
        self.boxes.list(inventory)
    }

    pub fn forward(&self, image: &FeatureMap, cancel: &CancelToken) -> Result<Predictions> {
        let maps = self.backbone.forward(image, &self.wanted, cancel)?;
        let map = maps
            .last()
            .ok_or_else(|| Error::Internal("a backbone made no map".into()))?;
        let map = self.projection.forward(map)?;
        let sines = normalized_sines(map.size(), self.width, TEMPERATURE)?;
        let rows = &map.rows;
        let positions = Tensor::from_vec(sines, rows.shape(), rows.device())?;
        let positions = positions.to_dtype(rows.dtype())?;
        let mut places = rows.clone();
        for layer in &self.encoder {
            cancel.check()?;
            places = layer.forward(&places, Some(&positions))?;
        }
        if let Some(norm) = &self.encoder_norm {
            places = norm.forward(&places)?;
        }
        let keys = placed(&places, Some(&positions))?;
        let mut x = self.queries.zeros_like()?;
        for layer in &self.decoder {
            cancel.check()?;
            x = layer.forward(&x, &self.queries, &keys, &places)?;
            if self.norm_each {
                x = self.decoder_norm.forward(&x)?;
            }
        }
        let x = self.decoder_norm.forward(&x)?;
        Predictions::of(&self.classes.forward(&x)?, &self.boxes.forward(&x)?)
    }
}
