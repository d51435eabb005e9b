//! Causal language models: one forward for every family.

pub mod adapter;
pub mod batch;
pub mod cache;
pub mod config;
pub mod experts;
pub mod families;
pub mod gguf;
mod heads;
pub mod layer;
pub mod model;
pub mod names;
pub mod parameters;
pub mod peft;
pub mod rope;
mod verify;

pub use adapter::Adapter;
pub use cache::KvCache;
pub use config::DecoderConfig;
pub use model::Decoder;

use crate::files::raw_config::RawConfig;
use crate::weights::WeightSource;
use crate::Result;
use names::Names;

/// Which family a checkpoint belongs to, and what that makes of its configuration.
pub struct Blueprint {
    pub config: DecoderConfig,
    pub names: Names,
    /// What transformers, and so adapters, call the parts that `names` finds in the checkpoint.
    pub modules: Names,
    pub padding_id: Option<u32>,
}

impl Blueprint {
    pub fn from_config(raw: &RawConfig) -> Result<Self> {
        let family = families::find(raw)?;
        let names = (family.names)(raw);
        let text = raw.opt_nested("text_config")?;
        Ok(Self {
            config: (family.config)(raw)?,
            names,
            modules: names,
            padding_id: text.as_ref().unwrap_or(raw).padding_id()?,
        })
    }

    /// From the metadata of a GGUF file.
    pub fn from_gguf(source: &dyn WeightSource) -> Result<Self> {
        let (config, names) = gguf::read(source)?;
        Ok(Self {
            modules: gguf::module_names(&config.architecture),
            padding_id: source
                .metadata()
                .opt_u32("tokenizer.ggml.padding_token_id")?,
            config,
            names,
        })
    }
}
