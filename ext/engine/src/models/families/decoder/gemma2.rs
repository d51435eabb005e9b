use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "gemma2",
    matches: types(&["gemma2"]),
    config: |raw| gemma_shared::capped(raw, 2),
    names: |_| NAMES,
    gguf: gguf("gemma2", |file| {
        gemma_shared::capped_gguf(file, 2, gemma_shared::LAYERS_OF_27B[0])
    }),
};

pub const NAMES: Names = Names {
    post_attention_norm: "post_attention_layernorm",
    mlp_norm: "pre_feedforward_layernorm",
    post_mlp_norm: "post_feedforward_layernorm",
    ..LLAMA
};
