//! What could stand where a text has a mask.

use candle_core::Tensor;

use crate::models::heads::{Head, HeadKind};
use crate::{CancelToken, Error, Result};
use base::runtime::stats::Reading;
use formats::files::model_files::ModelFiles;
use formats::text::tokenizer::{Input, Tokenizer};

use super::classify::softmax;
use super::loading::{Checkpoint, LoadOptions, LoadedModel, ModelInfo};
use crate::serving::batching::{self, Excess};

/// One proposal for one mask.
#[derive(Clone, Debug, PartialEq)]
pub struct Filling {
    pub id: u32,
    /// The token as text.
    pub token: String,
    pub score: f32,
    /// The whole text with the mask filled.
    pub sequence: String,
}

pub struct MaskModel {
    loaded: LoadedModel,
    head: Head,
    mask: u32,
}

impl MaskModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let mut loaded = LoadedModel::load(&checkpoint, files, options, None, cancel)?;
        let head = loaded.head(&checkpoint, HeadKind::MaskedLanguage)?;
        let tokenizer = &loaded.tokenizer;
        let declared = tokenizer.special_tokens().id("mask_token");
        let known = || {
            ["[MASK]", "<mask>"]
                .iter()
                .find_map(|token| tokenizer.token_to_id(token))
        };
        let mask = declared.or_else(known).ok_or_else(|| {
            Error::UnsupportedModel(format!("the tokenizer of {} has no mask token", files.id()))
        })?;
        Ok(Self { loaded, head, mask })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.loaded.info
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.loaded.tokenizer
    }

    /// What it counts of its calls, by name.
    pub fn stats(&self) -> Vec<(&'static str, Reading)> {
        self.loaded.batcher.stats.read()
    }

    /// What stands for a gap in a text, such as `[MASK]`.
    pub fn mask_token(&self) -> String {
        self.loaded
            .tokenizer
            .id_to_token(self.mask)
            .unwrap_or_default()
    }

    /// For each mask of the text, in its order, the `top_k` likeliest tokens, best first.
    pub fn fill(
        &self,
        text: &str,
        top_k: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<Vec<Filling>>> {
        let input = [Input::Single(text)];
        let loaded = &self.loaded;
        let tokens = batching::tokenize(
            &loaded.tokenizer,
            &input,
            loaded.max_length,
            Excess::Cut,
            cancel,
        )?;
        let ids = tokens
            .first()
            .map(|tokens| tokens.ids.as_slice())
            .unwrap_or_default();
        let at = |(place, &id): (usize, &u32)| (id == self.mask).then_some(place as u32);
        let places: Vec<u32> = ids.iter().enumerate().filter_map(at).collect();
        if places.is_empty() {
            return Err(Error::InvalidInput(format!(
                "the text has no {} within the {} tokens that are read: put one where a word is missing",
                self.mask_token(),
                loaded.max_length
            )));
        }
        let logits = loaded.forward(&batching::pack(&tokens, &[0])?, None, cancel, |hidden| {
            let rows = Tensor::from_slice(&places, places.len(), hidden.device())?;
            let logits = self.head.logits(&hidden.index_select(&rows, 0)?)?;
            Ok(logits.to_vec2::<f32>()?)
        })?;
        let single = places.len() == 1;
        logits
            .iter()
            .zip(&places)
            .map(|(logits, &place)| self.proposals(ids, place as usize, logits, top_k, single))
            .collect()
    }

    fn proposals(
        &self,
        ids: &[u32],
        place: usize,
        logits: &[f32],
        top_k: usize,
        single: bool,
    ) -> Result<Vec<Filling>> {
        self.loaded.info.check_numbers(logits)?;
        let probabilities = softmax(logits);
        let mut order: Vec<usize> = (0..probabilities.len()).collect();
        order.sort_by(|&a, &b| {
            probabilities[b]
                .total_cmp(&probabilities[a])
                .then(a.cmp(&b))
        });
        order.truncate(top_k);
        let mut filled = ids.to_vec();
        let tokenizer = &self.loaded.tokenizer;
        let filling = |id: usize| -> Result<Filling> {
            filled[place] = id as u32;
            Ok(Filling {
                id: id as u32,
                token: tokenizer.decode(&[id as u32], false)?,
                score: probabilities[id],
                sequence: tokenizer.decode(&filled, single)?,
            })
        };
        order.into_iter().map(filling).collect()
    }
}
