//! The self-check of a loaded encoder-decoder.

use candle_core::{DType, Device, Tensor};

use super::layer::{Kept, Layer, Step};
use super::{Blueprint, Seq2Seq};
use crate::models::encoder::relative::RelativePositions;
use crate::models::parameters::Parameters;
use crate::models::verification::{self, Evidence, Expanded, PROBE_TOKENS};
use crate::nn::PackedSequences;
use crate::{CancelToken, Result};
use base::runtime::log;
use formats::weights::WeightSource;

impl Seq2Seq {
    /// A `Device` error unless the encoder and the decoder's first layer compute what the CPU makes of
    /// `source` in f32, and nothing but numbers comes out of the last one.
    pub fn verify(
        &self,
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        cancel: &CancelToken,
    ) -> Result<()> {
        self.encoder
            .verify(&blueprint.config.encoder, source, cancel)?;
        let longest = self.max_source().min(self.max_target());
        let length = PROBE_TOKENS.min(longest.unwrap_or(PROBE_TOKENS));
        let ids = verification::probe(self.decoder.embeddings.tokens().count(), length);
        let mut sequences = PackedSequences::new();
        sequences.push(&ids, None)?;
        sequences.push(&ids[..ids.len().div_ceil(2)], None)?;
        if verification::has_room_for_layer(source, self.decoder.layers.len()) {
            self.verify_first_layer(blueprint, source, &sequences)?
        } else {
            log::info("the self-check has no memory to compare a layer with the CPU's")
        }
        let states = self.forward_packed(&sequences, cancel)?;
        evidence("the decoder's last layer", &states).check_values()
    }

    fn verify_first_layer(
        &self,
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        sequences: &PackedSequences,
    ) -> Result<()> {
        let Some(layer) = self.decoder.layers.first() else {
            return Ok(());
        };
        // Embeddings stand for the encoder's states: any numbers will do.
        let embedded = self.decoder.embeddings.forward(sequences)?;
        let found = self.run_layer(layer, &self.decoder.relative, &embedded, sequences)?;
        let expanded = Expanded(source);
        let parts = Parameters::new(&expanded, &blueprint.names, &Device::Cpu, DType::F32)?;
        let decoder = &self.config.decoder;
        let positions = RelativePositions::load(decoder, &parts)?;
        let layer = Layer::load(decoder, &parts, 0)?;
        let input = embedded.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
        let expected = self.run_layer(&layer, &positions, &input, sequences)?;
        evidence("the decoder's first layer", &found).check_against(&expected, &input, source)
    }

    fn run_layer(
        &self,
        layer: &Layer,
        positions: &RelativePositions,
        input: &Tensor,
        sequences: &PackedSequences,
    ) -> Result<Tensor> {
        let step = Step::whole(sequences, positions, input.device())?;
        let memory = &layer.memory(input)?;
        Ok(layer
            .forward(input, &[Kept { memory, past: None }], &step)?
            .0)
    }
}

fn evidence<'a>(place: &'a str, found: &'a Tensor) -> Evidence<'a> {
    Evidence { place, found }
}
