use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "opt",
    matches: types(&["opt"]),
    config: |raw| {
        if !flag(raw, "do_layer_norm_before", true)? {
            let reason = "do_layer_norm_before: false (OPT 350m) is not supported";
            return Err(Error::unsupported(raw.file(), reason));
        }
        refuse(raw, &["_remove_final_layer_norm"])?;
        let usual = Usual {
            tied: true,
            activation: Activation::Relu,
            ..Usual::LAYER_NORM
        };
        let raw = raw.clone().with(json!({"layer_norm_eps": 1e-5}));
        Ok(learned_from(decoder(&raw, &usual)?, 2))
    },
    names: |_| Names {
        body: "model.decoder.",
        final_norm: "final_layer_norm",
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
