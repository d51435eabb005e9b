//! Texts and images as vectors of one space.

use candle_core::{DType, Tensor};
use serde_json::json;

use crate::models::encoder::{self, Encoder};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{pooling, Inventory, Linear, PackedSequences};
use crate::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::text::tokenizer::{Input, Tokenizer};

use super::classify::{sigmoid, softmax};
use super::embed::Embeddings;
use super::loading::{effective_length, Checkpoint, LoadOptions, ModelInfo};
use super::vision::{Picture, VisionTower};
use crate::serving::batching::{self, Excess, Tokens};

pub struct ClipModel {
    text: Encoder,
    text_space: Option<Linear>,
    vision: VisionTower,
    image_space: Option<Linear>,
    tokenizer: Tokenizer,
    ending: Ending,
    matching: Matching,
    dimension: usize,
    info: ModelInfo,
}

/// Which token stands for a text.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// The first end token (CLIP).
    Token(u32),
    /// The first of the largest tokens, which is the end token of CLIP's vocabulary: files of its
    /// first days name another.
    Largest,
    /// The last of as many tokens as there are positions, the rest of which is padding (SigLIP).
    Padded(u32),
}

/// What makes a score of the cosine of a text and an image.
#[derive(Clone, Copy, Debug)]
enum Matching {
    /// The texts compete.
    Softmax { scale: f32 },
    /// Each text fits or does not.
    Sigmoid { scale: f32, bias: f32 },
}

impl ClipModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let raw = checkpoint.config.as_ref().ok_or_else(|| {
            Error::unsupported(
                &checkpoint.source.file(""),
                "CLIP models are not read from GGUF files",
            )
        })?;
        let kind = Kind::of(raw)?;
        let (text_raw, vision_raw) = Kind::configs(raw)?;
        let blueprint = encoder::Blueprint::from_config(&text_raw)?;
        let source = checkpoint.source.as_ref();
        let (device, dtype) = (&checkpoint.opened, checkpoint.dtype);
        let text = Encoder::load(&blueprint, source, device, dtype, checkpoint.int8, cancel)?;
        if options.verifies() {
            text.verify(&blueprint, source, cancel)?;
        }
        let vision = VisionTower::load(&vision_raw, &checkpoint, files, cancel)?;
        let parameters = Parameters::new(source, &blueprint.names, device, dtype)?;
        let text_width = text.config().hidden_size;
        let text_space = parameters.optional_linear(Part::SharedSpace, text_width)?;
        let image_width = vision.tower.config().encoder.hidden_size;
        let image_space = match kind {
            Kind::Clip | Kind::MetaClip => Some(vision.tower_projection(&vision_raw, &checkpoint)?),
            Kind::Siglip => None,
        };
        let dimension = image_space.as_ref().map_or(image_width, Linear::outputs);
        if text_space.as_ref().map_or(text_width, Linear::outputs) != dimension {
            return Err(Error::corrupt(
                &source.file(""),
                "its texts and its images do not become vectors of one length",
            ));
        }
        let tokenizer = checkpoint
            .tokenizer(files, options, cancel)?
            .with_padding(None)
            .with_truncation(None);
        let positions = text.max_positions();
        let max_length = match kind {
            Kind::Clip | Kind::MetaClip => effective_length(&[options.max_length, positions])?,
            Kind::Siglip => effective_length(&[positions])?,
        };
        let mut inventory = text.inventory()?;
        inventory.merge(vision.tower.inventory()?);
        for linear in [&text_space, &image_space].into_iter().flatten() {
            inventory.add_linear(linear)?;
        }
        inventory.add_rows("l2_normalize", device)?;
        Ok(Self {
            ending: kind.ending(&text_raw, &tokenizer)?,
            matching: kind.matching(&parameters)?,
            info: info(
                &checkpoint,
                options,
                &text,
                &vision,
                (dimension, max_length),
                inventory,
            )?,
            text,
            text_space,
            vision,
            image_space,
            tokenizer,
            dimension,
        })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The length of a vector.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// Vectors of length 1, in the order of the texts.
    pub fn embed_texts<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        cancel: &CancelToken,
    ) -> Result<Embeddings> {
        let inputs: Vec<Input<'_>> = texts
            .iter()
            .map(|text| Input::Single(text.as_ref()))
            .collect();
        let length = self.info.max_length;
        let mut tokens = batching::tokenize(&self.tokenizer, &inputs, length, Excess::Cut, cancel)?;
        if let Ending::Padded(padding) = self.ending {
            for Tokens { ids, type_ids } in &mut tokens {
                ids.resize(length, padding);
                type_ids.resize(length, 0);
            }
        }
        let forward = |sequences: &PackedSequences| {
            let states = self.text.forward(sequences, cancel)?;
            let pooled = pooling::pick(&states, &self.ends(sequences))?;
            self.finish(pooled, self.text_space.as_ref())
        };
        let (width, device) = (self.dimension, self.info.device);
        let values = batching::rows(&tokens, width, device, cancel, forward)?;
        self.embeddings(values, texts.len())
    }

    /// Vectors of length 1, in the order of the pictures. `first` is what errors call the first one.
    pub fn embed_images(
        &self,
        pictures: &[Picture],
        first: usize,
        cancel: &CancelToken,
    ) -> Result<Embeddings> {
        let values = self.vision.rows(pictures, first, cancel, |seen| {
            let pooled = self.vision.tower.pool(seen)?;
            let rows = self.finish(pooled, self.image_space.as_ref())?;
            let shape = (rows.len() / self.dimension, self.dimension);
            Ok(Tensor::from_vec(rows, shape, &candle_core::Device::Cpu)?)
        })?;
        self.embeddings(values, pictures.len())
    }

    /// For each picture, how well each text fits: one row per picture, in the order of the texts.
    /// `first` is what errors call the first picture.
    pub fn match_texts<T: AsRef<str> + Sync>(
        &self,
        pictures: &[Picture],
        first: usize,
        texts: &[T],
        cancel: &CancelToken,
    ) -> Result<Vec<Vec<f32>>> {
        let texts = self.embed_texts(texts, cancel)?;
        let images = self.embed_images(pictures, first, cancel)?;
        let score = |image: &[f32]| -> Vec<f32> {
            let rows = texts.values.chunks_exact(self.dimension);
            let dot = |text: &[f32]| image.iter().zip(text).map(|(a, b)| a * b).sum::<f32>();
            let cosines: Vec<f32> = rows.map(dot).collect();
            self.matching.scores(&cosines)
        };
        Ok(images
            .values
            .chunks_exact(self.dimension)
            .map(score)
            .collect())
    }

    /// The row of each sequence that stands for its text.
    fn ends(&self, sequences: &PackedSequences) -> Vec<Option<usize>> {
        let end = |range: std::ops::Range<usize>| {
            let ids = &sequences.ids()[range.clone()];
            let found = match self.ending {
                Ending::Token(end) => ids.iter().position(|&id| id == end),
                Ending::Largest => {
                    let largest = ids.iter().max();
                    ids.iter().position(|id| Some(id) == largest)
                }
                Ending::Padded(_) => None,
            };
            let last = ids.len().checked_sub(1)?;
            Some(range.start + found.unwrap_or(last))
        };
        sequences.ranges().map(end).collect()
    }

    fn finish(&self, pooled: Tensor, space: Option<&Linear>) -> Result<Vec<f32>> {
        let projected = match space {
            Some(space) => space.forward(&pooled.to_dtype(space.dtype())?)?,
            None => pooled,
        };
        let rows = kernels::l2_normalize(&projected.to_dtype(DType::F32)?.contiguous()?)?;
        Ok(rows.flatten_all()?.to_vec1()?)
    }

    fn embeddings(&self, values: Vec<f32>, count: usize) -> Result<Embeddings> {
        self.info.check_numbers(&values)?;
        Ok(Embeddings {
            values,
            count,
            dimension: self.dimension,
        })
    }
}

impl VisionTower {
    fn tower_projection(&self, raw: &RawConfig, checkpoint: &Checkpoint) -> Result<Linear> {
        let names = crate::models::vision::Blueprint::from_config(raw)?.names;
        let source = checkpoint.source.as_ref();
        let parameters = Parameters::new(source, &names, &checkpoint.opened, checkpoint.dtype)?;
        let width = self.tower.config().encoder.hidden_size;
        let projection = parameters.optional_linear(Part::SharedSpace, width)?;
        projection.ok_or_else(|| parameters.missing(Part::SharedSpace))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Clip,
    MetaClip,
    Siglip,
}

impl Kind {
    fn of(raw: &RawConfig) -> Result<Self> {
        match raw.model_type()? {
            Some("clip") => Ok(Self::Clip),
            Some("metaclip_2") => Ok(Self::MetaClip),
            Some("siglip" | "siglip2") => Ok(Self::Siglip),
            found => Err(Error::unsupported(
                raw.file(),
                format!(
                    "model_type {:?} is not a supported model of text and images. Supported are clip, siglip, \
                     siglip2 and metaclip_2",
                    found.unwrap_or("(none)")
                ),
            )),
        }
    }

    /// The configurations of texts and images, each with its model type.
    fn configs(raw: &RawConfig) -> Result<(RawConfig, RawConfig)> {
        let nested = |key: &str| -> Result<RawConfig> {
            let found = raw.opt_nested(key)?;
            found.map_or_else(|| RawConfig::parse(raw.file(), "{}"), Ok)
        };
        let own = raw.model_type()?.unwrap_or_default();
        let kind = |part: &str| json!({"model_type": format!("{own}_{part}_model")});
        let text = nested("text_config")?.with_defaults(kind("text"));
        let vision = nested("vision_config")?.with_defaults(kind("vision"));
        Ok((text, vision))
    }

    fn ending(self, text: &RawConfig, tokenizer: &Tokenizer) -> Result<Ending> {
        let id = |key: &str| -> Result<Option<u32>> {
            let ids = text.opt_integers(key)?.unwrap_or_default();
            Ok(ids.first().and_then(|&id| u32::try_from(id).ok()))
        };
        let declared = |token: &str| tokenizer.special_tokens().id(token);
        Ok(match self {
            Self::Clip => match id("eos_token_id")? {
                Some(2) | None => Ending::Largest,
                Some(end) => Ending::Token(end),
            },
            Self::MetaClip => Ending::Token(id("eos_token_id")?.unwrap_or(49_407)),
            Self::Siglip => {
                let padding = match declared("pad_token") {
                    Some(padding) => Some(padding),
                    None => id("pad_token_id")?,
                };
                Ending::Padded(padding.unwrap_or(1))
            }
        })
    }

    fn matching(self, parameters: &Parameters<'_>) -> Result<Matching> {
        let number = |part: Part| -> Result<Option<f32>> {
            let Some(tensor) = parameters.optional_tensor(part)? else {
                return Ok(None);
            };
            let values: Vec<f32> = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
            Ok(values.first().copied())
        };
        let scale = number(Part::MatchScale)?.unwrap_or(2.6592).exp();
        Ok(match self {
            Self::Clip | Self::MetaClip => Matching::Softmax { scale },
            Self::Siglip => Matching::Sigmoid {
                scale,
                bias: number(Part::MatchBias)?.unwrap_or(0.0),
            },
        })
    }
}

impl Matching {
    fn scores(self, cosines: &[f32]) -> Vec<f32> {
        match self {
            Self::Softmax { scale } => softmax(
                &cosines
                    .iter()
                    .map(|cosine| cosine * scale)
                    .collect::<Vec<_>>(),
            ),
            Self::Sigmoid { scale, bias } => {
                let score = |cosine: &f32| sigmoid(cosine * scale + bias);
                cosines.iter().map(score).collect()
            }
        }
    }
}

fn info(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    text: &Encoder,
    vision: &VisionTower,
    (dimension, max_length): (usize, usize),
    inventory: Inventory,
) -> Result<ModelInfo> {
    let vision = &vision.tower.config().encoder;
    Ok(ModelInfo {
        architecture: checkpoint.architecture()?,
        family: vision.family.to_owned(),
        parameters: checkpoint.parameters(),
        hidden_size: dimension,
        layers: vision.layers.len(),
        attention_heads: vision.head_count,
        vocabulary: text.vocabulary(),
        max_length,
        device: checkpoint.device,
        dtype: checkpoint.dtype,
        int8: checkpoint.int8,
        files: checkpoint.source.files(),
        inventory,
        verified: options.verifies(),
    })
}
