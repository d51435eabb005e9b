//! The draft model of speculative decoding.

use super::LanguageModel;
use crate::serving::speculation::DraftModel;
use crate::{Error, Result};
use formats::text::tokenizer::Tokenizer;

impl LanguageModel {
    /// This model as the draft model of one with that tokenizer.
    pub(super) fn as_draft_of(&self, tokenizer: &Tokenizer) -> Result<DraftModel> {
        check_vocabulary(tokenizer, &self.tokenizer)?;
        let (kind, _) = self.cache;
        Ok(DraftModel::new(&self.decoder, kind, self.context_length))
    }

    /// Whether it has a draft model.
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
