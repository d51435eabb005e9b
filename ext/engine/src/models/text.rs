//! Models that read texts, encoders, decoders and both together: token ids in, hidden states out.

use candle_core::{DType, Device, Tensor};

use super::decoder::{self, Decoder, DecoderConfig};
use super::encoder::{self, Encoder, EncoderConfig};
use super::families;
use super::heads::{Head, HeadKind};
use super::seq2seq::{self, Seq2Seq, Seq2SeqConfig};
use crate::nn::{Inventory, PackedSequences};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::RawConfig;
use formats::weights::WeightSource;

/// Which family a checkpoint belongs to, and what that makes of its configuration.
pub enum Blueprint {
    Encoder(Box<encoder::Blueprint>),
    Decoder(Box<decoder::Blueprint>),
    Seq2Seq(Box<seq2seq::Blueprint>),
}

/// What errors call a model of any of these shapes.
const KIND: &str = "a model of texts";

/// Weights and blueprint; immutable, and free to be shared between threads.
pub enum TextModel {
    Encoder(Box<Encoder>),
    Decoder(Box<Decoder>),
    Seq2Seq(Box<Seq2Seq>),
}

impl Blueprint {
    pub fn from_config(raw: &RawConfig) -> Result<Self> {
        if families::matches::<EncoderConfig>(raw) {
            let blueprint = encoder::Blueprint::from_config(raw)?;
            return Ok(Self::Encoder(Box::new(blueprint)));
        }
        if families::matches::<DecoderConfig>(raw) {
            let blueprint = decoder::Blueprint::from_config(raw)?;
            return Ok(Self::Decoder(Box::new(blueprint)));
        }
        if families::matches::<Seq2SeqConfig>(raw) {
            let blueprint = seq2seq::Blueprint::from_config(raw)?;
            return Ok(Self::Seq2Seq(Box::new(blueprint)));
        }
        let known = [
            families::known::<EncoderConfig>(),
            families::known::<DecoderConfig>(),
            families::known::<Seq2SeqConfig>(),
        ];
        Err(families::unknown(
            raw.file(),
            ("model_type", raw.model_type()?.unwrap_or("(none)")),
            KIND,
            &known.concat(),
        ))
    }

    /// From the metadata of a GGUF file.
    pub fn from_gguf(source: &dyn WeightSource) -> Result<Self> {
        let metadata = source.metadata();
        let architecture = metadata.str("general.architecture")?;
        if families::matches_gguf::<EncoderConfig>(architecture) {
            let blueprint = encoder::Blueprint::from_gguf(source)?;
            return Ok(Self::Encoder(Box::new(blueprint)));
        }
        if families::matches_gguf::<DecoderConfig>(architecture) {
            let blueprint = decoder::Blueprint::from_gguf(source)?;
            return Ok(Self::Decoder(Box::new(blueprint)));
        }
        if families::matches_gguf::<Seq2SeqConfig>(architecture) {
            let blueprint = seq2seq::Blueprint::from_gguf(source)?;
            return Ok(Self::Seq2Seq(Box::new(blueprint)));
        }
        let known = [
            families::architectures::<EncoderConfig>(),
            families::architectures::<DecoderConfig>(),
            families::architectures::<Seq2SeqConfig>(),
        ];
        Err(families::unknown(
            metadata.file(),
            ("architecture", architecture),
            KIND,
            &known.concat(),
        ))
    }
}

impl TextModel {
    /// Its tensors are of `dtype`; with `int8` the linear layers hold bytes, on the CPU and beside f32 or
    /// bf16.
    pub fn load(
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        int8: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        match blueprint {
            Blueprint::Encoder(blueprint) => {
                let encoder = Encoder::load(blueprint, source, device, dtype, int8, cancel)?;
                Ok(Self::Encoder(Box::new(encoder)))
            }
            Blueprint::Decoder(blueprint) => {
                let decoder = Decoder::load_body(blueprint, source, device, dtype, int8, cancel)?;
                Ok(Self::Decoder(Box::new(decoder)))
            }
            Blueprint::Seq2Seq(blueprint) => {
                let target = (device, dtype);
                let model = Seq2Seq::load_body(blueprint, source, target, int8, cancel)?;
                Ok(Self::Seq2Seq(Box::new(model)))
            }
        }
    }

    /// The hidden states after the last layer and its norm, [tokens, hidden].
    pub fn forward(&self, sequences: &PackedSequences, cancel: &CancelToken) -> Result<Tensor> {
        match self {
            Self::Encoder(encoder) => encoder.forward(sequences, cancel),
            Self::Decoder(decoder) => decoder.forward_packed(sequences, cancel),
            Self::Seq2Seq(model) => model.forward_packed(sequences, cancel),
        }
    }

    /// A `Device` error unless the device computes what the CPU makes of `source`.
    pub fn verify(
        &self,
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        cancel: &CancelToken,
    ) -> Result<()> {
        match (self, blueprint) {
            (Self::Encoder(encoder), Blueprint::Encoder(blueprint)) => {
                encoder.verify(blueprint, source, cancel)
            }
            (Self::Decoder(decoder), Blueprint::Decoder(blueprint)) => {
                decoder.verify(source, &blueprint.names, cancel)
            }
            (Self::Seq2Seq(model), Blueprint::Seq2Seq(blueprint)) => {
                model.verify(blueprint, source, cancel)
            }
            _ => Err(mismatch()),
        }
    }

    /// What it is made of.
    pub fn inventory(&self) -> Result<Inventory> {
        match self {
            Self::Encoder(encoder) => encoder.inventory(),
            Self::Decoder(decoder) => decoder.inventory(),
            Self::Seq2Seq(model) => model.inventory(),
        }
    }

    /// The head that the checkpoint carries for a task; `None` where it has none.
    pub fn load_head(
        &mut self,
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        kind: HeadKind,
    ) -> Result<Option<Head>> {
        match (self, blueprint) {
            (Self::Encoder(encoder), Blueprint::Encoder(blueprint)) => {
                encoder.load_head(blueprint, source, kind)
            }
            (Self::Decoder(decoder), Blueprint::Decoder(blueprint)) => {
                decoder.load_head(blueprint, source, kind)
            }
            (Self::Seq2Seq(model), Blueprint::Seq2Seq(blueprint)) => {
                model.load_head(blueprint, source, kind)
            }
            _ => Err(mismatch()),
        }
    }

    /// A head whose one logit is the preference of the first of `answers` over the second as the
    /// next token.
    pub fn yes_or_no(
        &self,
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        answers: [u32; 2],
    ) -> Result<Head> {
        match (self, blueprint) {
            (Self::Decoder(decoder), Blueprint::Decoder(blueprint)) => {
                decoder.yes_or_no(blueprint, source, answers)
            }
            _ => Err(Error::UnsupportedModel(format!(
                "{} does not predict the next token of the text that it reads",
                self.family()
            ))),
        }
    }

    pub fn family(&self) -> &str {
        match self {
            Self::Encoder(encoder) => encoder.config().family,
            Self::Decoder(decoder) => &decoder.config().architecture,
            Self::Seq2Seq(model) => model.config().family,
        }
    }

    pub fn hidden_size(&self) -> usize {
        match self {
            Self::Encoder(encoder) => encoder.config().hidden_size,
            Self::Decoder(decoder) => decoder.config().hidden_size,
            Self::Seq2Seq(model) => model.config().decoder.hidden_size,
        }
    }

    pub fn layer_count(&self) -> usize {
        match self {
            Self::Encoder(encoder) => encoder.config().layers.len(),
            Self::Decoder(decoder) => decoder.config().layer_count,
            Self::Seq2Seq(model) => model.config().layer_count(),
        }
    }

    pub fn head_count(&self) -> usize {
        match self {
            Self::Encoder(encoder) => encoder.config().head_count,
            Self::Decoder(decoder) => decoder.config().head_count,
            Self::Seq2Seq(model) => model.config().decoder.head_count,
        }
    }

    /// How many tokens have an embedding.
    pub fn vocabulary(&self) -> usize {
        match self {
            Self::Encoder(encoder) => encoder.vocabulary(),
            Self::Decoder(decoder) => decoder.config().vocab_size,
            Self::Seq2Seq(model) => model.vocabulary(),
        }
    }

    /// The longest sequence there are positions for.
    pub fn max_positions(&self) -> Option<usize> {
        match self {
            Self::Encoder(encoder) => encoder.max_positions(),
            Self::Decoder(decoder) => Some(decoder.max_positions()),
            Self::Seq2Seq(model) => model.max_source().min(model.max_target()),
        }
    }

    /// Tokens beyond which it has no positions; relative and rotary ones go on.
    pub fn position_rows(&self) -> Option<usize> {
        match self {
            Self::Encoder(encoder) => encoder.position_rows(),
            Self::Decoder(_) | Self::Seq2Seq(_) => self.max_positions(),
        }
    }

    /// Whether a sequence may go on after the tokens that are attended to.
    pub fn takes_unattended(&self) -> bool {
        match self {
            Self::Encoder(encoder) => encoder.takes_unattended(),
            Self::Decoder(_) | Self::Seq2Seq(_) => false,
        }
    }

    /// Whether a token sees only those before it, so that only the last one has seen the whole text.
    pub fn is_causal(&self) -> bool {
        match self {
            Self::Encoder(_) => false,
            Self::Seq2Seq(_) => true,
            Self::Decoder(decoder) => !decoder.config().bidirectional,
        }
    }
}

fn mismatch() -> Error {
    Error::Internal("a model was asked to work with another's blueprint".into())
}
