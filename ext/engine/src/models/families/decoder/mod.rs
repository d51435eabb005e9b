//! Causal language models.

mod afmoe;
mod apertus;
mod arcee;
mod aria_text;
mod axk1;
mod axk2;
mod baichuan;
mod bailing_hybrid;
mod bailingmoe;
mod bamba;
mod beam;
mod biogpt;
mod bitnet;
mod bloom;
mod codegen;
mod cohere;
mod cohere2;
mod cohere2_moe;
mod cwm;
mod dbrx;
mod deepseek_v2;
mod deepseek_v3;
mod deepseek_v32;
mod diffllama;
mod dots1;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone4;
mod exaone_moe;
mod falcon;
mod falcon_h1;
mod falcon_mamba;
mod flex_olmo;
mod flint;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod gemma_shared;
mod glm;
mod glm4;
mod glm4_moe;
mod glm4_moe_lite;
mod glm4v;
mod glm_moe_dsa;
mod got_ocr2;
mod gpt2;
mod gpt_bigcode;
mod gpt_neo;
mod gpt_neox;
mod gpt_neox_japanese;
mod gpt_oss;
mod gptj;
mod granite;
mod granite_swa;
mod granitemoe;
mod granitemoe_swa;
mod granitemoehybrid;
mod granitemoeshared;
mod helium;
mod hrm_text;
mod hunyuan_v1_dense;
mod hunyuan_v1_moe;
mod hy_v3;
mod hyperclovax;
mod jais;
mod jais2;
mod jamba;
mod jetmoe;
mod kimi_linear;
mod kolibri1;
mod laguna;
mod latent_shared;
mod lfm2;
mod lfm2_moe;
mod lfm2_vl;
mod llama;
mod llama4_text;
mod longcat_flash;
mod mamba;
mod mamba2;
mod mamba_shared;
mod mellum;
mod mimo_v2_flash;
mod minicpm;
mod minicpm3;
mod minimax;
mod minimax_m2;
mod ministral3;
mod mistral;
mod mixtral;
mod modernbert_decoder;
mod mpt;
mod nanochat;
mod nemotron;
mod nemotron_h;
mod olmo;
mod olmo2;
mod olmo3;
mod olmo_hybrid;
mod olmoe;
mod opt;
mod orion;
mod paddleocr_vl;
mod persimmon;
mod phi;
mod phi3;
mod phimoe;
mod plamo2;
mod qwen2;
mod qwen2_moe;
mod qwen2_vl;
mod qwen3;
mod qwen3_5;
mod qwen3_moe;
mod qwen3_next;
mod qwen3_vl;
mod recurrent_gemma;
mod refact;
mod rwkv;
mod rwkv6;
mod seed_oss;
mod smollm3;
mod solar_open;
mod stablelm;
mod starcoder2;
mod state_gguf;
mod state_shared;
mod vaultgemma;
mod xglm;
mod youtu;
mod zamba2;

use super::*;

pub const FAMILIES: &[Family<DecoderConfig>] = &[
    llama::FAMILY,
    mistral::FAMILY,
    mixtral::FAMILY,
    qwen2::FAMILY,
    qwen2_vl::FAMILY,
    qwen3::FAMILY,
    qwen2_moe::FAMILY,
    qwen3_moe::FAMILY,
    gemma::FAMILY,
    gemma2::FAMILY,
    gemma3::FAMILY,
    phi::FAMILY,
    phi3::FAMILY,
    stablelm::FAMILY,
    falcon::FAMILY,
    granite::FAMILY,
    olmo2::FAMILY,
    smollm3::FAMILY,
    glm4::FAMILY,
    starcoder2::FAMILY,
    gpt2::FAMILY,
    gpt_neox::FAMILY,
    apertus::FAMILY,
    arcee::FAMILY,
    biogpt::FAMILY,
    opt::FAMILY,
    bitnet::FAMILY,
    bloom::FAMILY,
    codegen::FAMILY,
    gptj::FAMILY,
    cohere::FAMILY,
    cohere2::FAMILY,
    cwm::FAMILY,
    ernie4_5::FAMILY,
    exaone4::FAMILY,
    glm::FAMILY,
    gpt_bigcode::FAMILY,
    gpt_neo::FAMILY,
    gpt_neox_japanese::FAMILY,
    granite_swa::FAMILY,
    helium::FAMILY,
    hunyuan_v1_dense::FAMILY,
    hyperclovax::FAMILY,
    jais2::FAMILY,
    ministral3::FAMILY,
    mpt::FAMILY,
    nanochat::FAMILY,
    nemotron::FAMILY,
    olmo::FAMILY,
    olmo3::FAMILY,
    persimmon::FAMILY,
    seed_oss::FAMILY,
    vaultgemma::FAMILY,
    modernbert_decoder::FAMILY,
    xglm::FAMILY,
    afmoe::FAMILY,
    aria_text::FAMILY,
    dbrx::FAMILY,
    dots1::FAMILY,
    ernie4_5_moe::FAMILY,
    exaone_moe::FAMILY,
    flex_olmo::FAMILY,
    glm4_moe::FAMILY,
    gpt_oss::FAMILY,
    granitemoe::FAMILY,
    granitemoeshared::FAMILY,
    granitemoe_swa::FAMILY,
    hunyuan_v1_moe::FAMILY,
    llama4_text::FAMILY,
    minimax_m2::FAMILY,
    olmoe::FAMILY,
    phimoe::FAMILY,
    solar_open::FAMILY,
    kolibri1::FAMILY,
    mellum::FAMILY,
    flint::FAMILY,
    deepseek_v2::FAMILY,
    deepseek_v3::FAMILY,
    glm4_moe_lite::FAMILY,
    glm4v::FAMILY,
    got_ocr2::FAMILY,
    axk1::FAMILY,
    longcat_flash::FAMILY,
    minicpm3::FAMILY,
    youtu::FAMILY,
    beam::FAMILY,
    cohere2_moe::FAMILY,
    hy_v3::FAMILY,
    hrm_text::FAMILY,
    jetmoe::FAMILY,
    diffllama::FAMILY,
    laguna::FAMILY,
    gemma3n::FAMILY,
    gemma4::FAMILY,
    mimo_v2_flash::FAMILY,
    deepseek_v32::FAMILY,
    glm_moe_dsa::FAMILY,
    axk2::FAMILY,
    lfm2::FAMILY,
    lfm2_moe::FAMILY,
    lfm2_vl::FAMILY,
    qwen3_next::FAMILY,
    qwen3_vl::FAMILY,
    paddleocr_vl::FAMILY,
    qwen3_5::FAMILY,
    olmo_hybrid::FAMILY,
    kimi_linear::FAMILY,
    bailing_hybrid::FAMILY,
    minimax::FAMILY,
    recurrent_gemma::FAMILY,
    rwkv::FAMILY,
    rwkv6::FAMILY,
    plamo2::FAMILY,
    orion::FAMILY,
    minicpm::FAMILY,
    baichuan::FAMILY,
    refact::FAMILY,
    jais::FAMILY,
    bailingmoe::FAMILY,
    granitemoehybrid::FAMILY,
    bamba::FAMILY,
    mamba2::FAMILY,
    falcon_h1::FAMILY,
    nemotron_h::FAMILY,
    mamba::FAMILY,
    falcon_mamba::FAMILY,
    jamba::FAMILY,
    zamba2::FAMILY,
];
