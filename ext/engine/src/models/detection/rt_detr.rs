//! RT-DETR, RT-DETRv2 and D-FINE: the best places of all levels become queries, whose boxes each layer refines.

use candle_core::Tensor;

use super::attention::{placed, residual, Attention, Mlp, Order};
use super::deformable::{numbers, Deformable, Levels, Reach, Settings};
use super::distribution::Distributions;
use super::page_masks::PageMasks;
use super::page_quads::{self, PageQuads};
use super::proposals::{anchors, Proposals};
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
    /// Of pages, beside a finer map of the backbone (PP-DocLayoutV3).
    masks: Option<PageMasks>,
    width: usize,
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
    /// What each layer adds to them, or the only head for all of them, and the classes of the last.
    Boxes {
        boxes: Vec<Mlp>,
        classes: Box<Linear>,
    },
    Distributions(Box<Distributions>),
    /// Of four corners (PP-DocLayoutV4).
    Quads(Box<PageQuads>),
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
        let masked = body.has("mask_query_head");
        let (finest, read) = match wanted.split_first() {
            Some((&finest, others)) if masked => (finest, others),
            _ => (0, &wanted[..]),
        };
        let mut into = Vec::new();
        for (number, &stage) in read.iter().enumerate() {
            let modules = body.at(format!("encoder_input_proj.{number}"));
            let of = Convolution::new("0", "1", None);
            into.push(Layer::load(&modules, all[stage], of)?.0);
        }
        let pyramid = Pyramid::load(raw, &body.at("encoder"), read.len(), cancel)?;
        let width = raw.opt_usize_in(["d_model", "hidden_size"], WIDTH)?;
        let width = width.unwrap_or(256);
        let (out, levels) = projections(raw, &body, (pyramid.width(), width), read.len())?;
        let masks = if masked {
            let maps = (all[finest], read.len(), pyramid.width());
            Some(PageMasks::load(raw, &body, maps, width)?)
        } else {
            None
        };
        let decoder = body.at("decoder");
        let quads = PageQuads::are_in(&body);
        let box_size = if quads { page_quads::SIZE } else { 4 };
        let shape = DecoderShape::read(raw, width, levels)?;
        Ok(Self {
            backbone,
            wanted,
            into,
            pyramid,
            out,
            proposals: Proposals::load(raw, &body, (width, shape.epsilon), box_size)?,
            decoder: layers(raw, "decoder_layers", 6, cancel, |number| {
                DecoderLayer::load(&decoder.at(format!("layers.{number}")), &shape)
            })?,
            positions: Mlp::numbered(&decoder.at("query_pos_head"), box_size, Activation::Relu)?,
            refinement: if quads {
                Refinement::Quads(Box::new(PageQuads::load(raw, &body, width)?))
            } else {
                Refinement::load(raw, modules, width)?
            },
            masks,
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
        self.proposals.classes()
    }

    pub fn queries(&self) -> usize {
        self.proposals.queries()
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
        if let Some(masks) = &self.masks {
            masks.list(inventory)?;
        }
        match &self.refinement {
            Refinement::Boxes { boxes, classes } => {
                boxes.iter().try_for_each(|mlp| mlp.list(inventory))?;
                inventory.add_linear(classes)
            }
            Refinement::Distributions(own) => own.list(inventory),
            Refinement::Quads(own) => own.list(inventory),
        }
    }

    pub fn forward(&self, image: &FeatureMap, cancel: &CancelToken) -> Result<Predictions> {
        let maps = self.backbone.forward(image, &self.wanted, cancel)?;
        let finer = maps.len().saturating_sub(self.into.len());
        let (fine, maps) = maps.split_at(finer);
        let maps = self.into.iter().zip(maps);
        let maps: Vec<_> = maps
            .map(|(layer, map)| layer.forward(map))
            .collect::<Result<_>>()?;
        let maps = self.pyramid.forward(&maps, cancel)?;
        let seen = maps.clone();
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
        if let Refinement::Quads(quads) = &self.refinement {
            return self.quads(quads, &levels, cancel);
        }
        let (mut x, logits) = self.proposals.choose(&levels, &anchors(&levels.sizes))?;
        let mut boxes = logits.map_each(sigmoid);
        if let (Some(masks), Some(fine)) = (&self.masks, fine.first()) {
            let begun = masks.boxes(&x, &seen, fine)?;
            boxes = begun.map_or(boxes, |begun| begun.map_each(|at| sigmoid(inverse(at))));
        }
        match &self.refinement {
            Refinement::Boxes {
                boxes: heads,
                classes,
            } => {
                for (layer, head) in self.decoder.iter().zip(heads.iter().cycle()) {
                    cancel.check()?;
                    x = layer.forward(&x, &self.placed(&boxes, &x, None)?, &boxes, &levels)?;
                    let added = rows_of_four(&head.forward(&x)?)?;
                    boxes = boxes.zip_each(&added, |at, added| sigmoid(added + inverse(at)));
                }
                match &self.masks {
                    Some(masks) => masks.predictions(&x, classes, boxes),
                    None => Predictions::new(&classes.forward(&x)?, boxes),
                }
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
            Refinement::Quads(_) => Err(Error::Internal("quads among boxes".into())),
        }
    }

    fn quads(
        &self,
        quads: &PageQuads,
        levels: &Levels,
        cancel: &CancelToken,
    ) -> Result<Predictions> {
        let anchors = page_quads::anchors(&levels.sizes);
        let (mut x, logits) = self.proposals.choose(levels, &anchors)?;
        let mut corners: Vec<_> = logits.iter().map(|quad| quad.map(sigmoid)).collect();
        for (number, layer) in self.decoder.iter().enumerate() {
            cancel.check()?;
            let boxes: Vec<_> = corners.iter().map(page_quads::reach).collect();
            let positions = self.placed(&corners, &x, None)?;
            x = layer.forward(&x, &positions, &boxes, levels)?;
            corners = quads.refine(number, &x, &corners)?;
        }
        quads.predictions(&x, &corners)
    }

    /// What boxes become beside queries.
    fn placed<const N: usize>(
        &self,
        boxes: &[[f32; N]],
        like: &Tensor,
        limit: Option<f32>,
    ) -> Result<Tensor> {
        let boxes = Tensor::from_slice(&boxes.concat(), (boxes.len(), N), like.device())?;
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
        if !heads.has("bbox_embed.0") {
            let body = modules.at("model");
            let of = body.at("decoder.bbox_embed|enc_bbox_head");
            let head = Mlp::numbered(&of, width, Activation::Relu)?;
            super::check_outputs(&of, &head, 4)?;
            return Ok(Self::Boxes {
                boxes: vec![head],
                classes: Box::new(body.linear("decoder.class_embed|enc_score_head", width)?),
            });
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
            classes: Box::new(heads.linear(&last, width)?),
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
