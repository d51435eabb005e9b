//! The self-check of a loaded decoder.

use candle_core::{DType, Device, Tensor};

use super::config::Positions;
use super::layer::{Layer, Step, Stream};
use super::model::{Decoder, Logits};
use super::names::Names;
use super::parameters::Parameters;
use super::rope::Rotations;
use crate::models::verification::{self, Evidence, Expanded, PROBE_TOKENS};
use crate::weights::WeightSource;
use crate::{runtime::log, CancelToken, Result};

impl Decoder {
    /// A `Device` error unless the first layer computes what the CPU makes of `source` in f32, and
    /// nothing but numbers comes out of the head.
    pub fn verify(
        &self,
        source: &dyn WeightSource,
        names: &Names,
        cancel: &CancelToken,
    ) -> Result<()> {
        let length = PROBE_TOKENS.min(self.config().max_positions);
        let tokens = verification::probe(self.config().vocab_size, length);
        let embedded = self.embed(&tokens, 0, None)?;
        evidence("the token embeddings", &embedded).check_values()?;
        match verification::has_room_for_layer(source, self.config().layer_count) {
            true => self.verify_first_layer(source, names, &embedded, cancel)?,
            false => log::info("the self-check has no memory to compare a layer with the CPU's"),
        }
        let mut cache = self.new_cache();
        cache.clear(self.regime(length));
        let logits = self.forward(&tokens, &mut cache, Logits::Last, cancel)?;
        evidence("the logits", &logits).check_values()
    }

    fn verify_first_layer(
        &self,
        source: &dyn WeightSource,
        names: &Names,
        embedded: &Tensor,
        cancel: &CancelToken,
    ) -> Result<()> {
        let Some(layer) = self.layers().first() else {
            return Ok(());
        };
        let found = self.run_first(layer, embedded, cancel)?;
        let expanded = Expanded(source);
        let parameters = Parameters::new(&expanded, names, &Device::Cpu, DType::F32)?;
        let layer = parameters.layer(0, self.config())?;
        let input = embedded.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
        let expected = self.run_first(&layer, &input, cancel)?;
        evidence("the first layer", &found).check_against(&expected, &input, source)
    }

    /// The stream after the first layer, on the device of `embedded`.
    fn run_first(&self, layer: &Layer, embedded: &Tensor, cancel: &CancelToken) -> Result<Tensor> {
        let (device, config) = (embedded.device(), self.config());
        let count = embedded.dim(0)?;
        let rotations = match &config.positions {
            Positions::Rope(rope) => Some((rope, Rotations::new(rope, count, device)?)),
            Positions::Learned => None,
        };
        let rotation = match &rotations {
            Some((rope, rotations)) => {
                Some(rotations.at(rope, self.regime(count), 0..count, device)?)
            }
            None => None,
        };
        let step = Step {
            config,
            rotation,
            adapter: None,
            cancel,
        };
        let mut cache = self.new_cache();
        cache.clear(self.regime(count));
        let mut stream = Stream::new(embedded.clone());
        layer.forward(0, &mut stream, &mut cache, &step)?;
        stream.read(None)
    }
}

fn evidence<'a>(place: &'a str, found: &'a Tensor) -> Evidence<'a> {
    Evidence { place, found }
}
