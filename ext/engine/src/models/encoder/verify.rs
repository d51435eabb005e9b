//! The self-check of a loaded encoder.

use candle_core::{DType, Device, Tensor};

use super::layer::Layer;
use super::relative::RelativePositions;
use super::spans::Spans;
use super::{Blueprint, Encoder};
use crate::models::parameters::Parameters;
use crate::models::verification::{self, Evidence, Expanded, PROBE_TOKENS};
use crate::nn::PackedSequences;
use crate::{CancelToken, Result};
use base::runtime::log;
use formats::weights::WeightSource;

impl Encoder {
    /// A `Device` error unless the first layer computes what the CPU makes of `source` in f32, and
    /// nothing but numbers comes out of the last one.
    pub fn verify(
        &self,
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        cancel: &CancelToken,
    ) -> Result<()> {
        let longest = self.max_positions().unwrap_or(PROBE_TOKENS);
        let ids = verification::probe(self.vocabulary(), PROBE_TOKENS.min(longest));
        let mut sequences = PackedSequences::new();
        sequences.push(&ids, None)?;
        sequences.push(&ids[..ids.len().div_ceil(2)], None)?;
        let whole = match self.config.mechanisms.padded_to {
            Some(length) => self.padded(&sequences, length)?.0,
            None => sequences.clone(),
        };
        let embedded = self.embeddings.forward(&whole)?;
        evidence("the token embeddings", &embedded).check_values()?;
        if verification::has_room_for_layer(source, self.layers.len()) {
            self.verify_first_layer((blueprint, source), &whole, &embedded, cancel)?
        } else {
            log::info("the self-check has no memory to compare a layer with the CPU's")
        }
        let states = self.forward(&sequences, cancel)?;
        evidence("the last layer", &states).check_values()
    }

    fn verify_first_layer(
        &self,
        (blueprint, source): (&Blueprint, &dyn WeightSource),
        sequences: &PackedSequences,
        embedded: &Tensor,
        cancel: &CancelToken,
    ) -> Result<()> {
        let (Some(layer), Some(config)) = (self.layers.first(), self.config.layers.first()) else {
            return Ok(());
        };
        let relative = self.relative.state(sequences, &self.device)?;
        let spans = Spans::of(sequences, &self.device)?;
        let found = layer.forward(embedded, &spans, (config, &relative), cancel)?;
        let expanded = Expanded(source);
        let parts = Parameters::new(&expanded, &blueprint.names, &Device::Cpu, DType::F32)?
            .with_int8(self.int8);
        let positions = RelativePositions::load(&self.config, &parts)?;
        let layer = Layer::load(&self.config, &parts, config.weights, &positions)?;
        let relative = positions.state(sequences, &Device::Cpu)?;
        let input = embedded.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
        let spans = Spans::of(sequences, &Device::Cpu)?;
        let expected = layer.forward(&input, &spans, (config, &relative), cancel)?;
        evidence("the first layer", &found).check_against(&expected, &input, source)
    }
}

fn evidence<'a>(place: &'a str, found: &'a Tensor) -> Evidence<'a> {
    Evidence { place, found }
}
