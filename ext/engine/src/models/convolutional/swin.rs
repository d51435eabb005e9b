//! Swin and its second version, and Donut's encoder, as backbones.

use super::*;
use crate::models::swin::{Block, Merging, Sizes, Version, EPSILON, WINDOW};

impl Own for Block {
    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        self.forward(map)
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.list(inventory)
    }
}

impl Own for Merging {
    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        self.forward(map)
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.list(inventory)
    }
}

/// Zeros to the right and below until edges are multiples of this.
#[derive(Debug)]
struct Whole(usize);

impl Own for Whole {
    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let missing = |places: usize| places.next_multiple_of(self.0) - places;
        map.padded(missing(map.width), missing(map.height))
    }

    fn list(&self, _: &mut Inventory) -> Result<()> {
        Ok(())
    }
}

/// What is added to the places of a map of one size.
#[derive(Debug)]
struct Positions(Tensor);

impl Own for Positions {
    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        if self.0.dim(0)? != map.rows.dim(0)? {
            return Err(Error::InvalidInput(format!(
                "the image became {}x{} patches, and the model has positions for {}: its preprocessor_config.json \
                 belongs to another model",
                map.width,
                map.height,
                self.0.dim(0)?
            )));
        }
        map.with(elementwise::add(&map.rows, &self.0)?)
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_tensor(&self.0);
        Ok(())
    }
}

fn stem(raw: &RawConfig, modules: &Modules<'_>, version: Version) -> Result<Stage> {
    let stem = modules.at("embeddings");
    let kernel = stem.shape("patch_embeddings.projection.weight")?;
    let patch = kernel.last().copied().unwrap_or(0).max(1);
    let of = Convolution {
        stride: patch,
        padding: Some(0),
        ..Convolution::new("patch_embeddings.projection", "", None)
    };
    let (patches, channels) = Layer::load(&stem, CHANNELS, of)?;
    let norm = Layer::Norm(stem.layer_norm("norm", channels, EPSILON)?);
    let mut layers = vec![Layer::Own(Box::new(Whole(patch))), patches, norm];
    if raw.opt_bool("use_absolute_embeddings")?.unwrap_or(false) {
        if version == Version::Second {
            let reason = "use_absolute_embeddings of swinv2 is not supported";
            return Err(Error::unsupported(raw.file(), reason));
        }
        let shape = stem.shape("position_embeddings")?;
        let count = shape.get(1).copied().unwrap_or(0);
        let table = stem.shaped("position_embeddings", &[1, count, channels])?;
        layers.push(Layer::Own(Box::new(Positions(table.squeeze(0)?))));
    }
    Ok(Stage { layers, channels })
}

/// Rows of places of the picture that the model was made for.
fn grid_height(raw: &RawConfig) -> Result<usize> {
    let first = |key: &str, usual: usize| -> Result<usize> {
        let edges = raw.opt_integers(key)?.unwrap_or_default();
        let edge = edges
            .first()
            .map_or(Ok(usual), |&edge| usize::try_from(edge));
        let edge = edge.ok().filter(|edge| (1..=1 << 20).contains(edge));
        edge.ok_or_else(|| Error::corrupt(raw.file(), format!("{key:?} is not a size")))
    };
    Ok(first("image_size", 224)? / first("patch_size", 4)?)
}

pub fn load(raw: &RawConfig, modules: &Modules<'_>) -> Result<Backbone> {
    let version = match raw.model_type()? {
        Some("swinv2") => Version::Second,
        _ => Version::First,
    };
    let depths = sizes(raw, "depths", &[2, 2, 6, 2], None)?;
    let count = Some(depths.len());
    let heads = sizes(raw, "num_heads", &[3, 6, 12, 24], count)?;
    let whole = raw.opt_usize_in("window_size", WINDOW)?.unwrap_or(7);
    let learned = raw
        .opt_integers("pretrained_window_sizes")?
        .unwrap_or_default();
    let name = raw.opt_string("hidden_act")?.unwrap_or("gelu");
    let activation = crate::models::config::activation(name, raw.file())?;
    let epsilon = raw.opt_f64("layer_norm_eps")?.unwrap_or(1e-5) as f32;
    // Other models read its maps: then windows keep their size.
    let read = modules.has("hidden_states_norms");
    // As a backbone, transformers writes only its last norm, which nobody reads, in a module of its own.
    let body = if modules.has("swin.embeddings") {
        modules.at("swin")
    } else {
        modules.clone()
    };
    let first = stem(raw, &body, version)?;
    let mut channels = first.channels;
    let mut stages = vec![first];
    let (grid, mut merging) = (grid_height(raw)?, None);
    for (stage, &depth) in depths.iter().enumerate() {
        let modules = body.at(format!("encoder.layers.{stage}"));
        let mut layers: Vec<Layer> = merging.take().into_iter().collect();
        let places = grid.checked_shr(stage as u32).unwrap_or(0);
        let (window, still) = match version {
            Version::First => (whole, false),
            Version::Second => (whole.min(places), places <= whole),
        };
        if window == 0 {
            let reason = "its stages have no places left for windows";
            return Err(Error::corrupt(raw.file(), reason));
        }
        let learned = learned.get(stage).copied().unwrap_or(0);
        let sizes = Sizes {
            width: channels,
            heads: heads[stage],
            window,
            learned: usize::try_from(learned).unwrap_or(0),
            version,
            activation,
            epsilon,
            shrinks: version == Version::First && !read,
        };
        for number in 0..depth {
            let modules = modules.at(format!("blocks.{number}"));
            let moved = number % 2 == 1 && !still;
            let shift = if moved { whole / 2 } else { 0 };
            let block = Block::load(&modules, sizes, shift)?;
            layers.push(Layer::Own(Box::new(block)));
        }
        stages.push(Stage { layers, channels });
        if stage + 1 < depths.len() {
            let next = Merging::load(&modules.at("downsample"), channels, version)?;
            merging = Some(Layer::Own(Box::new(next)));
            channels *= 2;
        }
    }
    let mut output_norms = Vec::new();
    for (stage, width) in stages.iter().map(|stage| stage.channels).enumerate() {
        let name = match stage {
            0 => "hidden_states_norms.stem".to_owned(),
            number => format!("hidden_states_norms.stage{number}"),
        };
        if modules.has(&name) {
            output_norms.push((stage, modules.layer_norm(&name, width, EPSILON)?));
        }
    }
    Ok(Backbone {
        family: if version == Version::First {
            "swin"
        } else {
            "swinv2"
        },
        stages,
        places_norm: if body.has("layernorm") && !read {
            Some(body.layer_norm("layernorm", channels, epsilon)?)
        } else {
            None
        },
        output_norms,
        ..Backbone::default()
    })
}
