use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "apertus",
    matches: types(&["apertus"]),
    config: |raw| {
        // The activation stands in the layers.
        let mut config = decoder(
            &raw.clone().with(json!({"hidden_act": "silu"})),
            &Usual {
                mlp: MlpKind::Plain,
                ..Usual::LLAMA
            },
        )?;
        config.query_key_norm = QueryKeyNorm::PerHead;
        config.xielu = true;
        Ok(config)
    },
    names: |_| Names {
        attention_norm: "attention_layernorm",
        mlp_norm: "feedforward_layernorm",
        xielu_positive: "mlp.act_fn.alpha_p",
        xielu_negative: "mlp.act_fn.alpha_n",
        xielu_linear: "mlp.act_fn.beta",
        xielu_most: "mlp.act_fn.eps",
        ..LLAMA
    },
    gguf: Some(Gguf {
        architecture: "apertus",
        config: |file| file.like(FAMILY.config, &[]),
        names: |_| GGUF,
    }),
};
