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

/// One token.
pub fn decode(checkpoint: &Checkpoint, config: GenerationConfig, device: &Device) -> Result<()> {
    let cancel = CancelToken::new();
    let path = if checkpoint.is_gguf() {
        checkpoint.file()
    } else {
        checkpoint.folder().clone()
    };
    let model = LanguageModel::load(&files(&path)?, &options("decoders/llama")?, &[], &cancel);
    let request = Request {
        prompt: PROMPT.to_vec(),
        instructions: 0,
        config,
        overflow: ContextOverflow::Error,
        adapter: None,
        constraint: None,
        afresh: false,
    };
    let generation = Generation::new(Arc::new(model.map_err(Error::wrap)?), request);
    let generation = generation.map_err(Error::wrap)?;
    let step = || match generation.step(&cancel) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => candle_core::bail!("the text ended before the token that counts"),
        Err(error) => Err(Error::wrap(error)),
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
