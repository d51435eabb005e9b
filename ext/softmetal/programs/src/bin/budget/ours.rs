//! The engine's models, as a Ruby program calls them.

use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Error, Result};
use engine::generation::GenerationConfig;
use engine::serving::ContextOverflow;
use engine::tasks::{
    EmbedOptions, EmbedSettings, EmbeddingModel, Generation, LanguageModel, LoadOptions, Request,
};
use engine::{CancelToken, Tokenizer};
use formats::files::model_files::ModelFiles;

use super::checkpoints::Checkpoint;
use super::{counted, texts, PROMPT, WARM};

/// With the tokenizer of another checkpoint: texts are given as tokens here.
fn options(tiny: &str) -> Result<LoadOptions> {
    let tokenizer = Path::new("spec/fixtures/tiny").join(tiny);
    let tokenizer = Tokenizer::from_directory(&tokenizer).map_err(Error::wrap)?;
    Ok(LoadOptions {
        device: engine::Device::Metal(0),
        tokenizer: Some(tokenizer),
        verify: Some(false),
        ..LoadOptions::default()
    })
}

fn files(path: &Path) -> Result<ModelFiles> {
    let path = path.to_string_lossy();
    ModelFiles::open(&path, None, &CancelToken::new()).map_err(Error::wrap)
}

/// A token of so many.
const TOP_K: usize = 40;

/// The likeliest token.
pub fn greedy() -> GenerationConfig {
    GenerationConfig::default()
}

/// One of the likeliest tokens, as `GenerationConfig.balanced` draws it.
pub fn sampled() -> GenerationConfig {
    GenerationConfig {
        temperature: 0.7,
        top_p: Some(0.9),
        top_k: Some(TOP_K),
        ..GenerationConfig::default()
    }
}

/// Any token, by its weight.
pub fn drawn() -> GenerationConfig {
    GenerationConfig {
        temperature: 0.7,
        ..GenerationConfig::default()
    }
}

/// A token of each of so many sequences, which one step computes for all.
pub fn decode(
    checkpoint: &Checkpoint,
    config: GenerationConfig,
    sequences: usize,
    device: &Device,
) -> Result<()> {
    let cancel = CancelToken::new();
    let path = if checkpoint.is_gguf() {
        checkpoint.file()
    } else {
        checkpoint.folder().clone()
    };
    let model = LanguageModel::load(&files(&path)?, &options("decoders/llama")?, &[], &cancel);
    let model = Arc::new(model.map_err(Error::wrap)?);
    // Prompts that begin in their own way share nothing.
    let request = |first: usize| Request {
        prompt: [&[PROMPT[0] + first as u32][..], &PROMPT[1..]].concat(),
        instructions: 0,
        config: config.clone(),
        overflow: ContextOverflow::Error,
        adapter: None,
        constraint: None,
        afresh: false,
    };
    let generations = (0..sequences).map(|first| Generation::new(model.clone(), request(first)));
    let generations = generations.collect::<std::result::Result<Vec<_>, _>>();
    let generations = generations.map_err(Error::wrap)?;
    // The first computes for all, the others find their tokens.
    let step = || {
        let mut steps = generations.iter().map(|one| one.step(&cancel));
        steps.try_for_each(|step| match step {
            Ok(Some(_)) => Ok(()),
            Ok(None) => candle_core::bail!("a text ended before the token that counts"),
            Err(error) => Err(Error::wrap(error)),
        })
    };
    (0..WARM).try_for_each(|_| step())?;
    counted(device, step)
}

/// One batch of texts of several lengths, to their vectors.
pub fn embed(checkpoint: &Checkpoint, device: &Device) -> Result<()> {
    let cancel = CancelToken::new();
    let settings = EmbedSettings::default();
    let files = files(checkpoint.folder())?;
    let model = EmbeddingModel::load(&files, &options("bert")?, &settings, &cancel);
    let model = model.map_err(Error::wrap)?;
    let embed = || {
        let vectors = model.embed_ids(texts(), &EmbedOptions::default(), &cancel);
        vectors.map(drop).map_err(Error::wrap)
    };
    embed()?;
    counted(device, embed)
}
