//! The encoder of labels, in models that read them apart from the text.

use std::sync::Arc;

use candle_core::{DType, Tensor};

use super::files::LabelConfig;
use super::scorer::{self, Projector};
use crate::models::{Blueprint, TextModel};
use crate::nn::{Inventory, PackedSequences, Pooling};
use crate::tasks::loading::{subfolder, Checkpoint};
use crate::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;
use formats::text::tokenizer::{Detail, Tokenizer, Truncation};
use formats::weights::{Prefixed, WeightSource};

/// Labels are read in batches of about so many tokens.
const BATCH_TOKENS: usize = 4096;

pub struct LabelEncoder {
    body: TextModel,
    tokenizer: Tokenizer,
    /// To the width of the encoder of texts.
    projector: Projector,
    inventory: Inventory,
}

impl LabelEncoder {
    /// `None` for models of one encoder. The tokenizer has a folder of its own, or is that of the model which the
    /// encoder began as.
    pub fn load(
        files: &ModelFiles,
        checkpoint: &Checkpoint,
        source: &Arc<dyn WeightSource>,
        config: &LabelConfig,
        cancel: &CancelToken,
    ) -> Result<Option<Self>> {
        let Some((labels, base)) = &config.labels else {
            return Ok(None);
        };
        let tokenizer = match subfolder(files, "labels_tokenizer", cancel) {
            Ok(folder) => Tokenizer::from_model(&folder, cancel)?,
            Err(Error::ModelNotFound(_)) => Tokenizer::from_model(&files.sibling(base)?, cancel)?,
            Err(error) => return Err(error),
        };
        let own = Prefixed::new(source.clone(), "model.label_encoder.");
        let blueprint = Blueprint::from_config(labels)?;
        let target = (&checkpoint.opened, checkpoint.dtype);
        let body = TextModel::load(&blueprint, &own, target, checkpoint.int8, cancel)?;
        let target: scorer::Target<'_> = (source.as_ref(), target);
        let projector = Projector::read(target, "model.biencoder_projector", config.activation)?;
        let mut inventory = body.inventory()?;
        projector.list(&mut inventory)?;
        let truncation = body.max_positions().map(Truncation::new);
        Ok(Some(Self {
            tokenizer: tokenizer.with_padding(None).with_truncation(truncation),
            body,
            projector,
            inventory,
        }))
    }

    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// A row for each label, f32 [labels, hidden of texts].
    pub fn embed(&self, labels: &[String], cancel: &CancelToken) -> Result<Tensor> {
        let mut rows = Vec::new();
        let mut sequences = PackedSequences::new();
        for label in labels {
            let encoding = self
                .tokenizer
                .encode(label.as_str(), true, Detail::Ids, cancel)?;
            sequences.push(encoding.get_ids(), None)?;
            if sequences.ids().len() >= BATCH_TOKENS {
                rows.push(self.rows(&sequences, cancel)?);
                sequences = PackedSequences::new();
            }
        }
        if !sequences.ids().is_empty() {
            rows.push(self.rows(&sequences, cancel)?);
        }
        Ok(Tensor::cat(&rows, 0)?)
    }

    fn rows(&self, sequences: &PackedSequences, cancel: &CancelToken) -> Result<Tensor> {
        let hidden = self.body.forward(sequences, cancel)?;
        let first = Pooling::Cls.pool(&hidden, sequences, 0)?;
        self.projector.forward(&first.to_dtype(DType::F32)?, false)
    }
}
