use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "olmo2",
    matches: types(&["olmo2"]),
    config: |raw| Ok(shape(decoder(raw, &Usual::LLAMA)?)),
    names: |_| NAMES,
    // The third generation's files call themselves so too.
    gguf: gguf("olmo2", |file| file.like(olmo3::config, &[])),
};

pub const NAMES: Names = Names {
    post_attention_norm: "post_attention_layernorm",
    post_mlp_norm: "post_feedforward_layernorm",
    ..LLAMA
};

pub fn shape(mut config: DecoderConfig) -> DecoderConfig {
    config.norm_placement = NormPlacement::Output;
    config.query_key_norm = QueryKeyNorm::Whole;
    config
}
