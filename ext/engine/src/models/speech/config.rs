//! What tells one family of speech models from another.

use crate::models::config::{check_size, check_vocabulary, Checked};
use crate::models::encoder::EncoderConfig;
use crate::models::parts::Names;
use crate::models::seq2seq::DecoderShape;
use kernels::Activation;

#[derive(Clone, Debug)]
pub struct SpeechConfig {
    pub family: &'static str,
    pub stem: StemConfig,
    /// The layers, which are an encoder's.
    pub encoder: EncoderConfig,
    /// What the layers have besides, where they hold a convolution.
    pub conformer: Option<ConformerConfig>,
    pub output: SpeechOutput,
}

/// What makes the first states of an audio's features.
#[derive(Clone, Debug)]
pub enum StemConfig {
    /// Two convolutions over frames of bands; states of a fixed number (Whisper).
    Bands { bins: usize, states: usize },
    /// Convolutions over the samples themselves (wav2vec 2.0).
    Samples(SamplesStem),
    /// Rows of features, normalized and projected (wav2vec2-bert).
    Rows { inputs: usize },
    /// Convolutions over frames and bands that make both fewer (Parakeet).
    Grid(GridStem),
}

#[derive(Clone, Debug)]
pub struct GridStem {
    pub bins: usize,
    pub channels: usize,
    pub kernel: usize,
    pub stride: usize,
    pub layers: usize,
    /// Multiplies what comes of it.
    pub scale: f32,
}

impl GridStem {
    /// How many frames or bands one convolution makes of so many.
    pub fn fewer(&self, count: usize) -> usize {
        let padded = count + 2 * ((self.kernel - 1) / 2);
        match padded.checked_sub(self.kernel) {
            Some(room) => room / self.stride + 1,
            None => 0,
        }
    }
}

/// What a Conformer's layers have.
#[derive(Clone, Debug)]
pub struct ConformerConfig {
    /// Of the convolution over frames, and how many of them stand before a frame.
    pub kernel: usize,
    pub before: usize,
    pub norm: DepthwiseNorm,
    pub positions: ConformerPositions,
}

/// What follows the convolution of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DepthwiseNorm {
    /// A layer norm.
    Frames,
    /// A batch norm.
    Batch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConformerPositions {
    None,
    /// A row for every distance, up to so many behind and ahead; farther ones count as the last.
    Table {
        back: usize,
        ahead: usize,
    },
    /// Sines of the distance (Transformer-XL).
    Sines,
}

#[derive(Clone, Debug)]
pub struct SamplesStem {
    pub layers: Vec<ConvolutionShape>,
    pub norm: StemNorm,
    pub activation: Activation,
    /// Of the convolution that stands for positions.
    pub position_groups: usize,
    /// Whether its result is normalized before the layers (where the layers normalize last).
    pub norm_first: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionShape {
    pub outputs: usize,
    pub kernel: usize,
    pub stride: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StemNorm {
    /// Each channel of the first convolution over all frames.
    Channels,
    /// Each frame of every convolution over its channels.
    Frames,
}

/// What becomes of an encoder's states.
#[derive(Clone, Debug)]
pub enum SpeechOutput {
    /// A decoder writes tokens.
    Text {
        decoder: Box<DecoderShape>,
        names: Box<Names>,
    },
    /// A token or the blank for every state.
    Labels { vocab_size: usize, blank: u32 },
}

impl SpeechConfig {
    pub fn vocab_size(&self) -> usize {
        match &self.output {
            SpeechOutput::Text { decoder, .. } => decoder.vocab_size,
            SpeechOutput::Labels { vocab_size, .. } => *vocab_size,
        }
    }

    /// Of encoder and decoder together.
    pub fn layer_count(&self) -> usize {
        let decoder = match &self.output {
            SpeechOutput::Text { decoder, .. } => decoder.stack.layers.len(),
            SpeechOutput::Labels { .. } => 0,
        };
        self.encoder.layers.len() + decoder
    }

    /// The sizes fit each other and are possible at all.
    pub fn check(&self) -> Checked {
        self.encoder.check()?;
        check_vocabulary(self.vocab_size())?;
        if let StemConfig::Samples(stem) = &self.stem {
            for layer in &stem.layers {
                check_size("width of a convolution", layer.outputs, 1..=1 << 16)?;
                check_size("kernel of a convolution", layer.kernel, 1..=1 << 12)?;
                check_size("stride of a convolution", layer.stride, 1..=1 << 12)?;
            }
        }
        if let StemConfig::Grid(stem) = &self.stem {
            check_size("width of a convolution", stem.channels, 1..=1 << 16)?;
            check_size("kernel of a convolution", stem.kernel, 1..=1 << 6)?;
            check_size("stride of a convolution", stem.stride, 2..=1 << 4)?;
            check_size("count of convolutions", stem.layers, 1..=6)?;
        }
        if let Some(conformer) = &self.conformer {
            check_size("kernel of a convolution", conformer.kernel, 1..=1 << 12)?;
        }
        if let SpeechOutput::Text { decoder, .. } = &self.output {
            decoder.stack.check()?;
            let (encoder, decoder) = (self.encoder.hidden_size, decoder.stack.hidden_size);
            if encoder != decoder {
                return Err(format!(
                    "the encoder is {encoder} wide and the decoder {decoder}"
                ));
            }
        }
        Ok(())
    }
}
