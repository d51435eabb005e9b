//! A smaller model that guesses for a larger one.

use std::sync::Arc;

use super::{new_scheduler, LanguageModel};
use crate::serving::scheduler::DraftModel;
use crate::{Error, Result};
use base::runtime::per_process::PerProcess;
use formats::text::tokenizer::Tokenizer;

impl LanguageModel {
    /// With a smaller model of the same vocabulary that guesses what this one will say. It stays its
    /// owner's: when it is closed, texts go on without guesses.
    pub fn with_draft(mut self, draft: &Arc<Self>) -> Result<Self> {
        check_vocabulary(&self.tokenizer, &draft.tokenizer)?;
        let (kind, _) = draft.cache;
        let model = DraftModel::new(&draft.decoder, kind, draft.context_length);
        self.draft = Some(model);
        let scheduler = new_scheduler(&self.decoder, self.cache, self.draft.as_ref(), &self.stats)?;
        self.scheduler = PerProcess::new(scheduler);
        Ok(self)
    }

    /// Whether another model guesses for it.
    pub fn has_draft(&self) -> bool {
        self.draft.is_some()
    }
}

/// An error that says where two vocabularies differ.
fn check_vocabulary(own: &Tokenizer, draft: &Tokenizer) -> Result<()> {
    let (ours, theirs) = (own.vocab(true), draft.vocab(true));
    let differs = |(token, id): &(&String, &u32)| theirs.get(*token) != Some(id);
    let reason = match ours.iter().filter(differs).min_by_key(|(_, id)| **id) {
        Some((token, id)) => match theirs.get(token) {
            Some(other) => format!("{token:?} is token {other} there and {id} here"),
            None => format!("it has no token {token:?}"),
        },
        None if ours.len() != theirs.len() => {
            format!("it has {} tokens, not {}", theirs.len(), ours.len())
        }
        None => return Ok(()),
    };
    Err(Error::InvalidInput(format!(
        "draft: must be a model of the same vocabulary, and that of {} is not that of {}: {reason}. Take a smaller \
         model of the same family",
        draft.source().display(),
        own.source().display()
    )))
}
