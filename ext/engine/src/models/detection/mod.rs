//! Detectors: pictures in, and for each query its classes and its box out.

pub mod attention;
pub mod deformable;
mod detr;
mod distribution;
pub mod grounded;
pub mod levels;
pub mod open;
mod page_masks;
mod page_order;
mod page_quads;
mod proposals;
mod pyramid;
mod reading_order;
mod rt_detr;
mod tokens;

use candle_core::{DType, Device, Tensor};

use crate::models::modules::Modules;
use crate::nn::feature_map::FeatureMap;
use crate::nn::Inventory;
use crate::{CancelToken, Result};
use attention::Mlp;
pub use deformable::numbers;
use formats::files::raw_config::{RawConfig, LAYERS};
use formats::image::View;
use formats::weights::WeightSource;
pub use page_order::PageOrder;
use reading_order::ReadingOrder;
use rt_detr::{rows_of_four, sigmoid, Each};

/// The `model_type`s of detectors, beside those that are vision towers.
pub const TYPES: &[&str] = &[
    "detr",
    "table-transformer",
    "rt_detr",
    "rt_detr_v2",
    "d_fine",
    "pp_doclayout_v2",
    "pp_doclayout_v3",
    "pp_doclayout_v4",
];

/// The same of detectors that find what a call names.
pub const OPEN_TYPES: &[&str] = &["owlvit", "owlv2"];

/// Those of them that read all names as one text.
pub const GROUNDED_TYPES: &[&str] = &["grounding-dino", "mm-grounding-dino"];

#[derive(Debug)]
pub struct Detector {
    model: Model,
    /// Of pages.
    order: Option<ReadingOrder>,
    family: String,
    device: Device,
    dtype: DType,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one per model")]
enum Model {
    Tokens(tokens::Yolos),
    Queries(detr::Detr),
    Places(rt_detr::RtDetr),
}

/// What a detector says of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Predictions {
    /// [queries, classes]
    pub logits: Vec<f32>,
    pub classes: usize,
    /// The centre and the size of each, as parts of the picture's.
    pub boxes: Vec<[f32; 4]>,
    /// The order in which a page is read.
    pub order: Option<PageOrder>,
}

/// How logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// All add up to 1; the last class stands for nothing.
    Exclusive,
    /// Each by itself; the best of all queries and classes count.
    Independent,
}

impl Predictions {
    fn new(logits: &Tensor, boxes: Vec<[f32; 4]>) -> Result<Self> {
        Ok(Self {
            classes: logits.dim(1)?,
            logits: numbers(logits)?,
            boxes,
            order: None,
        })
    }

    /// `boxes` are before the sigmoid.
    fn of(logits: &Tensor, boxes: &Tensor) -> Result<Self> {
        Self::new(logits, rows_of_four(boxes)?.map_each(sigmoid))
    }
}

impl Detector {
    pub fn load(
        raw: &RawConfig,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        int8: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let names = source.names();
        let modules = Modules::new(source, &names, (device, dtype), int8);
        let family = raw.model_type()?.unwrap_or("(none)");
        let model = match family {
            "yolos" => Model::Tokens(tokens::Yolos::load(raw, source, &modules, cancel)?),
            "detr" | "table-transformer" => {
                Model::Queries(detr::Detr::load(raw, &modules, cancel)?)
            }
            "rt_detr" | "rt_detr_v2" | "d_fine" | "pp_doclayout_v2" | "pp_doclayout_v3"
            | "pp_doclayout_v4" => Model::Places(rt_detr::RtDetr::load(raw, &modules, cancel)?),
            other => {
                let found = ("model_type", other);
                return Err(crate::models::families::unknown(
                    raw.file(),
                    found,
                    "a detector",
                    TYPES,
                ));
            }
        };
        let order = match &model {
            Model::Places(model) if modules.has("reading_order") => {
                let counts = (model.classes(), model.queries());
                Some(ReadingOrder::load(raw, &modules, counts, cancel)?)
            }
            _ => None,
        };
        Ok(Self {
            model,
            order,
            family: family.to_owned(),
            device: device.clone(),
            dtype,
        })
    }

    pub fn family(&self) -> &str {
        &self.family
    }

    pub fn scoring(&self) -> Scoring {
        match self.model {
            Model::Tokens(_) | Model::Queries(_) => Scoring::Exclusive,
            Model::Places(_) => Scoring::Independent,
        }
    }

    /// How many classes things have.
    pub fn classes(&self) -> usize {
        match &self.model {
            Model::Tokens(model) => model.classes(),
            Model::Queries(model) => model.classes(),
            Model::Places(model) => model.classes(),
        }
    }

    pub fn hidden_size(&self) -> usize {
        match &self.model {
            Model::Tokens(model) => model.width(),
            Model::Queries(model) => model.width(),
            Model::Places(model) => model.width(),
        }
    }

    pub fn layer_count(&self) -> usize {
        match &self.model {
            Model::Tokens(model) => model.layer_count(),
            Model::Queries(model) => model.layer_count(),
            Model::Places(model) => model.layer_count(),
        }
    }

    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        match &self.model {
            Model::Tokens(model) => model.list(&mut inventory)?,
            Model::Queries(model) => model.list(&mut inventory)?,
            Model::Places(model) => model.list(&mut inventory)?,
        }
        if let Some(order) = &self.order {
            order.list(&mut inventory)?;
        }
        inventory.add_rows("activation", &self.device)?;
        Ok(inventory)
    }

    pub fn forward(&self, view: &View, cancel: &CancelToken) -> Result<Predictions> {
        let map = || FeatureMap::of_view(view, (&self.device, self.dtype));
        let found = match &self.model {
            Model::Tokens(model) => model.forward(view, cancel),
            Model::Queries(model) => model.forward(&map()?, cancel),
            Model::Places(model) => model.forward(&map()?, cancel),
        }?;
        match &self.order {
            Some(order) => order.arrange(found, (&self.device, self.dtype), cancel),
            None => Ok(found),
        }
    }
}

/// A number of things that a file may not exaggerate.
fn count(raw: &RawConfig, key: &str, usual: usize) -> Result<usize> {
    size(raw, key, usual, 1..=1 << 16)
}

fn size(
    raw: &RawConfig,
    key: &str,
    usual: usize,
    range: std::ops::RangeInclusive<usize>,
) -> Result<usize> {
    Ok(raw.opt_usize_in(key, range)?.unwrap_or(usual))
}

/// As many layers as a configuration says.
fn layers<T>(
    raw: &RawConfig,
    key: &str,
    usual: usize,
    cancel: &CancelToken,
    load: impl Fn(usize) -> Result<T>,
) -> Result<Vec<T>> {
    let range = 0..=*LAYERS.end();
    let mut layers = Vec::new();
    for number in 0..size(raw, key, usual, range)? {
        cancel.check()?;
        layers.push(load(number)?);
    }
    Ok(layers)
}

fn check_outputs(modules: &Modules<'_>, mlp: &Mlp, wanted: usize) -> Result<()> {
    if mlp.outputs() == wanted {
        return Ok(());
    }
    Err(modules.corrupt(format!(
        "the head for boxes makes {} numbers where {wanted} are wanted",
        mlp.outputs()
    )))
}
