//! What models do: embed, weigh tokens, rerank, classify, tag tokens, fill masks, generate text.
//!
//! Every model here is loaded once from [`ModelFiles`](formats::files::model_files::ModelFiles) and is
//! immutable from then on: share it between threads behind an `Arc`. Calls take `&self`, a slice of
//! texts, options and a [`CancelToken`](crate::CancelToken) that is checked between batches and
//! between layers; results come in the order of the texts. Calls that take many texts go to the pool
//! by themselves, part by part; run the others inside [`threads::install`](base::runtime::threads::install).
//!
//! - [`EmbeddingModel`] embeds: `embed`, `token_embeddings`, `count_tokens`;
//! - [`SparseModel`] weighs tokens: `embed`;
//! - [`LateInteractionModel`] embeds token by token: `embed`;
//! - [`RerankModel`] scores: `score`, with raw logits;
//! - [`ClassifyModel`] labels: `classify`, texts or pairs;
//! - [`TagModel`] tags: `tag`, tokens with character offsets, which [`entities::aggregate`] joins;
//! - [`MaskModel`] fills: `fill`;
//! - [`ExtractModel`] finds spans that fit labels which a call names: `extract`; [`LabelModel`] fits whole texts: `scores`;
//! - [`AnswerModel`] finds answers in texts: `answer`;
//! - [`Seq2SeqModel`] turns texts into others, by a [`Seq2SeqGeneration`] token by token;
//! - [`ClipModel`] embeds texts and images, [`ImageEmbeddingModel`] and [`ImageClassifyModel`] images;
//! - [`DetectModel`] finds things in images: `detect`;
//! - [`DepthModel`] says how far each pixel is: `estimate`;
//! - [`SegmentModel`] says what each pixel shows: `segment`;
//! - [`ReadModel`] writes the text of images: `read`;
//! - [`AudioEmbeddingModel`] embeds and [`AudioClassifyModel`] labels audio;
//! - [`VoiceModel`] finds where somebody speaks;
//! - [`TranscribeModel`] writes what is spoken, by a [`Transcribing`] window by window;
//! - [`LanguageModel`], run by a [`Generation`] token by token

mod adapter_base;
pub mod answer;
pub mod audio_models;
mod clap;
pub mod classify;
pub mod clip;
pub mod depth;
pub mod detect;
pub mod embed;
pub mod entities;
pub mod extract;
pub mod fill_mask;
pub mod generate;
mod grounded_detection;
pub mod image_models;
pub mod label;
pub mod late_interaction;
pub mod loading;
pub mod masked_parts;
mod modules;
mod open_detection;
pub mod read;
pub mod rerank;
pub mod segment;
pub mod sentence;
pub mod seq2seq;
mod sequence_logits;
pub mod sparse;
mod static_embeddings;
pub mod tag;
pub mod transcribe;
pub mod vision;
pub mod vlm;
pub mod voice;
mod voices;

pub use crate::models::prompted::Prompt;
pub use answer::{Answer, AnswerModel, AnswerOptions};
pub use audio_models::{AudioClassifyModel, AudioEmbeddingModel};
pub use classify::{ClassifyModel, Logits};
pub use clip::ClipModel;
pub use depth::{DepthModel, Depths};
pub use detect::{DetectModel, Detection};
pub use embed::{EmbedOptions, EmbedSettings, EmbeddingModel, Embeddings};
pub use entities::{Aggregation, Entity};
pub use extract::{
    ExtractModel, ExtractOptions, Extracted, FieldFound, Found, FoundSpan, Related, RelationQuery,
    SchemaField, SchemaQuery, SchemaTask, TaskFound, TaskKind,
};
pub use fill_mask::{Filling, MaskModel};
pub use generate::{
    AdapterFiles, CacheOptions, DeviceMap, Extras, Generation, LanguageModel, Request,
};
pub use image_models::{ImageClassifyModel, ImageEmbeddingModel};
pub use label::LabelModel;
pub use late_interaction::{LateInteractionModel, LateOptions, LateSettings};
pub use loading::{LoadOptions, ModelInfo};
pub use masked_parts::{Kind as PartKind, Part};
pub use modules::Similarity;
pub use read::{ReadModel, Reading};
pub use rerank::{RerankModel, RerankOptions, ScorePooling};
pub use segment::{PromptMask, SegmentModel, Segmentation};
pub use sentence::TextTask;
pub use seq2seq::{Seq2SeqGeneration, Seq2SeqModel, Seq2SeqSettings};
pub use sparse::{SparseModel, SparseOptions, SparseSimilarity, SparseVector};
pub use tag::{TagModel, TaggedToken};
pub use transcribe::{Sound, TranscribeModel, TranscribeSettings, Transcribing};
pub use vision::Picture;
pub use vlm::{ImageEmbeddings, ImageEncoder};
pub use voice::VoiceModel;
