//! The self-check of a loaded decoder.

use candle_core::{DType, Device, Tensor};

use super::adapter_rows::AdapterRows;
use super::batch::{Batch, Past};
use super::blocks::Blocks;
use super::layer::{Layer, Step, Stream};
use super::loading;
use super::model::{Decoder, Logits};
use crate::models::parameters::Parameters;
use crate::models::parts::Names;
use crate::models::rope::Rotations;
use crate::models::verification::{self, Evidence, Expanded, PROBE_TOKENS};
use crate::nn::PackedSequences;
use crate::{CancelToken, Result};
use base::runtime::log;
use formats::weights::WeightSource;

impl Decoder {
    /// A `Device` error unless the first layer computes what the CPU makes of `source` in f32, and
    /// nothing but numbers comes out of the head, or of the last layer where there is none.
    pub fn verify(
        &self,
        source: &dyn WeightSource,
        names: &Names,
        cancel: &CancelToken,
    ) -> Result<()> {
        let length = PROBE_TOKENS.min(self.config().max_positions);
        let tokens = verification::probe(self.config().vocab_size, length);
        let mut sequences = PackedSequences::new();
        sequences.push(&tokens, None)?;
        sequences.push(&tokens[..length.div_ceil(2)], None)?;
        let batch = self.whole(&sequences);
        let embedded = self.embed(&batch, &AdapterRows::default())?;
        evidence("the token embeddings", &embedded).check_values()?;
        if verification::has_room_for_layer(source, self.config().layer_count) {
            self.verify_first_layer(source, names, (&batch, &embedded), cancel)?
        } else {
            log::info("the self-check has no memory to compare a layer with the CPU's")
        }
        if !self.has_head() {
            let states = self.forward_packed(&sequences, cancel)?;
            return evidence("the last layer", &states).check_values();
        }
        let mut cache = self.new_cache()?;
        cache.clear(self.rope_variant(length));
        let logits = self.forward(&tokens, &mut cache, Logits::Last, cancel)?;
        evidence("the logits", &logits).check_values()
    }

    fn verify_first_layer(
        &self,
        source: &dyn WeightSource,
        names: &Names,
        (batch, embedded): (&Batch, &Tensor),
        cancel: &CancelToken,
    ) -> Result<()> {
        let Some(layer) = self.layers().first() else {
            return Ok(());
        };
        let base = AdapterRows::default();
        let home = self.stages().home_of(0);
        let inputs = home.take_all(&self.layer_inputs(batch, embedded, &base)?)?;
        let mut stream = self.stream(embedded.clone(), &base)?;
        stream.move_to(home)?;
        let found = self.run_first(layer, batch, (stream, inputs), cancel)?;
        let on_cpu = |dtype: DType| -> Result<(Tensor, Tensor)> {
            let expanded = Expanded(source);
            let parameters =
                Parameters::new(&expanded, names, &Device::Cpu, dtype)?.with_int8(self.int8);
            let layer = loading::layer(&parameters, 0, self.config(), &mut Blocks::default())?;
            let moved =
                |x: &Tensor| -> Result<Tensor> { Ok(x.to_device(&Device::Cpu)?.to_dtype(dtype)?) };
            let all = |all: Vec<Tensor>| all.iter().map(moved).collect::<Result<Vec<_>>>();
            let mut stream = Stream::new(moved(embedded)?);
            stream.embedded = Some(moved(embedded)?);
            stream.lanes = all(self.stream(embedded.clone(), &base)?.lanes)?;
            let inputs = all(self.layer_inputs(batch, embedded, &base)?)?;
            let input = stream.states()?;
            let given = self.run_first(&layer, batch, (stream, inputs), cancel)?;
            Ok((given, input))
        };
        let (expected, input) = on_cpu(DType::F32)?;
        let evidence = evidence("the first layer", &found);
        let checked = evidence.check_against(&expected, &input, source);
        // A router that rounds may choose other experts, on the CPU too, or for some of the tokens.
        if checked.is_err() && found.dtype() != DType::F32 {
            let (rounded, _) = on_cpu(found.dtype())?;
            if evidence.is_as_close_as(&rounded, &expected)? {
                return Ok(());
            }
            let routes = self.config().experts.is_some() || self.config().query_experts;
            if routes && evidence.most_rows_agree(&expected, &input, source)? {
                return Ok(());
            }
        }
        checked
    }

    /// The stream after the first layer, on the stream's device, given the inputs of layers.
    fn run_first(
        &self,
        layer: &Layer,
        batch: &Batch,
        (mut stream, inputs): (Stream, Vec<Tensor>),
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let config = self.config();
        let device = &stream.device();
        let rope = config.relative.rope();
        let rotations = rope
            .map(|rope| {
                Rotations::new(
                    rope,
                    batch.positions().max().map_or(0, |last| last + 1),
                    device,
                )
            })
            .transpose()?;
        let rotations = rotations.as_ref();
        let rotation = rotations.map(|rotations| rotations.of(batch.pieces(), device));
        let step = Step {
            config,
            batch,
            rotation: rotation.transpose()?,
            temperature: None,
            inputs,
            deep: Vec::new(),
            adapters: &AdapterRows::default(),
            cancel,
        };
        layer.forward(0, &mut stream, &mut Past::none(config), &step)?;
        stream.states()
    }
}

fn evidence<'a>(place: &'a str, found: &'a Tensor) -> Evidence<'a> {
    Evidence { place, found }
}
