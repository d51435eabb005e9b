//! One encoder for every family: token ids in, hidden states out, over packed sequences.

pub mod config;
mod convolution;
mod embeddings;
pub mod families;
mod heads;
mod layer;
mod parts;
mod relative;
mod verify;

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::files::raw_config::RawConfig;
use crate::nn::{Embedding, Inventory, Norm, PackedSequences};
use crate::weights::WeightSource;
use crate::{CancelToken, Result};

pub use config::EncoderConfig;

use convolution::ConvolutionLayer;
use embeddings::Embeddings;
use layer::Layer;
use parts::{Names, Part, Parts};
use relative::RelativePositions;

/// Weights and blueprint of an encoder; immutable, and free to be shared between threads.
#[derive(Debug)]
pub struct Encoder {
    config: EncoderConfig,
    embeddings: Embeddings,
    /// One entry per layer that is run; shared where the family shares weights.
    layers: Vec<Arc<Layer>>,
    relative: RelativePositions,
    convolution: Option<ConvolutionLayer>,
    final_norm: Option<Norm>,
    device: Device,
    dtype: DType,
    /// Whether linear layers hold bytes.
    int8: bool,
}

/// Which family a checkpoint belongs to, and what that makes of its configuration.
pub struct Blueprint {
    pub config: EncoderConfig,
    names: Names,
}

impl Blueprint {
    pub fn from_config(raw: &RawConfig) -> Result<Self> {
        let family = families::find(raw)?;
        let config = (family.config)(raw)?;
        config.check()?;
        Ok(Self {
            config,
            names: family.names,
        })
    }

    /// From the metadata of a GGUF file.
    pub fn from_gguf(source: &dyn WeightSource) -> Result<Self> {
        let metadata = source.metadata();
        let family = families::find_gguf(metadata)?;
        let config = (family.config)(metadata, family.architecture)?;
        config.check()?;
        Ok(Self {
            config,
            names: family.names,
        })
    }
}

impl Encoder {
    /// Its tensors are of `dtype`; with `int8` the linear layers hold bytes, on the CPU and beside f32.
    pub fn load(
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        device: &Device,
        dtype: DType,
        int8: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let config = blueprint.config.clone();
        let parts = Parts::new(source, blueprint.names, device, dtype)?.with_int8(int8);
        let embeddings = Embeddings::load(&config, &parts)?;
        let relative = RelativePositions::load(&config, &parts)?;
        let mut loaded: HashMap<usize, Arc<Layer>> = HashMap::new();
        let mut layers = Vec::with_capacity(config.layers.len());
        for layer in &config.layers {
            cancel.check()?;
            let shared = match loaded.get(&layer.weights) {
                Some(shared) => shared.clone(),
                None => {
                    let fresh = Arc::new(Layer::load(&config, &parts, layer.weights, &relative)?);
                    loaded.insert(layer.weights, fresh.clone());
                    fresh
                }
            };
            layers.push(shared);
        }
        Ok(Self {
            convolution: ConvolutionLayer::load(&config, &parts)?,
            final_norm: parts.optional_norm(Part::FinalNorm, 0, config.norm, config.epsilon)?,
            config,
            embeddings,
            layers,
            relative,
            device: device.clone(),
            dtype,
            int8,
        })
    }

    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// What it is made of.
    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        self.embeddings.list(&mut inventory)?;
        let mut seen: Vec<*const Layer> = Vec::new();
        for layer in &self.layers {
            if !seen.contains(&Arc::as_ptr(layer)) {
                seen.push(Arc::as_ptr(layer));
                layer.list(&mut inventory)?;
            }
        }
        if let Some(convolution) = &self.convolution {
            convolution.list(&mut inventory)?;
        }
        if let Some(norm) = &self.final_norm {
            inventory.add_norm(norm)?;
        }
        if matches!(self.relative, RelativePositions::Rope(_)) {
            inventory.add_rows("rope", &self.device)?;
        }
        inventory.add_rows("activation", &self.device)?;
        inventory.add_attention(&self.device, self.dtype, self.config.head_width)?;
        Ok(inventory)
    }

    /// The token table, which masked-LM heads and yes/no scores are read off.
    pub fn words(&self) -> &Embedding {
        self.embeddings.words()
    }

    /// The longest sequence there are positions for.
    pub fn max_positions(&self) -> Option<usize> {
        let table = self.embeddings.max_positions();
        // A configuration may promise more rows than the table has, or count RoBERTa's unused ones.
        table.or(self.config.max_positions)
    }

    /// The hidden states after the last layer, [tokens, hidden].
    pub fn forward(&self, sequences: &PackedSequences, cancel: &CancelToken) -> Result<Tensor> {
        cancel.check()?;
        if sequences.tokens() == 0 {
            return Ok(Tensor::zeros(
                (0, self.config.hidden),
                self.dtype,
                &self.device,
            )?);
        }
        let embedded = self.embeddings.forward(sequences)?;
        let relative = self.relative.state(sequences, &self.device)?;
        let mut x = embedded.clone();
        for (number, (layer, config)) in self.layers.iter().zip(&self.config.layers).enumerate() {
            cancel.check()?;
            x = layer.forward(&x, sequences.boundaries(), config, &relative)?;
            if let (0, Some(convolution)) = (number, &self.convolution) {
                x = convolution.forward(&embedded, &x, sequences)?;
            }
        }
        match &self.final_norm {
            Some(norm) => norm.forward(&x),
            None => Ok(x),
        }
    }
}
