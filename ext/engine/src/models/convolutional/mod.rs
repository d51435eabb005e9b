//! Convolutional networks as trees of layers: families say which, one forward pass runs them all.

mod convnext;
mod efficientnet;
mod hgnet;
mod mobilenet;
pub mod mobilenet5;
mod resnet;
mod segformer;
mod swin;

use candle_core::{DType, Tensor};

use crate::models::detection::attention::Attention;
use crate::models::modules::{Convolution, Modules};
use crate::nn::feature_map::{FeatureMap, Pooling, Window};
use crate::nn::{elementwise, Conv2d, Epilogue, Inventory, Linear, Norm};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::RawConfig;
use formats::image::CHANNELS;
use kernels::Activation;

/// What is done to a map.
#[derive(Debug)]
pub enum Layer {
    Convolution(Conv2d),
    Pool(Window, Pooling),
    /// A row and a column of zeros at the end.
    Pad,
    /// scale · x + shift
    Affine(f32, f32),
    /// Zeros to the left, to the right, above and below.
    Frame([usize; 4]),
    /// Multiplied by what layers make of the mean of all places.
    Excite(Vec<Layer>),
    /// What one family alone has.
    Own(Box<dyn Own>),
    Activation(Activation),
    Norm(Norm),
    Linear(Linear, Option<Activation>),
    /// Channels grow by how strong they are on the whole map, beside others: factors, and what is added (ConvNeXt V2).
    Response(Tensor, Tensor),
    /// What each place finds on a map that other layers make of this one.
    Attention(Box<Attention>, Vec<Layer>),
    /// Some of the channels: the first, and how many.
    Channels(usize, usize),
    /// One after the other; none changes nothing.
    Chain(Vec<Layer>),
    /// The sum of what each makes of the map.
    Sum(Vec<Layer>, Option<Activation>),
    /// What each makes of the map, side by side.
    Join(Vec<Layer>),
    /// The map, what the first makes of it, what the second makes of that …, side by side.
    Dense(Vec<Layer>),
}

/// What is done to a map by one family alone.
pub trait Own: std::fmt::Debug + Send + Sync {
    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap>;
    fn list(&self, inventory: &mut Inventory) -> Result<()>;
}

/// A stem and stages, of which each makes a map of its own.
#[derive(Debug, Default)]
pub struct Backbone {
    pub family: &'static str,
    stages: Vec<Stage>,
    /// Of all places of the last map, before their mean is taken.
    places_norm: Option<Norm>,
    /// Of the mean of all places.
    pub pooled_norm: Option<Norm>,
    /// Of the maps of some stages, where others read them.
    output_norms: Vec<(usize, Norm)>,
}

#[derive(Debug)]
struct Stage {
    layers: Vec<Layer>,
    channels: usize,
}

/// The `model_type`s that classify and embed images by themselves.
pub const TYPES: &[&str] = &[
    "resnet",
    "hgnet_v2",
    "convnext",
    "convnextv2",
    "dinov3_convnext",
    "segformer",
    "swin",
    "swinv2",
    "mobilenet_v2",
    "efficientnet",
];

const STAGES: std::ops::RangeInclusive<usize> = 1..=4096;

impl Layer {
    pub fn load(
        modules: &Modules<'_>,
        inputs: usize,
        of: Convolution<'_>,
    ) -> Result<(Self, usize)> {
        let convolution = modules.convolution(inputs, of)?;
        let outputs = convolution.outputs();
        Ok((Self::Convolution(convolution), outputs))
    }

    pub fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        match self {
            Self::Convolution(convolution) => convolution.forward(map),
            Self::Pool(window, pooling) => map.pooled(*window, *pooling),
            Self::Pad => map.padded(1, 1),
            Self::Affine(scale, shift) => map.affine(*scale, *shift),
            Self::Frame(sides) => map.framed(*sides),
            Self::Excite(layers) => {
                let mean = FeatureMap::new(map.mean()?.unsqueeze(0)?.contiguous()?, (1, 1))?;
                map.with(elementwise::multiply(&map.rows, &run(layers, &mean)?.rows)?)
            }
            Self::Own(own) => own.forward(map),
            Self::Activation(activation) => map.activated(*activation),
            Self::Norm(norm) => map.with(norm.forward(&map.rows)?),
            Self::Linear(linear, activation) => {
                let epilogue = Epilogue {
                    activation: *activation,
                    ..Epilogue::default()
                };
                map.with(linear.forward_with(&map.rows, &epilogue)?)
            }
            Self::Response(factors, shifts) => map.with(response(&map.rows, factors, shifts)?),
            Self::Attention(attention, layers) => {
                let seen = run(layers, map)?;
                map.with(attention.forward(&map.rows, &seen.rows, &seen.rows)?)
            }
            Self::Channels(first, count) => map.narrow(*first, *count),
            Self::Chain(layers) => run(layers, map),
            Self::Sum(parts, activation) => {
                let Some((last, others)) = parts.split_last() else {
                    return match activation {
                        Some(activation) => map.activated(*activation),
                        None => Ok(map.clone()),
                    };
                };
                let mut sum: Option<FeatureMap> = None;
                for part in others {
                    let made = part.forward(map)?;
                    sum = Some(match sum {
                        Some(sum) => sum.add(&made)?,
                        None => made,
                    });
                }
                let made = last.forward(map)?;
                match (sum, activation) {
                    (Some(sum), Some(activation)) => sum.add_activated(&made, *activation),
                    (Some(sum), None) => sum.add(&made),
                    (None, Some(activation)) => made.activated(*activation),
                    (None, None) => Ok(made),
                }
            }
            Self::Join(parts) => {
                let parts = parts.iter().map(|part| part.forward(map));
                FeatureMap::join(&parts.collect::<Result<Vec<_>>>()?)
            }
            Self::Dense(layers) => {
                let mut maps = vec![map.clone()];
                for layer in layers {
                    let made = layer.forward(maps.last().unwrap_or(map))?;
                    maps.push(made);
                }
                FeatureMap::join(&maps)
            }
        }
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        match self {
            Self::Convolution(convolution) => convolution.list(inventory),
            Self::Chain(layers)
            | Self::Sum(layers, _)
            | Self::Join(layers)
            | Self::Excite(layers)
            | Self::Dense(layers) => layers.iter().try_for_each(|layer| layer.list(inventory)),
            Self::Norm(norm) => inventory.add_norm(norm),
            Self::Linear(linear, _) => inventory.add_linear(linear),
            Self::Attention(attention, layers) => {
                attention.list(inventory)?;
                layers.iter().try_for_each(|layer| layer.list(inventory))
            }
            Self::Response(factors, shifts) => {
                inventory.add_tensor(factors);
                inventory.add_tensor(shifts);
                Ok(())
            }
            Self::Own(own) => own.list(inventory),
            Self::Pool(..)
            | Self::Pad
            | Self::Affine(..)
            | Self::Frame(_)
            | Self::Activation(_)
            | Self::Channels(..) => Ok(()),
        }
    }
}

fn response(rows: &Tensor, factors: &Tensor, shifts: &Tensor) -> Result<Tensor> {
    const LEAST: f64 = 1e-6;
    let wide = rows.to_dtype(DType::F32)?;
    let strength = wide.sqr()?.sum_keepdim(0)?.sqrt()?;
    let mean = (strength.mean_keepdim(1)? + LEAST)?;
    let relative = strength.broadcast_div(&mean)?.to_dtype(rows.dtype())?;
    let scale = (elementwise::multiply(factors, &relative)? + 1.0)?;
    elementwise::add(&elementwise::multiply(rows, &scale)?, shifts)
}

fn run(layers: &[Layer], map: &FeatureMap) -> Result<FeatureMap> {
    let mut map = map.clone();
    for layer in layers {
        map = layer.forward(&map)?;
    }
    Ok(map)
}

impl Backbone {
    /// Of the configuration of a backbone, or of a model that is one; `None` is timm's ResNet.
    pub fn load(
        raw: Option<&RawConfig>,
        modules: &Modules<'_>,
        cancel: &CancelToken,
    ) -> Result<Self> {
        cancel.check()?;
        let Some(raw) = raw else {
            return resnet::timm(modules);
        };
        let channels = raw.opt_usize("num_channels")?.unwrap_or(CHANNELS);
        if channels != CHANNELS {
            let reason = format!("pictures of {channels} channels are not supported");
            return Err(Error::unsupported(raw.file(), reason));
        }
        match raw.model_type()? {
            Some("resnet" | "rt_detr_resnet") => resnet::load(raw, modules),
            Some("hgnet_v2") => hgnet::load(raw, modules),
            Some("convnext" | "convnextv2") => convnext::load(raw, modules),
            Some("dinov3_convnext") => convnext::dinov3(raw, modules),
            Some("segformer") => segformer::load(raw, modules),
            Some("swin" | "swinv2" | "donut-swin") => swin::load(raw, modules),
            Some("mobilenet_v2") => mobilenet::load(raw, modules),
            Some("efficientnet") => efficientnet::load(raw, modules),
            Some("timm_backbone") => resnet::timm_of(raw, modules),
            found => Err(Error::unsupported(
                raw.file(),
                format!(
                    "the backbone {:?} is not one that red-candle runs: those are resnet, rt_detr_resnet, hgnet_v2, \
                     convnext, swin, swinv2 and timm's ResNet",
                    found.unwrap_or("(none)")
                ),
            )),
        }
    }

    /// The mean of all places of the last map, [1, channels], as classifiers read it.
    pub fn pooled(&self, image: &FeatureMap, cancel: &CancelToken) -> Result<Tensor> {
        let maps = self.forward(image, &[self.stages.len() - 1], cancel)?;
        let map = maps
            .last()
            .ok_or_else(|| Error::Internal("a backbone made no map".into()))?;
        let normed = self
            .places_norm
            .as_ref()
            .map(|norm| map.with(norm.forward(&map.rows)?));
        let normed = normed.transpose()?;
        let map = normed.as_ref().unwrap_or(map);
        let mean = map.mean()?.unsqueeze(0)?.contiguous()?;
        match &self.pooled_norm {
            Some(norm) => norm.forward(&mean),
            None => Ok(mean),
        }
    }

    /// The channels of the maps of all stages, the stem's first.
    pub fn channels(&self) -> Vec<usize> {
        self.stages.iter().map(|stage| stage.channels).collect()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let layers = self.stages.iter().flat_map(|stage| &stage.layers);
        layers
            .into_iter()
            .try_for_each(|layer| layer.list(inventory))?;
        let outputs = self.output_norms.iter().map(|(_, norm)| norm);
        let mut norms = self
            .places_norm
            .iter()
            .chain(&self.pooled_norm)
            .chain(outputs);
        norms.try_for_each(|norm| inventory.add_norm(norm))
    }

    /// The maps of some stages, where 0 is the stem.
    pub fn forward(
        &self,
        image: &FeatureMap,
        wanted: &[usize],
        cancel: &CancelToken,
    ) -> Result<Vec<FeatureMap>> {
        let last = wanted.iter().copied().max().unwrap_or(0);
        let mut map = image.clone();
        let mut maps = Vec::with_capacity(wanted.len());
        for (number, stage) in self.stages.iter().enumerate().take(last + 1) {
            for layer in &stage.layers {
                cancel.check()?;
                map = layer.forward(&map)?;
            }
            if wanted.contains(&number) {
                let mut norms = self.output_norms.iter();
                maps.push(match norms.find(|(stage, _)| *stage == number) {
                    Some((_, norm)) => map.with(norm.forward(&map.rows)?)?,
                    None => map.clone(),
                });
            }
        }
        Ok(maps)
    }

    /// Which stages a configuration wants the maps of; the last where it does not say.
    pub fn wanted(&self, raw: Option<&RawConfig>) -> Result<Vec<usize>> {
        let count = self.stages.len();
        let Some(raw) = raw else {
            return Ok(vec![count - 1]);
        };
        if let Some(names) = raw.opt_strings(["out_features", "_out_features"])? {
            let number = |name: &String| match name.strip_prefix("stage") {
                Some(number) => number.parse().ok().filter(|&number| number < count),
                None => (name == "stem").then_some(0),
            };
            let numbers: Option<Vec<usize>> = names.iter().map(number).collect();
            return numbers.ok_or_else(|| {
                let reason =
                    format!("\"out_features\" has stages that it does not have: {names:?}");
                Error::corrupt(raw.file(), reason)
            });
        }
        let Some(numbers) = raw.opt_integers(["out_indices", "_out_indices"])? else {
            return Ok(vec![count - 1]);
        };
        let number = |&number: &i64| match usize::try_from(number) {
            Ok(number) => Some(number).filter(|&number| number < count),
            Err(_) => count.checked_add_signed(number as isize),
        };
        let numbers: Option<Vec<usize>> = numbers.iter().map(number).collect();
        numbers.ok_or_else(|| {
            let reason = format!("\"out_indices\" are beyond its {count} stages");
            Error::corrupt(raw.file(), reason)
        })
    }
}

/// A list of sizes, of which there must be as many as stages.
pub fn sizes(
    raw: &RawConfig,
    key: &str,
    usual: &[usize],
    count: Option<usize>,
) -> Result<Vec<usize>> {
    let sizes = match raw.opt_integers(key)? {
        None => usual.to_vec(),
        Some(numbers) => {
            let sizes = numbers.iter().map(|&number| usize::try_from(number).ok());
            let sizes = sizes.map(|size| size.filter(|size| STAGES.contains(size)));
            let sizes: Option<Vec<usize>> = sizes.collect();
            let sizes = sizes.filter(|sizes| !sizes.is_empty());
            sizes.ok_or_else(|| {
                let reason = format!("{key:?} is {numbers:?}, which are not sizes");
                Error::corrupt(raw.file(), reason)
            })?
        }
    };
    match count {
        Some(count) if count != sizes.len() => Err(Error::corrupt(
            raw.file(),
            format!("{key:?} has {} numbers for {count} stages", sizes.len()),
        )),
        _ => Ok(sizes),
    }
}

fn hidden_activation(raw: &RawConfig) -> Result<Activation> {
    let name = raw.opt_string("hidden_act")?.unwrap_or("relu");
    crate::models::config::activation(name, raw.file())
}
