//! The encoder of labels, in models that read them apart from the text.

use std::sync::Arc;

use candle_core::{DType, Tensor};

use super::head;
use crate::models::{Blueprint, TextModel};
use crate::nn::{Inventory, Linear, PackedSequences, Pooling};
use crate::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::text::tokenizer::{Detail, Tokenizer};
use formats::weights::{Prefixed, WeightSource};

use crate::tasks::loading::{subfolder, Checkpoint};

pub struct LabelEncoder {
    body: TextModel,
    tokenizer: Tokenizer,
    projection: Option<Linear>,
    inventory: Inventory,
}

impl LabelEncoder {
    /// The tokenizer has a folder of its own, or is that of the model which the encoder began as.
    pub fn load(
        files: &ModelFiles,
        checkpoint: &Checkpoint,
        source: Arc<dyn WeightSource>,
        (config, base): &(RawConfig, String),
        cancel: &CancelToken,
    ) -> Result<Self> {
        let tokenizer = match subfolder(files, "labels_tokenizer", cancel) {
            Ok(folder) => Tokenizer::from_model(&folder, cancel)?,
            Err(Error::ModelNotFound(_)) => Tokenizer::from_model(&files.sibling(base)?, cancel)?,
            Err(error) => return Err(error),
        };
        let own = Prefixed::new(source.clone(), "token_rep_layer.labels_encoder.model.");
        let blueprint = Blueprint::from_config(config)?;
        let target = (&checkpoint.opened, checkpoint.dtype);
        let body = TextModel::load(&blueprint, &own, target, checkpoint.int8, cancel)?;
        let name = "token_rep_layer.labels_projection";
        let projection = head::projection((source.as_ref(), target), name)?;
        let mut inventory = body.inventory()?;
        projection
            .iter()
            .try_for_each(|linear| inventory.add_linear(linear))?;
        Ok(Self {
            body,
            tokenizer: tokenizer.with_padding(None).with_truncation(None),
            projection,
            inventory,
        })
    }

    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// The mean of each label's tokens, f32 [labels, hidden].
    pub fn embed(&self, labels: &[String], cancel: &CancelToken) -> Result<Tensor> {
        let most = self.body.max_positions().unwrap_or(usize::MAX);
        let mut sequences = PackedSequences::new();
        for label in labels {
            let encoding = self
                .tokenizer
                .encode(label.as_str(), true, Detail::Ids, cancel)?;
            let ids = encoding.get_ids();
            sequences.push(&ids[..ids.len().min(most)], None)?;
        }
        let hidden = self.body.forward(&sequences, cancel)?;
        let hidden = match &self.projection {
            Some(linear) => linear.forward(&hidden.to_dtype(linear.dtype())?)?,
            None => hidden,
        };
        Ok(Pooling::Mean
            .pool(&hidden, &sequences, 0)?
            .to_dtype(DType::F32)?)
    }
}
