//! Encoders.

mod albert;
mod bert;
mod clip_text;
mod deberta;
mod deberta_v2;
mod disentangled;
mod distilbert;
mod electra;
mod gte;
mod jina;
mod modernbert;
mod mpnet;
mod nomic;
mod roberta;
mod siglip_text;
mod t5_encoder;

use super::*;

/// The first match counts: Jina's configurations also call themselves bert.
pub const FAMILIES: &[Family<EncoderConfig>] = &[
    jina::FAMILY,
    bert::FAMILY,
    roberta::FAMILY,
    distilbert::FAMILY,
    mpnet::FAMILY,
    electra::FAMILY,
    albert::FAMILY,
    deberta::FAMILY,
    deberta_v2::FAMILY,
    nomic::FAMILY,
    gte::FAMILY,
    modernbert::FAMILY,
    t5_encoder::FAMILY,
    clip_text::FAMILY,
    siglip_text::FAMILY,
];
