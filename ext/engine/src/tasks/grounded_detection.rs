//! Things that phrases name, in pictures: one text of all labels, whose words each thing is compared with.

use candle_core::Tensor;

use crate::models::detection::grounded::{text, Grounded};
use crate::models::detection::Predictions;
use crate::nn::PackedSequences;
use crate::{CancelToken, Error, Result};
use base::runtime::threads;
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::image::View;
use formats::text::tokenizer::Tokenizer;

use super::loading::{Checkpoint, LoadOptions};

pub struct GroundedDetector {
    pub model: Grounded,
    tokenizer: Tokenizer,
}

/// All labels as a model reads them.
pub struct Phrases {
    sequences: PackedSequences,
    /// [tokens, width]
    tokens: Tensor,
    /// The place of each token's label among the labels.
    pub owners: Vec<Option<usize>>,
}

impl GroundedDetector {
    pub fn load(
        raw: &RawConfig,
        checkpoint: &Checkpoint,
        files: &ModelFiles,
        options: &LoadOptions,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let place = (&checkpoint.opened, checkpoint.dtype);
        let source = checkpoint.source.as_ref();
        let tokenizer = checkpoint.tokenizer(files, options, cancel)?;
        Ok(Self {
            model: Grounded::load(raw, source, place, checkpoint.int8, cancel)?,
            tokenizer: tokenizer.with_padding(None).with_truncation(None),
        })
    }

    pub fn phrases(&self, labels: &[String], cancel: &CancelToken) -> Result<Phrases> {
        let most = self.model.most_tokens();
        let (mut ids, mut owners) = (vec![text::FIRST], vec![None]);
        for (number, label) in labels.iter().enumerate() {
            cancel.check()?;
            ids.extend(self.tokenizer.ids(&label.trim().to_lowercase(), false)?);
            ids.push(text::DOT);
            owners.resize(ids.len(), Some(number));
            if ids.len() >= most {
                return Err(Error::InvalidInput(format!(
                    "the labels have more than the {most} tokens that the model takes: ask for fewer at once"
                )));
            }
        }
        ids.push(text::LAST);
        owners.push(None);
        let sequences = text::phrases(&ids)?;
        let tokens = threads::install(|| self.model.read(&sequences, cancel))??;
        Ok(Phrases {
            sequences,
            tokens,
            owners,
        })
    }

    pub fn forward(
        &self,
        view: &View,
        phrases: &Phrases,
        cancel: &CancelToken,
    ) -> Result<Predictions> {
        self.model
            .forward(view, &phrases.sequences, &phrases.tokens, cancel)
    }
}

/// The best token of each query, whose label it has; a token of no label leaves that to the best of the others.
pub fn best(predictions: &Predictions, owners: &[Option<usize>]) -> Vec<(f32, usize, usize)> {
    let rows = predictions.logits.chunks_exact(predictions.classes.max(1));
    let each = rows.enumerate().filter_map(|(query, row)| {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let owned = row.iter().zip(owners);
        let owned = owned.filter_map(|(&logit, owner)| Some((logit, (*owner)?)));
        let (_, label) = owned.reduce(|a, b| if b.0 > a.0 { b } else { a })?;
        Some((1.0 / (1.0 + (-most).exp()), query, label))
    });
    each.collect()
}
