//! The families: for each, which files are its, what they mean, and what its tensors are called. One
//! file per family, for `config.json` and GGUF alike; what several share stands in the files named
//! below first.

mod config_json;
mod encoder_decoder;
mod gguf_config;
mod gguf_metadata;
mod gguf_names;
mod names;
mod qwen_shared;
mod rope_json;
mod seq2seq_names;
mod speech_config;
mod speech_names;
mod unsupported;
mod vision_names;

mod decoder;
mod encoder;
mod seq2seq;
mod speech;
mod vision;
mod vlm;

use crate::models::config::{self, *};
use crate::models::convolutional;
use crate::models::decoder::blocks::SharedBlocks;
use crate::models::decoder::config::{
    DecoderConfig, ExpertLayout, Experts, Factors, Groups, Growth, HeadTransform, ImageAttention,
    Indexer, Latent, OutputGate, QueryKeyNorm, Residual, ResidualWeights, RowOrder, Scoring,
    Shared, Sinks, Stacks, Temperature,
};
use crate::models::decoder::lanes::LaneConfig;
use crate::models::decoder::mixers::{
    DeltaRule, Fading, Generation, LinearAttention, Rglru, Rwkv, RwkvHeads, SelectedHeads,
    Selective, ShortConv, Ssm, SsmFactors, SsmNorm, StateKind, Sublayers,
};
use crate::models::decoder::plain::DecoderSizes;
use crate::models::decoder::shapes::{KvSource, LayerShape};
use crate::models::depth;
use crate::models::detection;
use crate::models::encoder::config::*;
use crate::models::image_to_text;
use crate::models::masked;
use crate::models::parts::Names;
use crate::models::prompted;
use crate::models::segmentation;
use crate::models::seq2seq::{DecoderShape, Seq2SeqConfig};
use crate::models::speech::config::*;
use crate::models::towers;
use crate::models::vision::config::*;
use crate::models::vision::connector::{Between, ConnectorConfig, Gather, Inner, Layout};
use crate::models::vision::own::OwnConfig;
use crate::models::vision::resampler::ResamplerConfig;
use crate::models::vision::vlm::{Pattern, Spelling, Token, VideoConfig, VlmConfig};
use crate::nn::AttentionKind;
use crate::{Error, Result};
use formats::files::raw_config::{RawConfig, HEADS, LAYERS, POSITIONS, VOCABULARY, WIDTH};
use formats::image::{FrameKind, PatchOrder};
use formats::weights::WeightSource;
use kernels::{Activation, ClampedGlu, RopeKind};

use serde_json::json;

use config_json::*;
use encoder_decoder::{bart_like, bart_stacks, stack, BartLike};
use gguf_metadata::{grouped_gguf, neighbours, GgufFile};
use names::*;
use qwen_shared::{
    grid_theta, in_blocks, in_sections, in_windows, qwen_vision, qwen_windowed_vision,
    rope_sections, sectioned_gguf, stacked_experts, take_turns, take_turns_gguf, tied_outside,
    turned_gguf,
};
use rope_json::{local_theta, rope, rope_of_type, score_scale};
use seq2seq_names::*;
use speech_names::*;
pub use unsupported::unknown;
use vision_names::*;

use speech_config::*;

pub use encoder_decoder::reading_decoder;
pub use gguf_names::{gguf_names, GgufNames};
pub use vlm::colmodernvbert::blueprint as modernvbert;

/// A family of models of one shape, which `C` describes.
pub struct Family<C: 'static> {
    pub name: &'static str,
    /// Which `config.json` files are its.
    pub matches: ConfigMatch,
    pub config: fn(&RawConfig) -> Result<C>,
    /// As transformers calls its modules; of a family as such where there is no checkpoint.
    pub names: fn(Option<&C>) -> Names,
    pub gguf: Option<Gguf<C>>,
}

/// Which `config.json` files are of a family.
pub struct ConfigMatch {
    model_types: &'static [&'static str],
    classes: &'static [&'static str],
    condition: Option<fn(&RawConfig) -> bool>,
}

/// Files with one of these for `model_type`.
const fn types(model_types: &'static [&'static str]) -> ConfigMatch {
    ConfigMatch {
        model_types,
        classes: &[],
        condition: None,
    }
}

impl ConfigMatch {
    /// Also old files without a `model_type`, whose class begins so.
    const fn or_classes(self, classes: &'static [&'static str]) -> Self {
        Self { classes, ..self }
    }

    /// Only files for which this holds: another family has the same `model_type`.
    const fn only_if(self, condition: fn(&RawConfig) -> bool) -> Self {
        Self {
            condition: Some(condition),
            ..self
        }
    }

    fn holds(&self, raw: &RawConfig) -> bool {
        let named = match raw.model_type() {
            Ok(Some(found)) => self.model_types.contains(&found),
            _ => raw.architectures().is_ok_and(|all| {
                let ours = |name: &String| self.classes.iter().any(|class| name.starts_with(class));
                all.iter().any(ours)
            }),
        };
        named && self.condition.is_none_or(|condition| condition(raw))
    }
}

/// A family as GGUF files have it.
pub struct Gguf<C: 'static> {
    /// `general.architecture`, or what `Shape::architecture` says instead; `|` separates several.
    pub architecture: &'static str,
    pub config: fn(&GgufFile<'_>) -> Result<C>,
    pub names: fn(&C) -> Names,
}

/// A family whose GGUF files call tensors as most do.
const fn gguf<C: 'static>(
    architecture: &'static str,
    config: fn(&GgufFile<'_>) -> Result<C>,
) -> Option<Gguf<C>> {
    gguf_named(architecture, config, |_| GGUF)
}

const fn gguf_named<C: 'static>(
    architecture: &'static str,
    config: fn(&GgufFile<'_>) -> Result<C>,
    names: fn(&C) -> Names,
) -> Option<Gguf<C>> {
    Some(Gguf {
        architecture,
        config,
        names,
    })
}

/// A description of models that are run by one forward.
pub trait Shape: Sized + 'static {
    /// With its article.
    const KIND: &'static str;

    /// The first match counts.
    const FAMILIES: &'static [Family<Self>];

    fn check(&self) -> Checked;

    /// What checkpoints of a family with these names are for, where they have the head for it; called as in Ruby.
    fn tasks(names: &Names) -> Vec<&'static str>;

    /// What tells the families of GGUF files apart.
    fn architecture<'a>(file: &GgufFile<'a>) -> Result<&'a str> {
        Ok(file.architecture())
    }
}

impl Shape for EncoderConfig {
    const KIND: &'static str = "an encoder";

    const FAMILIES: &'static [Family<Self>] = encoder::FAMILIES;

    fn check(&self) -> Checked {
        EncoderConfig::check(self)
    }

    fn tasks(names: &Names) -> Vec<&'static str> {
        let masked = !names.masked_output.is_empty();
        let own = masked.then_some(["masked_lm", "sparse"]);
        let tasks = [
            vec!["embedding"],
            heads_for(names),
            own.into_iter().flatten().collect(),
        ];
        [tasks.concat(), vec!["late_interaction"]].concat()
    }
}

impl Shape for VisionConfig {
    const KIND: &'static str = "a vision model";

    const FAMILIES: &'static [Family<Self>] = vision::FAMILIES;

    fn check(&self) -> Checked {
        VisionConfig::check(self)
    }

    fn tasks(names: &Names) -> Vec<&'static str> {
        if !names.finder_tokens.is_empty() {
            return vec!["object_detector"];
        }
        let classifier = !names.sequence_output.is_empty();
        let classifier = classifier.then_some("image_classifier");
        ["image_embedding"].into_iter().chain(classifier).collect()
    }
}

impl Shape for VlmConfig {
    const KIND: &'static str = "a model of texts and images";

    const FAMILIES: &'static [Family<Self>] = vlm::FAMILIES;

    fn check(&self) -> Checked {
        VlmConfig::check(self)
    }

    fn tasks(_: &Names) -> Vec<&'static str> {
        vec!["llm", "vlm", "document_reader"]
    }

    /// Files of vision towers all call themselves clip.
    fn architecture<'a>(file: &GgufFile<'a>) -> Result<&'a str> {
        file.projector()
    }
}

impl Shape for DecoderConfig {
    const KIND: &'static str = "a language model";

    const FAMILIES: &'static [Family<Self>] = decoder::FAMILIES;

    fn check(&self) -> Checked {
        DecoderConfig::check(self)
    }

    fn tasks(names: &Names) -> Vec<&'static str> {
        [vec!["llm", "embedding"], heads_for(names)].concat()
    }
}

impl Shape for Seq2SeqConfig {
    const KIND: &'static str = "an encoder-decoder";

    const FAMILIES: &'static [Family<Self>] = seq2seq::FAMILIES;

    fn check(&self) -> Checked {
        Seq2SeqConfig::check(self)
    }

    fn tasks(names: &Names) -> Vec<&'static str> {
        [vec!["seq2seq", "embedding"], heads_for(names)].concat()
    }
}

/// What heads that a family has names for are for.
fn heads_for(names: &Names) -> Vec<&'static str> {
    let sequence = !names.sequence_output.is_empty();
    let sequence = sequence.then_some(["reranker", "classifier"]);
    let token = !names.token_output.is_empty();
    let question = !names.question_output.is_empty();
    let tasks = sequence.into_iter().flatten();
    let tasks = tasks.chain(token.then_some("ner"));
    tasks
        .chain(question.then_some("question_answering"))
        .collect()
}

impl Shape for SpeechConfig {
    const KIND: &'static str = "a model of speech";

    const FAMILIES: &'static [Family<Self>] = speech::FAMILIES;

    fn check(&self) -> Checked {
        SpeechConfig::check(self)
    }

    fn tasks(names: &Names) -> Vec<&'static str> {
        let alone = !names.sequence_output.is_empty();
        let speech = !alone || !names.head.is_empty();
        let alone = alone.then_some(["audio_embedding", "audio_classifier"]);
        let alone = alone.into_iter().flatten();
        speech
            .then_some("speech")
            .into_iter()
            .chain(alone)
            .collect()
    }
}

/// What a checkpoint is, before its tensors are read.
#[derive(Clone, Debug)]
pub struct Blueprint<C> {
    pub config: C,
    /// What the file calls its tensors.
    pub names: Names,
    /// What transformers calls them, and so adapters.
    pub modules: Names,
    pub padding_id: Option<u32>,
}

impl<C: Shape> Blueprint<C> {
    pub fn from_config(raw: &RawConfig) -> Result<Self> {
        let family = find(raw)?;
        let config = (family.config)(raw)?;
        C::check(&config).map_err(|reason| Error::corrupt(raw.file(), reason))?;
        let names = (family.names)(Some(&config));
        let text = raw.opt_nested("text_config")?;
        Ok(Self {
            config,
            names,
            modules: names,
            padding_id: text.as_ref().unwrap_or(raw).padding_id()?,
        })
    }

    pub fn from_gguf(source: &dyn WeightSource) -> Result<Self> {
        let file = GgufFile::new(source)?;
        let (family, gguf) = find_gguf(&file)?;
        let config = (gguf.config)(&file)?;
        C::check(&config).map_err(|reason| file.corrupt(reason))?;
        Ok(Self {
            names: (gguf.names)(&config),
            modules: (family.names)(Some(&config)),
            padding_id: file.padding_id()?,
            config,
        })
    }
}

/// Whether a `config.json` is of a family of this shape.
pub fn matches<C: Shape>(raw: &RawConfig) -> bool {
    C::FAMILIES.iter().any(|family| family.matches.holds(raw))
}

/// Whether a GGUF file is of a family of this shape.
pub fn matches_gguf<C: Shape>(architecture: &str) -> bool {
    architectures::<C>().contains(&architecture)
}

/// Every `model_type` of a shape.
pub fn known<C: Shape>() -> Vec<&'static str> {
    let families = C::FAMILIES.iter();
    families
        .flat_map(|family| family.matches.model_types.iter().copied())
        .collect()
}

/// The families of a shape, as GGUF files name them.
pub fn architectures<C: Shape>() -> Vec<&'static str> {
    let families = C::FAMILIES.iter();
    let gguf = families.filter_map(|family| family.gguf.as_ref());
    gguf.flat_map(|gguf| gguf.architecture.split('|')).collect()
}

/// A `model_type` that a shape of models has.
pub struct Supported {
    pub model_type: &'static str,
    /// Where checkpoints have the head for it.
    pub tasks: Vec<&'static str>,
    /// What GGUF files call it; empty where there are none.
    pub architectures: Vec<&'static str>,
}

/// Models of texts and images whose images alone can be classified and embedded.
pub const PAIRS: &[&str] = &["clip", "siglip", "siglip2", "metaclip_2"];

/// Every `model_type` of every shape; one that several have stands several times.
pub fn supported() -> Vec<Supported> {
    [
        list::<EncoderConfig>(),
        list::<DecoderConfig>(),
        list::<Seq2SeqConfig>(),
        list::<VisionConfig>(),
        list::<VlmConfig>(),
        list::<SpeechConfig>(),
        bare(detection::TYPES, &["object_detector"]),
        bare(detection::OPEN_TYPES, &["object_detector"]),
        bare(detection::GROUNDED_TYPES, &["object_detector"]),
        bare(depth::TYPES, &["depth_estimator"]),
        bare(prompted::TYPES, &["image_segmenter"]),
        bare(segmentation::TYPES, &["image_segmenter"]),
        bare(masked::TYPES, &["image_segmenter"]),
        bare(&["clap"], &["audio_embedding"]),
        bare(image_to_text::TYPES, &["document_reader"]),
        bare(
            &["colpali", "colqwen2", "colmodernvbert", "idefics3"],
            &["late_interaction"],
        ),
        bare(
            convolutional::TYPES,
            &["image_embedding", "image_classifier"],
        ),
        bare(towers::TYPES, &["image_embedding"]),
        bare(towers::CLASSIFIERS, &["image_classifier"]),
        bare(PAIRS, &["image_embedding", "image_classifier"]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What has no table of names: its files tell its structure.
fn bare(types: &[&'static str], tasks: &[&'static str]) -> Vec<Supported> {
    let entry = |&model_type: &&'static str| Supported {
        model_type,
        tasks: tasks.to_vec(),
        architectures: Vec::new(),
    };
    types.iter().map(entry).collect()
}

fn list<C: Shape>() -> Vec<Supported> {
    let families = C::FAMILIES.iter();
    let entries = families.flat_map(|family| {
        let types = family.matches.model_types.iter();
        types.map(move |model_type| (family, model_type))
    });
    entries
        .map(|(family, model_type)| {
            let gguf = family.gguf.iter();
            Supported {
                model_type,
                tasks: C::tasks(&(family.names)(None)),
                architectures: gguf.flat_map(|gguf| gguf.architecture.split('|')).collect(),
            }
        })
        .collect()
}

fn find<C: Shape>(raw: &RawConfig) -> Result<&'static Family<C>> {
    let family = C::FAMILIES.iter().find(|family| family.matches.holds(raw));
    match (family, raw.model_type()?) {
        (Some(family), _) => Ok(family),
        (None, found) => Err(unknown(
            raw.file(),
            ("model_type", found.unwrap_or("(none)")),
            C::KIND,
            &known::<C>(),
        )),
    }
}

fn find_gguf<C: Shape>(file: &GgufFile<'_>) -> Result<(&'static Family<C>, &'static Gguf<C>)> {
    let architecture = C::architecture(file)?;
    let mut families = C::FAMILIES
        .iter()
        .filter_map(|family| Some((family, family.gguf.as_ref()?)));
    families
        .find(|(_, gguf)| {
            gguf.architecture
                .split('|')
                .any(|name| name == architecture)
        })
        .ok_or_else(|| {
            let found = ("architecture", architecture);
            unknown(file.path(), found, C::KIND, &architectures::<C>())
        })
}
