//! Logits per text or pair: what reranking and classifying share.

use candle_core::Tensor;

use crate::models::heads::{Head, HeadKind};
use crate::nn::Pooling;
use crate::{CancelToken, Result};
use base::runtime::memory;
use formats::files::model_files::ModelFiles;
use formats::text::tokenizer::Input;

use super::loading::{Checkpoint, LoadOptions, LoadedModel};
use crate::serving::batching::{self, Excess, Tokens};

pub struct SequenceModel {
    pub loaded: LoadedModel,
    pub head: Head,
}

impl SequenceModel {
    /// The checkpoint's own sequence classification head.
    pub fn load(
        checkpoint: &Checkpoint,
        files: &ModelFiles,
        options: &LoadOptions,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let mut loaded = LoadedModel::load(checkpoint, files, options, None, cancel)?;
        let head = loaded.head(checkpoint, HeadKind::Sequence)?;
        Ok(Self { loaded, head })
    }

    /// Rows of `head.outputs()` logits, in the order of the inputs.
    pub fn logits(
        &self,
        inputs: &[Input<'_>],
        excess: Excess,
        pooling: Option<Pooling>,
        batch_tokens: Option<usize>,
        cancel: &CancelToken,
    ) -> Result<Vec<f32>> {
        memory::ensure_elements(
            &[inputs.len(), self.head.outputs()],
            size_of::<f32>(),
            format_args!("the logits of {} texts", inputs.len()),
        )?;
        let tokens = batching::tokenize(
            &self.loaded.tokenizer,
            inputs,
            self.loaded.max_length,
            excess,
            cancel,
        )?;
        self.logits_of_tokens(&tokens, pooling, batch_tokens, cancel)
    }

    /// The logits of texts that are tokens already.
    pub fn logits_of_tokens(
        &self,
        tokens: &[Tokens],
        pooling: Option<Pooling>,
        batch_tokens: Option<usize>,
        cancel: &CancelToken,
    ) -> Result<Vec<f32>> {
        let width = self.head.outputs();
        let mut rows = vec![0f32; tokens.len() * width];
        let forward = |batch: &[usize]| -> Result<Vec<f32>> {
            let sequences = batching::pack(tokens, batch)?;
            let logits = |hidden: &Tensor| -> Result<Vec<f32>> {
                let logits = match pooling {
                    None => self.head.sequence_logits(hidden, &sequences)?,
                    Some(pooling) => self.head.logits_of_pooled(hidden, &sequences, pooling)?,
                };
                Ok(logits.flatten_all()?.to_vec1()?)
            };
            self.loaded
                .forward(&sequences, batch_tokens, cancel, logits)
        };
        let take = |batch: &[usize], logits: Vec<f32>| {
            for (row, &index) in logits.chunks_exact(width).zip(batch) {
                rows[index * width..][..width].copy_from_slice(row);
            }
        };
        let device = self.loaded.info.device;
        batching::run(tokens, batch_tokens, device, cancel, forward, take)?;
        self.loaded.info.check_numbers(&rows)?;
        Ok(rows)
    }
}
