//! Where the layers of a decoder are: all on one device, or in stages on several.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use super::config::DecoderConfig;
use crate::{Error, Result};
use base::runtime::device::{placed, slowest};

/// Where layers are, and what they compute in.
#[derive(Clone, Debug)]
pub struct Home {
    pub device: Device,
    pub dtype: DType,
}

/// Layers one after the other on a device.
#[derive(Clone, Debug)]
pub struct Stage {
    pub layers: Range<usize>,
    pub home: Home,
}

impl Home {
    fn is(&self, other: &Self) -> bool {
        self.device.same_device(&other.device) && self.dtype == other.dtype
    }

    /// The tensor as layers there take it.
    pub fn takes(&self, tensor: &Tensor) -> Result<Tensor> {
        let converted = tensor.to_dtype(self.dtype)?;
        placed(&converted, &self.device)
    }

    pub fn take_all(&self, tensors: &[Tensor]) -> Result<Vec<Tensor>> {
        tensors.iter().map(|tensor| self.takes(tensor)).collect()
    }
}

/// The stages that tokens pass through. Embeddings, the final norm and the head have a home of their own.
#[derive(Clone, Debug)]
pub struct Stages {
    main: Home,
    all: Vec<Stage>,
}

impl Stages {
    /// All layers on one device.
    pub fn whole(config: &DecoderConfig, device: &Device, dtype: DType) -> Self {
        let main = Home {
            device: device.clone(),
            dtype,
        };
        Self {
            all: vec![Stage {
                layers: 0..config.layer_count,
                home: main.clone(),
            }],
            main,
        }
    }

    /// So many layers on each device, in their order. An error unless these are all layers, and none needs another on
    /// its own device.
    pub fn new(main: Home, counts: &[(Home, usize)], config: &DecoderConfig) -> Result<Self> {
        let named = counts
            .iter()
            .fold(0_usize, |sum, (_, count)| sum.saturating_add(*count));
        if named != config.layer_count {
            return Err(Error::InvalidInput(format!(
                "device_map: names {named} layers, and the model has {}",
                config.layer_count
            )));
        }
        let (mut all, mut first) = (Vec::new(), 0);
        for (home, count) in counts.iter().filter(|(_, count)| *count > 0) {
            all.push(Stage {
                layers: first..first + count,
                home: home.clone(),
            });
            first += count;
        }
        let stages = Self { main, all };
        if !stages.is_split() {
            return Ok(stages);
        }
        let cuts = stages.all.iter().map(|stage| stage.layers.start);
        match cuts.filter_map(|at| obstacle(config, at)).next() {
            Some(reason) => Err(Error::UnsupportedModel(format!(
                "the layers of {} can't be on several devices like this: {reason}",
                config.architecture
            ))),
            None => Ok(stages),
        }
    }

    pub fn main(&self) -> &Home {
        &self.main
    }

    pub fn all(&self) -> &[Stage] {
        &self.all
    }

    /// Whether any layer is elsewhere than what stands beside the layers.
    pub fn is_split(&self) -> bool {
        match &self.all[..] {
            [stage] => !stage.home.is(&self.main),
            _ => true,
        }
    }

    /// The device that decides how long a step takes: the CPU, where it has layers.
    pub fn slowest(&self) -> &Device {
        slowest(self.all.iter().map(|stage| &stage.home.device)).unwrap_or(&self.main.device)
    }

    /// Where a layer is.
    pub fn home_of(&self, layer: usize) -> &Home {
        let stage = self.all.iter().find(|stage| stage.layers.contains(&layer));
        stage.map_or(&self.main, |stage| &stage.home)
    }
}

/// Why the layers from this one on can't be on another device than those before.
pub fn obstacle(config: &DecoderConfig, at: usize) -> Option<String> {
    if config.stacks.is_some() {
        return Some("they run several times for each token".to_owned());
    }
    if config.state.is_some() {
        return Some("some of them keep states".to_owned());
    }
    let reader = (at..config.layer_count).find(|&layer| config.kv_layer(layer) < at)?;
    Some(format!(
        "layer {reader} reads the keys and values of layer {}",
        config.kv_layer(reader)
    ))
}
