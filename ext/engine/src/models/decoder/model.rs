//! A loaded decoder and its forward.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::adapter::Adapter;
use super::cache::KvCache;
use super::config::{DecoderConfig, Positions};
use super::layer::{Layer, Step, Stream};
use super::names::Names;
use super::parameters::Parameters;
use super::rope::Rotations;
use crate::kernels::{self, Activation};
use crate::nn::{elementwise, Linear, Norm};
use crate::quant::QuantizedTensor;
use crate::weights::WeightSource;
use crate::{CancelToken, Error, Result};

pub struct Decoder {
    config: DecoderConfig,
    embedding: Embedding,
    position_embedding: Option<Tensor>,
    rotations: Option<Rotations>,
    layers: Vec<Layer>,
    final_norm: Norm,
    head: Linear,
    device: Device,
    dtype: DType,
}

/// The token table, `[vocabulary, hidden]`.
pub enum Embedding {
    Dense(Tensor),
    /// As it lies in the file; rows are expanded when they are looked up.
    Blocks(QuantizedTensor),
}

/// Which rows of the logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// Only the last token's.
    Last,
    All,
}

impl Decoder {
    pub fn load(
        source: Arc<dyn WeightSource>,
        config: DecoderConfig,
        names: &Names,
        device: &Device,
        dtype: DType,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let parameters = Parameters::new(source.as_ref(), names, device, dtype)?;
        let embedding = parameters.embedding(&config)?;
        let layers = (0..config.layer_count)
            .map(|index| {
                cancel.check()?;
                parameters.layer(index, &config)
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            position_embedding: match config.positions {
                Positions::Learned => Some(parameters.position_embedding()?),
                Positions::Rope(_) => None,
            },
            rotations: match &config.positions {
                Positions::Rope(rope) => Some(Rotations::new(rope, config.max_positions, device)?),
                Positions::Learned => None,
            },
            final_norm: parameters.final_norm(&config)?,
            head: parameters.head(&config, &embedding)?,
            embedding,
            layers,
            device: device.clone(),
            dtype,
            config,
        })
    }

    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn new_cache(&self) -> KvCache {
        KvCache::new(&self.config)
    }

    /// Which rotation a sequence of `length` tokens needs; a cache made under another one is void.
    pub fn regime(&self, length: usize) -> usize {
        match &self.config.positions {
            Positions::Rope(rope) => rope.regime(length),
            Positions::Learned => 0,
        }
    }

    /// Runs `tokens` after what `cache` holds, extends it, and returns the logits
    /// `[rows, vocabulary]` in f32. After an error the cache is as before.
    pub fn forward(
        &self,
        tokens: &[u32],
        cache: &mut KvCache,
        wanted: Logits,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let hidden = self.hidden_states(tokens, cache, cancel)?;
        let hidden = match wanted {
            Logits::All => hidden,
            Logits::Last => hidden.narrow(0, tokens.len() - 1, 1)?,
        };
        let logits = match cache.adapter() {
            Some(adapter) => adapter.logits(&self.head, &hidden)?,
            None => self.head.forward(&hidden)?,
        };
        let logits = logits.to_dtype(DType::F32)?;
        let logits = elementwise::scale(&logits, self.config.logit_scale)?;
        match self.config.logit_soft_cap {
            Some(cap) => {
                let shrunk = elementwise::scale(&logits, 1.0 / cap)?;
                elementwise::scale(&kernels::activate(&shrunk, Activation::Tanh)?, cap)
            }
            None => Ok(logits),
        }
    }

    /// The normalized states before the head, `[tokens, hidden]`.
    pub fn hidden_states(
        &self,
        tokens: &[u32],
        cache: &mut KvCache,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let adapter = cache.adapter().cloned();
        let adapter = adapter.as_deref();
        let first = cache.length();
        let count = tokens.len();
        // The first part of a long sequence already turns as the whole will.
        let regime = cache.regime().max(self.regime(first + count));
        let rotation = match (&self.config.positions, &self.rotations) {
            (Positions::Rope(rope), Some(rotations)) => {
                Some(rotations.at(rope, regime, first..first + count, &self.device)?)
            }
            _ => None,
        };
        let step = Step {
            config: &self.config,
            rotation,
            adapter,
            cancel,
        };
        let mut stream = Stream::new(self.embed(tokens, first, adapter)?);
        for (index, layer) in self.layers.iter().enumerate() {
            layer.forward(index, &mut stream, cache, &step)?;
        }
        let hidden = stream.read(Some(&self.final_norm))?;
        cache.advance(tokens);
        Ok(hidden)
    }

    pub(super) fn embed(
        &self,
        tokens: &[u32],
        first: usize,
        adapter: Option<&Adapter>,
    ) -> Result<Tensor> {
        if tokens.is_empty() {
            return Err(Error::InvalidInput(
                "the prompt has no tokens; pass some text".to_owned(),
            ));
        }
        let size = self.config.vocab_size;
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= size) {
            return Err(Error::InvalidInput(format!(
                "token {token} is beyond the model's vocabulary of {size}; the tokenizer belongs to another model"
            )));
        }
        let embedded = match adapter {
            Some(adapter) => adapter.embed(&self.embedding, tokens)?,
            None => self.embedding.rows(tokens)?,
        };
        let embedded = elementwise::scale(&embedded, self.config.embedding_scale)?;
        match &self.position_embedding {
            Some(table) => elementwise::add(&embedded, &table.narrow(0, first, tokens.len())?),
            None => Ok(embedded),
        }
    }
}

impl Embedding {
    /// The rows of `tokens`, which are within the table.
    pub(super) fn rows(&self, tokens: &[u32]) -> Result<Tensor> {
        match self {
            Self::Dense(table) => {
                let ids = Tensor::new(tokens, table.device())?;
                Ok(table.index_select(&ids, 0)?)
            }
            Self::Blocks(table) => {
                let rows: Vec<usize> = tokens.iter().map(|&token| token as usize).collect();
                let values = table.rows(&rows)?;
                let width = values.len() / tokens.len().max(1);
                Ok(Tensor::from_vec(
                    values,
                    (tokens.len(), width),
                    &Device::Cpu,
                )?)
            }
        }
    }
}
