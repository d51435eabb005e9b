//! A loaded decoder.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use super::adaptable::Module;
use super::adapter_rows::AdapterRows;
use super::attention::Qkv;
use super::batch::{Batch, Before};
use super::blocks::Blocks;
use super::cache::KvCache;
use super::config::DecoderConfig;
use super::heads::TransformLayer;
use super::image_embeddings::{self, ImageTable};
use super::lanes::Lanes;
use super::latent::LatentUpdate;
use super::layer::Layer;
use super::layer_inputs::LayerInputs;
use super::mixers::Mixer;
use super::pool::{KvPool, Sequence};
use super::replay::Recordings;
use super::stages::{Home, Stages};
use super::{loading, Blueprint};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::rope::Rotations;
use crate::nn::{elementwise, Embedding, Inventory, Linear, Norm, PackedSequences};
use crate::{CancelToken, Error, Result};
use formats::weights::WeightSource;
use kernels::{self, Activation};

pub struct Decoder {
    config: DecoderConfig,
    /// Of tokens, [vocabulary, hidden].
    embedding: Embedding,
    embedding_projection: Option<Linear>,
    position_embedding: Option<Embedding>,
    embedding_norm: Option<Norm>,
    /// Of each stage.
    pub(super) rotations: Vec<Option<Rotations>>,
    layers: Vec<Layer>,
    pub(super) layer_inputs: Option<LayerInputs>,
    pub(super) lanes: Option<Lanes>,
    /// Where the state of the low stack starts, `[hidden]`.
    pub(super) low_start: Option<Tensor>,
    pub(super) final_norm: Option<Norm>,
    head_transform: Option<TransformLayer>,
    /// `None` in a model that is loaded for its hidden states.
    head: Option<Linear>,
    stages: Stages,
    /// Whether linear layers hold bytes.
    pub(super) int8: bool,
    /// What may stand in a prompt beside tokens.
    pub(super) images: ImageTable,
}

/// A piece of a sequence that is to be read.
pub struct Reading<'a> {
    pub tokens: &'a [u32],
    pub sequence: &'a mut Sequence,
    /// How many of the last tokens' logits are wanted.
    pub wanted: usize,
}

/// Which rows of the logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// Only the last token's.
    Last,
    All,
}

impl Decoder {
    /// With the head that predicts the next token.
    pub fn load(
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        device: &Device,
        dtype: DType,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let stages = Stages::whole(&blueprint.config, device, dtype);
        Self::load_in_stages(blueprint, source, stages, cancel)
    }

    /// The same, with layers on several devices.
    pub fn load_in_stages(
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        stages: Stages,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let main = stages.main().clone();
        let body = Self::load_stages(blueprint, source, stages, false, cancel)?;
        let parameters = Parameters::new(source, &blueprint.names, &main.device, main.dtype)?;
        let head = loading::head(&parameters, &body.config, &body.embedding)?;
        Ok(Self {
            head_transform: loading::head_transform(&parameters, &body.config)?,
            head: Some(head),
            ..body
        })
    }

    /// Without a head, for its hidden states. With `int8` the linear layers hold bytes, on the CPU
    /// and beside f32 or bf16.
    pub fn load_body(
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        device: &Device,
        dtype: DType,
        int8: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let stages = Stages::whole(&blueprint.config, device, dtype);
        Self::load_stages(blueprint, source, stages, int8, cancel)
    }

    fn load_stages(
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        stages: Stages,
        int8: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let (config, names) = (blueprint.config.clone(), &blueprint.names);
        let main = stages.main();
        let parameters = Parameters::new(source, names, &main.device, main.dtype)?;
        let parameters = parameters.with_int8(int8);
        let embedding = loading::token_embedding(&parameters, &config)?;
        let layers = load_layers(blueprint, source, &stages, int8, cancel)?;
        let rotations = stages.all().iter().map(|stage| {
            let rope = config.relative.rope();
            rope.map(|rope| Rotations::new(rope, config.max_positions, &stage.home.device))
                .transpose()
        });
        Ok(Self {
            embedding_projection: loading::embedding_projection(&parameters, &config)?,
            position_embedding: loading::positions(&parameters, &config)?,
            rotations: rotations.collect::<Result<_>>()?,
            embedding_norm: match config.embedding_norm {
                Some(norm) => {
                    let widths = [config.hidden_size];
                    Some(parameters.norm(Part::EmbeddingNorm, &widths, norm)?)
                }
                None => None,
            },
            low_start: match config.stacks {
                Some(_) => Some(parameters.shaped(Part::LowStart, &[config.hidden_size])?),
                None => None,
            },
            layer_inputs: LayerInputs::load(&parameters, &config)?,
            lanes: Lanes::load(&parameters, &config)?,
            final_norm: loading::final_norm(&parameters, &config)?,
            head_transform: None,
            head: None,
            embedding,
            layers,
            stages,
            int8,
            config,
            images: ImageTable::default(),
        })
    }

    /// What it is made of.
    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        inventory.add_embedding(&self.embedding);
        if let Some(table) = &self.position_embedding {
            inventory.add_embedding(table);
        }
        for layer in &self.layers {
            layer.list(&mut inventory)?;
        }
        if let Some(inputs) = &self.layer_inputs {
            inputs.list(&mut inventory)?;
        }
        if let Some(lanes) = &self.lanes {
            lanes.list(&mut inventory)?;
        }
        if let Some(norm) = &self.final_norm {
            inventory.add_norm(norm)?;
        }
        if let Some(projection) = &self.embedding_projection {
            inventory.add_linear(projection)?;
        }
        if let Some(transform) = &self.head_transform {
            transform.list(&mut inventory)?;
        }
        if let Some(head) = &self.head {
            inventory.add_linear(head)?;
        }
        for stage in self.stages.all() {
            let Home { device, dtype } = &stage.home;
            if self.config.relative.rope().is_some() {
                inventory.add_rows("rope", device)?;
            }
            if self.config.experts.is_some() {
                inventory.add_rows("softmax", device)?;
            }
            inventory.add_rows("activation", device)?;
            let attends = |&layer: &usize| self.config.sublayers(layer).attention;
            let attending = stage.layers.clone().filter(attends);
            // Where all are alike, one stands for all.
            for layer in attending.take(self.config.shapes.len().max(1)) {
                let width = self.config.shape(layer).stored_size();
                inventory.add_attention(device, *dtype, width)?;
            }
        }
        Ok(inventory)
    }

    /// Where its layers are.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    pub(super) fn embedding(&self) -> &Embedding {
        &self.embedding
    }

    pub(super) fn position_table(&self) -> Option<&Embedding> {
        self.position_embedding.as_ref()
    }

    pub(super) fn rotations(&self) -> Option<&Rotations> {
        self.rotations.first().and_then(Option::as_ref)
    }

    /// The longest sequence there are positions for.
    pub fn max_positions(&self) -> usize {
        let table = self.position_embedding.as_ref();
        let first = self.config.first_position() as usize;
        let rows = table.map_or(usize::MAX, |table| table.count().saturating_sub(first));
        rows.min(self.config.max_positions)
    }

    /// Whether it can predict the next token.
    pub fn has_head(&self) -> bool {
        self.head.is_some()
    }

    /// Where everything beside the layers is.
    pub fn device(&self) -> &Device {
        &self.stages.main().device
    }

    pub fn dtype(&self) -> DType {
        self.stages.main().dtype
    }

    /// For a text that is read alone.
    pub fn new_cache(&self) -> Result<KvCache> {
        KvCache::new(&self.config, &self.stages, self.dtype())
    }

    /// Which rotation a sequence of `length` tokens needs; a cache made under another one is void.
    pub fn rope_variant(&self, length: usize) -> usize {
        let rope = self.config.relative.rope();
        rope.map_or(0, |rope| rope.variant(length))
    }

    /// Runs `tokens` after what `cache` holds, extends it, and returns the logits
    /// `[rows, vocabulary]` in f32. After an error the cache is as before.
    pub fn forward(
        &self,
        tokens: &[u32],
        cache: &mut KvCache,
        wanted: Logits,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let hidden = self.hidden_states(tokens, cache, cancel)?;
        let hidden = match wanted {
            Logits::All => hidden,
            Logits::Last => hidden.narrow(0, tokens.len() - 1, 1)?,
        };
        let adapters = AdapterRows::of([(hidden.dim(0)?, cache.sequence.adapter())]);
        self.logits(&hidden, &adapters)
    }

    /// Runs pieces of several sequences, whose pages the pool has reserved, in one forward pass;
    /// returns the logits that are wanted, `[rows, vocabulary]` in f32. Each may have an adapter of its own;
    /// those of one adapter should be neighbours. After an error the sequences are as before.
    pub fn forward_batch(
        &self,
        readings: &mut [Reading<'_>],
        pool: &mut KvPool,
        cancel: &CancelToken,
    ) -> Result<Option<Tensor>> {
        let hidden = self.read(readings, pool, cancel)?;
        let mut rows: Vec<u32> = Vec::new();
        let mut end = 0;
        for reading in readings.iter() {
            end += reading.tokens.len();
            rows.extend(
                (end - reading.wanted.min(reading.tokens.len())..end).map(|row| row as u32),
            );
        }
        let hidden = match rows.len() {
            0 => return Ok(None),
            count if count == end => hidden,
            1 => hidden.narrow(0, rows[0] as usize, 1)?,
            count => hidden.index_select(&Tensor::from_vec(rows, count, self.device())?, 0)?,
        };
        let wanted = readings.iter().map(|one| {
            let wanted = one.wanted.min(one.tokens.len());
            (wanted, one.sequence.adapter())
        });
        self.logits(&hidden, &AdapterRows::of(wanted)).map(Some)
    }

    /// The same as [`Decoder::forward_batch`], by a recording where the device has one of this step.
    pub fn forward_step(
        &self,
        readings: &mut [Reading<'_>],
        pool: &mut KvPool,
        recordings: &mut Recordings,
        cancel: &CancelToken,
    ) -> Result<Option<Tensor>> {
        match self.replayed(readings, pool, recordings, cancel)? {
            Some(logits) => Ok(Some(logits)),
            None => self.forward_batch(readings, pool, cancel),
        }
    }

    /// In f32, scaled and capped where the family does that.
    pub(super) fn logits(&self, hidden: &Tensor, adapters: &AdapterRows) -> Result<Tensor> {
        let logits = self.raw_logits(hidden, adapters)?.to_dtype(DType::F32)?;
        let logits = elementwise::scale(&logits, self.config.logit_scale)?;
        match self.config.logit_soft_cap {
            Some(cap) => {
                let shrunk = elementwise::scale(&logits, 1.0 / cap)?;
                elementwise::scale(&kernels::activate(&shrunk, Activation::Tanh)?, cap)
            }
            None => Ok(logits),
        }
    }

    /// As the head gives them, in its type.
    pub(super) fn raw_logits(&self, hidden: &Tensor, adapters: &AdapterRows) -> Result<Tensor> {
        let head = self.head.as_ref().ok_or_else(|| {
            Error::Internal("a decoder without its head was asked for logits".into())
        })?;
        let transformed = match &self.head_transform {
            Some(transform) => &transform.forward(hidden, adapters)?,
            None => hidden,
        };
        adapters.logits(head, transformed)
    }

    /// The states after the final norm of the tokens that follow what `cache` holds,
    /// `[tokens, hidden]`.
    pub fn hidden_states(
        &self,
        tokens: &[u32],
        cache: &mut KvCache,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let KvCache { pool, sequence } = cache;
        // The first part of a long sequence already rotates as the whole will.
        let rope_variant = self.rope_variant(sequence.length() + tokens.len());
        if sequence.length() == 0 && rope_variant > sequence.rope_variant() {
            sequence.set_rope_variant(rope_variant);
        }
        if sequence.length() == 0 && self.is_bidirectional_prompt(tokens) {
            sequence.set_bidirectional_prompt(tokens.len());
        }
        if !pool.extend(sequence, tokens.len())? {
            pool.check_fits(usize::MAX)?;
        }
        let reading = Reading {
            tokens,
            sequence,
            wanted: 0,
        };
        self.read(&mut [reading], pool, cancel)
    }

    /// The states after the final norm of whole sequences, `[tokens, hidden]`.
    pub fn forward_packed(
        &self,
        sequences: &PackedSequences,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        cancel.check()?;
        if sequences.tokens() == 0 {
            let shape = (0, self.config.hidden_size);
            return Ok(Tensor::zeros(shape, self.dtype(), self.device())?);
        }
        self.run(
            &self.whole(sequences),
            Before::Nothing,
            &AdapterRows::default(),
            cancel,
        )
    }

    pub(super) fn whole(&self, sequences: &PackedSequences) -> Batch {
        Batch::whole(sequences, |length| self.rope_variant(length))
    }

    /// An adapter's update of what makes keys and values of a layer's latents.
    pub(super) fn latent_update(
        &self,
        layer: usize,
        down: &Tensor,
        up: &Tensor,
    ) -> Result<LatentUpdate> {
        let mixer = self
            .layers
            .get(layer)
            .and_then(|layer| layer.mixer.as_ref());
        match mixer.and_then(Mixer::attention).map(|found| &found.qkv) {
            Some(Qkv::Latent(latent)) => latent.update(self.config.head_count, down, up),
            _ => Err(Error::Internal("an update of latents without them".into())),
        }
    }

    /// What stands beside the layers and can be adapted.
    pub(super) fn modules(&self) -> Vec<Module> {
        let inputs = self.layer_inputs.iter();
        let inputs = inputs.map(|inputs| (Part::LayerInputProjection, 0, &inputs.projection));
        let dense = self.head_transform.iter();
        let dense = dense.map(|transform| (Part::HeadDense, 0, &transform.dense));
        let embedding = self.embedding_projection.iter();
        let embedding = embedding.map(|linear| (Part::EmbeddingProjection, 0, linear));
        let lanes = self.lanes.iter().flat_map(|lanes| lanes.linears());
        let all = inputs.chain(dense).chain(embedding).chain(lanes);
        all.map(|(part, number, linear)| Module::single(part, number, linear))
            .collect()
    }

    /// An error that names a token which neither the vocabulary nor an image has.
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        let size = self.config.vocab_size;
        let mut beyond = tokens.iter().filter(|&&token| token as usize >= size);
        match beyond.find(|&&token| self.images.find(token).is_none()) {
            Some(&token) => Err(image_embeddings::unknown(token, size)),
            None => Ok(()),
        }
    }

    pub(super) fn embed(&self, batch: &Batch, adapters: &AdapterRows) -> Result<Tensor> {
        let (tokens, size) = (&batch.ids[..], self.config.vocab_size);
        self.check_tokens(tokens)?;
        // Where images stand, any row does until their embeddings are spliced in.
        let known = tokens
            .iter()
            .map(|&id| if (id as usize) < size { id } else { 0 });
        let known: Vec<u32> = known.collect();
        let embedded = adapters.embed(&self.embedding, &known)?;
        let embedded = elementwise::scale(&embedded, self.config.embedding_scale)?;
        let embedded = match &self.embedding_projection {
            Some(projection) => {
                let updates = adapters.model().part(Part::EmbeddingProjection);
                projection.forward_updated(&embedded, &updates)?
            }
            None => embedded,
        };
        let embedded = self.images.splice(tokens, size, embedded)?;
        let embedded = match &self.position_embedding {
            Some(table) => {
                let first = self.config.first_position();
                let positions: Vec<u32> = batch.positions().map(|at| first + at as u32).collect();
                elementwise::add(&embedded, &table.rows(&positions)?)?
            }
            None => embedded,
        };
        match &self.embedding_norm {
            Some(norm) => norm.forward(&embedded),
            None => Ok(embedded),
        }
    }
}

/// Those of a body, each on the device of its stage.
fn load_layers(
    blueprint: &Blueprint,
    source: &dyn WeightSource,
    stages: &Stages,
    int8: bool,
    cancel: &CancelToken,
) -> Result<Vec<Layer>> {
    let config = &blueprint.config;
    if config.stacks.is_some() {
        let both = [&blueprint.names, &blueprint.names.of_high_stack()].map(|names| {
            let Home { device, dtype } = stages.main();
            let parameters = Parameters::new(source, names, device, *dtype)?;
            let all = 0..count(config);
            load_range(&parameters.with_int8(int8), all, config, cancel)
        });
        let [low, high] = both;
        return Ok(low?.into_iter().chain(high?).collect());
    }
    let mut layers = Vec::new();
    for stage in stages.all() {
        let Home { device, dtype } = &stage.home;
        let parameters = Parameters::new(source, &blueprint.names, device, *dtype)?;
        let parameters = parameters.with_int8(int8);
        let own = stage.layers.clone();
        layers.extend(load_range(&parameters, own, config, cancel)?);
    }
    Ok(layers)
}

/// How many layers a checkpoint has, or each of its stacks.
fn count(config: &DecoderConfig) -> usize {
    match config.stacks {
        Some(stacks) => stacks.layers,
        None => config.layer_count,
    }
}

/// These layers.
fn load_range(
    parameters: &Parameters<'_>,
    layers: Range<usize>,
    config: &DecoderConfig,
    cancel: &CancelToken,
) -> Result<Vec<Layer>> {
    parameters.check_layers(count(config))?;
    let mut blocks = Blocks::default();
    layers
        .map(|index| {
            cancel.check()?;
            loading::layer(parameters, index, config, &mut blocks)
        })
        .collect()
}
