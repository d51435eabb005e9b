//! What reads the texts of an embedding model, from its files.

use super::adapters;
use super::words::{BagOfWords, WordEmbeddings};
use super::Tasks;
use crate::nn::Pooling;
use crate::tasks::loading::{subfolder, Checkpoint, LoadOptions, LoadedModel};
use crate::tasks::sentence::{SentenceFiles, Words};
use crate::tasks::static_embeddings::StaticEmbeddings;
use crate::{CancelToken, Result};
use formats::files::model_files::ModelFiles;

pub(super) enum Body {
    Transformer(Box<LoadedModel>),
    Static(Box<StaticEmbeddings>),
    Words(Box<WordEmbeddings>),
    Bag(Box<BagOfWords>),
}

pub(super) fn load_body(
    files: &ModelFiles,
    options: &LoadOptions,
    sentence: &SentenceFiles,
    cancel: &CancelToken,
) -> Result<(Body, Tasks, Option<Pooling>)> {
    match &sentence.words {
        Some(Words::Table(folder)) => {
            let model = WordEmbeddings::load(files, folder, options, cancel)?;
            return Ok((Body::Words(Box::new(model)), Tasks::None, None));
        }
        Some(Words::Bag(folder)) => {
            let model = BagOfWords::load(files, folder, options, cancel)?;
            return Ok((Body::Bag(Box::new(model)), Tasks::None, None));
        }
        None => {}
    }
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
        return Ok((Body::Static(Box::new(model)), Tasks::None, None));
    }
    let limit = sentence.settings.max_seq_length;
    let (checkpoint, adapters) = adapters::find(checkpoint, (files, options), limit, cancel)?;
    let loaded = LoadedModel::load(&checkpoint, files, options, limit, cancel)?;
    let pooling = default_pooling(&checkpoint, &loaded)?;
    let tasks = adapters.map_or(Tasks::None, |adapters| Tasks::Adapters(Box::new(adapters)));
    Ok((Body::Transformer(Box::new(loaded)), tasks, pooling))
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
