use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "biogpt",
    matches: types(&["biogpt"]),
    config: |raw| {
        let raw = raw.clone().with(json!({"layer_norm_eps": 1e-5}));
        let mut config = learned_from(
            decoder(
                &raw,
                &Usual {
                    tied: true,
                    ..Usual::LAYER_NORM
                },
            )?,
            2,
        );
        if flag(&raw, "scale_embedding", true)? {
            config.embedding_scale = (config.hidden_size as f32).sqrt();
        }
        Ok(config)
    },
    names: |_| Names {
        body: "biogpt.",
        head: "output_projection",
        final_norm: "layer_norm",
        token_embedding: "embed_tokens",
        position_embedding: "embed_positions",
        attention_norm: "self_attn_layer_norm",
        mlp_norm: "final_layer_norm",
        attention_output: "self_attn.out_proj",
        up: "fc1",
        down: "fc2",
        ..LLAMA
    },
    gguf: None,
};
