//! One request: its tokens, its sequence in the KV cache, and its run.

use std::sync::Arc;
use std::time::Instant;

use crate::generation::run::Run;
use crate::models::decoder::{Adapter, Decoder, KvPool, Sequence};
use crate::serving::leader;
use crate::serving::speculation::Speculation;
use crate::{Error, Result};

/// What to do when a sequence outgrows the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextOverflow {
    #[default]
    Error,
    /// Forget the older half of what is not needed to go on.
    Roll,
}

/// A request to a decoder.
pub type Request = leader::Request<RequestState>;

pub struct RequestState {
    pub run: Run,
    /// The prompt and what was chosen after it.
    pub ids: Vec<u32>,
    /// How many of them are the prompt's.
    pub prompt: usize,
    /// How many of the first are instructions, with which other prompts begin too.
    pub instructions: usize,
    /// `None` before it begins, while a step has it, and after its pages were taken from it.
    pub sequence: Option<Sequence>,
    /// The draft model's sequence.
    pub draft: Option<Sequence>,
    pub speculation: Speculation,
    pub adapter: Option<Arc<Adapter>>,
    pub overflow: ContextOverflow,
    /// Whether to begin with nothing that was read before.
    pub afresh: bool,
    pub context_length: usize,
    /// How much of the prompt had been read before; `None` before it begins.
    pub cached: Option<usize>,
    /// When it came, and when its latest token was chosen.
    pub came: Instant,
    pub latest: Option<Instant>,
}

impl RequestState {
    /// Whether the context has room for another token after the next.
    pub fn has_room(&self) -> bool {
        self.overflow == ContextOverflow::Roll || self.ids.len() + 1 < self.context_length
    }

    /// Makes sure that there is a sequence that the remaining tokens can follow. Two events void one: a
    /// full context and a change of rotation.
    pub fn begin(&mut self, decoder: &Decoder, pool: &mut KvPool) -> Result<()> {
        if self.ids.len() > self.context_length {
            if self.overflow == ContextOverflow::Error {
                return Err(too_long(self.ids.len(), self.context_length));
            }
            let dropped = self.ids.len() - self.context_length / 2;
            self.ids.drain(..dropped);
            self.prompt = self.prompt.saturating_sub(dropped);
            self.instructions = 0;
            self.end(pool);
        }
        let rope_variant = decoder.rope_variant(self.ids.len());
        let sequence = self.sequence.as_ref();
        if sequence.is_some_and(|sequence| sequence.rope_variant() != rope_variant) {
            self.end(pool);
        }
        if self.sequence.is_none() {
            pool.check_fits(self.ids.len())?;
            // The last token is always run, since its logits are needed.
            let whole = decoder.is_bidirectional_prompt(&self.ids[..self.prompt]);
            let known = if whole || self.afresh && self.cached.is_none() {
                &[]
            } else {
                &self.ids[..self.ids.len() - 1]
            };
            let mut sequence = pool.begin(self.adapter.clone(), rope_variant, known)?;
            sequence.expect(self.ids.len(), self.instructions);
            if whole {
                sequence.set_bidirectional_prompt(self.prompt);
            }
            self.cached.get_or_insert(sequence.length());
            self.sequence = Some(sequence);
        }
        Ok(())
    }

    /// Gives the pages back.
    pub fn end(&mut self, pool: &mut KvPool) {
        if let Some(sequence) = self.sequence.take() {
            pool.release(sequence);
        }
    }

    /// What is still to be read.
    pub fn pending(&self) -> &[u32] {
        let read = self.sequence.as_ref().map_or(0, Sequence::length);
        &self.ids[read..]
    }
}

pub fn too_long(length: usize, context_length: usize) -> Error {
    Error::InvalidInput(format!(
        "{length} tokens do not fit the context of {context_length}; shorten the text, raise context_length: if the \
         model allows it, or pass context_overflow: :roll"
    ))
}
