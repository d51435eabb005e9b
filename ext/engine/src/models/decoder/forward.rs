//! One forward pass: from pieces of sequences to the states after the final norm, stage by stage.

use std::ops::Range;

use candle_core::Tensor;

use super::adapter_rows::AdapterRows;
use super::batch::{Batch, Before, Past, StagePages, Stretch};
use super::layer::{Step, Stream};
use super::model::{Decoder, Reading};
use super::pool::KvPool;
use super::stacks::StackRun;
use super::stages::Home;
use crate::models::config::RopeAxes;
use crate::{CancelToken, Error, Result};
use base::runtime::device::ensure_activations;
use kernels::paged::{PagedBatch, PagedPiece};

impl Decoder {
    pub(super) fn read(
        &self,
        readings: &mut [Reading<'_>],
        pool: &mut KvPool,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let rows = readings.iter();
        let rows = rows.map(|one| (one.tokens.len(), one.sequence.adapter()));
        let adapters = AdapterRows::of(rows);
        let mut first_row = 0;
        let mut pieces = Vec::with_capacity(readings.len());
        for Reading {
            tokens, sequence, ..
        } in readings.iter()
        {
            if tokens.is_empty() {
                return Err(Error::InvalidInput(
                    "the prompt has no tokens; pass some text".to_owned(),
                ));
            }
            pieces.push(PagedPiece {
                rows: first_row..first_row + tokens.len(),
                pages: sequence.pages().to_vec(),
                keys: sequence.length() + tokens.len(),
            });
            first_row += tokens.len();
        }
        let stretches = readings.iter().map(|reading| self.stretch(reading));
        let stretches = stretches.collect::<Result<Vec<_>>>()?;
        let batch = Batch::pieces_of(stretches.into_iter());
        let stages = self.stages().all().iter().map(|stage| {
            let device = &stage.home.device;
            Ok(StagePages {
                bidirectional_spans: self.bidirectional_spans(readings, &pieces, device)?,
                batch: PagedBatch::new(pieces.clone(), device)?,
            })
        });
        let stages = stages.collect::<Result<Vec<_>>>()?;
        let mut states = Vec::new();
        for reading in readings.iter_mut() {
            let (rows, wanted) = (reading.tokens.len(), reading.wanted);
            states.extend(pool.prepare(reading.sequence, rows, wanted)?);
        }
        let before = Before::Paged {
            pool: &mut *pool,
            stages: stages.into_iter(),
            states,
        };
        let hidden = self.run(&batch, before, &adapters, cancel)?;
        for reading in readings {
            pool.advance(reading.sequence, reading.tokens)?;
        }
        Ok(hidden)
    }

    /// A reading's tokens and where they stand.
    fn stretch<'a>(&self, reading: &Reading<'a>) -> Result<Stretch<'a>> {
        let (ids, sequence) = (reading.tokens, &reading.sequence);
        let rope = self.config().relative.rope();
        let (first, places) = match rope.map(|rope| &rope.axes) {
            Some(RopeAxes::Sections(_) | RopeAxes::Turns(_)) => {
                let all = [sequence.tokens(), ids].concat();
                self.images
                    .places(&all, sequence.length(), self.config().vocab_size)?
            }
            _ => (sequence.length(), None),
        };
        Ok(Stretch {
            ids,
            first,
            places,
            variant: sequence.rope_variant(),
        })
    }

    pub(super) fn run(
        &self,
        batch: &Batch,
        mut before: Before<'_>,
        adapters: &AdapterRows,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let (tokens, config) = (batch.ids.len(), self.config());
        for stage in self.stages().all() {
            let Home { device, dtype } = &stage.home;
            ensure_activations(tokens, config.hidden_size, *dtype, device)?;
        }
        let embedded = self.embed(batch, adapters)?;
        let inputs = self.layer_inputs(batch, &embedded, adapters)?;
        let deep = self.images.deep(&batch.ids, config.vocab_size, &embedded)?;
        let mut stream = self.stream(embedded, adapters)?;
        for (stage, rotations) in self.stages().all().iter().zip(&self.rotations) {
            let Home { device, dtype } = &stage.home;
            let rotations = rotations.as_ref();
            let rotation = rotations.map(|rotations| rotations.of(batch.pieces(), device));
            let step = Step {
                config,
                batch,
                rotation: rotation.transpose()?,
                temperature: batch.temperatures(config, (device, *dtype))?,
                inputs: stage.home.take_all(&inputs)?,
                deep: stage.home.take_all(&deep)?,
                adapters,
                cancel,
            };
            let mut past = before.of_next_stage(config)?;
            if !self.stages().is_split() {
                return self.run_layers(stream, past, &step);
            }
            stream.move_to(&stage.home)?;
            self.run_stage(stage.layers.clone(), &mut stream, &mut past, &step)?;
        }
        stream.move_to(self.stages().main())?;
        self.finish(stream, adapters)
    }

    /// The residual stream that begins with the embeddings.
    pub(super) fn stream(&self, embedded: Tensor, adapters: &AdapterRows) -> Result<Stream> {
        let mut stream = Stream::new(embedded.clone());
        let read = self.config().shared_blocks.is_some();
        stream.embedded = read.then(|| embedded.clone());
        if let Some(lanes) = &self.lanes {
            stream.lanes = lanes.split(embedded, &adapters.model())?;
        }
        Ok(stream)
    }

    /// The states after the final norm, in a decoder that is on one device.
    pub(super) fn run_layers(
        &self,
        mut stream: Stream,
        mut past: Past<'_>,
        step: &Step<'_>,
    ) -> Result<Tensor> {
        if let (Some(stacks), Some(low_start)) = (self.config().stacks, &self.low_start) {
            let run = StackRun {
                stacks,
                layers: self.layers(),
                norm: self.final_norm.as_ref(),
                low_start,
            };
            return run.run(stream.read(None)?, &mut past, step);
        }
        self.run_stage(0..self.layers().len(), &mut stream, &mut past, step)?;
        self.finish(stream, step.adapters)
    }

    fn run_stage(
        &self,
        layers: Range<usize>,
        stream: &mut Stream,
        past: &mut Past<'_>,
        step: &Step<'_>,
    ) -> Result<()> {
        for index in layers {
            self.layers()[index].forward(index, stream, past, step)?;
            if let Some(rows) = step.deep.get(index) {
                stream.add_rows(rows)?;
            }
        }
        Ok(())
    }

    /// What the last layer leaves, normalized.
    fn finish(&self, mut stream: Stream, adapters: &AdapterRows) -> Result<Tensor> {
        if let Some(lanes) = &self.lanes {
            let updates = adapters.model();
            stream = Stream::new(lanes.merge(&stream.lanes, &updates)?);
        }
        stream.read(self.final_norm.as_ref())
    }
}
