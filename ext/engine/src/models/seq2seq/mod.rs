//! One encoder-decoder for every family: a text's tokens in, the logits of another text's next token
//! out. The encoder is the one of `models::encoder`; it runs once, and so do the keys and values that
//! the decoder reads of it.

mod cache;
pub mod config;
mod decoder;
mod heads;
mod layer;
mod output;
mod verify;

use candle_core::{DType, Device, Tensor};

use crate::models::encoder::Encoder;
use crate::models::families;
use crate::nn::{Inventory, PackedSequences};
use crate::{CancelToken, Result};
use formats::weights::WeightSource;

pub use cache::{Cache, Memory};
pub use config::Seq2SeqConfig;
pub use decoder::{CrossDecoder, CrossQueries, DecoderShape, Rows};

/// What a checkpoint of an encoder-decoder is.
pub type Blueprint = families::Blueprint<Seq2SeqConfig>;

/// Weights and blueprint; immutable, and free to be shared between threads.
#[derive(Debug)]
pub struct Seq2Seq {
    config: Seq2SeqConfig,
    encoder: Encoder,
    decoder: CrossDecoder,
}

impl Seq2Seq {
    /// With the head that predicts the next token.
    pub fn load(
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        cancel: &CancelToken,
    ) -> Result<Self> {
        let mut body = Self::load_body(blueprint, source, (device, dtype), false, cancel)?;
        body.decoder
            .load_head(&blueprint.names, source, (device, dtype))?;
        Ok(body)
    }

    /// Without a head, for its hidden states. With `int8` the linear layers hold bytes, on the CPU and
    /// beside f32 or bf16.
    pub fn load_body(
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        int8: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let config = blueprint.config.clone();
        let encoder = Encoder::load(&config.encoder, source, device, dtype, int8, cancel)?;
        let shape = DecoderShape {
            stack: config.decoder.clone(),
            vocab_size: config.vocab_size,
            output_scale: config.output_scale,
            few_rows: false,
        };
        let place = (device, dtype);
        Ok(Self {
            encoder,
            decoder: CrossDecoder::load(shape, &blueprint.names, source, place, int8, cancel)?,
            config,
        })
    }

    pub fn config(&self) -> &Seq2SeqConfig {
        &self.config
    }

    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// What it is made of.
    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = self.encoder.inventory()?;
        self.decoder.list(&mut inventory)?;
        Ok(inventory)
    }

    /// How many tokens there are logits for.
    pub fn vocabulary(&self) -> usize {
        self.decoder.vocabulary()
    }

    /// The longest text that can be read.
    pub fn max_source(&self) -> Option<usize> {
        self.encoder.max_positions()
    }

    /// The longest text that can be written, its first token included.
    pub fn max_target(&self) -> Option<usize> {
        self.decoder.max_target()
    }

    /// Reads texts.
    pub fn read(&self, sequences: &PackedSequences, cancel: &CancelToken) -> Result<Memory> {
        let states = self.encoder.forward(sequences, cancel)?;
        let boundaries = sequences.boundaries().to_vec();
        self.decoder.remember(&states, boundaries, cancel)
    }

    /// Decodes one more token in each row, of which every text of the memory has equally many: f32 logits
    /// [rows, vocabulary] and the rows' cache with that token.
    pub fn decode(
        &self,
        ids: &[u32],
        cache: &Cache,
        memory: &Memory,
        cancel: &CancelToken,
    ) -> Result<(Tensor, Cache)> {
        let (logits, mut caches) = self.write_together(&[Rows { ids, cache, memory }], cancel)?;
        Ok((logits, caches.remove(0)))
    }

    /// `decode` for several groups of rows, which may be of different lengths, in one forward
    /// pass: logits of all rows, and each group's cache.
    pub fn write_together(
        &self,
        groups: &[Rows<'_>],
        cancel: &CancelToken,
    ) -> Result<(Tensor, Vec<Cache>)> {
        self.decoder.write_together(groups, cancel)
    }

    /// The decoder's states over the texts themselves, each moved one to the right behind the token that
    /// precedes every text: [tokens, hidden].
    pub fn forward_packed(
        &self,
        sequences: &PackedSequences,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let states = self.encoder.forward(sequences, cancel)?;
        if sequences.tokens() == 0 {
            return Ok(states);
        }
        let boundaries = sequences.boundaries().to_vec();
        let memory = self.decoder.remember(&states, boundaries, cancel)?;
        self.decoder
            .forward_packed(sequences, &memory, self.config.start, cancel)
    }
}
