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
    /// How many tokens queries are filled up to, where that is not the most that they may have.
    pub fills_to: Option<usize>,
    /// The token that queries are filled up with, where the files name it.
    pub filler: Option<String>,
    /// Whether the prompts "query" and "document" are used unasked.
    pub prompts_by_task: bool,
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
        let mut mask = None;
        for (kind, folder) in modules {
            match kind.as_str() {
                "Transformer" => transformer_path = Some(folder.clone()),
                "Dense" => dense.push(folder.clone()),
                "MultiVectorMask" => mask = Some(folder.clone()),
                // Every token keeps its vector, which gets length 1 in any case.
                "Pooling" | "Normalize" | "Dropout" => {}
                other => {
                    return Err(Error::UnsupportedModel(format!(
                        "{}: modules.json names a module of type {other:?}; known to late interaction are Transformer, \
                         Dense and MultiVectorMask",
                        files.id()
                    )))
                }
            }
        }
        let (Some(transformer_path), false) = (transformer_path, dense.is_empty()) else {
            return Err(no_projection(files));
        };
        let mut found = Self::new(transformer_path, Projection::Modules(dense));
        if let Some(folder) = mask {
            found.read_masked(files, &folder, cancel)?;
        }
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
            fills_to: None,
            filler: None,
            prompts_by_task: false,
            attends_to_expansion: false,
            skipped: punctuation(),
            prompts: Prompts::default(),
        }
    }

    /// As sentence-transformers itself writes such a model: lengths and expansion stand among the settings of the
    /// transformer, and prompts are a part of the text.
    fn read_masked(
        &mut self,
        files: &ModelFiles,
        folder: &str,
        cancel: &CancelToken,
    ) -> Result<()> {
        let mask = files.require(&sentence::join(folder, "config.json"), cancel)?;
        let mask = RawConfig::read(&mask)?;
        let tasks = mask.opt_strings("skiplist_tasks")?;
        let tasks = tasks.unwrap_or_else(|| vec!["document".to_owned()]);
        let unsupported = |reason| Err(Error::unsupported(mask.file(), reason));
        if mask.opt_integers("keep_only_token_ids")?.is_some() {
            return unsupported("keep_only_token_ids is not supported");
        }
        if tasks.iter().any(|task| task != "document") {
            return unsupported("skiplist_tasks other than document are not supported");
        }
        self.skipped = mask.opt_strings("skiplist_words")?.unwrap_or_default();
        if tasks.is_empty() {
            self.skipped.clear();
        }
        self.query_prefix.clear();
        self.document_prefix.clear();
        self.prompts_by_task = true;
        self.expands = false;
        (self.query_length, self.document_length) = (usize::MAX, usize::MAX);
        let path = sentence::join(&self.transformer_path, "sentence_bert_config.json");
        let Some(path) = files.file(&path, cancel)? else {
            return Ok(());
        };
        let settings = RawConfig::read(&path)?;
        self.read_lengths(&settings, ("query_length", "document_length"))?;
        match settings.opt_nested("query_expansion")? {
            Some(expansion) => self.read_expansion(&expansion),
            None => Ok(()),
        }
    }

    fn read_expansion(&mut self, expansion: &RawConfig) -> Result<()> {
        let length = expansion.usize_in("length", 1..=usize::MAX)?;
        match expansion.opt_string("strategy")? {
            Some("fixed") => self.query_length = length,
            Some("min") => self.query_length = self.query_length.max(length),
            other => {
                return Err(Error::unsupported(
                    expansion.file(),
                    format!("query_expansion with the strategy {other:?} is unsupported; known are fixed and min"),
                ))
            }
        }
        self.expands = true;
        self.fills_to = Some(length);
        self.filler = expansion.opt_string("token")?.map(str::to_owned);
        self.attends_to_expansion = expansion.opt_bool("attend")?.unwrap_or(false);
        Ok(())
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
    fn of_pictures(kind: &str) -> Self {
        Self {
            query_prefix: String::new(),
            document_prefix: String::new(),
            query_length: usize::MAX,
            document_length: usize::MAX,
            expands: false,
            skipped: Vec::new(),
            ..Self::new(
                String::new(),
                Projection::Beside(super::visual::projection(kind)),
            )
        }
    }

    fn of_stanford(files: &ModelFiles, cancel: &CancelToken) -> Result<Self> {
        let config = RawConfig::read(&files.require("config.json", cancel)?)?;
        if let Some((kind, _)) = super::visual::inner(&config)? {
            return Ok(Self::of_pictures(&kind));
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
