//! What sentence-transformers' files say of a model: modules, pooling, prompts and limits.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::models::config::activation;
use crate::nn::{elementwise, Epilogue, Inventory, Linear, Norm, Pooling};
use crate::{CancelToken, Error, Result};
use formats::files::json;
use formats::files::model_files::{ModelFiles, WeightFiles};
use formats::files::raw_config::RawConfig;
use formats::weights::{self, WeightSource};
use kernels::Activation;

use super::embed::TokenModule;
use super::modules::{layer_norm, reads, Reads, Similarity};

/// The modules after the transformer, and how it is to be called.
#[derive(Debug)]
pub struct SentenceFiles {
    /// The folder of the transformer, empty for the model's own.
    pub transformer_path: String,
    /// The folder of static embeddings, where those take the transformer's place.
    pub static_path: Option<String>,
    /// The folder of a table of words, or of their numbers alone, in the same place.
    pub words: Option<Words>,
    /// What changes the states of tokens before they are pooled.
    pub token_modules: Vec<TokenModule>,
    /// Several are concatenated. Empty: the files do not say.
    pub pooling: Vec<Pooling>,
    /// Whether the tokens of a prompt take part in pooling.
    pub include_prompt: bool,
    pub steps: Vec<Step>,
    /// `None` when there is no `modules.json`.
    pub normalize: Option<bool>,
    pub settings: TextSettings,
    pub prompts: Prompts,
    /// How vectors are compared.
    pub similarity: Similarity,
    /// How many leading dimensions of a vector are kept.
    pub truncate_dim: Option<usize>,
    /// Where its modules compute.
    pub device: Device,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Words {
    Table(String),
    Bag(String),
}

/// A module with its class's own name and its folder.
pub type Module = (String, String);

/// One way through a model, and what texts take it.
pub struct Route {
    pub name: String,
    pub modules: Vec<Module>,
}

#[derive(Debug)]
pub struct Dense {
    pub linear: Linear,
    activation: Activation,
    residual: Residual,
}

/// What happens to a pooled vector.
#[derive(Debug)]
pub enum Step {
    Dense(Box<Dense>),
    LayerNorm(Norm, usize),
    /// Another one, of the vector with length 1.
    OfUnit(Box<Step>),
}

impl Step {
    pub fn inputs(&self) -> usize {
        match self {
            Self::Dense(dense) => dense.linear.inputs(),
            Self::LayerNorm(_, width) => *width,
            Self::OfUnit(step) => step.inputs(),
        }
    }

    pub fn outputs(&self) -> usize {
        match self {
            Self::Dense(dense) => dense.linear.outputs(),
            Self::LayerNorm(_, width) => *width,
            Self::OfUnit(step) => step.outputs(),
        }
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(dense) => dense.forward(x),
            Self::LayerNorm(norm, _) => norm.forward(&x.to_dtype(DType::F32)?),
            Self::OfUnit(step) => step.forward(&kernels::l2_normalize(&x.to_dtype(DType::F32)?)?),
        }
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        match self {
            Self::Dense(dense) => dense.list(inventory),
            Self::LayerNorm(norm, _) => inventory.add_norm(norm),
            Self::OfUnit(step) => step.list(inventory),
        }
    }
}

/// What a Dense module adds to its result.
#[derive(Debug)]
enum Residual {
    None,
    Input,
    Projected(Linear),
}

impl Dense {
    /// A matrix alone.
    pub fn of(linear: Linear) -> Self {
        Self {
            linear,
            activation: Activation::Identity,
            residual: Residual::None,
        }
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.to_dtype(self.linear.dtype())?;
        let activation = Some(self.activation);
        let residual = match &self.residual {
            Residual::None => None,
            Residual::Input => Some(x.clone()),
            Residual::Projected(linear) => Some(linear.forward(&x)?),
        };
        let y = self.linear.forward_with(
            &x,
            &Epilogue {
                activation,
                residual: None,
            },
        )?;
        match residual {
            Some(residual) => elementwise::add(&y, &residual),
            None => Ok(y),
        }
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.linear)?;
        match &self.residual {
            Residual::Projected(linear) => inventory.add_linear(linear),
            _ => Ok(()),
        }
    }
}

impl SentenceFiles {
    fn new(device: &Device) -> Self {
        Self {
            transformer_path: String::new(),
            static_path: None,
            words: None,
            token_modules: Vec::new(),
            pooling: Vec::new(),
            include_prompt: true,
            steps: Vec::new(),
            normalize: None,
            settings: TextSettings::default(),
            prompts: Prompts::default(),
            similarity: Similarity::default(),
            truncate_dim: None,
            device: device.clone(),
        }
    }

    /// Of a model whose modules are these; `None` where no file lists them.
    pub fn read(
        files: &ModelFiles,
        modules: Option<&[Module]>,
        place: (&Device, DType),
        cancel: &CancelToken,
    ) -> Result<Self> {
        let mut found = Self::new(place.0);
        match modules {
            Some(modules) => {
                found.normalize = Some(false);
                for (kind, folder) in modules {
                    found.add_module(files, kind, folder, place, cancel)?;
                }
            }
            None => {
                if let Some(path) = files.file("1_Pooling/config.json", cancel)? {
                    found.read_pooling(&RawConfig::read(&path)?)?;
                }
            }
        }
        found.settings = TextSettings::read(files, &found.transformer_path, cancel)?;
        if let Some(config) = model_config(files, cancel)? {
            found.prompts = Prompts::of(&config)?;
            if let Some(name) = config.opt_string("similarity_fn_name")? {
                found.similarity = Similarity::parse(name)
                    .map_err(|error| Error::unsupported(config.file(), error))?;
            }
            found.truncate_dim = config.opt_usize("truncate_dim")?.filter(|&size| size > 0);
        }
        Ok(found)
    }

    fn add_module(
        &mut self,
        files: &ModelFiles,
        kind: &str,
        folder: &str,
        (device, dtype): (&Device, DType),
        cancel: &CancelToken,
    ) -> Result<()> {
        let config = || -> Result<RawConfig> {
            RawConfig::read(&files.require(&join(folder, "config.json"), cancel)?)
        };
        match kind {
            "Transformer" => self.transformer_path = folder.to_owned(),
            "StaticEmbedding" => self.static_path = Some(folder.to_owned()),
            "WordEmbeddings" => self.words = Some(Words::Table(folder.to_owned())),
            "BoW" => self.words = Some(Words::Bag(folder.to_owned())),
            "WordWeights" => {
                let module = TokenModule::word_weights(files, folder, cancel)?;
                self.token_modules.push(module);
            }
            "LSTM" => {
                let module = TokenModule::lstm(files, folder, device, cancel)?;
                self.token_modules.push(module);
            }
            "CNN" => {
                let module = TokenModule::convolutions(files, folder, device, cancel)?;
                self.token_modules.push(module);
            }
            "Pooling" => self.read_pooling(&config()?)?,
            "Normalize" => self.normalize = Some(true),
            "Dropout" => {}
            "LayerNorm" => {
                let norm = layer_norm(files, folder, device, cancel)?;
                self.add_step(norm);
            }
            "Dense" => {
                let dense = Dense::read(files, folder, (device, dtype), cancel)?;
                match reads(&config()?)? {
                    Reads::Sentence => self.add_step(Step::Dense(Box::new(dense))),
                    Reads::Tokens => self.token_modules.push(TokenModule::Dense(Box::new(dense))),
                }
            }
            other => {
                return Err(Error::UnsupportedModel(format!(
                    "{}: modules.json names a module of type {other:?}; known are Transformer, StaticEmbedding, \
                     WordEmbeddings, BoW, WordWeights, LSTM, CNN, Pooling, Dense, LayerNorm, Normalize, Dropout and \
                     Router",
                    files.id()
                )))
            }
        }
        Ok(())
    }

    /// A step behind a Normalize module reads what that gives, and its own result is not normalized.
    fn add_step(&mut self, step: Step) {
        if self.normalize == Some(true) {
            self.normalize = Some(false);
            self.steps.push(Step::OfUnit(Box::new(step)));
        } else {
            self.steps.push(step);
        }
    }

    fn read_pooling(&mut self, config: &RawConfig) -> Result<()> {
        self.include_prompt = config.opt_bool("include_prompt")?.unwrap_or(true);
        if let Some(mode) = config.get("pooling_mode") {
            let names = match mode {
                serde_json::Value::String(name) => vec![name.clone()],
                _ => config.opt_strings("pooling_mode")?.unwrap_or_default(),
            };
            self.pooling = names
                .iter()
                .map(|name| {
                    Pooling::parse(name).map_err(|error| Error::unsupported(config.file(), error))
                })
                .collect::<Result<_>>()?;
            return Ok(());
        }
        let flags = [
            ("pooling_mode_cls_token", Pooling::Cls),
            ("pooling_mode_max_tokens", Pooling::Max),
            ("pooling_mode_mean_tokens", Pooling::Mean),
            ("pooling_mode_mean_sqrt_len_tokens", Pooling::MeanSqrtLength),
            ("pooling_mode_weightedmean_tokens", Pooling::WeightedMean),
            ("pooling_mode_lasttoken", Pooling::Last),
        ];
        for (key, pooling) in flags {
            if config.opt_bool(key)?.unwrap_or(false) {
                self.pooling.push(pooling);
            }
        }
        Ok(())
    }
}

/// How a text reaches the tokenizer, and how much of it.
#[derive(Debug, Default)]
pub struct TextSettings {
    pub max_seq_length: Option<usize>,
    pub lowercase: bool,
}

impl TextSettings {
    /// The settings of the transformer in `folder` carry the name of the class that wrote them first.
    pub fn read(files: &ModelFiles, folder: &str, cancel: &CancelToken) -> Result<Self> {
        const NAMES: [&str; 7] = [
            "sentence_bert_config.json",
            "sentence_roberta_config.json",
            "sentence_distilbert_config.json",
            "sentence_camembert_config.json",
            "sentence_albert_config.json",
            "sentence_xlm-roberta_config.json",
            "sentence_xlnet_config.json",
        ];
        for name in NAMES {
            if let Some(path) = files.file(&join(folder, name), cancel)? {
                let config = RawConfig::read(&path)?;
                return Ok(Self {
                    max_seq_length: config
                        .opt_usize("max_seq_length")?
                        .filter(|&length| length > 0),
                    lowercase: config.opt_bool("do_lower_case")?.unwrap_or(false),
                });
            }
        }
        Ok(Self::default())
    }

    pub fn cased<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.lowercase {
            text.to_lowercase().into()
        } else {
            text.into()
        }
    }
}

/// What a text is to a model that reads queries and documents differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextTask {
    Query,
    Document,
}

impl TextTask {
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "query" => Ok(Self::Query),
            "document" => Ok(Self::Document),
            other => Err(Error::InvalidInput(format!(
                "unknown task {other:?}: use \"query\" or \"document\""
            ))),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Document => "document",
        }
    }

    /// The names that a model's prompt for the task may have, best first.
    pub fn prompt_names(self) -> &'static [&'static str] {
        match self {
            Self::Query => &["query"],
            Self::Document => &["document", "passage", "corpus"],
        }
    }
}

/// What a model puts before texts.
#[derive(Debug, Default)]
pub struct Prompts {
    /// In the order of the file.
    pub named: Vec<(String, String)>,
    pub default_name: Option<String>,
}

impl Prompts {
    pub fn of(config: &RawConfig) -> Result<Self> {
        let mut named = Vec::new();
        if let Some(prompts) = config.opt_nested("prompts")? {
            for name in prompts.keys() {
                let prompt = prompts.opt_string(name)?.unwrap_or_default();
                named.push((name.to_owned(), prompt.to_owned()));
            }
        }
        let default_name = config.opt_string("default_prompt_name")?.map(str::to_owned);
        Ok(Self {
            named,
            default_name,
        })
    }

    /// All by name, and the name of the one that is used unasked.
    pub fn all(&self) -> (&[(String, String)], Option<&str>) {
        (&self.named, self.default_name.as_deref())
    }

    /// The prompt that was given, that of a name, or the model's default.
    pub fn choose<'a>(&'a self, given: Option<&'a str>, name: Option<&str>) -> Result<&'a str> {
        match (given, name.or(self.default_name.as_deref())) {
            (Some(prompt), _) => Ok(prompt),
            (None, Some(name)) => self.get(name),
            (None, None) => Ok(""),
        }
    }

    fn get(&self, name: &str) -> Result<&str> {
        let found = self.named.iter().find(|(known, _)| known == name);
        found.map(|(_, prompt)| prompt.as_str()).ok_or_else(|| {
            let names: Vec<_> = self.named.iter().map(|(name, _)| format!("{name:?}")).collect();
            Error::InvalidInput(if names.is_empty() {
format!("unknown prompt name {name:?}: this model has no named prompts, give prompt: instead")
} else {
format!("unknown prompt name {name:?}: this model has {}", names.join(", "))
})
        })
    }
}

/// What a library of this family says of a model as a whole.
pub fn model_config(files: &ModelFiles, cancel: &CancelToken) -> Result<Option<RawConfig>> {
    let path = files.file("config_sentence_transformers.json", cancel)?;
    path.map(|path| RawConfig::read(&path)).transpose()
}

/// Kind and folder of each module, in order. The kind is the class's own name: its package moves
/// between versions.
pub fn modules(path: &std::path::Path) -> Result<Vec<(String, String)>> {
    let value = json::read(path)?;
    let list = value
        .as_array()
        .ok_or_else(|| Error::corrupt(path, "it should hold a list of modules"))?;
    let mut modules = Vec::with_capacity(list.len());
    for module in list {
        let text = |key: &str| module.get(key).and_then(|value| value.as_str());
        let kind = text("type").ok_or_else(|| Error::corrupt(path, "a module has no type"))?;
        let kind = kind.rsplit('.').next().unwrap_or(kind).to_owned();
        let folder = text("path").unwrap_or_default().trim_start_matches("./");
        modules.push((kind, if folder == "." { "" } else { folder }.to_owned()));
    }
    Ok(modules)
}

pub fn join(folder: &str, name: &str) -> String {
    match folder {
        "" => name.to_owned(),
        folder => format!("{}/{name}", folder.trim_end_matches('/')),
    }
}

/// The weights of a module in its folder.
pub fn module_weights(
    files: &ModelFiles,
    folder: &str,
    cancel: &CancelToken,
) -> Result<Arc<dyn WeightSource>> {
    match files.file(&join(folder, "model.safetensors"), cancel)? {
        Some(path) => weights::open(&WeightFiles::Safetensors(vec![path])),
        None => {
            let path = files.require(&join(folder, "pytorch_model.bin"), cancel)?;
            weights::open(&WeightFiles::Pickle(vec![path]))
        }
    }
}

impl Dense {
    pub fn read(
        files: &ModelFiles,
        folder: &str,
        (device, dtype): (&Device, DType),
        cancel: &CancelToken,
    ) -> Result<Self> {
        let config = RawConfig::read(&files.require(&join(folder, "config.json"), cancel)?)?;
        let source = module_weights(files, folder, cancel)?;
        let tensor = |name: &str| source.tensor(name, Some(dtype), device);
        let bias = if source.has("linear.bias") {
            Some(tensor("linear.bias")?)
        } else {
            None
        };
        let name = config.opt_string("activation_function")?.unwrap_or("Tanh");
        let name = name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
        let linear = Linear::new(tensor("linear.weight")?, bias)?;
        let residual = if !config.opt_bool("use_residual")?.unwrap_or(false) {
            Residual::None
        } else if linear.inputs() == linear.outputs() {
            Residual::Input
        } else {
            Residual::Projected(Linear::new(tensor("residual.weight")?, None)?)
        };
        Ok(Self {
            linear,
            activation: activation(&name, config.file())?,
            residual,
        })
    }
}
