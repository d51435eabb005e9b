//! Audio and texts as vectors of one space (CLAP).

use candle_core::{DType, Tensor};
use serde_json::json;

use crate::models::encoder::{self, Encoder};
use crate::models::htsat::{Htsat, HtsatConfig};
use crate::models::modules::Modules;
use crate::nn::{pooling, Epilogue, Inventory, Linear, PackedSequences};
use crate::serving::batching::{self, Excess};
use crate::{CancelToken, Error, Result};
use base::runtime::memory;
use formats::audio::ClapExtractor;
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::text::tokenizer::{Input, Tokenizer};
use kernels::Activation;

use super::classify::softmax;
use super::embed::Embeddings;
use super::loading::{effective_length, Checkpoint, LoadOptions, ModelInfo, ModelShape};
use super::transcribe::{extractor_settings, Sound};

pub struct ClapModel {
    tower: Htsat,
    extractor: ClapExtractor,
    audio_space: Space,
    text: Encoder,
    /// What makes one state of a text's first.
    pooler: Linear,
    text_space: Space,
    tokenizer: Tokenizer,
    /// Multiplies the cosine of an audio and a text.
    scale: f32,
    max_length: usize,
    dimension: usize,
    info: ModelInfo,
}

/// Two layers into the space that audio and texts share.
struct Space {
    first: Linear,
    second: Linear,
    activation: Activation,
}

impl Space {
    fn load(modules: &Modules<'_>, inputs: usize, activation: Activation) -> Result<Self> {
        let first = modules.linear("linear1", inputs)?;
        let second = modules.linear("linear2", first.outputs())?;
        Ok(Self {
            first,
            second,
            activation,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = Epilogue {
            activation: Some(self.activation),
            ..Epilogue::default()
        };
        let x = x.to_dtype(self.first.dtype())?.contiguous()?;
        let inner = self.first.forward_with(&x, &inner)?;
        Ok(self.second.forward(&inner)?.to_dtype(DType::F32)?)
    }
}

impl ClapModel {
    /// Whether a configuration is of such a model.
    pub fn matches(raw: &RawConfig) -> Result<bool> {
        Ok(raw.model_type()? == Some("clap"))
    }

    pub fn load(
        checkpoint: &Checkpoint,
        files: &ModelFiles,
        options: &LoadOptions,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let raw = checkpoint.required_config("audio")?;
        let nested = |key: &str| -> Result<RawConfig> {
            let found = raw.opt_nested(key)?;
            found.map_or_else(|| RawConfig::parse(raw.file(), "{}"), Ok)
        };
        let (audio_raw, text_raw) = (nested("audio_config")?, text_config(nested("text_config")?));
        let source = checkpoint.source.as_ref();
        let (device, dtype) = (&checkpoint.opened, checkpoint.dtype);
        let names = source.names();
        let modules = Modules::new(source, &names, (device, dtype), checkpoint.int8);
        let tower = Htsat::load(
            HtsatConfig::read(&audio_raw)?,
            &modules.at("audio_model.audio_encoder"),
        )?;
        let settings = extractor_settings(files, &audio_raw, cancel)?;
        let extractor = ClapExtractor::read(&settings)?;
        check_fit(&tower, &extractor, &settings)?;
        let blueprint = encoder::Blueprint::from_config(&text_raw)?;
        let text = Encoder::load(&blueprint, source, device, dtype, checkpoint.int8, cancel)?;
        if options.verifies() {
            text.verify(&blueprint, source, cancel)?;
        }
        memory::trim();
        let name = raw.opt_string("projection_hidden_act")?.unwrap_or("relu");
        let activation = crate::models::config::activation(name, raw.file())?;
        let width = text.config().hidden_size;
        let pooler = modules.sized_linear("text_model.pooler.dense", width, width)?;
        let audio_space = Space::load(
            &modules.at("audio_projection"),
            tower.config().outputs(),
            activation,
        )?;
        let text_space = Space::load(&modules.at("text_projection"), width, activation)?;
        let dimension = audio_space.second.outputs();
        if text_space.second.outputs() != dimension {
            return Err(modules.corrupt(
                "its texts and its audio do not become vectors of one length".to_owned(),
            ));
        }
        let tokenizer = checkpoint
            .tokenizer(files, options, cancel)?
            .with_padding(None)
            .with_truncation(None);
        let lengths = [
            options.max_length,
            tokenizer.model_max_length(),
            text.max_positions(),
        ];
        let mut inventory = text.inventory()?;
        tower.list(&mut inventory)?;
        list_spaces(&mut inventory, &[&audio_space, &text_space], &pooler)?;
        inventory.add_rows("l2_normalize", device)?;
        let shape = ModelShape {
            family: "clap",
            hidden_size: dimension,
            layers: text.config().layers.len() + tower.config().depths.iter().sum::<usize>(),
            attention_heads: text.config().head_count,
            vocabulary: text.vocabulary(),
        };
        let scale = modules.values("logit_scale_a")?.first().copied();
        Ok(Self {
            info: ModelInfo::of(checkpoint, &shape, inventory, options.verifies())?,
            max_length: effective_length(&lengths)?,
            scale: scale.unwrap_or(0.0).exp(),
            tower,
            extractor,
            audio_space,
            text,
            pooler,
            text_space,
            tokenizer,
            dimension,
        })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Samples per second that it reads.
    pub fn sample_rate(&self) -> u32 {
        self.extractor.rate()
    }

    /// One vector per audio, in their order.
    pub fn embed(
        &self,
        sounds: &[Sound],
        normalize: bool,
        cancel: &CancelToken,
    ) -> Result<Embeddings> {
        let mut values = Vec::with_capacity(sounds.len() * self.dimension);
        for sound in sounds {
            let audio = sound.load(self.extractor.rate(), cancel)?;
            if audio.samples().is_empty() {
                return Err(Error::InvalidInput("an audio has no samples".to_owned()));
            }
            let spectrograms = self.extractor.extract(audio.samples(), cancel)?;
            let row = self.info.device.compute(|| {
                let pooled = self.tower.forward(&spectrograms, cancel)?;
                finish(self.audio_space.forward(&pooled)?, normalize)
            });
            let row = row.and_then(|row| row)?;
            values.extend(row);
        }
        self.embeddings(values, sounds.len())
    }

    /// One vector per text, in their order.
    pub fn embed_texts<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        normalize: bool,
        cancel: &CancelToken,
    ) -> Result<Embeddings> {
        let inputs: Vec<Input<'_>> = texts
            .iter()
            .map(|text| Input::Single(text.as_ref()))
            .collect();
        let length = self.max_length;
        let tokens = batching::tokenize(&self.tokenizer, &inputs, length, Excess::Cut, cancel)?;
        let forward = |sequences: &PackedSequences| {
            let states = self.text.forward(sequences, cancel)?;
            let firsts = sequences.ranges().map(|range| Some(range.start));
            let firsts = pooling::pick(&states, &firsts.collect::<Vec<_>>())?;
            let firsts = firsts.to_dtype(self.pooler.dtype())?;
            let tanh = Epilogue {
                activation: Some(Activation::Tanh),
                ..Epilogue::default()
            };
            let pooled = self.pooler.forward_with(&firsts, &tanh)?;
            finish(self.text_space.forward(&pooled)?, normalize)
        };
        let (width, device) = (self.dimension, self.info.device);
        let values = batching::rows(&tokens, width, device, cancel, forward)?;
        self.embeddings(values, texts.len())
    }

    /// For each audio, how well each text fits: one row per audio, in the order of the texts.
    pub fn match_texts<T: AsRef<str> + Sync>(
        &self,
        sounds: &[Sound],
        texts: &[T],
        cancel: &CancelToken,
    ) -> Result<Vec<Vec<f32>>> {
        let texts = self.embed_texts(texts, true, cancel)?;
        let audios = self.embed(sounds, true, cancel)?;
        let score = |audio: &[f32]| -> Vec<f32> {
            let dot = |text: &[f32]| audio.iter().zip(text).map(|(a, b)| a * b).sum::<f32>();
            let rows = texts.values.chunks_exact(self.dimension);
            softmax(&rows.map(|row| dot(row) * self.scale).collect::<Vec<_>>())
        };
        let rows = audios.values.chunks_exact(self.dimension);
        Ok(rows.map(score).collect())
    }

    fn embeddings(&self, values: Vec<f32>, count: usize) -> Result<Embeddings> {
        self.info.check_numbers(&values)?;
        Ok(Embeddings {
            values,
            count,
            dimension: self.dimension,
        })
    }
}

fn list_spaces(inventory: &mut Inventory, spaces: &[&Space], pooler: &Linear) -> Result<()> {
    for space in spaces {
        inventory.add_linear(&space.first)?;
        inventory.add_linear(&space.second)?;
    }
    inventory.add_linear(pooler)
}

/// The spectrograms of a checkpoint are those that its tower reads.
fn check_fit(tower: &Htsat, extractor: &ClapExtractor, settings: &RawConfig) -> Result<()> {
    let config = tower.config();
    if extractor.bins() != config.bands {
        return Err(Error::corrupt(
            settings.file(),
            format!(
                "feature_size {} is not the model's num_mel_bins {}",
                extractor.bins(),
                config.bands
            ),
        ));
    }
    if extractor.fuses() && !config.fuses {
        return Err(Error::corrupt(
            settings.file(),
            "the truncation \"fusion\" needs a model with enable_fusion",
        ));
    }
    Ok(())
}

/// RoBERTa, with CLAP's defaults.
fn text_config(raw: RawConfig) -> RawConfig {
    let raw = raw.with(json!({ "model_type": "roberta" }));
    raw.with_defaults(json!({
        "vocab_size": 50_265, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "hidden_act": "gelu", "max_position_embeddings": 514,
        "type_vocab_size": 1, "layer_norm_eps": 1e-12, "pad_token_id": 1,
    }))
}

fn finish(projected: Tensor, normalize: bool) -> Result<Vec<f32>> {
    let rows = projected.contiguous()?;
    let rows = if normalize {
        kernels::l2_normalize(&rows)?
    } else {
        rows
    };
    Ok(rows.flatten_all()?.to_vec1()?)
}
