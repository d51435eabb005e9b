use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "apertus",
    matches: types(&["apertus"]),
    config: |raw| {
        // xIELU's parameters stand in the layers.
        let xielu = matches!(raw.opt_string("hidden_act")?, None | Some("xielu"));
        let plain = if xielu {
            json!({"hidden_act": "silu"})
        } else {
            json!({})
        };
        let usual = Usual {
            mlp: MlpKind::Plain,
            ..Usual::LLAMA
        };
        let mut config = decoder(&raw.clone().with(plain), &usual)?;
        config.query_key_norm = QueryKeyNorm::PerHead;
        config.xielu = xielu;
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
    gguf: gguf("apertus", |file| file.like(FAMILY.config, &[])),
};
