//! Continuous batching of encoder-decoders.

mod request;
mod scheduler;

use std::sync::Arc;

pub use crate::generation::SearchSettings as Seq2SeqSettings;
pub(crate) use request::RequestState;
pub use request::Seq2SeqOutput;
pub(crate) use scheduler::Seq2SeqScheduler;

use super::Stats;
use crate::models::seq2seq::Seq2Seq;
use base::runtime::device::Device;
use formats::text::tokenizer::Tokenizer;

/// What all requests to a model share.
pub(crate) struct Seq2SeqParts {
    pub model: Seq2Seq,
    pub tokenizer: Tokenizer,
    /// The token that every sequence begins with.
    pub start: u32,
    pub device: Device,
    pub stats: Arc<Stats>,
}
