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
    /// What makes its states fewer.
    pub adapter: Option<AdapterConfig>,
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
    /// Three convolutions over the samples themselves, the first one's result normalized as a whole (Moonshine).
    Waves,
    /// Squares of frames and bands behind two tokens of its own, with learned positions (audio spectrogram
    /// transformer).
    Patches(PatchStem),
}

#[derive(Clone, Copy, Debug)]
pub struct PatchStem {
    pub bins: usize,
    pub frames: usize,
    /// Bands and frames of a patch.
    pub size: usize,
    /// From one patch to the next.
    pub band_stride: usize,
    pub frame_stride: usize,
}

impl PatchStem {
    /// How many patches stand above and beside each other.
    pub fn grid(&self) -> (usize, usize) {
        let count = |length: usize, stride: usize| match length.checked_sub(self.size) {
            Some(room) => room / stride.max(1) + 1,
            None => 0,
        };
        (
            count(self.bins, self.band_stride),
            count(self.frames, self.frame_stride),
        )
    }

    fn check(&self) -> Checked {
        check_size("size of a patch", self.size, 1..=1 << 10)?;
        check_size("stride of patches", self.band_stride, 1..=1 << 10)?;
        check_size("stride of patches", self.frame_stride, 1..=1 << 10)?;
        let (high, wide) = self.grid();
        check_size("number of patches", high * wide, 1..=1 << 16)
    }
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

/// Convolutions behind an encoder.
#[derive(Clone, Debug)]
pub struct AdapterConfig {
    pub kind: AdapterKind,
    pub layers: usize,
    /// Of what comes out.
    pub width: usize,
    pub kernel: usize,
    pub stride: usize,
    /// Whether an MLP stands before it.
    pub feeds_before: bool,
    pub epsilon: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterKind {
    /// Convolutions alone (wav2vec 2.0).
    Convolutions,
    /// Attention and an MLP behind each (wav2vec2-bert).
    Attention { activation: Activation },
}

impl AdapterConfig {
    pub fn padding(&self) -> usize {
        match self.kind {
            AdapterKind::Convolutions => 1,
            AdapterKind::Attention { .. } => self.stride / 2,
        }
    }

    /// How many states a layer attends to where the one before had so many.
    pub fn attended(&self, states: usize) -> usize {
        let padded = states + 2 * (self.kernel / 2);
        match padded.checked_sub(self.kernel) {
            Some(room) => room / self.stride + 1,
            None => 0,
        }
    }

    fn check(&self) -> Checked {
        check_size("number of adapter layers", self.layers, 0..=64)?;
        check_size("width of the adapter", self.width, 1..=1 << 16)?;
        check_size("kernel of a convolution", self.kernel, 1..=1 << 8)?;
        check_size("stride of a convolution", self.stride, 1..=1 << 8)
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
    /// Nothing else.
    States,
}

impl SpeechConfig {
    pub fn vocab_size(&self) -> usize {
        match &self.output {
            SpeechOutput::Text { decoder, .. } => decoder.vocab_size,
            SpeechOutput::Labels { vocab_size, .. } => *vocab_size,
            SpeechOutput::States => 0,
        }
    }

    /// The width of its states.
    pub fn width(&self) -> usize {
        let adapter = self.adapter.as_ref().map(|adapter| adapter.width);
        adapter.unwrap_or(self.encoder.hidden_size)
    }

    /// Of encoder and decoder together.
    pub fn layer_count(&self) -> usize {
        let decoder = match &self.output {
            SpeechOutput::Text { decoder, .. } => decoder.stack.layers.len(),
            SpeechOutput::Labels { .. } | SpeechOutput::States => 0,
        };
        self.encoder.layers.len() + decoder
    }

    /// The sizes fit each other and are possible at all.
    pub fn check(&self) -> Checked {
        self.encoder.check()?;
        if !matches!(self.output, SpeechOutput::States) {
            check_vocabulary(self.vocab_size())?;
        }
        if let StemConfig::Patches(stem) = &self.stem {
            stem.check()?;
        }
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
        if let Some(adapter) = &self.adapter {
            adapter.check()?;
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
