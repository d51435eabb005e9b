//! Texts to vectors.

mod call;

use candle_core::{DType, Tensor};

use crate::nn::{Linear, Pooling};
use crate::{CancelToken, Error, Result};
use base::runtime::stats::Reading;
use formats::files::model_files::ModelFiles;
use formats::text::tokenizer::{Detail, Input, Tokenizer};

use super::loading::{subfolder, Checkpoint, LoadOptions, LoadedModel, ModelInfo};
use super::sentence::SentenceFiles;
use super::static_embeddings::StaticEmbeddings;
use crate::serving::batching::{self, Excess, Tokens};
use call::Call;

/// What replaces the files' own settings for good.
#[derive(Clone, Debug, Default)]
pub struct EmbedSettings {
    pub pooling: Option<Pooling>,
    pub normalize: Option<bool>,
}

/// What one call may ask for; `None` means the model's own.
#[derive(Clone, Debug)]
pub struct EmbedOptions {
    /// Put before each text.
    pub prompt: Option<String>,
    /// One of the model's own prompts.
    pub prompt_name: Option<String>,
    pub pooling: Option<Pooling>,
    pub normalize: Option<bool>,
    /// Keep this many leading dimensions.
    pub dimensions: Option<usize>,
    /// The token budget of one forward.
    pub batch_tokens: Option<usize>,
    /// `false`: a text beyond the maximum length is an `InvalidInput` error instead.
    pub truncate: bool,
    /// What errors call the first text, when the texts are part of a longer list.
    pub first_index: usize,
}

impl Default for EmbedOptions {
    fn default() -> Self {
        Self {
            prompt: None,
            prompt_name: None,
            pooling: None,
            normalize: None,
            dimensions: None,
            batch_tokens: None,
            truncate: true,
            first_index: 0,
        }
    }
}

/// `count` vectors of `dimension`, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Embeddings {
    pub values: Vec<f32>,
    pub count: usize,
    pub dimension: usize,
}

pub struct EmbeddingModel {
    body: Body,
    sentence: SentenceFiles,
    pooling: Vec<Pooling>,
    normalize: bool,
    dimension: usize,
}

enum Body {
    Transformer(Box<LoadedModel>),
    Static(Box<StaticEmbeddings>),
}

impl EmbeddingModel {
    pub fn load(
        files: &ModelFiles,
        options: &LoadOptions,
        settings: &EmbedSettings,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let opened = options.device.open()?;
        let dtype = if options.int8 {
            Linear::dtype_beside_bytes()?
        } else {
            options.dtype.unwrap_or(DType::F32)
        };
        let sentence = SentenceFiles::read(files, &opened, dtype, cancel)?;
        let path = sentence
            .static_path
            .as_ref()
            .unwrap_or(&sentence.transformer_path);
        let inner = if path.is_empty() {
            None
        } else {
            Some(subfolder(files, path, cancel)?)
        };
        let files = inner.as_ref().unwrap_or(files);
        let (body, checkpoint_pooling) = load_body(files, options, &sentence, cancel)?;
        let pooling = match (settings.pooling, sentence.pooling.as_slice()) {
            (Some(asked), _) => vec![asked],
            (None, []) => vec![checkpoint_pooling.unwrap_or(Pooling::Mean)],
            (None, said) => said.to_vec(),
        };
        let own_normalize = match &body {
            Body::Transformer(_) => true,
            Body::Static(model) => model.normalize,
        };
        let normalize = settings
            .normalize
            .or(sentence.normalize)
            .unwrap_or(own_normalize);
        let model = Self {
            dimension: 0,
            body,
            sentence,
            pooling,
            normalize,
        };
        let dimension = model.checked_dimension(&model.pooling)?;
        let mut model = Self { dimension, ..model };
        model.list_own(&opened)?;
        Ok(model)
    }

    /// What it runs beside the transformer; static embeddings are summed up without kernels.
    fn list_own(&mut self, device: &candle_core::Device) -> Result<()> {
        let Body::Transformer(loaded) = &mut self.body else {
            return Ok(());
        };
        let inventory = &mut loaded.info.inventory;
        for pooling in &self.pooling {
            inventory.add_pooling(*pooling, device)?;
        }
        for dense in &self.sentence.dense {
            dense.list(inventory)?;
        }
        if self.normalize {
            inventory.add_rows("l2_normalize", device)
        } else {
            Ok(())
        }
    }

    /// The length of a vector.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// The most tokens of a text that are read, special ones included.
    pub fn max_length(&self) -> usize {
        self.info().max_length
    }

    pub fn info(&self) -> &ModelInfo {
        match &self.body {
            Body::Transformer(loaded) => &loaded.info,
            Body::Static(model) => &model.info,
        }
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        match &self.body {
            Body::Transformer(loaded) => &loaded.tokenizer,
            Body::Static(model) => &model.tokenizer,
        }
    }

    /// What it counts of its calls, by name.
    pub fn stats(&self) -> Vec<(&'static str, Reading)> {
        match &self.body {
            Body::Transformer(loaded) => loaded.batcher.stats.read(),
            Body::Static(model) => model.stats.read(),
        }
    }

    /// The pooling that calls use unless they ask for another.
    pub fn pooling(&self) -> &[Pooling] {
        &self.pooling
    }

    pub fn normalizes(&self) -> bool {
        self.normalize
    }

    /// The model's own prompts by name, and the name of the one that is used unasked.
    pub fn prompts(&self) -> (&[(String, String)], Option<&str>) {
        self.sentence.prompts.all()
    }

    /// How many tokens a text has, special ones included and nothing cut.
    pub fn count_tokens(&self, text: &str, cancel: &CancelToken) -> Result<usize> {
        match &self.body {
            Body::Transformer(loaded) => Ok(loaded
                .tokenizer
                .encode(&*self.cased(text), true, Detail::Ids, cancel)?
                .len()),
            Body::Static(model) => Ok(model
                .tokenizer
                .encode(text, false, Detail::Ids, cancel)?
                .len()),
        }
    }

    /// One vector per text, in the order of the texts.
    pub fn embed<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        options: &EmbedOptions,
        cancel: &CancelToken,
    ) -> Result<Embeddings> {
        let call = Call::new(self, options, cancel)?;
        base::runtime::memory::ensure_elements(
            &[texts.len(), call.dimension],
            std::mem::size_of::<f32>(),
            format_args!("{} vectors", texts.len()),
        )?;
        let mut values = vec![0f32; texts.len() * call.dimension];
        match &self.body {
            Body::Transformer(loaded) => {
                let excess = if options.truncate {
                    Excess::Cut
                } else {
                    Excess::Refuse {
                        first_index: options.first_index,
                    }
                };
                call.encode(loaded, texts, excess, &mut values, cancel)?;
            }
            Body::Static(model) => {
                call.look_up(
                    model,
                    texts,
                    (!options.truncate).then_some(options.first_index),
                    &mut values,
                    cancel,
                )?;
            }
        }
        self.info().check_numbers(&values)?;
        Ok(Embeddings {
            values,
            count: texts.len(),
            dimension: call.dimension,
        })
    }

    /// `embed` for texts that are tokens already, special ones included.
    pub fn embed_ids(
        &self,
        lists: Vec<Vec<u32>>,
        options: &EmbedOptions,
        cancel: &CancelToken,
    ) -> Result<Embeddings> {
        let Body::Transformer(loaded) = &self.body else {
            return Err(Error::InvalidInput(
                "a static embedding model has no special tokens and takes texts only".into(),
            ));
        };
        check_ids(loaded, &lists)?;
        let call = Call::new(self, options, cancel)?;
        let count = lists.len();
        base::runtime::memory::ensure_elements(
            &[count, call.dimension],
            std::mem::size_of::<f32>(),
            format_args!("{count} vectors"),
        )?;
        let mut values = vec![0f32; count * call.dimension];
        let tokens: Vec<Tokens> = lists
            .into_iter()
            .map(|ids| Tokens {
                type_ids: vec![0; ids.len()],
                ids,
            })
            .collect();
        call.compute(loaded, &tokens, &mut values, cancel)?;
        self.info().check_numbers(&values)?;
        Ok(Embeddings {
            values,
            count,
            dimension: call.dimension,
        })
    }

    /// The hidden state of every token of a text, special ones included: f32 [tokens, hidden].
    pub fn token_embeddings(&self, text: &str, cancel: &CancelToken) -> Result<Tensor> {
        match &self.body {
            Body::Transformer(loaded) => {
                let text = self.cased(text);
                let tokens = batching::tokenize(
                    &loaded.tokenizer,
                    &[Input::Single(&text)],
                    loaded.max_length,
                    Excess::Cut,
                    cancel,
                )?;
                let sequences = batching::pack(&tokens, &[0])?;
                loaded.forward(&sequences, None, cancel, |hidden| {
                    Ok(hidden.to_dtype(DType::F32)?)
                })
            }
            Body::Static(model) => {
                let ids = model.ids(&self.cased(text), cancel)?;
                let vectors = model.token_vectors(&ids)?;
                let device = candle_core::Device::Cpu;
                Ok(Tensor::from_vec(
                    vectors,
                    (ids.len(), model.dimension()),
                    &device,
                )?)
            }
        }
    }

    fn cased<'a>(&self, text: &'a str) -> std::borrow::Cow<'a, str> {
        self.sentence.settings.cased(text)
    }

    /// The length of vectors pooled in this way, once every Dense module fits.
    fn checked_dimension(&self, pooling: &[Pooling]) -> Result<usize> {
        let width = match &self.body {
            Body::Transformer(loaded) => loaded.body.hidden_size() * pooling.len(),
            Body::Static(model) => model.dimension(),
        };
        self.sentence.dense.iter().try_fold(width, |width, dense| {
            if dense.linear.inputs() != width {
                return Err(Error::InvalidInput(format!(
                    "the model's Dense module takes vectors of {} and this pooling gives {width}",
                    dense.linear.inputs()
                )));
            }
            Ok(dense.linear.outputs())
        })
    }
}

/// Ids that the model has rows for, in lists that it has positions for.
fn check_ids(loaded: &LoadedModel, lists: &[Vec<u32>]) -> Result<()> {
    let vocabulary = loaded.info.vocabulary;
    for (index, ids) in lists.iter().enumerate() {
        if ids.is_empty() || ids.len() > loaded.max_length {
            return Err(Error::InvalidInput(format!(
                "the list at index {index} has {} tokens; the model takes 1 to {}",
                ids.len(),
                loaded.max_length
            )));
        }
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(Error::InvalidInput(format!(
                "token {id} in the list at index {index} is beyond the model's vocabulary of {vocabulary}"
            )));
        }
    }
    Ok(())
}

fn load_body(
    files: &ModelFiles,
    options: &LoadOptions,
    sentence: &SentenceFiles,
    cancel: &CancelToken,
) -> Result<(Body, Option<Pooling>)> {
    let is_module = sentence.static_path.is_some();
    let checkpoint = if is_module {
        Checkpoint::open_bare(files, options, cancel)?
    } else {
        Checkpoint::open(files, options, cancel)?
    };
    let is_static = match &checkpoint.config {
        Some(config) => config.model_type()? == Some("model2vec"),
        None => false,
    };
    if is_module || is_static {
        // Model2vec's own repositories carry both descriptions; its own drops unknown tokens.
        let model =
            StaticEmbeddings::load(&checkpoint, files, options, is_module && !is_static, cancel)?;
        return Ok((Body::Static(Box::new(model)), None));
    }
    let limit = sentence.settings.max_seq_length;
    let loaded = LoadedModel::load(&checkpoint, files, options, limit, cancel)?;
    let pooling = default_pooling(&checkpoint, &loaded)?;
    Ok((Body::Transformer(Box::new(loaded)), pooling))
}

/// What a checkpoint without sentence-transformers' files says of its pooling. One that predicts
/// tokens was made for something else; a causal one without that head is an embedder, and only its
/// last token has seen the whole text.
fn default_pooling(checkpoint: &Checkpoint, loaded: &LoadedModel) -> Result<Option<Pooling>> {
    if checkpoint.is_gguf() {
        return gguf_pooling(checkpoint);
    }
    let bare = loaded.info.architecture.ends_with("Model");
    Ok((bare && loaded.body.is_causal()).then_some(Pooling::Last))
}

fn gguf_pooling(checkpoint: &Checkpoint) -> Result<Option<Pooling>> {
    let metadata = checkpoint.source.metadata();
    let architecture = metadata.str("general.architecture")?;
    Ok(
        match metadata.opt_u32(&format!("{architecture}.pooling_type"))? {
            Some(1) => Some(Pooling::Mean),
            Some(2) => Some(Pooling::Cls),
            Some(3) => Some(Pooling::Last),
            _ => None,
        },
    )
}
