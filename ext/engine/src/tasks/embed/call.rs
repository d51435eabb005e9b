//! One call of `embed`: options resolved, texts to vectors.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::nn::{PackedSequences, Pooling};
use crate::serving::batching::{self, Excess, Tokens};
use crate::serving::tokenize_ahead::tokenize_ahead;
use crate::tasks::loading::LoadedModel;
use crate::tasks::sentence::TextTask;
use crate::tasks::static_embeddings::StaticEmbeddings;
use crate::{CancelToken, Error, Result};
use base::runtime::threads;
use candle_core::{DType, Tensor};
use formats::text::tokenizer::{Detail, Input, Tokenizer};
use rayon::prelude::*;

use super::adapters::TaskAdapters;
use super::token_modules::{rescaled, TokenStates};
use super::words::{BagOfWords, WordEmbeddings};
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
        adapter: Option<(&'a TaskAdapters, usize)>,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let prompt = chosen_prompt(model, options, adapter)?;
        let pooling = match options.pooling {
            Some(pooling) => vec![pooling],
            None => model.pooling.clone(),
        };
        let full = model.checked_dimension(&pooling)?;
        let dimension = match options.dimensions {
            None => model
                .sentence
                .truncate_dim
                .map_or(full, |most| most.min(full)),
            Some(wanted) if (1..=full).contains(&wanted) => wanted,
            Some(wanted) => {
                return Err(Error::InvalidInput(format!(
                    "dimensions must be between 1 and the model's {full}, not {wanted}"
                )))
            }
        };
        let skipped = match model.tokenizer() {
            Some(tokenizer) if !model.sentence.include_prompt && !prompt.is_empty() => {
                prompt_length(tokenizer, &model.cased(prompt), cancel)?
            }
            _ => 0,
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
        let tokenize = |part: Range<usize>| {
            batching::tokenize(
                &loaded.tokenizer,
                &inputs[part.clone()],
                loaded.max_length,
                excess.counting_from(part.start),
                cancel,
            )
        };
        let compute = |part: Range<usize>, tokens: Vec<Tokens>| {
            let rows = &mut rows[part.start * self.dimension..part.end * self.dimension];
            self.compute(loaded, &tokens, rows, cancel)
        };
        tokenize_ahead(inputs.len(), loaded.info.device, tokenize, compute)
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
        let states = self.model.through_modules(hidden.clone(), sequences)?;
        let pooled = pool(&self.pooling, &states, sequences, self.skipped)?;
        self.finished(pooled)
    }

    /// Pooled rows after the model's last modules, as many numbers of them as are asked for.
    fn finished(&self, pooled: Tensor) -> Result<Vec<f32>> {
        let steps = &self.model.sentence.steps;
        let dense = steps.iter().try_fold(pooled, |x, step| step.forward(&x))?;
        let dense = dense.to_dtype(DType::F32)?;
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

    /// The vectors of texts whose words are looked up.
    pub(super) fn read_words<T: AsRef<str> + Sync>(
        &self,
        model: &WordEmbeddings,
        texts: &[T],
        refuse_from: Option<usize>,
        rows: &mut [f32],
        cancel: &CancelToken,
    ) -> Result<()> {
        const TEXTS: usize = 256;
        let words = AtomicUsize::new(0);
        let fill = |(number, (rows, texts)): (usize, (&mut [f32], &[T]))| {
            cancel.check()?;
            let mut sequences = PackedSequences::new();
            for (index, text) in texts.iter().enumerate() {
                let mut ids = model.splitter.ids(&self.prepare(text.as_ref()));
                if let Some(first) = refuse_from {
                    batching::refuse(ids.len(), model.max_length, first + number * TEXTS + index)?;
                }
                ids.truncate(model.max_length);
                sequences.push(&ids, None)?;
            }
            words.fetch_add(sequences.tokens(), Ordering::Relaxed);
            rows.copy_from_slice(&self.vectors(&model.forward(&sequences)?, &sequences)?);
            Ok(())
        };
        let size = || (texts.len(), words.load(Ordering::Relaxed));
        model.stats.measured(1, size, || {
            let rows = rows.chunks_mut(TEXTS * self.dimension);
            rows.zip(texts.chunks(TEXTS)).enumerate().try_for_each(fill)
        })
    }

    /// The vectors of texts whose words are counted.
    pub(super) fn count_words<T: AsRef<str> + Sync>(
        &self,
        model: &BagOfWords,
        texts: &[T],
        rows: &mut [f32],
        cancel: &CancelToken,
    ) -> Result<()> {
        let size = || (texts.len(), texts.len());
        model.stats.measured(1, size, || {
            for (row, text) in rows.chunks_mut(self.dimension).zip(texts) {
                cancel.check()?;
                let counts = model.vector(&self.prepare(text.as_ref()));
                let shape = (1, counts.len());
                let counts = Tensor::from_vec(counts, shape, &self.model.sentence.device)?;
                row.copy_from_slice(&self.finished(counts)?);
            }
            Ok(())
        })
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
            if !self.model.sentence.steps.is_empty() {
                let pooled = Tensor::from_vec(vector, (1, width), &self.model.sentence.device)?;
                row.copy_from_slice(&self.finished(pooled)?);
                return Ok(());
            }
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

/// What is given, what is named, what the task says, or the model's default.
fn chosen_prompt<'a>(
    model: &'a EmbeddingModel,
    options: &'a EmbedOptions,
    adapter: Option<(&'a TaskAdapters, usize)>,
) -> Result<&'a str> {
    let prompts = &model.sentence.prompts;
    let (given, name) = (options.prompt.as_deref(), options.prompt_name.as_deref());
    let task = options
        .task
        .as_deref()
        .filter(|_| given.is_none() && name.is_none());
    let Some(task) = task else {
        return prompts.choose(given, name);
    };
    if let Some(instruction) = adapter.and_then(|(all, number)| all.instruction(number)) {
        return Ok(instruction);
    }
    let own = adapter.and_then(|(all, number)| all.names().nth(number));
    let role = TextTask::parse(task).map_or(&[][..], TextTask::prompt_names);
    let names = [own, Some(task)].into_iter().flatten();
    let names = names.chain(role.iter().copied());
    for name in names {
        if let Some((_, prompt)) = prompts.named.iter().find(|(known, _)| known == name) {
            return Ok(prompt);
        }
    }
    prompts.choose(None, None)
}

/// f32 [sequences, width · poolings]
fn pool(
    poolings: &[Pooling],
    states: &TokenStates,
    sequences: &PackedSequences,
    skipped: usize,
) -> Result<Tensor> {
    let each = poolings.iter().map(|&pooling| {
        let pooled = pooling.pool(&states.hidden, sequences, skipped)?;
        match &states.totals {
            Some(totals) => rescaled(pooled, pooling, totals, sequences, skipped),
            None => Ok(pooled),
        }
    });
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
