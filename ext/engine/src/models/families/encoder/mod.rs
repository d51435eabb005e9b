//! Encoders.

mod albert;
mod bert;
mod big_bird;
mod clip_text;
mod convbert;
mod deberta;
mod deberta_v2;
mod disentangled;
mod distilbert;
mod electra;
mod encoder_shared;
mod ernie;
mod esm;
mod eurobert;
mod fnet;
mod gte;
mod jina;
mod jina_v3;
mod longformer;
mod luke;
mod megatron_bert;
mod mobilebert;
mod modernbert;
mod modernvbert;
mod mpnet;
mod neobert;
mod nomic;
mod nomic_moe;
mod nystromformer;
mod rembert;
mod roberta;
mod roberta_prelayernorm;
mod roformer;
mod siglip_text;
mod squeezebert;
mod t5_encoder;
mod t5gemma;
mod ultrabert;
mod umt5;
mod xlm;
mod xmod;

use super::*;
use encoder_shared::*;

/// The first match counts: Jina's configurations also call themselves bert and xlm-roberta.
pub const FAMILIES: &[Family<EncoderConfig>] = &[
    jina::FAMILY,
    jina_v3::FAMILY,
    bert::FAMILY,
    ernie::FAMILY,
    roberta::FAMILY,
    luke::FAMILY,
    roberta_prelayernorm::FAMILY,
    distilbert::FAMILY,
    mpnet::FAMILY,
    electra::FAMILY,
    albert::FAMILY,
    deberta::FAMILY,
    deberta_v2::FAMILY,
    nomic_moe::FAMILY,
    nomic::FAMILY,
    neobert::FAMILY,
    gte::FAMILY,
    modernbert::FAMILY,
    modernvbert::FAMILY,
    eurobert::FAMILY,
    ultrabert::FAMILY,
    roformer::FAMILY,
    megatron_bert::FAMILY,
    rembert::FAMILY,
    squeezebert::FAMILY,
    convbert::FAMILY,
    mobilebert::FAMILY,
    esm::FAMILY,
    fnet::FAMILY,
    nystromformer::FAMILY,
    big_bird::FAMILY,
    longformer::FAMILY,
    xlm::FAMILY,
    xmod::FAMILY,
    t5_encoder::FAMILY,
    umt5::FAMILY,
    t5gemma::FAMILY,
    clip_text::FAMILY,
    siglip_text::FAMILY,
];
