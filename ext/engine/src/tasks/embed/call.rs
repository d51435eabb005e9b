//! One call of `embed`: options resolved, texts to vectors.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::nn::{PackedSequences, Pooling};
use crate::serving::batching::{self, Excess, Tokens};
use crate::tasks::loading::LoadedModel;
use crate::tasks::static_embeddings::StaticEmbeddings;
use crate::{CancelToken, Error, Result};
use base::runtime::threads;
use candle_core::{DType, Tensor};
use formats::text::tokenizer::{Detail, Input, Tokenizer};
use rayon::prelude::*;

use super::{EmbedOptions, EmbeddingModel};

/// One call's options, resolved.
pub(super) struct Call<'a> {
    model: &'a EmbeddingModel,
    prompt: &'a str,
    /// Tokens that the prompt takes and pooling leaves out.
    skipped: usize,
    pooling: Vec<Pooling>,
    normalize: bool,
    /// Of the vectors that are returned.
    pub(super) dimension: usize,
    batch_tokens: Option<usize>,
}

impl<'a> Call<'a> {
    pub(super) fn new(
        model: &'a EmbeddingModel,
        options: &'a EmbedOptions,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let prompts = &model.sentence.prompts;
        let prompt = prompts.choose(options.prompt.as_deref(), options.prompt_name.as_deref())?;
        let pooling = match options.pooling {
            Some(pooling) => vec![pooling],
            None => model.pooling.clone(),
        };
        let full = model.checked_dimension(&pooling)?;
        let dimension = match options.dimensions {
            None => full,
            Some(wanted) if (1..=full).contains(&wanted) => wanted,
            Some(wanted) => {
                return Err(Error::InvalidInput(format!(
                    "dimensions must be between 1 and the model's {full}, not {wanted}"
                )))
            }
        };
        let skipped = if model.sentence.include_prompt || prompt.is_empty() {
            0
        } else {
            prompt_length(model.tokenizer(), &model.cased(prompt), cancel)?
        };
        Ok(Self {
            model,
            prompt,
            skipped,
            pooling,
            normalize: options.normalize.unwrap_or(model.normalize),
            dimension,
            batch_tokens: options.batch_tokens,
        })
    }

    /// The text as the tokenizer gets it.
    fn prepare(&self, text: &str) -> String {
        self.model
            .cased(&format!("{}{text}", self.prompt))
            .into_owned()
    }

    pub(super) fn encode<T: AsRef<str> + Sync>(
        &self,
        loaded: &LoadedModel,
        texts: &[T],
        excess: Excess,
        rows: &mut [f32],
        cancel: &CancelToken,
    ) -> Result<()> {
        let plain = self.prompt.is_empty() && !self.model.sentence.settings.lowercase;
        let prepared: Vec<String> = if plain {
            Vec::new()
        } else {
            threads::map(texts, |_, text| Ok(self.prepare(text.as_ref())))?
        };
        let inputs: Vec<Input<'_>> = if plain {
            texts
                .iter()
                .map(|text| Input::Single(text.as_ref()))
                .collect()
        } else {
            prepared.iter().map(|text| Input::Single(text)).collect()
        };
        let tokens = batching::tokenize(
            &loaded.tokenizer,
            &inputs,
            loaded.max_length,
            excess,
            cancel,
        )?;
        self.compute(loaded, &tokens, rows, cancel)
    }

    /// One row per list of tokens.
    pub(super) fn compute(
        &self,
        loaded: &LoadedModel,
        tokens: &[Tokens],
        rows: &mut [f32],
        cancel: &CancelToken,
    ) -> Result<()> {
        batching::run(
            tokens,
            self.batch_tokens,
            loaded.info.device,
            cancel,
            |batch| self.forward(loaded, tokens, batch, cancel),
            |batch, vectors| {
                for (row, &index) in vectors.chunks_exact(self.dimension).zip(batch) {
                    rows[index * self.dimension..][..self.dimension].copy_from_slice(row);
                }
            },
        )
    }

    fn forward(
        &self,
        loaded: &LoadedModel,
        tokens: &[Tokens],
        batch: &[usize],
        cancel: &CancelToken,
    ) -> Result<Vec<f32>> {
        let sequences = batching::pack(tokens, batch)?;
        loaded.forward(&sequences, self.batch_tokens, cancel, |hidden| {
            self.vectors(hidden, &sequences)
        })
    }

    fn vectors(&self, hidden: &Tensor, sequences: &PackedSequences) -> Result<Vec<f32>> {
        let pooled = pool(&self.pooling, hidden, sequences, self.skipped)?;
        let dense = self.dense(pooled)?;
        let kept = if self.dimension < dense.dim(1)? {
            dense.narrow(1, 0, self.dimension)?.contiguous()?
        } else {
            dense
        };
        let kept = if self.normalize {
            kernels::l2_normalize(&kept)?
        } else {
            kept
        };
        Ok(kept.flatten_all()?.to_vec1()?)
    }

    fn dense(&self, pooled: Tensor) -> Result<Tensor> {
        let dense = &self.model.sentence.dense;
        let x = dense
            .iter()
            .try_fold(pooled, |x, dense| dense.forward(&x))?;
        Ok(x.to_dtype(DType::F32)?)
    }

    pub(super) fn look_up<T: AsRef<str> + Sync>(
        &self,
        model: &StaticEmbeddings,
        texts: &[T],
        refuse_from: Option<usize>,
        rows: &mut [f32],
        cancel: &CancelToken,
    ) -> Result<()> {
        let (width, tokens) = (model.dimension(), AtomicUsize::new(0));
        let fill = |(index, (row, text)): (usize, (&mut [f32], &T))| {
            cancel.check()?;
            let text = self.prepare(text.as_ref());
            if let Some(first) = refuse_from {
                let count = model
                    .tokenizer
                    .encode(&text, false, Detail::Ids, cancel)?
                    .len();
                batching::refuse(count, model.max_length, first + index)?;
            }
            let mut vector = vec![0f32; width];
            let ids = model.ids(&text, cancel)?;
            tokens.fetch_add(ids.len(), Ordering::Relaxed);
            model.mean(&ids, &mut vector)?;
            row.copy_from_slice(&vector[..self.dimension]);
            if self.normalize {
                let norm = row
                    .iter()
                    .map(|v| f64::from(*v).powi(2))
                    .sum::<f64>()
                    .sqrt() as f32;
                let norm = norm.max(kernels::LEAST_L2_NORM);
                row.iter_mut().for_each(|value| *value /= norm);
            }
            Ok(())
        };
        let size = || (texts.len(), tokens.load(Ordering::Relaxed));
        model.stats.measured(1, size, || {
            threads::install(|| {
                let rows = rows.par_chunks_mut(self.dimension);
                rows.zip(texts).enumerate().try_for_each(fill)
            })?
        })
    }
}

/// f32 [sequences, width · poolings]
fn pool(
    poolings: &[Pooling],
    hidden: &Tensor,
    sequences: &PackedSequences,
    skipped: usize,
) -> Result<Tensor> {
    let each = poolings
        .iter()
        .map(|pooling| pooling.pool(hidden, sequences, skipped));
    let each = each.collect::<Result<Vec<_>>>()?;
    match each.as_slice() {
        [one] => Ok(one.clone()),
        several => Ok(Tensor::cat(several, 1)?),
    }
}

/// The tokens that a prompt takes at the start of a text, the special ones before it included.
fn prompt_length(tokenizer: &Tokenizer, prompt: &str, cancel: &CancelToken) -> Result<usize> {
    let encoding = tokenizer.encode(prompt, true, Detail::Ids, cancel)?;
    let ends_special = encoding.get_special_tokens_mask().last() == Some(&1);
    Ok(encoding.len() - usize::from(ends_special))
}
