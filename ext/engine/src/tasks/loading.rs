//! From a model's files to its body, its tokenizer and what is known of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Tensor};
use serde_json::json;

use crate::models::decoder::DecoderConfig;
use crate::models::families;
use crate::models::heads::{Head, HeadKind};
use crate::models::seq2seq::Seq2SeqConfig;
use crate::models::{decoder, seq2seq, Blueprint, TextModel};
use crate::nn::{Inventory, Linear, PackedSequences};
use crate::serving::batching;
use crate::serving::dynamic_batcher::{DynamicBatcher, Inputs};
use crate::{CancelToken, Device, Error, Result};
use base::runtime::threads;
use formats::files::model_files::{ModelFiles, WeightFiles};
use formats::files::raw_config::RawConfig;
use formats::text::tokenizer::{Tokenizer, TokenizerFiles};
use formats::weights::{self, WeightSource};

/// What may be asked of any text model.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub device: Device,
    /// `None`: f32 on the CPU, the checkpoint's own on a GPU.
    pub dtype: Option<DType>,
    /// Linear layers on bytes, beside f32: for encoders on the CPU. Replaces `dtype`.
    pub int8: bool,
    /// An upper limit beside those of the files.
    pub max_length: Option<usize>,
    /// Instead of the model's own.
    pub tokenizer: Option<Tokenizer>,
    pub gguf_file: Option<String>,
    /// The GGUF file of the vision tower: one of the model's by its name, or any by its path.
    pub mmproj_file: Option<String>,
    /// Whether to compare the device with the CPU after loading; `None`: on GPUs only.
    pub verify: Option<bool>,
}

impl LoadOptions {
    pub fn verifies(&self) -> bool {
        self.verify.unwrap_or(self.device.is_checked_on_load())
    }
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            device: Device::Cpu,
            dtype: None,
            int8: false,
            max_length: None,
            tokenizer: None,
            gguf_file: None,
            mmproj_file: None,
            verify: None,
        }
    }
}

/// What a loaded model is, in plain values.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// The first of `architectures`, or GGUF's name.
    pub architecture: String,
    /// The family that runs it.
    pub family: String,
    pub parameters: usize,
    pub hidden_size: usize,
    pub layers: usize,
    pub attention_heads: usize,
    pub vocabulary: usize,
    pub max_length: usize,
    pub device: Device,
    pub dtype: DType,
    /// Whether linear layers compute on bytes.
    pub int8: bool,
    pub files: Vec<PathBuf>,
    /// What computes, and how much the weights take.
    pub inventory: Inventory,
    /// Whether the device was compared with the CPU.
    pub verified: bool,
}

/// What tells the models of images and audio apart.
pub(super) struct ModelShape<'a> {
    pub family: &'a str,
    pub hidden_size: usize,
    pub layers: usize,
    pub attention_heads: usize,
    pub vocabulary: usize,
}

impl ModelInfo {
    /// Of a model whose input has no length in tokens.
    pub(super) fn of(
        checkpoint: &Checkpoint,
        shape: &ModelShape<'_>,
        inventory: Inventory,
        verified: bool,
    ) -> Result<Self> {
        Ok(Self {
            architecture: checkpoint.architecture()?,
            family: shape.family.to_owned(),
            parameters: checkpoint.parameters(),
            hidden_size: shape.hidden_size,
            layers: shape.layers,
            attention_heads: shape.attention_heads,
            vocabulary: shape.vocabulary,
            max_length: usize::MAX,
            device: checkpoint.device,
            dtype: checkpoint.dtype,
            int8: checkpoint.int8,
            files: checkpoint.source.files(),
            inventory,
            verified,
        })
    }

    /// What the model computes in, by the name that asks for it.
    pub fn dtype_name(&self) -> &'static str {
        if self.int8 {
            "int8"
        } else {
            self.dtype.as_str()
        }
    }

    /// An error for results that aren't numbers, which nothing could be sorted by.
    pub fn check_numbers(&self, values: &[f32]) -> Result<()> {
        if values.iter().all(|value| value.is_finite()) {
            return Ok(());
        }
        Err(Error::Device(format!(
            "{} computed values that aren't numbers (NaN or infinite) in {}: its weights are damaged, or too large \
             for this type; try dtype: :f32, and fetch the model again if that does not help",
            self.architecture,
            self.dtype_name()
        )))
    }
}

/// An opened checkpoint, before its tensors are read.
#[derive(Clone)]
pub(super) struct Checkpoint {
    pub source: Arc<dyn WeightSource>,
    /// `None` for GGUF files, and for static embeddings that need none.
    pub config: Option<RawConfig>,
    pub device: Device,
    pub opened: candle_core::Device,
    pub dtype: DType,
    pub int8: bool,
    is_gguf: bool,
}

impl Checkpoint {
    /// What `config.json` says, where models of this kind are not read from GGUF files.
    pub fn required_config(&self, kind: &str) -> Result<&RawConfig> {
        self.config.as_ref().ok_or_else(|| {
            Error::unsupported(
                &self.source.file(""),
                format!("models of {kind} are not read from GGUF files"),
            )
        })
    }

    pub fn open(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        Self::open_bare(files, options, cancel)?.checked(files, cancel)
    }

    /// An error where neither `config.json` nor a GGUF file says what it is.
    pub fn checked(self, files: &ModelFiles, cancel: &CancelToken) -> Result<Self> {
        if self.config.is_none() && !self.is_gguf {
            files.require("config.json", cancel)?;
        }
        Ok(self)
    }

    /// The same with what stands for `config.json`.
    pub fn with_config(self, config: RawConfig) -> Self {
        Self {
            config: Some(config),
            ..self
        }
    }

    /// The same with what stands for its weights.
    pub fn with_source(self, source: Arc<dyn WeightSource>) -> Self {
        Self { source, ..self }
    }

    /// `open` for weights that may come without a `config.json`, as static embeddings do.
    pub fn open_bare(
        files: &ModelFiles,
        options: &LoadOptions,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let weight_files = files.weights(options.gguf_file.as_deref(), cancel)?;
        Self::of(&weight_files, files, options, cancel)
    }

    /// The vision tower that lies beside a GGUF file.
    pub fn open_mmproj(
        files: &ModelFiles,
        options: &LoadOptions,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let path = files.mmproj(options.mmproj_file.as_deref(), cancel)?;
        Self::of(&WeightFiles::Gguf(path), files, options, cancel)
    }

    fn of(
        weight_files: &WeightFiles,
        files: &ModelFiles,
        options: &LoadOptions,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let is_gguf = matches!(weight_files, WeightFiles::Gguf(_));
        let config = if is_gguf {
            None
        } else {
            files.file("config.json", cancel)?
        };
        let config = config.map(|path| RawConfig::read(&path)).transpose()?;
        let source = weights::open(weight_files)?;
        let source = match &config {
            Some(config) => weights::unpacked(source, config)?,
            None => source,
        };
        if options.int8 && !options.device.computes_int8() {
            return Err(Error::InvalidInput(format!(
                "dtype int8 computes on the CPU, not on {}: use device \"cpu\", or f16 or bf16 there",
                options.device
            )));
        }
        Ok(Self {
            dtype: match options.dtype {
                _ if options.int8 => Linear::dtype_beside_bytes()?,
                Some(dtype) => dtype,
                None => default_dtype(source.as_ref(), config.as_ref(), options.device),
            },
            int8: options.int8,
            source,
            config,
            device: options.device,
            opened: options.device.open()?,
            is_gguf,
        })
    }

    pub fn is_gguf(&self) -> bool {
        self.is_gguf
    }

    pub fn blueprint(&self) -> Result<Blueprint> {
        match &self.config {
            Some(config) => Blueprint::from_config(config),
            None => Blueprint::from_gguf(self.source.as_ref()),
        }
    }

    /// The blueprint of a checkpoint that must be a decoder.
    pub fn decoder_blueprint(&self) -> Result<decoder::Blueprint> {
        match &self.config {
            Some(config) if families::matches::<Seq2SeqConfig>(config) => Err(Error::unsupported(
                config.file(),
                "it is an encoder-decoder: load it with Seq2Seq",
            )),
            Some(config) => {
                let mut blueprint = decoder::Blueprint::from_config(&language_config(config)?)?;
                if config.model_type()? == Some("paligemma") {
                    blueprint.config.bidirectional_prompts = true;
                    // Gemma 2 bounds its logits, and PaliGemma 2 does not.
                    blueprint.config.logit_soft_cap = None;
                }
                Ok(blueprint)
            }
            None => decoder::Blueprint::from_gguf(self.source.as_ref()),
        }
    }

    /// The blueprint of a checkpoint that must be an encoder-decoder.
    pub fn seq2seq_blueprint(&self) -> Result<seq2seq::Blueprint> {
        match &self.config {
            Some(config) => seq2seq::Blueprint::from_config(config),
            None => seq2seq::Blueprint::from_gguf(self.source.as_ref()),
        }
    }

    /// A given tokenizer, the one inside a GGUF file, or the one beside the weights.
    pub fn tokenizer(
        &self,
        files: &ModelFiles,
        options: &LoadOptions,
        cancel: &CancelToken,
    ) -> Result<Tokenizer> {
        if let Some(tokenizer) = &options.tokenizer {
            return Ok(tokenizer.clone());
        }
        if self.is_gguf {
            return Tokenizer::from_gguf(self.source.metadata());
        }
        Tokenizer::from_files(&TokenizerFiles::of_model(files, cancel)?)
    }

    pub fn architecture(&self) -> Result<String> {
        match &self.config {
            Some(config) => Ok(config
                .architectures()?
                .into_iter()
                .next()
                .unwrap_or_default()),
            None => Ok(self
                .source
                .metadata()
                .opt_str("general.architecture")?
                .unwrap_or_default()
                .to_owned()),
        }
    }

    /// Whether it predicts the next token.
    pub fn is_language_model(&self) -> Result<bool> {
        Ok(match self.config {
            Some(_) => self.architecture()?.ends_with("ForCausalLM"),
            None => matches!(self.blueprint()?, Blueprint::Decoder(_)),
        })
    }

    pub fn parameters(&self) -> usize {
        let names = self.source.names();
        let counts = names.iter().filter_map(|name| self.source.info(name));
        counts
            .map(|info| info.shape.iter().product::<usize>())
            .sum()
    }
}

/// The configuration of the language model inside one that also sees. Files leave out what Llama's
/// and Mistral's first models have.
pub(super) fn language_config(config: &RawConfig) -> Result<RawConfig> {
    let inner = config.opt_nested("text_config")?;
    let Some(inner) = inner.filter(|_| !families::matches::<DecoderConfig>(config)) else {
        return Ok(config.clone());
    };
    let usual = json!({
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "vocab_size": 32000,
    });
    // What the whole says of its output head counts.
    let tied = config.opt_bool("tie_word_embeddings")?;
    let inner = match (config.model_type()?, tied) {
        (Some("paligemma"), tied) => inner
            .with_defaults(json!({"model_type": "gemma"}))
            // Of prompts, and these alone.
            .with(json!({"use_bidirectional_attention": false}))
            .with(json!({"tie_word_embeddings": tied.unwrap_or(true)})),
        (Some("idefics2"), tied) => inner
            .with_defaults(json!({"model_type": "mistral"}))
            .with(json!({"tie_word_embeddings": tied.unwrap_or(false)})),
        (Some("cohere2_vision"), tied) => inner
            .with_defaults(json!({"model_type": "cohere2"}))
            .with(json!({"tie_word_embeddings": tied.unwrap_or(true), "logit_scale": 1.0})),
        // With images, transformers does not scale what the head says.
        (Some("aya_vision"), _) => inner.with(json!({"logit_scale": 1.0})),
        (Some("fast_vlm" | "minicpmv4_6"), tied) => {
            inner.with(json!({"tie_word_embeddings": tied.unwrap_or(false)}))
        }
        _ => inner,
    };
    Ok(match inner.model_type()? {
        Some("mistral") => inner
            .with_defaults(json!({"num_key_value_heads": 8}))
            .with_defaults(usual),
        Some("llama") | None => inner.with_defaults(usual),
        Some(_) => inner,
    })
}

/// What transformers calls labels that a configuration does not name.
pub(super) fn numbered_labels(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("LABEL_{number}")).collect()
}

/// A model that reads texts, with its tokenizer and limits.
pub(super) struct LoadedModel {
    pub body: TextModel,
    /// Without truncation or padding: the limits are applied per call.
    pub tokenizer: Tokenizer,
    pub max_length: usize,
    pub info: ModelInfo,
    pub batcher: DynamicBatcher,
}

impl LoadedModel {
    /// What `finish` makes of a batch's hidden states, [tokens, hidden], which are computed together with
    /// those of other calls that come meanwhile. `asked` is the call's own token budget.
    pub fn forward<R: Send>(
        &self,
        sequences: &PackedSequences,
        asked: Option<usize>,
        cancel: &CancelToken,
        finish: impl FnOnce(&Tensor) -> Result<R> + Send,
    ) -> Result<R> {
        let inputs = Inputs {
            body: &self.body,
            device: self.info.device,
            sequences,
            budget: batching::budget(asked, self.info.device)?,
            cancel,
        };
        self.batcher.forward(&inputs, finish)
    }

    /// `sequence_limit` is what sentence-transformers' files say.
    pub fn load(
        checkpoint: &Checkpoint,
        files: &ModelFiles,
        options: &LoadOptions,
        sequence_limit: Option<usize>,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let blueprint = checkpoint.blueprint()?;
        let (body, tokenizer) = together(
            cancel,
            |cancel| {
                TextModel::load(
                    &blueprint,
                    checkpoint.source.as_ref(),
                    (&checkpoint.opened, checkpoint.dtype),
                    checkpoint.int8,
                    cancel,
                )
            },
            |cancel| checkpoint.tokenizer(files, options, cancel),
        )?;
        let tokenizer = tokenizer.with_padding(None).with_truncation(None);
        // The self-check expands weights of its own.
        let expanded = checkpoint.source.expanded();
        if options.verifies() {
            body.verify(&blueprint, checkpoint.source.as_ref(), cancel)?;
        }
        let max_length = effective_length(&[
            options.max_length,
            sequence_limit,
            tokenizer.model_max_length(),
            body.max_positions(),
        ])?;
        let mut inventory = body.inventory()?;
        inventory.add_expanded(&expanded, checkpoint.dtype);
        let info = ModelInfo {
            architecture: checkpoint.architecture()?,
            family: body.family().to_owned(),
            parameters: checkpoint.parameters(),
            hidden_size: body.hidden_size(),
            layers: body.layer_count(),
            attention_heads: body.head_count(),
            vocabulary: body.vocabulary(),
            max_length,
            device: checkpoint.device,
            dtype: checkpoint.dtype,
            int8: checkpoint.int8,
            files: checkpoint.source.files(),
            inventory,
            verified: options.verifies(),
        };
        Ok(Self {
            body,
            tokenizer,
            max_length,
            info,
            batcher: DynamicBatcher::default(),
        })
    }

    /// The head for a task, unless the checkpoint has none or says that it was made for another.
    pub fn head(&mut self, checkpoint: &Checkpoint, kind: HeadKind) -> Result<Head> {
        // Both are called `classifier` or `score`, so the names of the tensors do not tell them apart.
        let other = match kind {
            HeadKind::Sequence => Some("ForTokenClassification"),
            HeadKind::Token => Some("ForSequenceClassification"),
            HeadKind::MaskedLanguage | HeadKind::Question => None,
        };
        if other.is_some_and(|other| self.info.architecture.ends_with(other)) {
            return Err(Error::UnsupportedModel(format!(
                "the checkpoint's architecture is {}, whose head does another task. Use a model that was trained for this one",
                self.info.architecture
            )));
        }
        let head = self.optional_head(checkpoint, kind)?;
        head.ok_or_else(|| {
            Error::unsupported(
                &checkpoint.source.file(""),
                format!(
                    "the checkpoint has no {}: it holds {} without it. Use a checkpoint that was trained for \
                     this task",
                    kind.name(),
                    self.body.family()
                ),
            )
        })
    }

    pub fn optional_head(
        &mut self,
        checkpoint: &Checkpoint,
        kind: HeadKind,
    ) -> Result<Option<Head>> {
        let source = checkpoint.source.as_ref();
        let head = self
            .body
            .load_head(&checkpoint.blueprint()?, source, kind)?;
        if let Some(head) = &head {
            head.list(&mut self.info.inventory)?;
        }
        Ok(head)
    }
}

/// Both at once, the second on whatever thread is free; its failure, the likelier one, stops the first.
pub(super) fn together<A: Send, B: Send>(
    cancel: &CancelToken,
    first: impl FnOnce(&CancelToken) -> Result<A> + Send,
    second: impl FnOnce(&CancelToken) -> Result<B> + Send,
) -> Result<(A, B)> {
    let part = cancel.part();
    let both = || {
        rayon::join(
            || first(&part),
            || second(cancel).inspect_err(|_| part.cancel()),
        )
    };
    let (first, second) = threads::install(both)?;
    let second = second?;
    Ok((first?, second))
}

/// Lengths beyond what anything limits; a model without any limit gets this one.
const UNLIMITED: usize = 8192;

pub(super) fn effective_length(limits: &[Option<usize>]) -> Result<usize> {
    let length = limits.iter().flatten().copied().min().unwrap_or(UNLIMITED);
    if length == 0 {
        return Err(Error::InvalidInput(
            "the maximum length must be at least 1 token".into(),
        ));
    }
    Ok(length)
}

fn default_dtype(source: &dyn WeightSource, config: Option<&RawConfig>, device: Device) -> DType {
    let names = source.names();
    let largest = names
        .iter()
        .filter_map(|name| source.info(name))
        .max_by_key(|info| info.shape.iter().product::<usize>());
    device.default_dtype(match largest.map(|info| info.dtype_name) {
        Some("F32" | "f32" | "F64" | "f64") | None => DType::F32,
        Some("BF16" | "bf16") => DType::BF16,
        // What was quantized is what the configuration says.
        Some(_) => match config.and_then(|config| config.get(["dtype", "torch_dtype"])) {
            Some(dtype) if dtype == "bfloat16" => DType::BF16,
            _ => DType::F16,
        },
    })
}

/// A folder inside a model as a model of its own, such as `0_Transformer`.
pub(super) fn subfolder(
    files: &ModelFiles,
    path: &str,
    cancel: &CancelToken,
) -> Result<ModelFiles> {
    let inside = |name: &str| format!("{path}/{name}");
    let weights = ["model.safetensors", "pytorch_model.bin"];
    let mut folder = None;
    for name in TokenizerFiles::NAMES.iter().chain(&weights) {
        if let Some(found) = files.file(&inside(name), cancel)? {
            folder = found.parent().map(Path::to_owned);
        }
    }
    let folder = folder.ok_or_else(|| {
        Error::ModelNotFound(format!("{} has no files in its folder {path}", files.id()))
    })?;
    Ok(files.folder(path, folder))
}
