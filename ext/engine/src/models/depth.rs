//! How far things are: states of a backbone, brought to maps of several sizes and fused from the coarsest to the finest
//! (DPT, Depth Anything).

use candle_core::{DType, Device, Tensor};

use crate::models::convolutional::Backbone;
use crate::models::modules::{Convolution, Modules};
use crate::models::towers::{Seen, Tower};
use crate::nn::feature_map::FeatureMap;
use crate::nn::{elementwise, Conv2d, Epilogue, Inventory, Linear, Spread};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::RawConfig;
use formats::image::View;
use formats::weights::WeightSource;
use kernels::Activation;

/// The `model_type`s that estimate depths.
pub const TYPES: &[&str] = &["depth_anything", "dpt"];

#[derive(Debug)]
pub struct DepthNetwork {
    body: Body,
    reassembled: Vec<Reassemble>,
    convolutions: Vec<Conv2d>,
    fusions: Vec<Fusion>,
    head: Head,
    /// Of the fused maps, the one that the head reads.
    read: usize,
    pub family: &'static str,
    device: Device,
    dtype: DType,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one per model")]
enum Body {
    /// States after some layers, behind the last norm or not.
    Patches(Tower, Vec<usize>, bool),
    Maps(Backbone, Vec<usize>),
}

/// What becomes of the token before the patches.
#[derive(Debug)]
enum Readout {
    Ignored,
    Added,
    Projected(Box<Linear>, Activation),
}

/// States as a map of another size.
#[derive(Debug)]
struct Reassemble {
    readout: Readout,
    projection: Conv2d,
    resize: Resize,
}

#[derive(Debug)]
enum Resize {
    Larger(Spread),
    Same,
    Smaller(Conv2d),
}

/// Two convolutions that add to what they read.
#[derive(Debug)]
struct Residual(Conv2d, Conv2d);

#[derive(Debug)]
struct Fusion {
    beside: Residual,
    after: Residual,
    projection: Conv2d,
}

#[derive(Debug)]
struct Head {
    /// DPT's, of some files.
    projection: Option<Conv2d>,
    first: Conv2d,
    second: Conv2d,
    third: Conv2d,
    last: Activation,
    scale: f32,
    /// The edge of the patches whose pixels it has one depth for each of; `None`: twice the size of the map.
    patch: Option<usize>,
}

fn convolution(modules: &Modules<'_>, inputs: usize, name: &str, norm: &str) -> Result<Conv2d> {
    modules.convolution(inputs, Convolution::new(name, norm, None))
}

impl Residual {
    fn load(modules: &Modules<'_>, width: usize) -> Result<Self> {
        let one = |number: usize| {
            let (name, norm) = (
                format!("convolution{number}"),
                format!("batch_norm{number}"),
            );
            let norm = if modules.has(&norm) {
                norm.as_str()
            } else {
                ""
            };
            convolution(modules, width, &name, norm)
        };
        Ok(Self(one(1)?, one(2)?))
    }

    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let inside = self.0.forward(&map.activated(Activation::Relu)?)?;
        let inside = self.1.forward(&inside.activated(Activation::Relu)?)?;
        map.add(&inside)
    }
}

impl Fusion {
    fn load(modules: &Modules<'_>, width: usize) -> Result<Self> {
        Ok(Self {
            beside: Residual::load(&modules.at("residual_layer1"), width)?,
            after: Residual::load(&modules.at("residual_layer2"), width)?,
            projection: convolution(modules, width, "projection", "")?,
        })
    }

    /// `size` is twice the map's where none is given.
    fn forward(
        &self,
        map: &FeatureMap,
        beside: Option<&FeatureMap>,
        size: Option<(usize, usize)>,
    ) -> Result<FeatureMap> {
        let sum = match beside {
            Some(beside) => {
                let beside = beside.stretched(map.size())?;
                map.add(&self.beside.forward(&beside)?)?
            }
            None => map.clone(),
        };
        let map = self.after.forward(&sum)?;
        let size = size.unwrap_or((2 * map.height, 2 * map.width));
        self.projection.forward(&map.stretched_corners(size)?)
    }
}

impl Reassemble {
    fn load(
        modules: &Modules<'_>,
        (number, factor): (usize, f64),
        width: usize,
        readout: Readout,
    ) -> Result<Self> {
        let modules = modules.at(format!("reassemble_stage.layers.{number}"));
        let projection = convolution(&modules, width, "projection", "")?;
        let channels = projection.outputs();
        let resize = if factor == 1.0 {
            Resize::Same
        } else if factor < 1.0 {
            let of = Convolution {
                stride: (1.0 / factor) as usize,
                padding: Some(1),
                ..Convolution::new("resize", "", None)
            };
            Resize::Smaller(modules.convolution(channels, of)?)
        } else {
            let shape = modules.shape("resize.weight")?;
            if shape.first() != Some(&channels) || shape.len() != 4 {
                modules.shaped("resize.weight", &[channels, channels, 2, 2])?;
            }
            let weight = modules.tensor("resize.weight")?;
            Resize::Larger(Spread::new(
                &weight,
                modules.optional("resize.bias")?.as_ref(),
            )?)
        };
        Ok(Self {
            readout,
            projection,
            resize,
        })
    }

    fn forward(&self, seen: &Seen, states: &Tensor) -> Result<FeatureMap> {
        let map = seen.map(states)?;
        let first = || -> Result<Tensor> { Ok(states.narrow(0, 0, 1)?.contiguous()?) };
        let map = match &self.readout {
            Readout::Ignored => map,
            Readout::Added => map.with(elementwise::add(&map.rows, &first()?)?)?,
            Readout::Projected(linear, activation) => {
                let count = map.rows.dim(0)?;
                let read = first()?
                    .broadcast_as((count, states.dim(1)?))?
                    .contiguous()?;
                let both = Tensor::cat(&[&map.rows, &read], 1)?.contiguous()?;
                let epilogue = Epilogue {
                    activation: Some(*activation),
                    ..Epilogue::default()
                };
                map.with(linear.forward_with(&both, &epilogue)?)?
            }
        };
        let map = self.projection.forward(&map)?;
        match &self.resize {
            Resize::Larger(spread) => spread.forward(&map),
            Resize::Same => Ok(map),
            Resize::Smaller(convolution) => convolution.forward(&map),
        }
    }
}

/// The stages whose maps are read, in their order; of old files the last.
fn stages(raw: &RawConfig, count: usize) -> Result<Vec<usize>> {
    let wrong = |what: String| Error::corrupt(raw.file(), what);
    let mut found: Vec<usize> =
        if let Some(names) = raw.opt_strings(["out_features", "_out_features"])? {
            let number = |name: &String| match name.strip_prefix("stage") {
                Some(number) => number.parse().ok(),
                None => (name == "stem").then_some(0),
            };
            let numbers: Option<Vec<usize>> = names.iter().map(number).collect();
            numbers.ok_or_else(|| wrong(format!("\"out_features\" is {names:?}")))?
        } else {
            let numbers = raw
                .opt_integers(["out_indices", "_out_indices"])?
                .unwrap_or(vec![-1]);
            let number = |&number: &i64| match usize::try_from(number) {
                Ok(number) => Some(number),
                Err(_) => (count + 1).checked_add_signed(number as isize),
            };
            let all: Option<Vec<usize>> = numbers.iter().map(number).collect();
            all.ok_or_else(|| wrong(format!("\"out_indices\" is {numbers:?}")))?
        };
    found.sort_unstable();
    if found.last().is_some_and(|&last| last > count) {
        return Err(wrong(format!(
            "a backbone of {count} layers has no stages {found:?}"
        )));
    }
    Ok(found)
}

impl Body {
    fn load(raw: &RawConfig, modules: &Modules<'_>, cancel: &CancelToken) -> Result<Self> {
        let nested = raw.opt_nested("backbone_config")?;
        if raw.opt_bool("is_hybrid")?.unwrap_or(false) {
            let reason = "DPT hybrids, whose backbone is BiT, are not supported";
            return Err(Error::unsupported(raw.file(), reason));
        }
        let Some(nested) = nested else {
            if raw.model_type()? != Some("dpt") {
                return Err(Error::corrupt(raw.file(), "it has no \"backbone_config\""));
            }
            let tower = Tower::load(raw, &modules.at("dpt"), cancel)?;
            let numbers = raw.opt_integers("backbone_out_indices")?;
            let numbers = numbers.unwrap_or(vec![2, 5, 8, 11]);
            let layers: Vec<usize> = (0..tower.layer_count())
                .filter(|&layer| numbers.contains(&(layer as i64)))
                .map(|layer| layer + 1)
                .collect();
            return Ok(Self::Patches(tower, layers, false));
        };
        let backbone = modules.at("backbone");
        match nested.model_type()?.unwrap_or("(none)") {
            "dinov2" => {
                let tower = Tower::load(&nested, &backbone, cancel)?;
                let normed = nested.opt_bool("apply_layernorm")?.unwrap_or(true);
                let layers = stages(&nested, tower.layer_count())?;
                Ok(Self::Patches(tower, layers, normed))
            }
            "beit" => {
                let inside = if backbone.has("beit") { backbone.at("beit") } else { backbone };
                let tower = Tower::load(&nested, &inside, cancel)?;
                let layers = stages(&nested, tower.layer_count())?;
                if nested.opt_bool("add_fpn")?.unwrap_or(false) {
                    let reason = "add_fpn of BEiT is not supported";
                    return Err(Error::unsupported(raw.file(), reason));
                }
                Ok(Self::Patches(tower, layers, false))
            }
            "swinv2" => {
                let network = Backbone::load(Some(&nested), &backbone, cancel)?;
                let mut wanted = network.wanted(Some(&nested))?;
                wanted.sort_unstable();
                Ok(Self::Maps(network, wanted))
            }
            other => Err(Error::unsupported(
                raw.file(),
                format!(
                    "the backbone {other:?} of a depth estimator is not supported: dinov2, beit and swinv2 are"
                ),
            )),
        }
    }

    fn width(&self) -> usize {
        match self {
            Self::Patches(tower, ..) => tower.width(),
            Self::Maps(network, _) => network.channels().last().copied().unwrap_or(0),
        }
    }
}

impl DepthNetwork {
    pub fn load(
        raw: &RawConfig,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        int8: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let found = raw.model_type()?.unwrap_or("(none)");
        let Some(&family) = TYPES.iter().find(|&&name| name == found) else {
            let unknown = crate::models::families::unknown;
            let kind = ("model_type", found);
            return Err(unknown(raw.file(), kind, "a depth estimator", TYPES));
        };
        let names = source.names();
        let modules = Modules::new(source, &names, (device, dtype), int8);
        let neck = modules.at("neck");
        if !neck.has("convs")
            || !modules.at("head").has("conv1") && !modules.at("head").has("head.4")
        {
            let reason =
                "the checkpoint has no head for depths: use one that was trained for this task";
            return Err(Error::unsupported(&source.file(""), reason));
        }
        let body = Body::load(raw, &modules, cancel)?;
        let (count, width) = match &body {
            Body::Patches(tower, layers, _) => (layers.len(), tower.width()),
            Body::Maps(_, wanted) => (wanted.len(), 0),
        };
        let factors = raw.opt_numbers("reassemble_factors")?;
        let factors = factors.unwrap_or(vec![4.0, 2.0, 1.0, 0.5]);
        let mut reassembled = Vec::new();
        let mut channels = Vec::new();
        if let Body::Patches(..) = &body {
            for number in 0..count {
                let readout = readout(raw, &neck, number, width)?;
                let factor = factors.get(number).copied().filter(|factor| *factor > 0.01);
                let factor = factor.ok_or_else(|| {
                    let reason = format!("\"reassemble_factors\" are {factors:?}");
                    Error::corrupt(raw.file(), reason)
                })?;
                let one = Reassemble::load(&neck, (number, factor), width, readout)?;
                channels.push(one.projection.outputs());
                reassembled.push(one);
            }
        } else if let Body::Maps(network, wanted) = &body {
            channels = wanted
                .iter()
                .map(|&stage| network.channels()[stage])
                .collect();
        }
        let mut convolutions = Vec::new();
        for (number, &channels) in channels.iter().enumerate() {
            convolutions.push(convolution(
                &neck,
                channels,
                &format!("convs.{number}"),
                "",
            )?);
        }
        let fused = convolutions.first().map_or(0, Conv2d::outputs);
        let alike = convolutions.iter().all(|one| one.outputs() == fused);
        if convolutions.is_empty() || !alike || neck.has(&format!("convs.{count}")) {
            let reason = format!("its neck does not have {count} maps of one width");
            return Err(Error::corrupt(raw.file(), reason));
        }
        let fusion = |number: usize| {
            let modules = neck.at(format!("fusion_stage.layers.{number}"));
            Fusion::load(&modules, fused)
        };
        let index = raw.opt_integers("head_in_index")?.unwrap_or_default();
        let index = index.first().copied().unwrap_or(-1);
        let read = match usize::try_from(index) {
            Ok(index) => Some(index),
            Err(_) => count.checked_add_signed(index as isize),
        };
        let read = read.filter(|&read| read < count);
        Ok(Self {
            head: Head::load(raw, &modules.at("head"), fused)?,
            read: read.ok_or_else(|| {
                Error::corrupt(
                    raw.file(),
                    format!("\"head_in_index\" {index} is not a map"),
                )
            })?,
            fusions: (0..count).map(fusion).collect::<Result<_>>()?,
            body,
            reassembled,
            convolutions,
            family,
            device: device.clone(),
            dtype,
        })
    }

    pub fn hidden_size(&self) -> usize {
        self.body.width()
    }

    pub fn layer_count(&self) -> usize {
        match &self.body {
            Body::Patches(tower, ..) => tower.layer_count(),
            Body::Maps(network, _) => network.channels().len(),
        }
    }

    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        match &self.body {
            Body::Patches(tower, ..) => tower.list(&mut inventory)?,
            Body::Maps(network, _) => network.list(&mut inventory)?,
        }
        for one in &self.reassembled {
            one.projection.list(&mut inventory)?;
            match &one.resize {
                Resize::Larger(spread) => spread.list(&mut inventory)?,
                Resize::Smaller(convolution) => convolution.list(&mut inventory)?,
                Resize::Same => {}
            }
            if let Readout::Projected(linear, _) = &one.readout {
                inventory.add_linear(linear)?;
            }
        }
        let fusions = self.fusions.iter().flat_map(|fusion| {
            let Residual(one, two) = &fusion.beside;
            let Residual(three, four) = &fusion.after;
            [one, two, three, four, &fusion.projection]
        });
        let head = &self.head;
        let heads = head.projection.iter();
        let all = self.convolutions.iter().chain(fusions).chain(heads);
        for convolution in all.chain([&head.first, &head.second, &head.third]) {
            convolution.list(&mut inventory)?;
        }
        inventory.add_rows("activation", &self.device)?;
        Ok(inventory)
    }

    /// A depth for every place of a map.
    pub fn forward(&self, view: &View, cancel: &CancelToken) -> Result<FeatureMap> {
        let image = FeatureMap::of_view(view, (&self.device, self.dtype))?;
        let mut grid = (0, 0);
        let maps = match &self.body {
            Body::Patches(tower, layers, normed) => {
                let seen = tower.forward(&image, layers, cancel)?;
                grid = seen.grid;
                let each = seen.states.iter().zip(&self.reassembled);
                let map = |(states, one): (&Tensor, &Reassemble)| {
                    if *normed {
                        one.forward(&seen, &tower.normed(states)?)
                    } else {
                        one.forward(&seen, states)
                    }
                };
                each.map(map).collect::<Result<Vec<_>>>()?
            }
            Body::Maps(network, wanted) => network.forward(&image, wanted, cancel)?,
        };
        let mut narrow = Vec::with_capacity(maps.len());
        for (map, convolution) in maps.iter().zip(&self.convolutions) {
            cancel.check()?;
            narrow.push(convolution.forward(map)?);
        }
        narrow.reverse();
        let mut fused: Option<FeatureMap> = None;
        let mut found = None;
        for (number, (map, fusion)) in narrow.iter().zip(&self.fusions).enumerate() {
            cancel.check()?;
            let next = narrow.get(number + 1).map(FeatureMap::size);
            let size = next.filter(|_| self.family == "depth_anything");
            let made = match &fused {
                Some(before) => fusion.forward(before, Some(map), size)?,
                None => fusion.forward(map, None, size)?,
            };
            if number == self.read {
                found = Some(made.clone());
            }
            fused = Some(made);
        }
        let map = found.ok_or_else(|| Error::Internal("no map for the head".into()))?;
        self.head.forward(&map, grid)
    }
}

fn readout(raw: &RawConfig, neck: &Modules<'_>, number: usize, width: usize) -> Result<Readout> {
    if raw.model_type()? != Some("dpt") {
        return Ok(Readout::Ignored);
    }
    Ok(match raw.opt_string("readout_type")?.unwrap_or("project") {
        "ignore" => Readout::Ignored,
        "add" => Readout::Added,
        "project" => {
            let name = format!("reassemble_stage.readout_projects.{number}.0");
            let name_of = raw.opt_string("hidden_act")?.unwrap_or("gelu");
            let activation = crate::models::config::activation(name_of, raw.file())?;
            Readout::Projected(
                Box::new(neck.sized_linear(&name, 2 * width, width)?),
                activation,
            )
        }
        other => {
            let reason =
                format!("readout_type {other:?} is unsupported: ignore, add and project are known");
            return Err(Error::corrupt(raw.file(), reason));
        }
    })
}

impl Head {
    fn load(raw: &RawConfig, modules: &Modules<'_>, width: usize) -> Result<Self> {
        let whole = raw.model_type()? == Some("depth_anything");
        let names = if whole {
            ["conv1", "conv2", "conv3"]
        } else {
            ["head.0", "head.2", "head.4"]
        };
        let first = convolution(modules, width, names[0], "")?;
        let second = convolution(modules, first.outputs(), names[1], "")?;
        let third = convolution(modules, second.outputs(), names[2], "")?;
        if third.outputs() != 1 {
            let reason = format!("its head makes {} numbers for a place", third.outputs());
            return Err(Error::corrupt(raw.file(), reason));
        }
        let metric = match raw
            .opt_string("depth_estimation_type")?
            .unwrap_or("relative")
        {
            "metric" => whole,
            "relative" => false,
            other => {
                let reason =
                    format!("depth_estimation_type {other:?} is neither relative nor metric");
                return Err(Error::corrupt(raw.file(), reason));
            }
        };
        let scale = if whole {
            raw.opt_f64("max_depth")?
        } else {
            None
        };
        let patch = raw.opt_usize_in("patch_size", 1..=1024)?.unwrap_or(14);
        Ok(Self {
            projection: if raw.opt_bool("add_projection")?.unwrap_or(false) && !whole {
                Some(convolution(modules, width, "projection", "")?)
            } else {
                None
            },
            first,
            second,
            third,
            last: if metric {
                Activation::Sigmoid
            } else {
                Activation::Relu
            },
            scale: scale.unwrap_or(1.0) as f32,
            patch: whole.then_some(patch),
        })
    }

    fn forward(&self, map: &FeatureMap, grid: (usize, usize)) -> Result<FeatureMap> {
        let projected = self
            .projection
            .as_ref()
            .map(|convolution| convolution.forward(map)?.activated(Activation::Relu));
        let projected = projected.transpose()?;
        let map = self.first.forward(projected.as_ref().unwrap_or(map))?;
        let size = match self.patch {
            Some(edge) => (grid.0 * edge, grid.1 * edge),
            None => (2 * map.height, 2 * map.width),
        };
        let map = self.second.forward(&map.stretched_corners(size)?)?;
        let map = self.third.forward(&map.activated(Activation::Relu)?)?;
        map.activated(self.last)?.affine(self.scale, 0.0)
    }
}
