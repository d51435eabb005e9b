//! One way from texts to weights.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use candle_core::{DType, Tensor};

use crate::models::heads::{Head, HeadKind};
use crate::nn::{Inventory, PackedSequences, SpladePooling};
use crate::serving::batching::{self, Excess};
use crate::serving::Stats;
use crate::tasks::loading::{subfolder, Checkpoint, LoadOptions, LoadedModel, ModelInfo};
use crate::tasks::sentence::TextSettings;
use crate::{CancelToken, Error, Result};
use base::runtime::memory;
use base::runtime::threads;
use formats::files::model_files::ModelFiles;
use formats::text::tokenizer::{Detail, Input, Tokenizer, TokenizerFiles};

use super::files::Route;
use super::SparseVector;

pub enum Encoder {
    Splade(Box<Splade>),
    Static(Box<TokenWeights>),
}

/// A masked language model whose logits become weights.
pub struct Splade {
    loaded: LoadedModel,
    head: Head,
    pooling: SpladePooling,
    settings: TextSettings,
}

/// One weight per token of the vocabulary; a text has those of its tokens.
pub struct TokenWeights {
    weights: Vec<f32>,
    tokenizer: Tokenizer,
    info: ModelInfo,
    stats: Arc<Stats>,
}

/// Logits of this many tokens lie in memory at once: rows of a whole vocabulary are large.
const LOGIT_ROWS: usize = 256;

impl Encoder {
    pub fn load(
        files: &ModelFiles,
        route: &Route,
        options: &LoadOptions,
        stats: &Arc<Stats>,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let (Route::Splade { folder, .. } | Route::Static { folder }) = route;
        let inner = if folder.is_empty() {
            None
        } else {
            Some(subfolder(files, folder, cancel)?)
        };
        let own = inner.as_ref().unwrap_or(files);
        match route {
            Route::Splade { pooling, .. } => {
                let settings = TextSettings::read(files, folder, cancel)?;
                let mut splade = Splade::load(own, options, settings, *pooling, cancel)?;
                splade.loaded.batcher.stats = stats.clone();
                Ok(Self::Splade(Box::new(splade)))
            }
            Route::Static { .. } => {
                let weights = TokenWeights::load(own, options, stats, cancel)?;
                Ok(Self::Static(Box::new(weights)))
            }
        }
    }

    pub fn info(&self) -> &ModelInfo {
        match self {
            Self::Splade(splade) => &splade.loaded.info,
            Self::Static(weights) => &weights.info,
        }
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        match self {
            Self::Splade(splade) => &splade.loaded.tokenizer,
            Self::Static(weights) => &weights.tokenizer,
        }
    }

    pub fn dimension(&self) -> usize {
        match self {
            Self::Splade(splade) => splade.head.outputs(),
            Self::Static(weights) => weights.weights.len(),
        }
    }

    /// The text as the tokenizer gets it.
    pub fn prepare(&self, text: &str) -> String {
        match self {
            Self::Splade(splade) => splade.settings.cased(text).into_owned(),
            Self::Static(_) => text.to_owned(),
        }
    }

    pub fn embed(
        &self,
        texts: &[String],
        excess: Excess,
        (top_k, batch_tokens): (Option<usize>, Option<usize>),
        cancel: &CancelToken,
    ) -> Result<Vec<SparseVector>> {
        match self {
            Self::Splade(splade) => splade.embed(texts, excess, (top_k, batch_tokens), cancel),
            Self::Static(weights) => weights.embed_all(texts, excess, top_k, cancel),
        }
    }
}

impl Splade {
    fn load(
        files: &ModelFiles,
        options: &LoadOptions,
        settings: TextSettings,
        pooling: SpladePooling,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let limit = settings.max_seq_length;
        let mut loaded = LoadedModel::load(&checkpoint, files, options, limit, cancel)?;
        let head = loaded.head(&checkpoint, HeadKind::MaskedLanguage)?;
        Ok(Self {
            loaded,
            head,
            pooling,
            settings,
        })
    }

    fn embed(
        &self,
        texts: &[String],
        excess: Excess,
        (top_k, batch_tokens): (Option<usize>, Option<usize>),
        cancel: &CancelToken,
    ) -> Result<Vec<SparseVector>> {
        let loaded = &self.loaded;
        let inputs: Vec<Input<'_>> = texts.iter().map(|text| Input::Single(text)).collect();
        let (tokenizer, most) = (&loaded.tokenizer, loaded.max_length);
        let tokens = batching::tokenize(tokenizer, &inputs, most, excess, cancel)?;
        let mut vectors = vec![SparseVector::default(); tokens.len()];
        batching::run(
            &tokens,
            batch_tokens,
            loaded.info.device,
            cancel,
            |batch| {
                let sequences = batching::pack(&tokens, batch)?;
                loaded.forward(&sequences, batch_tokens, cancel, |hidden| {
                    self.vectors(hidden, &sequences, top_k, cancel)
                })
            },
            |batch, found| {
                for (vector, &index) in found.into_iter().zip(batch) {
                    vectors[index] = vector;
                }
            },
        )?;
        Ok(vectors)
    }

    fn vectors(
        &self,
        hidden: &Tensor,
        sequences: &PackedSequences,
        top_k: Option<usize>,
        cancel: &CancelToken,
    ) -> Result<Vec<SparseVector>> {
        let width = self.head.outputs();
        let rows = LOGIT_ROWS.min(sequences.tokens());
        memory::ensure_elements(
            &[rows + 1, width],
            size_of::<f32>(),
            format_args!("the logits of {rows} tokens over a vocabulary of {width}"),
        )?;
        let mut logits = Logits {
            splade: self,
            hidden,
            current: None,
        };
        let mut vectors = Vec::with_capacity(sequences.count());
        let mut pooled = vec![0f32; width];
        for range in sequences.ranges() {
            cancel.check()?;
            pooled.fill(0.0);
            logits.add(range, &mut pooled)?;
            self.pooling.finish(&mut pooled);
            self.loaded.info.check_numbers(&pooled)?;
            vectors.push(SparseVector::of(&pooled, top_k));
        }
        Ok(vectors)
    }
}

/// The logits of a batch, a part at a time and in order.
struct Logits<'a> {
    splade: &'a Splade,
    hidden: &'a Tensor,
    /// The first token of the part at hand, and its logits.
    current: Option<(usize, Tensor)>,
}

impl Logits<'_> {
    /// Pools the tokens of one text, which may begin and end anywhere in a part.
    fn add(&mut self, tokens: std::ops::Range<usize>, pooled: &mut [f32]) -> Result<()> {
        let mut at = tokens.start;
        while at < tokens.end {
            let first = at - at % LOGIT_ROWS;
            let part = match &self.current {
                Some((known, part)) if *known == first => part.clone(),
                _ => {
                    let rows = LOGIT_ROWS.min(self.hidden.dim(0)? - first);
                    let rows = self.hidden.narrow(0, first, rows)?;
                    let part = self.splade.head.logits(&rows.contiguous()?)?;
                    self.current = Some((first, part.clone()));
                    part
                }
            };
            let end = tokens.end.min(first + LOGIT_ROWS);
            let rows = part.narrow(0, at - first, end - at)?;
            self.splade.pooling.add(&rows, pooled)?;
            at = end;
        }
        Ok(())
    }
}

impl TokenWeights {
    fn load(
        files: &ModelFiles,
        options: &LoadOptions,
        stats: &Arc<Stats>,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let checkpoint = Checkpoint::open_bare(files, options, cancel)?;
        let source = checkpoint.source.as_ref();
        let tensor = source.tensor("weight", Some(DType::F32), &candle_core::Device::Cpu)?;
        if tensor.rank() != 1 {
            return Err(Error::corrupt(
                &source.file("weight"),
                format!(
                    "\"weight\" should have one dimension, the vocabulary, not the shape {:?}",
                    tensor.dims()
                ),
            ));
        }
        let tokenizer = match &options.tokenizer {
            Some(tokenizer) => tokenizer.clone(),
            None => Tokenizer::from_files(&TokenizerFiles::of_model(files, cancel)?)?,
        };
        let tokenizer = tokenizer.with_padding(None).with_truncation(None);
        let limits = [options.max_length, tokenizer.model_max_length()];
        let max_length = limits.into_iter().flatten().min().unwrap_or(usize::MAX);
        let mut inventory = Inventory::default();
        inventory.add_tensor(&tensor);
        let weights: Vec<f32> = tensor.to_vec1()?;
        let info = ModelInfo {
            architecture: "SparseStaticEmbedding".to_owned(),
            family: "sparse-static".to_owned(),
            parameters: checkpoint.parameters(),
            hidden_size: weights.len(),
            layers: 0,
            attention_heads: 0,
            vocabulary: weights.len(),
            max_length: max_length.max(1),
            device: checkpoint.device,
            dtype: DType::F32,
            int8: false,
            files: source.files(),
            inventory,
            verified: false,
        };
        info.check_numbers(&weights)?;
        Ok(Self {
            weights,
            tokenizer,
            info,
            stats: stats.clone(),
        })
    }

    fn embed_all(
        &self,
        texts: &[String],
        excess: Excess,
        top_k: Option<usize>,
        cancel: &CancelToken,
    ) -> Result<Vec<SparseVector>> {
        let tokens = AtomicUsize::new(0);
        let size = || (texts.len(), tokens.load(Ordering::Relaxed));
        self.stats.measured(1, size, || {
            threads::map(texts, |index, text| {
                let ids = self.ids(text, index, excess, cancel)?;
                tokens.fetch_add(ids.len(), Ordering::Relaxed);
                self.embed(ids, top_k)
            })
        })
    }

    fn ids(
        &self,
        text: &str,
        index: usize,
        excess: Excess,
        cancel: &CancelToken,
    ) -> Result<Vec<u32>> {
        cancel.check()?;
        let most = self.info.max_length;
        let text = match excess {
            Excess::Refuse { .. } => text,
            _ => batching::shorten_text(&self.tokenizer, text, most, cancel)?,
        };
        let encoding = self.tokenizer.encode(text, false, Detail::Ids, cancel)?;
        if let Excess::Refuse { first_index } = excess {
            batching::refuse(encoding.len(), most, first_index + index)?;
        }
        Ok(encoding.get_ids().iter().copied().take(most).collect())
    }

    fn embed(&self, mut ids: Vec<u32>, top_k: Option<usize>) -> Result<SparseVector> {
        ids.sort_unstable();
        ids.dedup();
        if let Some(id) = ids.last().filter(|&&id| id as usize >= self.weights.len()) {
            return Err(Error::InvalidInput(format!(
                "token id {id} is beyond the model's {} weights: the tokenizer belongs to another model",
                self.weights.len()
            )));
        }
        let present: Vec<f32> = ids.iter().map(|&id| self.weights[id as usize]).collect();
        let kept = SparseVector::of(&present, top_k);
        Ok(SparseVector {
            ids: kept.ids.iter().map(|&at| ids[at as usize]).collect(),
            weights: kept.weights,
        })
    }
}
