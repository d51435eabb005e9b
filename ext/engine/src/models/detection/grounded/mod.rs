//! Grounding DINO: the words of a text and the places of a picture look at each other, and the places that are most
//! like a word become queries.

mod decoder;
pub mod fusion;
pub mod text;

use candle_core::{DType, Device, Tensor};

use super::attention::{divisors, turns, Mlp, Order, Sizes, TEMPERATURE};
use super::deformable::{numbers, Levels, Reach, Settings};
use super::levels::{centres, level_positions, Projection};
use super::proposals::{anchors, check_places, largest};
use super::rt_detr::{rows_of_four, sigmoid, Each};
use super::{count, layers, size, Predictions};
use crate::models::config::activation;
use crate::models::convolutional::Backbone;
use crate::models::encoder::{self, Encoder};
use crate::models::modules::Modules;
use crate::nn::feature_map::FeatureMap;
use crate::nn::{elementwise, Inventory, Linear, Norm, PackedSequences};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::{RawConfig, HEADS, WIDTH};
use formats::image::View;
use formats::weights::WeightSource;
use kernels::tensor::matmul::matmul;
use kernels::Activation;
use serde_json::json;

#[derive(Debug)]
pub struct Grounded {
    backbone: Backbone,
    wanted: Vec<usize>,
    projections: Vec<Projection>,
    /// What is added to the positions of each level: [levels, width].
    levels: Tensor,
    text: Encoder,
    words: Linear,
    encoder: Vec<fusion::Layer>,
    proposals: Proposals,
    decoder: Vec<decoder::Layer>,
    norm: Norm,
    positions: Mlp,
    /// One for all layers, or one for each.
    boxes: Vec<Mlp>,
    likeness: Likeness,
    sizes: Sizes,
    temperature: f32,
    most_tokens: usize,
    device: Device,
    dtype: DType,
}

/// Of places of boxes, before their logarithm is taken.
const EPSILON: f32 = 1e-5;

/// What makes queries of places.
#[derive(Debug)]
struct Proposals {
    linear: Linear,
    norm: Norm,
    boxes: Mlp,
    likeness: Likeness,
    /// [queries, width]
    queries: Tensor,
}

/// How alike queries and words are: their products, which MM Grounding DINO divides by the root of their width and
/// adds a number to.
#[derive(Clone, Copy, Debug)]
struct Likeness {
    scale: f32,
    bias: f32,
}

impl Likeness {
    fn load(modules: &Modules<'_>, name: &str, width: usize) -> Result<Self> {
        let name = format!("{name}.bias");
        if !modules.has(&name) {
            return Ok(Self {
                scale: 1.0,
                bias: 0.0,
            });
        }
        modules.shaped(&name, &[])?;
        Ok(Self {
            scale: 1.0 / (width as f32).sqrt(),
            bias: modules.values(&name)?.first().copied().unwrap_or(0.0),
        })
    }

    /// [rows, tokens]
    fn of(self, rows: &Tensor, tokens: &Tensor) -> Result<Vec<f32>> {
        let tokens = tokens.t()?.contiguous()?;
        let products = numbers(&matmul(&rows.contiguous()?, &tokens, &CancelToken::new())?)?;
        let one = |product: f32| product * self.scale + self.bias;
        Ok(products.into_iter().map(one).collect())
    }
}

impl Grounded {
    pub fn load(
        raw: &RawConfig,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        int8: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        check(raw)?;
        let names = source.names();
        let modules = Modules::new(source, &names, (device, dtype), int8);
        let body = modules.at("model");
        let config = raw.nested("backbone_config")?;
        let inside = body.at("backbone.conv_encoder|backbone").at("model");
        let backbone = Backbone::load(Some(&config), &inside, cancel)?;
        let wanted = backbone.wanted(Some(&config))?;
        let width = size(raw, "d_model", 256, WIDTH)?;
        let projections = projections(raw, &body, (&backbone, &wanted), width)?;
        let blueprint = words_of(raw)?;
        let text = Encoder::load(&blueprint, source, device, dtype, int8, cancel)?;
        let shape = Shape::read(raw, width, projections.len())?;
        let decoder = body.at("decoder");
        let last = size(raw, "decoder_layers", 6, 1..=4096)? - 1;
        let last = format!("class_embed.{last}");
        let last = modules.known(&last).unwrap_or("class_embed.0");
        Ok(Self {
            levels: body.shaped("level_embed", &[projections.len(), width])?,
            words: body.sized_linear("text_projection", text.config().hidden_size, width)?,
            text,
            encoder: layers(raw, "encoder_layers", 6, cancel, |number| {
                let modules = body.at(format!("encoder.layers.{number}"));
                fusion::Layer::load(&modules, shape.encoder, &shape.over_places)
            })?,
            proposals: Proposals::load(raw, &body, shape.encoder)?,
            decoder: layers(raw, "decoder_layers", 6, cancel, |number| {
                let modules = decoder.at(format!("layers.{number}"));
                decoder::Layer::load(&modules, shape.decoder, &shape.over_boxes)
            })?,
            norm: decoder.layer_norm("layer_norm", width, shape.encoder.epsilon)?,
            positions: Mlp::numbered(
                &decoder.at("reference_points_head"),
                2 * width,
                Activation::Relu,
            )?,
            boxes: box_heads(raw, &modules, width)?,
            likeness: Likeness::load(&modules, last, width)?,
            temperature: raw
                .opt_f64("positional_embedding_temperature")?
                .unwrap_or(20.0) as f32,
            most_tokens: size(raw, "max_text_len", 256, 1..=1 << 16)?,
            sizes: shape.encoder,
            projections,
            backbone,
            wanted,
            device: device.clone(),
            dtype,
        })
    }

    /// Width, layers, heads and tokens.
    pub fn sizes(&self) -> (usize, usize, usize, usize) {
        let layers = self.encoder.len() + self.decoder.len();
        let Sizes { width, heads, .. } = self.sizes;
        (width, layers, heads, self.text.vocabulary())
    }

    /// The longest text.
    pub fn most_tokens(&self) -> usize {
        self.most_tokens
    }

    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = self.text.inventory()?;
        self.backbone.list(&mut inventory)?;
        for projection in &self.projections {
            projection.list(&mut inventory)?;
        }
        inventory.add_tensor(&self.levels);
        inventory.add_linear(&self.words)?;
        for layer in &self.encoder {
            layer.list(&mut inventory)?;
        }
        self.proposals.list(&mut inventory)?;
        for layer in &self.decoder {
            layer.list(&mut inventory)?;
        }
        inventory.add_norm(&self.norm)?;
        self.positions.list(&mut inventory)?;
        self.boxes
            .iter()
            .try_for_each(|mlp| mlp.list(&mut inventory))?;
        Ok(inventory)
    }

    /// The tokens of phrases, [tokens, width].
    pub fn read(&self, phrases: &PackedSequences, cancel: &CancelToken) -> Result<Tensor> {
        self.words.forward(&self.text.forward(phrases, cancel)?)
    }

    /// How like each token of `phrases` every query is, and its box; `tokens` are what `read` made of them.
    pub fn forward(
        &self,
        view: &View,
        phrases: &PackedSequences,
        tokens: &Tensor,
        cancel: &CancelToken,
    ) -> Result<Predictions> {
        let image = FeatureMap::of_view(view, (&self.device, self.dtype))?;
        let maps = self.maps(&image, cancel)?;
        let sizes: Vec<_> = maps.iter().map(FeatureMap::size).collect();
        check_places(
            sizes.iter().map(|size| size.0 * size.1).sum(),
            self.proposals.queries.dim(0)?,
        )?;
        let rows: Vec<_> = maps.iter().map(|map| &map.rows).collect();
        let mut places = Tensor::cat(&rows, 0)?.contiguous()?;
        let mut tokens = tokens.clone();
        let beside = fusion::Beside {
            place_positions: &level_positions(&sizes, &self.levels, self.temperature)?,
            token_positions: &self.token_positions(phrases.positions().unwrap_or_default())?,
            phrases: phrases.boundaries(),
            centres: &centres(&sizes),
            sizes: &sizes,
        };
        for layer in &self.encoder {
            cancel.check()?;
            (places, tokens) = layer.forward((&places, &tokens), &beside)?;
        }
        let levels = Levels {
            rows: places,
            sizes,
        };
        self.decode(&levels, &tokens, cancel)
    }

    fn decode(
        &self,
        levels: &Levels,
        tokens: &Tensor,
        cancel: &CancelToken,
    ) -> Result<Predictions> {
        let mut boxes = self.proposals.choose(levels, tokens)?.map_each(sigmoid);
        let mut x = self.proposals.queries.clone();
        for (number, layer) in self.decoder.iter().enumerate() {
            cancel.check()?;
            let positions = self.box_positions(&boxes)?;
            x = layer.forward(&x, &positions, &boxes, (levels, tokens))?;
            if number + 1 < self.decoder.len() {
                boxes = self.moved(number, &x, &boxes)?;
            }
        }
        let x = self.norm.forward(&x)?;
        let boxes = self.moved(self.decoder.len().saturating_sub(1), &x, &boxes)?;
        Ok(Predictions {
            logits: self.likeness.of(&x, tokens)?,
            classes: tokens.dim(0)?,
            boxes,
            order: None,
        })
    }

    fn maps(&self, image: &FeatureMap, cancel: &CancelToken) -> Result<Vec<FeatureMap>> {
        let seen = self.backbone.forward(image, &self.wanted, cancel)?;
        let mut maps: Vec<FeatureMap> = Vec::with_capacity(self.projections.len());
        for (number, projection) in self.projections.iter().enumerate() {
            cancel.check()?;
            // The coarsest levels are made of the backbone's last map, then of each other.
            let before = match number.checked_sub(seen.len()) {
                None => seen.get(number),
                Some(0) => seen.last(),
                Some(_) => maps.last(),
            };
            let before = before.ok_or_else(|| Error::Internal("a level without a map".into()))?;
            let map = projection.forward(before)?;
            maps.push(map);
        }
        Ok(maps)
    }

    /// Sines and cosines without what stands behind the point: transformers gives them the type of the positions, and
    /// these are whole numbers.
    fn token_positions(&self, positions: &[u32]) -> Result<Tensor> {
        let divisors = divisors(self.sizes.width, TEMPERATURE);
        let around =
            |&at: &u32| turns(at as f32 * std::f32::consts::TAU, &divisors).map(f32::trunc);
        let values: Vec<f32> = positions.iter().flat_map(around).collect();
        let shape = (positions.len(), self.sizes.width);
        Ok(Tensor::from_vec(values, shape, &self.device)?.to_dtype(self.dtype)?)
    }

    /// What stands beside queries whose boxes these are.
    fn box_positions(&self, boxes: &[[f32; 4]]) -> Result<Tensor> {
        let half = divisors(self.sizes.width / 2, TEMPERATURE);
        let values: Vec<f32> = boxes
            .iter()
            .flat_map(|[x, y, wide, high]| [y, x, wide, high])
            .flat_map(|at| turns(at * std::f32::consts::TAU, &half))
            .collect();
        let shape = (boxes.len(), 4 * half.len());
        let sines = Tensor::from_vec(values, shape, &self.device)?;
        self.positions.forward(&sines.to_dtype(self.dtype)?)
    }

    fn moved(&self, layer: usize, x: &Tensor, boxes: &[[f32; 4]]) -> Result<Vec<[f32; 4]>> {
        let head = self.boxes.get(layer).or(self.boxes.last());
        let head = head.ok_or_else(|| Error::Internal("a detector without boxes".into()))?;
        let added = rows_of_four(&head.forward(x)?)?;
        let moved = added.zip_each(boxes, |added, at| {
            let at = at.clamp(EPSILON, 1.0 - EPSILON);
            sigmoid(added + (at / (1.0 - at)).ln())
        });
        Ok(moved)
    }
}

/// What the layers of the encoder and of the decoder have in common.
struct Shape {
    encoder: Sizes,
    decoder: Sizes,
    over_places: Settings,
    over_boxes: Settings,
}

impl Shape {
    fn read(raw: &RawConfig, width: usize, levels: usize) -> Result<Self> {
        let name = raw.opt_string("activation_function")?.unwrap_or("relu");
        let sizes = |key: &str| -> Result<Sizes> {
            Ok(Sizes {
                width,
                heads: size(raw, key, 8, HEADS)?,
                activation: activation(name, raw.file())?,
                epsilon: raw.opt_f64("layer_norm_eps")?.unwrap_or(1e-5) as f32,
                order: Order::Post,
            })
        };
        let settings = |key: &str, reach: Reach| -> Result<Settings> {
            Ok(Settings {
                points: vec![size(raw, key, 4, 1..=256)?; levels],
                reach,
                nearest: false,
            })
        };
        Ok(Self {
            encoder: sizes("encoder_attention_heads")?,
            decoder: sizes("decoder_attention_heads")?,
            over_places: settings("encoder_n_points", Reach::Place)?,
            over_boxes: settings("decoder_n_points", Reach::Box(0.5))?,
        })
    }
}

fn words_of(raw: &RawConfig) -> Result<encoder::Blueprint> {
    let text = raw.opt_nested("text_config")?;
    let text = text.map_or_else(|| RawConfig::parse(raw.file(), "{}"), Ok)?;
    encoder::Blueprint::from_config(&text.with_defaults(json!({"model_type": "bert"})))
}

fn check(raw: &RawConfig) -> Result<()> {
    let refused = [("two_stage", true), ("embedding_init_target", true)];
    for (key, needed) in refused {
        if raw.opt_bool(key)?.unwrap_or(needed) != needed {
            let reason = format!("Grounding DINO with {key} {} is not supported", !needed);
            return Err(Error::unsupported(raw.file(), reason));
        }
    }
    let kind = raw.opt_string("position_embedding_type")?.unwrap_or("sine");
    if kind != "sine" || raw.opt_usize("query_dim")?.unwrap_or(4) != 4 {
        let reason =
            "Grounding DINO with learned positions or queries without boxes is not supported";
        return Err(Error::unsupported(raw.file(), reason));
    }
    let text = raw.opt_nested("text_config")?;
    let kind = text
        .as_ref()
        .map(RawConfig::model_type)
        .transpose()?
        .flatten();
    match kind {
        None | Some("bert") => Ok(()),
        Some(other) => {
            let reason = format!("Grounding DINO that reads texts with {other:?} is not supported");
            Err(Error::unsupported(raw.file(), reason))
        }
    }
}

fn projections(
    raw: &RawConfig,
    body: &Modules<'_>,
    (backbone, wanted): (&Backbone, &[usize]),
    width: usize,
) -> Result<Vec<Projection>> {
    let channels = backbone.channels();
    let channels: Vec<usize> = wanted.iter().map(|&stage| channels[stage]).collect();
    let levels = size(raw, "num_feature_levels", 4, 1..=64)?;
    if channels.is_empty() || levels < channels.len() {
        let reason = format!(
            "{levels} levels can't hold {} maps of a backbone",
            channels.len()
        );
        return Err(Error::corrupt(raw.file(), reason));
    }
    let each = |level: usize| {
        let modules = body.at(format!("input_proj_vision.{level}"));
        let last = channels.last().copied().unwrap_or(0);
        let (inputs, stride) = match level.checked_sub(channels.len()) {
            None => (channels[level], 1),
            Some(0) => (last, 2),
            Some(_) => (width, 2),
        };
        Projection::load(&modules, (inputs, width), stride)
    };
    (0..levels).map(each).collect()
}

fn box_heads(raw: &RawConfig, modules: &Modules<'_>, width: usize) -> Result<Vec<Mlp>> {
    let shared = raw.opt_bool("decoder_bbox_embed_share")?.unwrap_or(true);
    let layers = size(raw, "decoder_layers", 6, 1..=4096)?;
    let heads = modules.at("bbox_embed|model.decoder.bbox_embed");
    let each = |number: usize| {
        let modules = heads.at(number.to_string());
        let mlp = Mlp::numbered(&modules, width, Activation::Relu)?;
        super::check_outputs(&modules, &mlp, 4)?;
        Ok(mlp)
    };
    (0..if shared { 1 } else { layers }).map(each).collect()
}

impl Proposals {
    fn load(raw: &RawConfig, body: &Modules<'_>, sizes: Sizes) -> Result<Self> {
        let width = sizes.width;
        let boxes = body.at("encoder_output_bbox_embed");
        let boxes = Mlp::numbered(&boxes, width, Activation::Relu)?;
        super::check_outputs(body, &boxes, 4)?;
        let count = count(raw, "num_queries", 900)?;
        Ok(Self {
            linear: body.sized_linear("enc_output", width, width)?,
            norm: body.layer_norm("enc_output_norm", width, sizes.epsilon)?,
            boxes,
            likeness: Likeness::load(body, "encoder_output_class_embed", width)?,
            queries: body.shaped("query_position_embeddings.weight", &[count, width])?,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.linear)?;
        inventory.add_norm(&self.norm)?;
        inventory.add_tensor(&self.queries);
        self.boxes.list(inventory)
    }

    /// The boxes of the places that are most like a token, before the sigmoid.
    fn choose(&self, levels: &Levels, tokens: &Tensor) -> Result<Vec<[f32; 4]>> {
        let anchors = anchors(&levels.sizes);
        let rows = &levels.rows;
        let valid = anchors
            .iter()
            .map(|anchor| f32::from(u8::from(anchor.is_some())));
        let valid = Tensor::from_vec(valid.collect::<Vec<_>>(), (anchors.len(), 1), rows.device())?;
        let memory = elementwise::multiply(rows, &valid.to_dtype(rows.dtype())?)?;
        let memory = self.norm.forward(&self.linear.forward(&memory)?)?;
        let likeness = self.likeness.of(&memory, tokens)?;
        let best = likeness
            .chunks_exact(tokens.dim(0)?.max(1))
            .map(|row| row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let chosen = largest(best, self.queries.dim(0)?);
        let places = Tensor::from_slice(&chosen, chosen.len(), rows.device())?;
        let added = rows_of_four(&self.boxes.forward(&memory.index_select(&places, 0)?)?)?;
        let boxes = chosen.iter().zip(&added).map(|(&at, added)| {
            let anchor = anchors[at as usize].unwrap_or([f32::MAX; 4]);
            std::array::from_fn(|axis| anchor[axis] + added[axis])
        });
        Ok(boxes.collect())
    }
}
