//! RT-DETR, RT-DETRv2 and D-FINE: the best places of all levels become queries, whose boxes each layer refines.

use candle_core::Tensor;

use super::attention::{placed, residual, Attention, Mlp, Order};
use super::deformable::{numbers, Deformable, Levels, Reach, Settings};
use super::distribution::Distributions;
use super::pyramid::Pyramid;
use super::{count, layers, size, Predictions};
use crate::models::config::activation;
use crate::models::convolutional::{Backbone, Layer};
use crate::models::modules::{Convolution, Modules};
use crate::nn::feature_map::FeatureMap;
use crate::nn::{elementwise, Epilogue, Inventory, Linear, Norm};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::{RawConfig, HEADS, WIDTH};
use kernels::Activation;

#[derive(Debug)]
pub struct RtDetr {
    backbone: Backbone,
    wanted: Vec<usize>,
    /// From the backbone to the pyramid, and from that to the decoder.
    into: Vec<Layer>,
    pyramid: Pyramid,
    out: Vec<Layer>,
    proposals: Proposals,
    decoder: Vec<DecoderLayer>,
    positions: Mlp,
    refinement: Refinement,
    width: usize,
}

/// What makes queries of places.
#[derive(Debug)]
struct Proposals {
    linear: Linear,
    norm: Norm,
    scores: Linear,
    boxes: Mlp,
    count: usize,
    /// Instead of the places themselves.
    learned: Option<Tensor>,
}

#[derive(Debug)]
struct DecoderLayer {
    attention: Attention,
    attention_norm: Norm,
    cross: Deformable,
    beside: Beside,
    mlp: Mlp,
    mlp_norm: Norm,
}

/// What attention to places is added by.
#[derive(Debug)]
enum Beside {
    Norm(Norm),
    /// Gates for both sides (D-FINE).
    Gates(Linear, Norm),
}

/// How boxes get better from layer to layer.
#[derive(Debug)]
enum Refinement {
    /// What each layer adds to them, and its classes.
    Boxes {
        boxes: Vec<Mlp>,
        classes: Linear,
    },
    Distributions(Box<Distributions>),
}

impl RtDetr {
    pub fn load(raw: &RawConfig, modules: &Modules<'_>, cancel: &CancelToken) -> Result<Self> {
        if raw
            .opt_integers("anchor_image_size")?
            .is_some_and(|size| !size.is_empty())
        {
            let reason = "anchors of a fixed image size are not supported";
            return Err(Error::unsupported(raw.file(), reason));
        }
        let body = modules.at("model");
        let config = raw.nested("backbone_config")?;
        let backbone = Backbone::load(Some(&config), &body.at("backbone.model"), cancel)?;
        let wanted = backbone.wanted(Some(&config))?;
        let all = backbone.channels();
        let mut into = Vec::new();
        for (number, &stage) in wanted.iter().enumerate() {
            let modules = body.at(format!("encoder_input_proj.{number}"));
            let of = Convolution::new("0", "1", None);
            into.push(Layer::load(&modules, all[stage], of)?.0);
        }
        let pyramid = Pyramid::load(raw, &body.at("encoder"), wanted.len(), cancel)?;
        let width = size(raw, "d_model", 256, WIDTH)?;
        let (out, levels) = projections(raw, &body, (pyramid.width(), width), wanted.len())?;
        let decoder = body.at("decoder");
        let shape = DecoderShape::read(raw, width, levels)?;
        Ok(Self {
            backbone,
            wanted,
            into,
            pyramid,
            out,
            proposals: Proposals::load(raw, &body, &shape)?,
            decoder: layers(raw, "decoder_layers", 6, cancel, |number| {
                DecoderLayer::load(&decoder.at(format!("layers.{number}")), &shape)
            })?,
            positions: Mlp::numbered(&decoder.at("query_pos_head"), 4, Activation::Relu)?,
            refinement: Refinement::load(raw, modules, width)?,
            width,
        })
    }

    pub fn layer_count(&self) -> usize {
        self.decoder.len()
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn classes(&self) -> usize {
        self.proposals.scores.outputs()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.backbone.list(inventory)?;
        let mut layers = self.into.iter().chain(&self.out);
        layers.try_for_each(|layer| layer.list(inventory))?;
        self.pyramid.list(inventory)?;
        self.proposals.list(inventory)?;
        self.decoder
            .iter()
            .try_for_each(|layer| layer.list(inventory))?;
        self.positions.list(inventory)?;
        match &self.refinement {
            Refinement::Boxes { boxes, classes } => {
                boxes.iter().try_for_each(|mlp| mlp.list(inventory))?;
                inventory.add_linear(classes)
            }
            Refinement::Distributions(own) => own.list(inventory),
        }
    }

    pub fn forward(&self, image: &FeatureMap, cancel: &CancelToken) -> Result<Predictions> {
        let maps = self.backbone.forward(image, &self.wanted, cancel)?;
        let maps = self.into.iter().zip(&maps);
        let maps: Vec<_> = maps
            .map(|(layer, map)| layer.forward(map))
            .collect::<Result<_>>()?;
        let maps = self.pyramid.forward(&maps, cancel)?;
        let coarsest = maps.last().cloned();
        let maps = maps
            .into_iter()
            .map(Some)
            .chain(std::iter::repeat(coarsest));
        let mut levels = Vec::with_capacity(self.out.len());
        for (layer, map) in self.out.iter().zip(maps) {
            let map = map.ok_or_else(|| Error::Internal("a pyramid without maps".into()))?;
            levels.push(layer.forward(&map)?);
        }
        let rows: Vec<_> = levels.iter().map(|map| &map.rows).collect();
        let levels = Levels {
            rows: Tensor::cat(&rows, 0)?.contiguous()?,
            sizes: levels.iter().map(FeatureMap::size).collect(),
        };
        let (mut x, logits) = self.proposals.choose(&levels)?;
        let mut boxes = logits.map_each(sigmoid);
        match &self.refinement {
            Refinement::Boxes {
                boxes: heads,
                classes,
            } => {
                for (layer, head) in self.decoder.iter().zip(heads) {
                    cancel.check()?;
                    x = layer.forward(&x, &self.placed(&boxes, &x, None)?, &boxes, &levels)?;
                    let added = rows_of_four(&head.forward(&x)?)?;
                    boxes = boxes.zip_each(&added, |at, added| sigmoid(added + inverse(at)));
                }
                Predictions::new(&classes.forward(&x)?, boxes)
            }
            Refinement::Distributions(own) => {
                let mut state = None;
                for (number, layer) in self.decoder.iter().take(own.layer_count()).enumerate() {
                    cancel.check()?;
                    let positions = self.placed(&boxes, &x, Some(10.0))?;
                    let before = x;
                    x = layer.forward(&before, &positions, &boxes, &levels)?;
                    boxes = own.refine(
                        number,
                        &x,
                        (number > 0).then_some(&before),
                        boxes,
                        &mut state,
                    )?;
                }
                own.predictions(&x, boxes, state.as_ref())
            }
        }
    }

    /// What boxes become beside queries.
    fn placed(&self, boxes: &[[f32; 4]], like: &Tensor, limit: Option<f32>) -> Result<Tensor> {
        let boxes = Tensor::from_slice(&boxes.concat(), (boxes.len(), 4), like.device())?;
        let positions = self.positions.forward(&boxes.to_dtype(like.dtype())?)?;
        match limit {
            Some(most) => {
                let limits = kernels::Pointwise::Clamp { least: -most, most };
                kernels::pointwise(&positions, limits)
            }
            None => Ok(positions),
        }
    }
}

/// What the layers of a decoder have in common.
struct DecoderShape {
    width: usize,
    heads: usize,
    activation: Activation,
    epsilon: f32,
    settings: Settings,
}

impl DecoderShape {
    fn read(raw: &RawConfig, width: usize, levels: usize) -> Result<Self> {
        let points = raw.opt_integers("decoder_n_points")?.unwrap_or(vec![4]);
        let points: Option<Vec<usize>> = points
            .iter()
            .map(|&points| {
                usize::try_from(points)
                    .ok()
                    .filter(|n| (1..=256).contains(n))
            })
            .collect();
        let points = match points {
            Some(points) if points.len() == 1 => vec![points[0]; levels],
            Some(points) if points.len() == levels => points,
            _ => {
                let reason = format!("\"decoder_n_points\" are not those of {levels} levels");
                return Err(Error::corrupt(raw.file(), reason));
            }
        };
        let name = raw.opt_string("decoder_activation_function")?;
        Ok(Self {
            width,
            heads: size(raw, "decoder_attention_heads", 8, HEADS)?,
            activation: activation(name.unwrap_or("relu"), raw.file())?,
            epsilon: raw.opt_f64("layer_norm_eps")?.unwrap_or(1e-5) as f32,
            settings: Settings {
                points,
                reach: Reach::Box(raw.opt_f64("decoder_offset_scale")?.unwrap_or(0.5) as f32),
                nearest: match raw.opt_string("decoder_method")? {
                    Some("default") | None => false,
                    Some("discrete") => true,
                    Some(other) => {
                        let reason =
                            format!("decoder_method {other:?} is neither default nor discrete");
                        return Err(Error::unsupported(raw.file(), reason));
                    }
                },
            },
        })
    }
}

/// From the pyramid's maps to the decoder's, and how many there are.
fn projections(
    raw: &RawConfig,
    body: &Modules<'_>,
    (inputs, width): (usize, usize),
    maps: usize,
) -> Result<(Vec<Layer>, usize)> {
    let levels = count(raw, "num_feature_levels", 3)?;
    let epsilon = raw.opt_f64("batch_norm_eps")?.unwrap_or(1e-5);
    let mut out = Vec::new();
    for number in 0..levels {
        let modules = body.at(format!("decoder_input_proj.{number}"));
        if !modules.has("0") && inputs == width && number < maps {
            out.push(Layer::Chain(Vec::new()));
            continue;
        }
        let of = Convolution {
            epsilon,
            stride: if number < maps { 1 } else { 2 },
            ..Convolution::new("0", "1", None)
        };
        let (layer, made) = Layer::load(&modules, inputs, of)?;
        if made != width {
            return Err(modules.corrupt(format!("{} makes {made} channels", modules.path())));
        }
        out.push(layer);
    }
    Ok((out, levels))
}

impl Proposals {
    fn load(raw: &RawConfig, body: &Modules<'_>, shape: &DecoderShape) -> Result<Self> {
        let width = shape.width;
        let count = count(raw, "num_queries", 300)?;
        let boxes = Mlp::numbered(&body.at("enc_bbox_head"), width, Activation::Relu)?;
        super::check_outputs(body, &boxes, 4)?;
        let learned = raw.opt_bool("learn_initial_query")?.unwrap_or(false);
        Ok(Self {
            linear: body.sized_linear("enc_output.0", width, width)?,
            norm: body.layer_norm("enc_output.1", width, shape.epsilon)?,
            scores: body.linear("enc_score_head", width)?,
            boxes,
            count,
            learned: if learned {
                Some(body.shaped("weight_embedding.weight", &[count, width])?)
            } else {
                None
            },
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.linear)?;
        inventory.add_linear(&self.scores)?;
        inventory.add_norm(&self.norm)?;
        if let Some(learned) = &self.learned {
            inventory.add_tensor(learned);
        }
        self.boxes.list(inventory)
    }

    /// The best places, and their boxes before the sigmoid.
    fn choose(&self, levels: &Levels) -> Result<(Tensor, Vec<[f32; 4]>)> {
        let anchors = anchors(&levels.sizes);
        check_places(anchors.len(), self.count)?;
        let rows = &levels.rows;
        let valid = anchors
            .iter()
            .map(|anchor| f32::from(u8::from(anchor.is_some())));
        let valid = Tensor::from_vec(valid.collect::<Vec<_>>(), (anchors.len(), 1), rows.device())?;
        let memory = elementwise::multiply(rows, &valid.to_dtype(rows.dtype())?)?;
        let memory = self.norm.forward(&self.linear.forward(&memory)?)?;
        let scores = numbers(&self.scores.forward(&memory)?)?;
        let classes = self.scores.outputs().max(1);
        let best = scores
            .chunks_exact(classes)
            .map(|row| row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let chosen = largest(best, self.count);
        let places = Tensor::from_slice(&chosen, chosen.len(), rows.device())?;
        let memory = memory.index_select(&places, 0)?;
        let added = rows_of_four(&self.boxes.forward(&memory)?)?;
        let logits = chosen.iter().zip(&added).map(|(&at, added)| {
            let anchor = anchors[at as usize].unwrap_or([f32::MAX; 4]);
            std::array::from_fn(|axis| anchor[axis] + added[axis])
        });
        let queries = self.learned.clone().unwrap_or(memory);
        Ok((queries, logits.collect()))
    }
}

/// An error where there are fewer places than a model chooses.
pub(super) fn check_places(places: usize, wanted: usize) -> Result<()> {
    if places >= wanted {
        return Ok(());
    }
    Err(Error::InvalidInput(format!(
        "the image became {places} places, of which the model chooses {wanted}: its preprocessor_config.json belongs \
         to another model"
    )))
}

/// The places of the largest numbers, the largest first.
pub(super) fn largest(numbers: impl Iterator<Item = f32>, count: usize) -> Vec<u32> {
    let mut order: Vec<(f32, u32)> = numbers.zip(0..).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    order.iter().take(count).map(|&(_, at)| at).collect()
}

/// Boxes in the middle of all places, before the sigmoid; `None` for those too near to an edge.
pub(super) fn anchors(sizes: &[(usize, usize)]) -> Vec<Option<[f32; 4]>> {
    const SIZE: f32 = 0.05;
    const LEAST: f32 = 1e-2;
    let mut anchors = Vec::new();
    for (level, &(height, width)) in sizes.iter().enumerate() {
        let edge = SIZE * 2f32.powi(level as i32);
        for y in 0..height {
            for x in 0..width {
                let (x, y) = (
                    (x as f32 + 0.5) / width as f32,
                    (y as f32 + 0.5) / height as f32,
                );
                let anchor = [x, y, edge, edge];
                let valid = anchor.iter().all(|&at| at > LEAST && at < 1.0 - LEAST);
                anchors.push(valid.then(|| anchor.map(|at| (at / (1.0 - at)).ln())));
            }
        }
    }
    anchors
}

impl DecoderLayer {
    fn load(modules: &Modules<'_>, shape: &DecoderShape) -> Result<Self> {
        let width = shape.width;
        let norm = |name: &str| modules.layer_norm(name, width, shape.epsilon);
        let beside = if modules.has("gateway") {
            let gates = modules.sized_linear("gateway.gate", 2 * width, 2 * width)?;
            Beside::Gates(gates, modules.layer_norm("gateway.norm", width, 1e-5)?)
        } else {
            Beside::Norm(norm("encoder_attn_layer_norm")?)
        };
        let places = (width, shape.heads);
        Ok(Self {
            attention: Attention::load(&modules.at("self_attn"), width, shape.heads)?,
            attention_norm: norm("self_attn_layer_norm")?,
            cross: Deformable::load(&modules.at("encoder_attn"), places, shape.settings.clone())?,
            beside,
            mlp: Mlp::pair(modules, width, shape.activation)?,
            mlp_norm: norm("final_layer_norm")?,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.attention.list(inventory)?;
        self.cross.list(inventory)?;
        self.mlp.list(inventory)?;
        inventory.add_norm(&self.attention_norm)?;
        inventory.add_norm(&self.mlp_norm)?;
        match &self.beside {
            Beside::Norm(norm) => inventory.add_norm(norm),
            Beside::Gates(gates, norm) => {
                inventory.add_linear(gates)?;
                inventory.add_norm(norm)
            }
        }
    }

    fn forward(
        &self,
        x: &Tensor,
        positions: &Tensor,
        boxes: &[[f32; 4]],
        levels: &Levels,
    ) -> Result<Tensor> {
        let x = residual(x, &self.attention_norm, Order::Post, |x| {
            let placed = placed(x, Some(positions))?;
            self.attention.forward(&placed, &placed, x)
        })?;
        let seen = self
            .cross
            .forward(&placed(&x, Some(positions))?, boxes, levels)?;
        let x = match &self.beside {
            Beside::Norm(norm) => norm.forward(&elementwise::add(&x, &seen)?)?,
            Beside::Gates(gates, norm) => {
                let both = Tensor::cat(&[&x, &seen], 1)?;
                let sigmoid = Epilogue {
                    activation: Some(Activation::Sigmoid),
                    ..Epilogue::default()
                };
                let gates = gates.forward_with(&both, &sigmoid)?;
                let gated = elementwise::multiply(&gates, &both)?;
                let width = x.dim(1)?;
                let half = |at: usize| gated.narrow(1, at * width, width)?.contiguous();
                norm.forward(&elementwise::add(&half(0)?, &half(1)?)?)?
            }
        };
        residual(&x, &self.mlp_norm, Order::Post, |x| self.mlp.forward(x))
    }
}

impl Refinement {
    fn load(raw: &RawConfig, modules: &Modules<'_>, width: usize) -> Result<Self> {
        // Older files keep the heads once more outside of the decoder.
        let decoder = modules.at("model.decoder");
        let heads = if decoder.has("class_embed") {
            decoder.clone()
        } else {
            modules.clone()
        };
        if raw.model_type()? == Some("d_fine") {
            let own = Distributions::load(raw, &decoder, &heads, width)?;
            return Ok(Self::Distributions(Box::new(own)));
        }
        let count = count(raw, "decoder_layers", 6)?;
        let mut boxes = Vec::new();
        for number in 0..count {
            let modules = heads.at(format!("bbox_embed.{number}"));
            let mlp = Mlp::numbered(&modules, width, Activation::Relu)?;
            super::check_outputs(&modules, &mlp, 4)?;
            boxes.push(mlp);
        }
        let last = format!("class_embed.{}", count.saturating_sub(1));
        Ok(Self::Boxes {
            boxes,
            classes: heads.linear(&last, width)?,
        })
    }
}

/// Rows of four numbers.
pub fn rows_of_four(x: &Tensor) -> Result<Vec<[f32; 4]>> {
    let values = numbers(x)?;
    let rows = values.chunks_exact(4);
    Ok(rows.map(|row| [row[0], row[1], row[2], row[3]]).collect())
}

pub trait Each {
    fn map_each(&self, function: impl Fn(f32) -> f32) -> Self;
    fn zip_each(&self, other: &[[f32; 4]], function: impl Fn(f32, f32) -> f32) -> Self;
}

impl Each for Vec<[f32; 4]> {
    fn map_each(&self, function: impl Fn(f32) -> f32) -> Self {
        self.iter().map(|row| row.map(&function)).collect()
    }

    fn zip_each(&self, other: &[[f32; 4]], function: impl Fn(f32, f32) -> f32) -> Self {
        let pairs = self.iter().zip(other);
        pairs
            .map(|(a, b)| std::array::from_fn(|axis| function(a[axis], b[axis])))
            .collect()
    }
}

pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

pub fn inverse(x: f32) -> f32 {
    const LEAST: f32 = 1e-5;
    let x = x.clamp(0.0, 1.0);
    (x.max(LEAST) / (1.0 - x).max(LEAST)).ln()
}
