//! Which layers of a language model are on its device, where it does not hold them all.

use candle_core::DType;

use crate::models::decoder::stages::{obstacle, Home, Stages};
use crate::models::decoder::{DecoderConfig, KvPool};
use crate::models::parameters::Parameters;
use crate::models::parts::Names;
use crate::nn::Linear;
use crate::{Error, Result};
use base::runtime::device::{free_bytes, Device};
use base::runtime::memory::format_bytes;
use formats::weights::WeightSource;
use kernels::paged::KvType;

use super::super::loading::Checkpoint;
use super::{default_limit, CacheOptions, SHARE, UNKNOWN_MEMORY};

/// Where the layers of a language model go. What stands beside them is on the model's device.
#[derive(Clone, Debug, Default)]
pub enum DeviceMap {
    /// All to the model's device.
    #[default]
    Whole,
    /// So many of the first ones there, the others to the CPU.
    First(usize),
    /// As many of the first ones there as fit beside their keys and values into so many bytes, or into what is free.
    Fitting(Option<usize>),
    /// So many to each of these devices, in their order.
    Counts(Vec<(Device, usize)>),
}

/// Without a limit a model that computes leaves this part of the free memory alone: its intermediate results go there.
const WORKING_SHARE: usize = 8;

/// A checkpoint that is to be placed.
pub(super) struct Placing<'a> {
    pub config: &'a DecoderConfig,
    pub names: &'a Names,
    pub checkpoint: &'a Checkpoint,
    pub cache: CacheOptions,
    pub context_length: usize,
}

impl Placing<'_> {
    /// The stages of a model that is not loaded yet, and the bytes that its keys and values may take where that was part
    /// of the decision.
    pub fn place(&self, map: &DeviceMap) -> Result<(Stages, Option<usize>)> {
        let (main, config) = (self.main(), self.config);
        let layers = config.layer_count;
        let on_both = |first: usize| -> Result<Stages> {
            let first = first.min(layers);
            let cpu = self.home(Device::Cpu)?;
            let stages = match layers - first {
                0 => vec![(self.main(), layers)],
                rest => vec![(self.main(), first), (cpu, rest)],
            };
            Stages::new(self.main(), &stages, config)
        };
        Ok(match map {
            DeviceMap::Whole => (Stages::whole(config, &main.device, main.dtype), None),
            DeviceMap::First(count) => (on_both(*count)?, None),
            DeviceMap::Counts(counts) => {
                let homes = counts.iter();
                let homes = homes.map(|(device, count)| Ok((self.home(*device)?, *count)));
                let homes = homes.collect::<Result<Vec<_>>>()?;
                (Stages::new(main, &homes, config)?, None)
            }
            DeviceMap::Fitting(limit) => {
                let free = free_bytes(&main.device).unwrap_or(UNKNOWN_MEMORY);
                let room = limit.unwrap_or(free - free / WORKING_SHARE).min(free);
                let cache = self.reserved(room);
                let needs = self.needs(&main, cache)?;
                let stages = on_both(needs.fitting(room, config)?)?;
                let decided = limit.is_some() || stages.is_split();
                (stages, decided.then_some(cache))
            }
        })
    }

    /// What keys and values of the loaded model are stored as, and the bytes they may take.
    pub fn cache(&self, stages: &Stages, decided: Option<usize>) -> (KvType, usize) {
        let limit = self.cache.limit.or(decided);
        let limit = limit.unwrap_or_else(|| self.default_cache(stages));
        (self.kind(), limit)
    }

    fn main(&self) -> Home {
        Home {
            device: self.checkpoint.opened.clone(),
            dtype: self.checkpoint.dtype,
        }
    }

    /// On the CPU the layers of a quantized model stay quantized, which they do beside f32.
    fn home(&self, device: Device) -> Result<Home> {
        let (device, dtype) = (device.open()?, self.checkpoint.dtype);
        let keeps = |dtype: DType| Linear::keeps_blocks(&device, dtype);
        let source = self.checkpoint.source.as_ref();
        let expands = !keeps(dtype) && keeps(DType::F32) && has_blocks(source)?;
        Ok(Home {
            dtype: if expands { DType::F32 } else { dtype },
            device,
        })
    }

    fn kind(&self) -> KvType {
        let kind = self.cache.kind;
        kind.unwrap_or_else(|| KvType::of(self.checkpoint.dtype))
    }

    /// The bytes of one sequence of the greatest length.
    fn context(&self) -> usize {
        let token = KvPool::token_bytes(self.config, self.kind());
        let context = token.saturating_mul(self.context_length);
        context.saturating_add(KvPool::sequence_bytes(self.config))
    }

    /// What keys and values may take in all layers of a model that gets so much room on its device.
    fn reserved(&self, room: usize) -> usize {
        let limit = self.cache.limit;
        limit.unwrap_or_else(|| self.context().min(room / SHARE))
    }

    /// As much as every device has room for its layers' share of.
    fn default_cache(&self, stages: &Stages) -> usize {
        let on = |device: &candle_core::Device, context: usize| {
            default_limit(Device::of(device), free_bytes(device), context)
        };
        if !stages.is_split() {
            return on(&stages.main().device, self.context());
        }
        let whole = KvPool::token_bytes(self.config, self.kind()).max(1);
        let limits = stages.all().iter().map(|stage| {
            let own = KvPool::layer_bytes(self.config, self.kind(), stage.layers.clone());
            let limit = on(&stage.home.device, part(self.context(), own, whole));
            part(limit, whole, own.max(1))
        });
        limits.min().unwrap_or(0)
    }

    fn needs(&self, home: &Home, cache: usize) -> Result<Needs> {
        let source = self.checkpoint.source.as_ref();
        let parameters = Parameters::new(source, self.names, &home.device, home.dtype)?;
        let (mut layers, beside) = parameters.bytes_by_layer(self.config.layer_count);
        let whole = KvPool::token_bytes(self.config, self.kind()).max(1);
        for (layer, bytes) in layers.iter_mut().enumerate() {
            let own = KvPool::layer_bytes(self.config, self.kind(), layer..layer + 1);
            *bytes = bytes.saturating_add(part(cache, own, whole));
        }
        Ok(Needs { beside, layers })
    }
}

/// `bytes · own / whole`
fn part(bytes: usize, own: usize, whole: usize) -> usize {
    usize::try_from(bytes as u128 * own as u128 / whole as u128).unwrap_or(usize::MAX)
}

/// Whether a checkpoint's matrices are quantized.
fn has_blocks(source: &dyn WeightSource) -> Result<bool> {
    for name in source.names() {
        if source.quantized(&name)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The bytes of a model on its device.
struct Needs {
    /// What stands beside the layers.
    beside: usize,
    /// Each layer, with its share of what keys and values take.
    layers: Vec<usize>,
}

impl Needs {
    /// How many of the first layers fit, where the others can be elsewhere.
    fn fitting(&self, room: usize, config: &DecoderConfig) -> Result<usize> {
        let mut left = room.checked_sub(self.beside).ok_or_else(|| {
            Error::OutOfMemory(format!(
                "the embeddings and the head of the model need {} on its device, and {} are left there: use \
                 device: \"cpu\", or a quantized model",
                format_bytes(self.beside),
                format_bytes(room)
            ))
        })?;
        let mut count = 0;
        for &bytes in &self.layers {
            let Some(rest) = left.checked_sub(bytes) else {
                break;
            };
            left = rest;
            count += 1;
        }
        if count == self.layers.len() {
            return Ok(count);
        }
        let mut fewer = (0..=count).rev();
        let cut = fewer.find(|&count| obstacle(config, count).is_none());
        cut.ok_or_else(|| {
            Error::UnsupportedModel(format!(
                "{} does not fit on its device, and its layers can't be on two: {}",
                config.architecture,
                obstacle(config, count).unwrap_or_default()
            ))
        })
    }
}
