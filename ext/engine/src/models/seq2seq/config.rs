//! What tells one family of encoder-decoders from another.

use crate::models::config::{check_vocabulary, Checked};
use crate::models::encoder::{self, EncoderConfig};

#[derive(Clone, Debug)]
pub struct Seq2SeqConfig {
    pub family: &'static str,
    /// With the names of its tensors; the family's are the decoder's.
    pub encoder: encoder::Blueprint,
    /// The decoder in the words of an encoder: its attention is causal, and each layer has another one
    /// to what the encoder made.
    pub decoder: EncoderConfig,
    pub vocab_size: usize,
    /// The token that precedes every text that is written.
    pub start: u32,
    /// The token that ends a text, where that is one.
    pub end: Option<u32>,
    /// Multiplies the states that logits are made of.
    pub output_scale: f32,
}

impl Seq2SeqConfig {
    /// Of encoder and decoder together.
    pub fn layer_count(&self) -> usize {
        self.encoder.config.layers.len() + self.decoder.layers.len()
    }

    /// The sizes fit each other and are possible at all.
    pub fn check(&self) -> Checked {
        self.encoder.config.check()?;
        self.decoder.check()?;
        check_vocabulary(self.vocab_size)?;
        let (encoder, decoder) = (self.encoder.config.hidden_size, self.decoder.hidden_size);
        if encoder == decoder {
            Ok(())
        } else {
            Err(format!(
                "the encoder is {encoder} wide and the decoder {decoder}"
            ))
        }
    }
}
