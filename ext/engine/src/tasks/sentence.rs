//! What sentence-transformers' files say of a model: modules, pooling, prompts and limits.

use candle_core::{DType, Device};

use crate::files::json;
use crate::files::model_files::{ModelFiles, WeightFiles};
use crate::files::raw_config::RawConfig;
use crate::kernels::Activation;
use crate::models::config::activation;
use crate::nn::{Linear, Pooling};
use crate::weights;
use crate::{CancelToken, Error, Result};

/// The modules after the transformer, and how it is to be called.
#[derive(Debug, Default)]
pub struct SentenceFiles {
    /// The folder of the transformer, empty for the model's own.
    pub transformer_path: String,
    /// The folder of static embeddings, where those take the transformer's place.
    pub static_path: Option<String>,
    /// Several are concatenated. Empty: the files do not say.
    pub pooling: Vec<Pooling>,
    /// Whether the tokens of a prompt take part in pooling.
    pub include_prompt: bool,
    pub dense: Vec<Dense>,
    /// `None` when there is no `modules.json`.
    pub normalize: Option<bool>,
    pub max_seq_length: Option<usize>,
    pub lowercase: bool,
    /// In the order of the file.
    pub prompts: Vec<(String, String)>,
    pub default_prompt_name: Option<String>,
}

#[derive(Debug)]
pub struct Dense {
    pub linear: Linear,
    pub activation: Activation,
}

impl SentenceFiles {
    pub fn read(
        files: &ModelFiles,
        device: &Device,
        dtype: DType,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let mut found = Self {
            include_prompt: true,
            ..Self::default()
        };
        match files.file("modules.json", cancel)? {
            Some(path) => {
                found.normalize = Some(false);
                for (kind, folder) in modules(&path)? {
                    found.add_module(files, &kind, &folder, (device, dtype), cancel)?;
                }
            }
            None => {
                if let Some(path) = files.file("1_Pooling/config.json", cancel)? {
                    found.read_pooling(&RawConfig::read(&path)?)?;
                }
            }
        }
        found.read_settings(files, cancel)?;
        found.read_prompts(files, cancel)?;
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
            "Pooling" => self.read_pooling(&config()?)?,
            "Normalize" => self.normalize = Some(true),
            "Dropout" => {}
            "Dense" => self.dense.push(read_dense(files, folder, &config()?, device, dtype, cancel)?),
            other => {
                return Err(Error::UnsupportedModel(format!(
                    "{}: modules.json names a module of type {other:?}; known are Transformer, StaticEmbedding, \
                     Pooling, Dense, Normalize and Dropout",
                    files.id()
                )))
            }
        }
        Ok(())
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

    /// The settings of the transformer carry the name of the class that wrote them first.
    fn read_settings(&mut self, files: &ModelFiles, cancel: &CancelToken) -> Result<()> {
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
            if let Some(path) = files.file(&join(&self.transformer_path, name), cancel)? {
                let config = RawConfig::read(&path)?;
                self.max_seq_length = config
                    .opt_usize("max_seq_length")?
                    .filter(|&length| length > 0);
                self.lowercase = config.opt_bool("do_lower_case")?.unwrap_or(false);
                break;
            }
        }
        Ok(())
    }

    fn read_prompts(&mut self, files: &ModelFiles, cancel: &CancelToken) -> Result<()> {
        let Some(path) = files.file("config_sentence_transformers.json", cancel)? else {
            return Ok(());
        };
        let config = RawConfig::read(&path)?;
        if let Some(prompts) = config.opt_nested("prompts")? {
            for name in prompts.keys() {
                let prompt = prompts.opt_string(name)?.unwrap_or_default();
                self.prompts.push((name.to_owned(), prompt.to_owned()));
            }
        }
        self.default_prompt_name = config.opt_string("default_prompt_name")?.map(str::to_owned);
        Ok(())
    }

    /// The prompt of a name.
    pub fn prompt(&self, name: &str) -> Result<&str> {
        let found = self.prompts.iter().find(|(known, _)| known == name);
        found.map(|(_, prompt)| prompt.as_str()).ok_or_else(|| {
            let names: Vec<_> = self.prompts.iter().map(|(name, _)| format!("{name:?}")).collect();
            Error::InvalidInput(match names.is_empty() {
                true => format!("unknown prompt name {name:?}: this model has no named prompts, give prompt: instead"),
                false => format!("unknown prompt name {name:?}: this model has {}", names.join(", ")),
            })
        })
    }
}

/// Kind and folder of each module, in order. The kind is the class's own name: its package moves
/// between versions.
fn modules(path: &std::path::Path) -> Result<Vec<(String, String)>> {
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

fn join(folder: &str, name: &str) -> String {
    match folder {
        "" => name.to_owned(),
        folder => format!("{}/{name}", folder.trim_end_matches('/')),
    }
}

fn read_dense(
    files: &ModelFiles,
    folder: &str,
    config: &RawConfig,
    device: &Device,
    dtype: DType,
    cancel: &CancelToken,
) -> Result<Dense> {
    let source = match files.file(&join(folder, "model.safetensors"), cancel)? {
        Some(path) => weights::open(&WeightFiles::Safetensors(vec![path]))?,
        None => {
            let path = files.require(&join(folder, "pytorch_model.bin"), cancel)?;
            weights::open(&WeightFiles::Pickle(vec![path]))?
        }
    };
    let weight = source.tensor("linear.weight", Some(dtype), device)?;
    let bias = match source.has("linear.bias") {
        true => Some(source.tensor("linear.bias", Some(dtype), device)?),
        false => None,
    };
    let name = config.opt_string("activation_function")?.unwrap_or("Tanh");
    let name = name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
    Ok(Dense {
        linear: Linear::new(weight, bias)?,
        activation: activation(&name)?,
    })
}
