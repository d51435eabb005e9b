//! The families: for each, which configurations are its, what they mean, and what its tensors are
//! called.

mod albert;
mod bert;
mod deberta;
mod distilbert;
mod electra;
mod gguf;
mod gte;
mod jina;
mod modernbert;
mod mpnet;
mod nomic;
mod roberta;

use crate::files::raw_config::{RawConfig, HEADS, LAYERS, POSITIONS, VOCABULARY, WIDTH};
use crate::weights::Metadata;
use crate::{Error, Result};

use super::config::{
    activation, EncoderConfig, FusedQkv, HeadConfigs, Mlp, NormKind, NormPlacement, Positions,
    Relative, RopeConfig,
};
use super::layer::plain_layers;
use super::parts::Names;

pub struct Family {
    pub name: &'static str,
    pub matches: fn(&RawConfig) -> bool,
    pub config: fn(&RawConfig) -> Result<EncoderConfig>,
    pub names: Names,
}

/// A family as GGUF files describe it.
pub struct GgufFamily {
    pub architecture: &'static str,
    pub config: fn(&Metadata, &str) -> Result<EncoderConfig>,
    pub names: Names,
}

/// The first match counts: Jina's configurations also call themselves bert.
const FAMILIES: &[Family] = &[
    jina::FAMILY,
    bert::FAMILY,
    roberta::FAMILY,
    distilbert::FAMILY,
    mpnet::FAMILY,
    electra::FAMILY,
    albert::FAMILY,
    deberta::VERSION_1,
    deberta::VERSION_2,
    nomic::FAMILY,
    gte::FAMILY,
    modernbert::FAMILY,
];

pub fn matches(raw: &RawConfig) -> bool {
    FAMILIES.iter().any(|family| (family.matches)(raw))
}

pub fn names() -> Vec<&'static str> {
    FAMILIES.iter().map(|family| family.name).collect()
}

/// The architectures of GGUF files.
pub fn gguf_names() -> Vec<&'static str> {
    let families = gguf::FAMILIES.iter();
    families.map(|family| family.architecture).collect()
}

pub fn find(raw: &RawConfig) -> Result<&'static Family> {
    let family = FAMILIES.iter().find(|family| (family.matches)(raw));
    family.ok_or_else(|| {
        let found = raw.model_type().ok().flatten().unwrap_or("(none)");
        let known = names().join(", ");
        Error::unsupported(
            raw.file(),
            format!("model_type {found:?} is not a supported encoder. Supported are {known}"),
        )
    })
}

pub fn find_gguf(metadata: &Metadata) -> Result<&'static GgufFamily> {
    let architecture = metadata.str("general.architecture")?;
    let mut families = gguf::FAMILIES.iter();
    let family = families.find(|family| family.architecture == architecture);
    family.ok_or_else(|| {
        let known = gguf_names().join(", ");
        Error::unsupported(
            metadata.file(),
            format!(
                "architecture {architecture:?} is not a supported encoder. Supported are {known}"
            ),
        )
    })
}

/// By `model_type`, or by the class where old files say only that.
fn is(raw: &RawConfig, model_types: &[&str], class: &str) -> bool {
    match raw.model_type() {
        Ok(Some(found)) => model_types.contains(&found),
        _ => raw
            .architectures()
            .is_ok_and(|all| all.iter().any(|name| name.starts_with(class))),
    }
}

/// What BERT's relatives have in common; each then says where it differs.
fn common(raw: &RawConfig, family: &'static str) -> Result<EncoderConfig> {
    let hidden = raw.usize_in(["hidden_size", "dim", "n_embd"], WIDTH)?;
    let heads = raw.usize_in(["num_attention_heads", "n_heads", "n_head"], HEADS)?;
    let layers = raw.usize_in(["num_hidden_layers", "n_layers", "n_layer"], LAYERS)?;
    let act = raw.opt_string(["hidden_act", "activation", "hidden_activation"])?;
    let head_width = match raw.opt_usize_in("head_dim", WIDTH)? {
        Some(width) => width,
        None if hidden % heads == 0 => hidden / heads,
        None => {
            return Err(Error::corrupt(
                raw.file(),
                format!("a hidden size of {hidden} is not a multiple of {heads} heads"),
            ))
        }
    };
    let epsilon = raw.opt_f64([
        "layer_norm_eps",
        "layer_norm_epsilon",
        "norm_eps",
        "rms_norm_eps",
    ])?;
    let act = activation(act.unwrap_or("gelu"))?;
    Ok(EncoderConfig {
        family,
        vocabulary: raw.usize_in("vocab_size", VOCABULARY)?,
        hidden,
        heads,
        head_width,
        intermediate: raw
            .opt_usize_in(["intermediate_size", "hidden_dim", "n_inner"], WIDTH)?
            .unwrap_or(4 * hidden),
        layers: plain_layers(layers),
        embedding_width: hidden,
        token_types: raw.opt_usize("type_vocab_size")?.unwrap_or(0),
        positions: Positions::Learned,
        relative: Relative::None,
        max_positions: raw.opt_usize_in(["max_position_embeddings", "n_positions"], POSITIONS)?,
        norm: NormKind::Layer,
        epsilon: epsilon.unwrap_or(1e-12) as f32,
        placement: NormPlacement::Post,
        mlp: Mlp::Plain,
        activation: act,
        fused_qkv: FusedQkv::Stacked,
        heads_on_top: HeadConfigs {
            masked_activation: act,
            ..HeadConfigs::default()
        },
        padding_id: raw.padding_id()?,
        convolution: None,
    })
}

/// `position_embedding_type` must be what the family is written for.
fn require_positions(raw: &RawConfig, wanted: &str) -> Result<()> {
    match raw.opt_string("position_embedding_type")? {
        None => Ok(()),
        Some(found) if found == wanted => Ok(()),
        Some(found) => Err(Error::unsupported(
            raw.file(),
            format!("position_embedding_type {found:?} is not supported, only {wanted:?}"),
        )),
    }
}

/// `rope_theta` of its own, or inside `rope_parameters` as newer files have it.
fn rope_theta(raw: &RawConfig, keys: &[&str], otherwise: f64) -> Result<f32> {
    let nested = raw.opt_nested("rope_parameters")?;
    let theta = match &nested {
        Some(nested) => nested.opt_f64("rope_theta")?,
        None => None,
    };
    let theta = theta.or(raw.opt_f64(keys)?).unwrap_or(otherwise);
    if !(theta.is_finite() && theta > 0.0) {
        return Err(Error::corrupt(
            raw.file(),
            format!("rope_theta cannot be {theta}"),
        ));
    }
    Ok(theta as f32)
}

fn plain_rope(theta: f32, rotary: usize) -> RopeConfig {
    RopeConfig {
        theta,
        rotary,
        divisor: 1.0,
        interleaved: false,
    }
}
