//! Entities of any kind: spans of a text that fit labels which a call names (GLiNER), and what a schema asks for
//! (GLiNER2).

mod by_labels;
mod decode;
mod files;
mod head;
mod labels;
mod relations;
mod schema;
mod windows;

use crate::{CancelToken, Error, Result};
use base::runtime::stats::Reading;
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::text::tokenizer::Tokenizer;

use super::loading::{LoadOptions, ModelInfo};
use by_labels::LabelExtractor;
use schema::SchemaExtractor;

pub use schema::{
    FieldFound, FoundSpan, SchemaField, SchemaQuery, SchemaTask, TaskFound, TaskKind,
};

/// A span of a text that fits a label.
#[derive(Clone, Debug, PartialEq)]
pub struct Extracted {
    pub text: String,
    /// The number of the label.
    pub label: usize,
    pub score: f32,
    /// Characters of the text, end excluded.
    pub start: usize,
    pub end: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct ExtractOptions {
    /// Scores above it count.
    pub threshold: f32,
    /// Whether entities never overlap; else they may lie inside others.
    pub flat: bool,
    /// Whether a span may have several labels.
    pub multi_label: bool,
}

/// The relations that a call names.
#[derive(Clone, Debug)]
pub struct RelationQuery {
    pub names: Vec<String>,
    /// Scores above it count.
    pub threshold: f32,
    /// How sure two entities must be to have anything to do with each other.
    pub adjacency_threshold: f32,
}

/// Two entities by their numbers, and the number of a relation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Related {
    pub head: usize,
    pub tail: usize,
    pub relation: usize,
    pub score: f32,
}

/// What a text has.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub entities: Vec<Extracted>,
    pub related: Vec<Related>,
}

/// What a checkpoint is asked by.
pub enum ExtractModel {
    Labels(Box<LabelExtractor>),
    Schema(Box<SchemaExtractor>),
}

impl ExtractModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        if files.file(files::CONFIG, cancel)?.is_none() {
            if let Some(path) = files.file("config.json", cancel)? {
                let raw = RawConfig::read(&path)?;
                if raw.model_type()? == Some(schema::MODEL_TYPE) {
                    let model = SchemaExtractor::load(files, &raw, options, cancel)?;
                    return Ok(Self::Schema(Box::new(model)));
                }
            }
        }
        let model = LabelExtractor::load(files, options, cancel)?;
        Ok(Self::Labels(Box::new(model)))
    }

    pub fn info(&self) -> &ModelInfo {
        match self {
            Self::Labels(model) => model.info(),
            Self::Schema(model) => model.info(),
        }
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        match self {
            Self::Labels(model) => model.tokenizer(),
            Self::Schema(model) => model.tokenizer(),
        }
    }

    /// What it counts of its calls, by name.
    pub fn stats(&self) -> Vec<(&'static str, Reading)> {
        match self {
            Self::Labels(model) => model.stats(),
            Self::Schema(model) => model.stats(),
        }
    }

    /// Words that are read at once, where they are limited, and words of a span.
    pub fn limits(&self) -> (Option<usize>, usize) {
        match self {
            Self::Labels(model) => (Some(model.limits().0), model.limits().1),
            Self::Schema(model) => (None, model.longest()),
        }
    }

    /// Whether it has a head for relations.
    pub fn relates(&self) -> bool {
        match self {
            Self::Labels(model) => model.relates(),
            Self::Schema(_) => false,
        }
    }

    /// The entities of each text, in its order, and their relations where some are asked for.
    pub fn extract<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        labels: &[String],
        relations: Option<&RelationQuery>,
        options: &ExtractOptions,
        cancel: &CancelToken,
    ) -> Result<Vec<Found>> {
        match self {
            Self::Labels(model) => model.extract(texts, labels, relations, options, cancel),
            Self::Schema(_) => Err(Error::Internal("a schema was wanted".to_owned())),
        }
    }

    /// What each task of a schema finds in each text; nothing for a text that is too long to be read at once.
    pub fn extract_schema<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        query: &SchemaQuery,
        cancel: &CancelToken,
    ) -> Result<Vec<Option<Vec<TaskFound>>>> {
        match self {
            Self::Schema(model) => model.extract(texts, query, cancel),
            Self::Labels(_) => Err(Error::UnsupportedModel(
                "the checkpoint finds entities by labels and takes no schema: pass labels:, or load a GLiNER2 checkpoint"
                    .to_owned(),
            )),
        }
    }
}
