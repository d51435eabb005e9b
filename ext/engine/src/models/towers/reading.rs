//! Towers out of their files: what each type has, and what it leaves out.

use candle_core::{DType, Device};
use serde_json::json;

use super::bias::BiasTable;
use super::block::{Block, Sizes};
use super::pooling::{Pooling, Query};
use super::*;
use crate::models::modules::{Convolution, Modules};
use crate::models::vision::config::GridPositions;
use formats::files::raw_config::{RawConfig, HEADS, LAYERS, WIDTH};
use formats::image::CHANNELS;

/// What one type has.
struct Kind {
    family: &'static str,
    /// What becomes of the table of positions for pictures of other sizes.
    positions: GridPositions,
    rms: bool,
    defaults: serde_json::Value,
}

fn kind(raw: &RawConfig) -> Result<Kind> {
    let vit = |epsilon: f64| {
        json!({"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "hidden_act": "gelu",
               "layer_norm_eps": epsilon, "image_size": 224})
    };
    let of = |family, positions, defaults| Kind {
        family,
        positions,
        rms: false,
        defaults,
    };
    Ok(match raw.model_type()?.unwrap_or("(none)") {
        "beit" => of("beit", GridPositions::Bicubic, vit(1e-12)),
        "data2vec-vision" => of("data2vec-vision", GridPositions::Bicubic, vit(1e-12)),
        "deit" => of("deit", GridPositions::Fixed, vit(1e-12)),
        "dpt" => of("dpt", GridPositions::SmoothLinear, vit(1e-12)),
        "dinov2" => of("dinov2", GridPositions::Bicubic, vit(1e-6)),
        "dinov2_with_registers" => of("dinov2", GridPositions::SmoothBicubic, vit(1e-6)),
        "dinov3_vit" => {
            let defaults = json!({"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6,
                                  "hidden_act": "gelu", "layer_norm_eps": 1e-5, "image_size": 224});
            of("dinov3_vit", GridPositions::Rotary, defaults)
        }
        "aimv2_vision_model" => {
            let defaults = json!({"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8,
                                  "hidden_act": "silu", "rms_norm_eps": 1e-5, "image_size": 224});
            Kind {
                rms: true,
                ..of("aimv2", GridPositions::Fixed, defaults)
            }
        }
        other => {
            let found = ("model_type", other);
            let unknown = crate::models::families::unknown;
            return Err(unknown(raw.file(), found, "a vision model", TYPES));
        }
    })
}

/// Where layers are, by the names that files give them.
const LAYER: &str = "encoder.layer|encoder.layers|layer|layers|model.layer";

impl Tower {
    pub fn load(raw: &RawConfig, modules: &Modules<'_>, cancel: &CancelToken) -> Result<Self> {
        let kind = kind(raw)?;
        let raw = &raw.clone().with_defaults(kind.defaults.clone());
        let channels = raw.opt_usize("num_channels")?.unwrap_or(CHANNELS);
        if channels != CHANNELS {
            let reason = format!("pictures of {channels} channels are not supported");
            return Err(Error::unsupported(raw.file(), reason));
        }
        let width = raw.usize_in("hidden_size", WIDTH)?;
        let heads = raw.usize_in("num_attention_heads", HEADS)?;
        let epsilon = raw.f64(["layer_norm_eps", "rms_norm_eps"])? as f32;
        let embeddings = modules.at("embeddings");
        let name = "patch_embeddings.projection|patch_embeddings|patch_embed|projection";
        let patch = embeddings.at(name).shape("weight")?;
        let patch = patch.last().copied().unwrap_or(0).max(1);
        // The hybrid of DPT reads the map of another network place by place.
        let inputs = embeddings.at(name).shape("weight")?.get(1).copied();
        let of = Convolution {
            stride: patch,
            padding: Some(0),
            ..Convolution::new(name, "", None)
        };
        let patches = embeddings.convolution(inputs.unwrap_or(CHANNELS), of)?;
        if patches.outputs() != width {
            return Err(modules.corrupt(format!(
                "its patches become {} numbers where hidden_size is {width}",
                patches.outputs()
            )));
        }
        let grid = raw_grid(raw, patch)?;
        let sizes = Sizes {
            width,
            heads,
            activation: crate::models::config::activation(raw.string("hidden_act")?, raw.file())?,
            epsilon,
            rms: kind.rms,
            grid,
        };
        let place = modules.at(LAYER);
        let mut blocks = Vec::new();
        for number in 0..raw.usize_in("num_hidden_layers", LAYERS)? {
            cancel.check()?;
            blocks.push(Block::load(&place.at(number.to_string()), sizes)?);
        }
        let optional = |names: &str| -> Result<Option<Norm>> {
            let found = modules.known(names);
            found.map(|name| sizes.norm(modules, name)).transpose()
        };
        let (positions, leading) = positions(&kind, raw, modules, sizes)?;
        let shared = modules.known("encoder.relative_position_bias|shared_position_bias");
        let shared = shared.map(|name| BiasTable::load(&modules.at(name), grid, heads));
        Ok(Self {
            family: kind.family,
            patches,
            leading,
            positions,
            patch_norm: if embeddings.has("rms_norm") {
                Some(sizes.norm(&embeddings, "rms_norm")?)
            } else {
                None
            },
            blocks,
            shared: shared.transpose()?,
            final_norm: optional("layernorm|norm|rms_norm")?,
            pooling: pooling(&kind, raw, modules, sizes)?,
            width,
            heads,
        })
    }
}

/// (rows, columns) of the patches of the pictures that a model was made for.
fn raw_grid(raw: &RawConfig, patch: usize) -> Result<(usize, usize)> {
    let edges = raw.opt_integers("image_size")?.unwrap_or_default();
    let places = |edge: i64| usize::try_from(edge).unwrap_or(0) / patch.max(1);
    match edges[..] {
        [edge] => Ok((places(edge), places(edge))),
        [height, width] => Ok((places(height), places(width))),
        _ => Err(Error::corrupt(raw.file(), "\"image_size\" is not a size")),
    }
}

fn pooling(kind: &Kind, raw: &RawConfig, modules: &Modules<'_>, sizes: Sizes) -> Result<Pooling> {
    Ok(match kind.family {
        "aimv2" => {
            if raw.opt_bool("use_head")?.unwrap_or(true) {
                let head = modules.at("head");
                Pooling::Query(Box::new(Query::load(&head, sizes.width, sizes.heads)?))
            } else {
                Pooling::Mean(None)
            }
        }
        "beit" | "data2vec-vision" if raw.opt_bool("use_mean_pooling")?.unwrap_or(true) => {
            let norm = modules.known("pooler.layernorm");
            Pooling::Mean(norm.map(|name| sizes.norm(modules, name)).transpose()?)
        }
        _ => Pooling::First,
    })
}

/// How patches know where they are, and the tokens before them.
fn positions(
    kind: &Kind,
    raw: &RawConfig,
    modules: &Modules<'_>,
    sizes: Sizes,
) -> Result<(Positions, Option<Tensor>)> {
    let (embeddings, width) = (modules.at("embeddings"), sizes.width);
    let rows = |name: &str| -> Result<Tensor> {
        let shape = embeddings.shape(name)?;
        let elements: usize = shape.iter().product();
        if shape.last() != Some(&width) || elements == 0 {
            let reason = format!("tensor {}{name} has the shape {shape:?}", embeddings.path());
            return Err(modules.corrupt(reason));
        }
        let rows = embeddings.tensor(name)?;
        Ok(rows.reshape((elements / width, width))?)
    };
    let mut first = Vec::new();
    for name in ["cls_token", "distillation_token"] {
        if embeddings.has(name) {
            first.push(rows(name)?);
        }
    }
    let table = embeddings.known("position_embeddings|position_embedding.weight");
    let positions = match (table, kind.positions) {
        (_, GridPositions::Rotary) => {
            let (base, size) = (
                raw.opt_f64("rope_theta")?.unwrap_or(100.0),
                width / sizes.heads,
            );
            if !size.is_multiple_of(4) || base <= 0.0 {
                let reason = format!("heads of {size} numbers can't rotate by rows and columns");
                return Err(modules.corrupt(reason));
            }
            Positions::Rotary(base as f32)
        }
        (Some(name), positions) => {
            let all = rows(name)?;
            let patches = all.dim(0)?.saturating_sub(first.len());
            let grid = match sizes.grid {
                grid if grid.0.checked_mul(grid.1) == Some(patches) => grid,
                _ => (patches.isqrt(), patches.isqrt()),
            };
            if patches == 0 || grid.0 * grid.1 != patches {
                let count = all.dim(0)?;
                let reason = format!("a table of {count} positions is not that of its patches");
                return Err(modules.corrupt(reason));
            }
            for (number, token) in first.iter_mut().enumerate() {
                *token = elementwise::add(token, &all.narrow(0, number, 1)?.contiguous()?)?;
            }
            let own = all.narrow(0, first.len(), patches)?.contiguous()?;
            if positions == GridPositions::SmoothLinear {
                Positions::Linear(FeatureMap::new(own, grid)?)
            } else {
                let values = own.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
                let values = values.flatten_all()?.to_vec1()?;
                Positions::Table(GridTable::new(values, (grid.1, grid.0), width, positions))
            }
        }
        (None, _) if kind.family == "aimv2" => {
            if !raw.opt_bool("is_native")?.unwrap_or(false) || !width.is_multiple_of(4) {
                return Err(modules.corrupt("it has no positions of patches".into()));
            }
            Positions::Sines
        }
        (None, _) => Positions::None,
    };
    if embeddings.has("register_tokens") {
        let shape = embeddings.shape("register_tokens")?;
        if shape.iter().all(|&size| size > 0) {
            first.push(rows("register_tokens")?);
        }
    }
    let leading = if first.is_empty() {
        None
    } else {
        Some(Tensor::cat(&first, 0)?.contiguous()?)
    };
    Ok((positions, leading))
}
