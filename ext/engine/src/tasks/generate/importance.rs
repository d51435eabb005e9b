//! What the matrices of a model read while it reads texts: an importance matrix for quantizers.

use super::LanguageModel;
use crate::models::decoder::model::Logits;
use crate::models::decoder::observer::Observer;
use crate::nn::Sums;
use crate::{CancelToken, Result};

/// The sums of a module's inputs, and what checkpoints may call it.
pub struct ModuleInputs {
    pub names: Vec<String>,
    pub sums: Sums,
}

impl LanguageModel {
    /// Of every module of the layers, while the model reads each of `texts` by itself.
    pub fn module_inputs(
        &self,
        texts: &[Vec<u32>],
        cancel: &CancelToken,
    ) -> Result<Vec<ModuleInputs>> {
        let observer = Observer::new(&self.decoder, self.adapters.names())?;
        for ids in texts.iter().filter(|ids| !ids.is_empty()) {
            self.check_length(ids.len())?;
            let mut cache = self.decoder.new_cache()?;
            cache.adapt(Some(observer.adapter.clone()));
            cache.clear(self.decoder.rope_variant(ids.len()));
            self.decoder
                .forward(ids, &mut cache, Logits::Last, cancel)?;
        }
        let modules = observer.modules.into_iter().map(|module| ModuleInputs {
            sums: module.inputs.read(),
            names: module.names,
        });
        Ok(modules.collect())
    }
}
