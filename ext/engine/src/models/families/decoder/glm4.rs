use super::*;

/// Half of each head is rotated.
pub const USUAL: Usual = Usual {
    rotated: 0.5,
    ..Usual::LLAMA
};

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "glm4",
    matches: types(&["glm4"]),
    config: |raw| Ok(shape(decoder(raw, &USUAL)?)),
    names: |_| NAMES,
    gguf: gguf("glm4", |file| {
        in_sections(file, shape(file.decoder(&USUAL)?))
    }),
};

pub const NAMES: Names = Names {
    post_attention_norm: "post_self_attn_layernorm",
    post_mlp_norm: "post_mlp_layernorm",
    ..LLAMA
};

pub fn shape(mut config: DecoderConfig) -> DecoderConfig {
    config.norm_placement = NormPlacement::Both;
    config.relative.interleave();
    config
}
