//! The LoRA adapters of a language model: loaded with it, or attached and detached while it generates.

use std::sync::{Arc, RwLock, RwLockReadGuard};

use candle_core::DType;

use super::{AdapterFiles, LanguageModel};
use crate::models::decoder::model::Logits;
use crate::models::decoder::{peft, Adapter, Decoder};
use crate::models::parts::Names;
use crate::nn::Inventory;
use crate::tasks::adapter_base::{self, Base};
use crate::{CancelToken, Error, Result};

/// How many tokens the self-check of an adapter reads.
const PROBE_TOKENS: u32 = 4;

/// The adapters of a model by their names, in the order in which they came.
pub(super) struct Adapters {
    base: Base,
    /// Of the model's modules in safetensors.
    names: Names,
    /// Written in moments only: nothing is read from files and nothing computed meanwhile.
    loaded: RwLock<Vec<Arc<Adapter>>>,
}

impl AdapterFiles {
    /// Has the files come. What else may be wrong with them, reading says in its own order.
    pub fn fetch(&self, cancel: &CancelToken) -> Result<()> {
        match peft::fetch(&self.files, cancel) {
            Err(error @ (Error::Interrupted | Error::Download(_))) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Adapters {
    pub fn new(base: Base, names: Names) -> Self {
        Self {
            base,
            names,
            loaded: RwLock::new(Vec::new()),
        }
    }

    pub fn names(&self) -> &Names {
        &self.names
    }

    fn loaded(&self) -> RwLockReadGuard<'_, Vec<Arc<Adapter>>> {
        self.loaded.read().unwrap_or_else(|e| e.into_inner())
    }

    /// Reads an adapter and lets it compute something; it changes nothing yet.
    pub fn read(
        &self,
        decoder: &Decoder,
        AdapterFiles { name, files }: &AdapterFiles,
        cancel: &CancelToken,
    ) -> Result<Arc<Adapter>> {
        check_free(&self.loaded(), name)?;
        adapter_base::check(files, &self.base, cancel)?;
        let adapter = Arc::new(peft::load(decoder, &self.names, name, files, cancel)?);
        self_check(decoder, &adapter, files.id(), cancel)?;
        Ok(adapter)
    }

    pub fn add(&self, adapter: Arc<Adapter>) -> Result<()> {
        let mut loaded = self.loaded.write().unwrap_or_else(|e| e.into_inner());
        check_free(&loaded, &adapter.name)?;
        loaded.push(adapter);
        Ok(())
    }
}

fn check_free(loaded: &[Arc<Adapter>], name: &str) -> Result<()> {
    if loaded.iter().any(|adapter| adapter.name == name) {
        return Err(Error::InvalidInput(format!(
            "there is an adapter {name:?} already: unload it first, or choose another name"
        )));
    }
    Ok(())
}

fn unknown(loaded: &[Arc<Adapter>], name: &str) -> Error {
    let known: Vec<&str> = loaded.iter().map(|one| one.name.as_str()).collect();
    Error::InvalidInput(format!(
        "there is no adapter {name:?}; loaded are: {}",
        if known.is_empty() {
            "none".to_owned()
        } else {
            known.join(", ")
        }
    ))
}

/// An error unless the model gives numbers with the adapter.
fn self_check(
    decoder: &Decoder,
    adapter: &Arc<Adapter>,
    id: &str,
    cancel: &CancelToken,
) -> Result<()> {
    let vocabulary = decoder.config().vocab_size as u32;
    let tokens: Vec<u32> = (0..PROBE_TOKENS.min(vocabulary)).collect();
    let numbers = |adapter: Option<Arc<Adapter>>| -> Result<bool> {
        let mut cache = decoder.new_cache()?;
        cache.adapt(adapter);
        let logits = decoder.forward(&tokens, &mut cache, Logits::All, cancel)?;
        let logits: Vec<f32> = logits.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        Ok(logits.iter().all(|logit| logit.is_finite()))
    };
    // A model that gives none by itself says so when it generates.
    if numbers(Some(adapter.clone()))? || !numbers(None)? {
        return Ok(());
    }
    Err(Error::CorruptModel(format!(
        "the adapter {id} makes the model compute values that are not numbers: its weights are damaged, or too large \
         for {}. Fetch it again, or load the model with dtype f32",
        decoder.dtype().as_str()
    )))
}

impl LanguageModel {
    /// The adapters that are loaded now.
    pub fn adapters(&self) -> Vec<Arc<Adapter>> {
        self.adapters.loaded().clone()
    }

    /// A loaded adapter by its name; no name stands for the base model.
    pub fn adapter(&self, name: Option<&str>) -> Result<Option<Arc<Adapter>>> {
        let Some(name) = name else { return Ok(None) };
        let loaded = self.adapters.loaded();
        let found = loaded.iter().find(|adapter| adapter.name == name);
        match found {
            Some(adapter) => Ok(Some(adapter.clone())),
            None => Err(unknown(&loaded, name)),
        }
    }

    /// Reads an adapter from its files and tries it out. Calls know it after [`LanguageModel::attach_adapter`].
    pub fn read_adapter(&self, files: &AdapterFiles, cancel: &CancelToken) -> Result<Arc<Adapter>> {
        self.adapters.read(&self.decoder, files, cancel)
    }

    /// Adds an adapter that [`LanguageModel::read_adapter`] of this model has given. The weights stay as they are, and
    /// requests under way are not touched.
    pub fn attach_adapter(&self, adapter: Arc<Adapter>) -> Result<()> {
        self.adapters.add(adapter)
    }

    /// Removes an adapter. Requests that were begun with it end with it, and its memory goes with the last of them.
    pub fn detach_adapter(&self, name: &str) -> Result<Arc<Adapter>> {
        let loaded = &self.adapters.loaded;
        let mut loaded = loaded.write().unwrap_or_else(|e| e.into_inner());
        match loaded.iter().position(|adapter| adapter.name == name) {
            Some(at) => Ok(loaded.remove(at)),
            None => Err(unknown(&loaded, name)),
        }
    }

    /// What the adapters that are loaded now are made of.
    pub fn adapter_inventory(&self) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        for adapter in self.adapters() {
            adapter.list(&mut inventory)?;
        }
        Ok(inventory)
    }
}
