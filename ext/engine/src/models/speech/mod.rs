//! One model for every family that reads speech: an audio's features in, the states of its encoder out, and
//! from there tokens by a decoder or a label for every state.

mod adapter;
pub mod config;
mod conformer;
mod grid;
mod patches;
mod stem;
mod waves;

use candle_core::{DType, Device, Tensor};

use crate::models::encoder::layer::Layer;
use crate::models::encoder::relative::RelativePositions;
use crate::models::encoder::spans::Spans;
use crate::models::families;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::seq2seq::{CrossDecoder, Memory};
use crate::nn::{elementwise, Inventory, Linear, Norm};
use crate::{CancelToken, Error, Result};
use base::runtime::device::ensure_activations;
use formats::weights::WeightSource;

pub use config::SpeechConfig;

use adapter::Adapter;
use config::{SpeechOutput, StemConfig};
use conformer::{ConformerLayer, Distances};
use stem::Stem;

/// What a checkpoint of a speech model is.
pub type Blueprint = families::Blueprint<SpeechConfig>;

/// Weights and blueprint; immutable, and free to be shared between threads.
#[derive(Debug)]
pub struct SpeechModel {
    config: SpeechConfig,
    stem: Stem,
    layers: Layers,
    relative: RelativePositions,
    final_norm: Option<Norm>,
    adapter: Option<Adapter>,
    output: Output,
    device: Device,
    dtype: DType,
}

#[derive(Debug)]
enum Layers {
    Plain(Vec<Layer>),
    Conformer(Vec<ConformerLayer>),
}

#[derive(Debug)]
enum Output {
    Text(Box<CrossDecoder>),
    Labels(Linear),
    /// The states are all there is.
    States,
}

impl SpeechModel {
    pub fn load(
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        int8: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let config = blueprint.config.clone();
        let parameters = Parameters::new(source, &blueprint.names, device, dtype)?.with_int8(int8);
        let encoder = &config.encoder;
        parameters.check_layers(encoder.stored_layers())?;
        let hidden = encoder.hidden_size;
        let relative = RelativePositions::load(encoder, &parameters)?;
        let numbers = 0..encoder.layers.len();
        let layers = match &config.conformer {
            Some(conformer) => {
                let layers = numbers.map(|number| {
                    cancel.check()?;
                    ConformerLayer::load(encoder, conformer, &parameters, number)
                });
                Layers::Conformer(layers.collect::<Result<_>>()?)
            }
            None => {
                let layers = numbers.map(|number| {
                    cancel.check()?;
                    Layer::load(encoder, &parameters, number, &relative)
                });
                Layers::Plain(layers.collect::<Result<_>>()?)
            }
        };
        let place = (device, dtype);
        let output = match &config.output {
            SpeechOutput::Text { decoder, names } => {
                let shape = decoder.as_ref().clone();
                let mut decoder = CrossDecoder::load(shape, names, source, place, int8, cancel)?;
                decoder.load_head(names, source, place)?;
                Output::Text(Box::new(decoder))
            }
            SpeechOutput::Labels { .. } if !parameters.has(Part::Head) => Output::States,
            SpeechOutput::States => Output::States,
            SpeechOutput::Labels { vocab_size, .. } => {
                Output::Labels(parameters.linear(Part::Head, config.width(), *vocab_size)?)
            }
        };
        let adapter = config.adapter.as_ref();
        let adapter = adapter.map(|own| Adapter::load(&config, own, source, place, int8));
        Ok(Self {
            adapter: adapter.transpose()?,
            stem: Stem::load(&config, &parameters)?,
            layers,
            relative,
            final_norm: parameters.optional_norm(Part::FinalNorm, &[hidden], encoder.norm)?,
            output,
            config,
            device: device.clone(),
            dtype,
        })
    }

    pub fn config(&self) -> &SpeechConfig {
        &self.config
    }

    /// What it is made of.
    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        self.stem.list(&mut inventory)?;
        match &self.layers {
            Layers::Plain(layers) => {
                let mut layers = layers.iter();
                layers.try_for_each(|layer| layer.list(&mut inventory))?;
            }
            Layers::Conformer(layers) => {
                let mut layers = layers.iter();
                layers.try_for_each(|layer| layer.list(&mut inventory))?;
            }
        }
        if let Some(norm) = &self.final_norm {
            inventory.add_norm(norm)?;
        }
        if let Some(adapter) = &self.adapter {
            adapter.list(&mut inventory)?;
        }
        match &self.output {
            Output::Text(decoder) => decoder.list(&mut inventory)?,
            Output::Labels(head) => inventory.add_linear(head)?,
            Output::States => {}
        }
        inventory.add_rows("activation", &self.device)?;
        let width = self.config.encoder.head_size;
        inventory.add_attention(&self.device, self.dtype, width)?;
        Ok(inventory)
    }

    /// Frames of a window, where all windows have the same number.
    pub fn window(&self) -> Option<usize> {
        match self.config.stem {
            StemConfig::Bands { states, .. } => Some(2 * states),
            StemConfig::Samples(_)
            | StemConfig::Rows { .. }
            | StemConfig::Grid(_)
            | StemConfig::Waves
            | StemConfig::Patches(_) => None,
        }
    }

    /// Frames from one state to the next.
    pub fn frames_per_state(&self) -> usize {
        let adapter = self.config.adapter.as_ref();
        let fewer = adapter.map_or(1, |own| own.stride.pow(own.layers as u32));
        fewer * self.frames_per_encoder_state()
    }

    fn frames_per_encoder_state(&self) -> usize {
        match &self.config.stem {
            StemConfig::Bands { .. } => 2,
            StemConfig::Samples(stem) => stem.layers.iter().map(|layer| layer.stride).product(),
            StemConfig::Rows { .. } => 1,
            StemConfig::Waves => waves::STRIDE,
            StemConfig::Patches(stem) => stem.frame_stride,
            StemConfig::Grid(stem) => stem.stride.pow(stem.layers as u32),
        }
    }

    /// How many states come of so many frames.
    pub fn states(&self, frames: usize) -> usize {
        let states = self.stem.states(frames);
        match &self.adapter {
            Some(adapter) => adapter.states(states),
            None => states,
        }
    }

    /// The encoder's states of several audios, [states, hidden], and where each begins. Features are
    /// [frames, bins] of each, row by row.
    pub fn encode(
        &self,
        features: &[(&[f32], usize)],
        cancel: &CancelToken,
    ) -> Result<(Tensor, Vec<u32>)> {
        self.encode_shared(features, None, cancel)
    }

    /// The same; with `shares` the sum of what goes into each layer and comes out of the last, each so much.
    pub fn encode_shared(
        &self,
        features: &[(&[f32], usize)],
        shares: Option<&[f32]>,
        cancel: &CancelToken,
    ) -> Result<(Tensor, Vec<u32>)> {
        let encoder = &self.config.encoder;
        let mut boundaries = vec![0u32];
        let mut states = Vec::with_capacity(features.len());
        for (values, bins) in features {
            cancel.check()?;
            let frames = values.len() / (*bins).max(1);
            ensure_activations(
                self.stem.states(frames),
                encoder.hidden_size,
                self.dtype,
                &self.device,
            )?;
            let values = Tensor::from_slice(values, (frames, *bins), &self.device)?;
            let x = self.stem.forward(&values.to_dtype(self.dtype)?, cancel)?;
            let end = boundaries.last().copied().unwrap_or(0) + x.dim(0)? as u32;
            boundaries.push(end);
            states.push(x);
        }
        let mut x = Tensor::cat(&states, 0)?;
        drop(states);
        let spans = Spans::whole(&boundaries);
        let mut mixed = Mixed::new(shares);
        match &self.layers {
            Layers::Plain(layers) => {
                let relative = self.relative.state_of(&boundaries, &self.device)?;
                for (layer, config) in layers.iter().zip(&encoder.layers) {
                    cancel.check()?;
                    mixed.add(&x)?;
                    x = layer.forward(&x, &spans, (config, &relative), cancel)?;
                }
            }
            Layers::Conformer(layers) => {
                let width = encoder.hidden_size;
                let distances = Distances::new(spans.longest(), width, x.dtype(), &self.device)?;
                let relative = self.relative.state_of(&boundaries, &self.device)?;
                for layer in layers {
                    cancel.check()?;
                    mixed.add(&x)?;
                    x = layer.forward(&x, &spans, (&distances, &relative))?;
                }
            }
        }
        // As transformers: of the last layer's states those before the final norm.
        mixed.add(&x)?;
        if let Some(sum) = mixed.sum {
            return Ok((sum, boundaries));
        }
        if let Some(norm) = &self.final_norm {
            x = norm.forward(&x)?;
        }
        match &self.adapter {
            Some(adapter) => adapter.forward(&x, &boundaries, cancel),
            None => Ok((x, boundaries)),
        }
    }

    /// [1, hidden] of an audio's states: the mean of all, or of the tokens that stand for it.
    pub fn pool(&self, states: &Tensor) -> Result<Tensor> {
        let pooled = match self.config.stem {
            StemConfig::Patches(_) => states.narrow(0, 0, patches::TOKENS)?,
            _ => states.clone(),
        };
        let mean = pooled.to_dtype(DType::F32)?.mean_keepdim(0)?;
        Ok(mean.to_dtype(states.dtype())?)
    }

    /// Whether it writes or labels, and does not only have states.
    pub fn has_output(&self) -> bool {
        !matches!(self.output, Output::States)
    }

    /// The decoder, in models that write.
    pub fn decoder(&self) -> Result<&CrossDecoder> {
        match &self.output {
            Output::Text(decoder) => Ok(decoder),
            Output::Labels(_) | Output::States => Err(Error::Internal(
                "a model of labels was asked for its decoder".into(),
            )),
        }
    }

    /// What a decoder reads of each audio.
    pub fn memories(
        &self,
        features: &[(&[f32], usize)],
        cancel: &CancelToken,
    ) -> Result<Vec<Memory>> {
        // A processor is busy with one window. Several would leave its caches, and be interrupted later.
        let together = match self.window() {
            Some(_) if base::Device::of(&self.device).computes_on_threads() => 1,
            _ => features.len().max(1),
        };
        let mut memories = Vec::with_capacity(features.len());
        for features in features.chunks(together) {
            let (states, boundaries) = self.encode(features, cancel)?;
            let memory = self.decoder()?.remember(&states, boundaries, cancel)?;
            for text in 0..features.len() {
                memories.push(memory.of(&[text])?);
            }
        }
        Ok(memories)
    }

    /// f32 logits of every state, [states, vocabulary].
    pub fn labels(&self, states: &Tensor) -> Result<Tensor> {
        match &self.output {
            Output::Labels(head) => Ok(head.forward(states)?.to_dtype(DType::F32)?),
            Output::Text(_) | Output::States => Err(Error::Internal(
                "a model without a head for labels was asked for labels".into(),
            )),
        }
    }
}

/// The states of all layers added up, each times its share.
struct Mixed<'a> {
    shares: Option<std::slice::Iter<'a, f32>>,
    sum: Option<Tensor>,
}

impl<'a> Mixed<'a> {
    fn new(shares: Option<&'a [f32]>) -> Self {
        Self {
            shares: shares.map(|shares| shares.iter()),
            sum: None,
        }
    }

    fn add(&mut self, x: &Tensor) -> Result<()> {
        let Some(share) = self.shares.as_mut().and_then(Iterator::next) else {
            return Ok(());
        };
        let part = elementwise::scale(x, *share)?;
        self.sum = Some(match self.sum.take() {
            Some(sum) => elementwise::add(&sum, &part)?,
            None => part,
        });
        Ok(())
    }
}
