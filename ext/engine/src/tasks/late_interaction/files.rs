//! What a late-interaction checkpoint says of itself: PyLate's modules and settings, or Stanford's
//! `artifact.metadata`.

use crate::tasks::sentence::{self, Prompts};
use crate::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;

/// Where the matrices are that make a hidden state a vector.
#[derive(Debug, PartialEq, Eq)]
pub enum Projection {
    /// Folders of Dense modules.
    Modules(Vec<String>),
    /// A linear layer of this name beside the transformer's own.
    Beside(&'static str),
}

#[derive(Debug)]
pub struct LateFiles {
    /// The folder of the transformer, empty for the model's own.
    pub transformer_path: String,
    pub projection: Projection,
    /// Tokens put after the first of every text; none where empty.
    pub query_prefix: String,
    pub document_prefix: String,
    pub query_length: usize,
    pub document_length: usize,
    /// Whether queries are filled up with mask tokens.
    pub expands: bool,
    /// Whether the query's own tokens see those.
    pub attends_to_expansion: bool,
    /// Tokens of documents that get no vector.
    pub skipped: Vec<String>,
    pub prompts: Prompts,
}

const QUERY_LENGTH: usize = 32;
const DOCUMENT_LENGTH: usize = 180;
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

impl LateFiles {
    pub fn read(files: &ModelFiles, cancel: &CancelToken) -> Result<Self> {
        match files.file("modules.json", cancel)? {
            Some(path) => Self::of_modules(files, &sentence::modules(&path)?, cancel),
            None => Self::of_stanford(files, cancel),
        }
    }

    fn of_modules(
        files: &ModelFiles,
        modules: &[(String, String)],
        cancel: &CancelToken,
    ) -> Result<Self> {
        let mut transformer_path = None;
        let mut dense = Vec::new();
        for (kind, folder) in modules {
            match kind.as_str() {
                "Transformer" => transformer_path = Some(folder.clone()),
                "Dense" => dense.push(folder.clone()),
                // Every token keeps its vector, which gets length 1 in any case.
                "Pooling" | "Normalize" | "Dropout" => {}
                other => {
                    return Err(Error::UnsupportedModel(format!(
                        "{}: modules.json names a module of type {other:?}; known to late interaction are Transformer \
                         and Dense",
                        files.id()
                    )))
                }
            }
        }
        let (Some(transformer_path), false) = (transformer_path, dense.is_empty()) else {
            return Err(no_projection(files));
        };
        let mut found = Self::new(transformer_path, Projection::Modules(dense));
        if let Some(config) = sentence::model_config(files, cancel)? {
            found.prompts = Prompts::of(&config)?;
            found.read_settings(&config)?;
        }
        Ok(found)
    }

    fn new(transformer_path: String, projection: Projection) -> Self {
        Self {
            transformer_path,
            projection,
            query_prefix: "[Q] ".to_owned(),
            document_prefix: "[D] ".to_owned(),
            query_length: QUERY_LENGTH,
            document_length: DOCUMENT_LENGTH,
            expands: true,
            attends_to_expansion: false,
            skipped: punctuation(),
            prompts: Prompts::default(),
        }
    }

    fn read_settings(&mut self, config: &RawConfig) -> Result<()> {
        let text = |key: &str| config.opt_string(key);
        if let Some(prefix) = text("query_prefix")? {
            self.query_prefix = prefix.to_owned();
        }
        if let Some(prefix) = text("document_prefix")? {
            self.document_prefix = prefix.to_owned();
        }
        self.read_lengths(config, ("query_length", "document_length"))?;
        if let Some(expands) = config.opt_bool("do_query_expansion")? {
            self.expands = expands;
        }
        if let Some(attends) = config.opt_bool("attend_to_expansion_tokens")? {
            self.attends_to_expansion = attends;
        }
        if let Some(words) = config.opt_strings("skiplist_words")? {
            self.skipped = words;
        }
        Ok(())
    }

    fn read_lengths(&mut self, config: &RawConfig, (query, document): (&str, &str)) -> Result<()> {
        if let Some(length) = config.opt_usize_in(query, 1..=usize::MAX)? {
            self.query_length = length;
        }
        if let Some(length) = config.opt_usize_in(document, 1..=usize::MAX)? {
            self.document_length = length;
        }
        Ok(())
    }

    /// Every token has a vector, and texts have no limit of their own.
    fn of_pictures() -> Self {
        Self {
            query_prefix: String::new(),
            document_prefix: String::new(),
            query_length: usize::MAX,
            document_length: usize::MAX,
            expands: false,
            skipped: Vec::new(),
            ..Self::new(String::new(), Projection::Beside("embedding_proj_layer"))
        }
    }

    fn of_stanford(files: &ModelFiles, cancel: &CancelToken) -> Result<Self> {
        let config = RawConfig::read(&files.require("config.json", cancel)?)?;
        if super::visual::inner(&config)?.is_some() {
            return Ok(Self::of_pictures());
        }
        let architectures = config.architectures()?;
        if architectures.first().map(String::as_str) != Some("HF_ColBERT") {
            return Err(no_projection(files));
        }
        let mut found = Self::new(String::new(), Projection::Beside("linear"));
        found.query_prefix = "[unused0]".to_owned();
        found.document_prefix = "[unused1]".to_owned();
        let Some(path) = files.file("artifact.metadata", cancel)? else {
            return Ok(found);
        };
        let metadata = RawConfig::read(&path)?;
        if let Some(token) = metadata.opt_string("query_token_id")? {
            found.query_prefix = token.to_owned();
        }
        if let Some(token) = metadata.opt_string("doc_token_id")? {
            found.document_prefix = token.to_owned();
        }
        found.read_lengths(&metadata, ("query_maxlen", "doc_maxlen"))?;
        if let Some(attends) = metadata.opt_bool("attend_to_mask_tokens")? {
            found.attends_to_expansion = attends;
        }
        if metadata.opt_bool("mask_punctuation")? == Some(false) {
            found.skipped.clear();
        }
        Ok(found)
    }
}

fn punctuation() -> Vec<String> {
    PUNCTUATION.chars().map(String::from).collect()
}

fn no_projection(files: &ModelFiles) -> Error {
    Error::UnsupportedModel(format!(
        "{} is not a late-interaction model: it has neither PyLate's Dense modules nor the architecture HF_ColBERT. Use \
         EmbeddingModel for one vector per text",
        files.id()
    ))
}
