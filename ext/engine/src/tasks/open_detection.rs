//! Things that a call names, in pictures: words and pictures of one detector.

use candle_core::DType;

use crate::models::detection::open::OpenHeads;
use crate::models::detection::Predictions;
use crate::models::encoder::{self, Encoder};
use crate::models::modules::Modules;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::vision::{Blueprint, Tower};
use crate::nn::{pooling, Inventory, Linear};
use crate::serving::batching::{self, Excess};
use crate::{CancelToken, Error, Result};
use base::runtime::threads;
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::image::View;
use formats::text::tokenizer::{Input, Tokenizer};
use serde_json::json;

use super::loading::{effective_length, Checkpoint, LoadOptions};

pub struct OpenDetector {
    text: Encoder,
    space: Linear,
    tower: Tower,
    heads: OpenHeads,
    tokenizer: Tokenizer,
    length: usize,
}

impl OpenDetector {
    pub fn load(
        raw: &RawConfig,
        checkpoint: &Checkpoint,
        files: &ModelFiles,
        options: &LoadOptions,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let own = raw.model_type()?.unwrap_or_default();
        let part = |key: &str, part: &str| -> Result<RawConfig> {
            let nested = raw.opt_nested(key)?;
            let nested = nested.map_or_else(|| RawConfig::parse(raw.file(), "{}"), Ok)?;
            let kind = json!({"model_type": format!("{own}_{part}_model")});
            Ok(nested.with_defaults(kind))
        };
        let (words, images) = (
            part("text_config", "text")?,
            part("vision_config", "vision")?,
        );
        let source = checkpoint.source.as_ref();
        let (device, dtype) = (&checkpoint.opened, checkpoint.dtype);
        let blueprint = encoder::Blueprint::from_config(&words)?;
        let text = Encoder::load(&blueprint, source, device, dtype, checkpoint.int8, cancel)?;
        let parameters = Parameters::new(source, &blueprint.names, device, dtype)?;
        let space = parameters.optional_linear(Part::SharedSpace, text.config().hidden_size)?;
        let space = space.ok_or_else(|| parameters.missing(Part::SharedSpace))?;
        let blueprint = Blueprint::from_config(&images)?;
        let place = (device, dtype);
        let tower = Tower::load(&blueprint, source, place, checkpoint.int8, cancel)?;
        let names = source.names();
        let modules = Modules::new(source, &names, place, checkpoint.int8);
        let epsilon = images.opt_f64("layer_norm_eps")?.unwrap_or(1e-5) as f32;
        let heads = OpenHeads::load(&modules, tower.config().encoder.hidden_size, epsilon)?;
        if heads.words() != space.outputs() {
            return Err(Error::corrupt(
                &source.file(""),
                "its words and its images do not become vectors of one length",
            ));
        }
        let tokenizer = checkpoint.tokenizer(files, options, cancel)?;
        Ok(Self {
            length: effective_length(&[options.max_length, text.max_positions()])?,
            tokenizer: tokenizer.with_padding(None).with_truncation(None),
            text,
            space,
            tower,
            heads,
        })
    }

    /// Width, layers, heads and tokens.
    pub fn sizes(&self) -> (usize, usize, usize, usize) {
        let encoder = &self.tower.config().encoder;
        let (layers, heads) = (encoder.layers.len(), encoder.head_count);
        (encoder.hidden_size, layers, heads, self.text.vocabulary())
    }

    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = self.text.inventory()?;
        inventory.merge(self.tower.inventory()?);
        inventory.add_linear(&self.space)?;
        self.heads.list(&mut inventory)?;
        Ok(inventory)
    }

    /// What labels are compared as, one row each.
    pub fn queries(&self, labels: &[String], cancel: &CancelToken) -> Result<Vec<Vec<f32>>> {
        let inputs: Vec<Input<'_>> = labels.iter().map(|label| Input::Single(label)).collect();
        let length = self.length;
        let tokens = batching::tokenize(&self.tokenizer, &inputs, length, Excess::Cut, cancel)?;
        let all: Vec<usize> = (0..labels.len()).collect();
        let sequences = batching::pack(&tokens, &all)?;
        threads::install(|| {
            let states = self.text.forward(&sequences, cancel)?;
            let last = |range: std::ops::Range<usize>| {
                let ids = &sequences.ids()[range.clone()];
                let largest = ids.iter().max();
                let found = ids.iter().position(|id| Some(id) == largest)?;
                Some(range.start + found)
            };
            let ends: Vec<_> = sequences.ranges().map(last).collect();
            let pooled = pooling::pick(&states, &ends)?.to_dtype(self.space.dtype())?;
            let rows = self.space.forward(&pooled)?.to_dtype(DType::F32)?;
            let rows = kernels::l2_normalize(&rows.contiguous()?)?;
            Ok(rows.to_vec2()?)
        })?
    }

    pub fn forward(
        &self,
        view: &View,
        queries: &[Vec<f32>],
        cancel: &CancelToken,
    ) -> Result<Predictions> {
        self.heads.forward(&self.tower, view, queries, cancel)
    }
}
