use super::*;

const USUAL: Usual = Usual {
    norm: NormKind::Layer,
    ..Usual::LLAMA
};

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "dbrx",
    matches: types(&["dbrx"]),
    config: |raw| {
        let attention = raw.nested("attn_config")?;
        let ffn = raw.nested("ffn_config")?;
        let theta = attention.opt_f64("rope_theta")?.unwrap_or(10_000.0);
        let given = raw.clone().with_defaults(json!({
            "num_key_value_heads": attention.opt_usize("kv_n_heads")?.unwrap_or(1),
            "num_hidden_layers": raw.usize("n_layers")?,
            "max_position_embeddings": raw.opt_usize("max_seq_len")?.unwrap_or(2048),
            "rope_theta": theta,
        }));
        let mut config = decoder(&given.with(json!({"layer_norm_eps": 1e-5})), &USUAL)?;
        config.qkv_limit = number(&attention, "clip_qkv")?;
        let (count, used) = (ffn.usize("moe_num_experts")?, ffn.usize("moe_top_k")?);
        config.experts = Some(Experts {
            normalize: ffn.opt_f64("moe_normalize_expert_weights")?.is_some(),
            layout: ExpertLayout::Rows,
            ..Experts::softmax(count, used, config.layer_count)
        });
        Ok(config)
    },
    names: |_| Names {
        layer: "blocks.{}.",
        final_norm: "norm_f",
        attention_norm: "norm_attn_norm.norm_1",
        mlp_norm: "norm_attn_norm.norm_2",
        qkv: "norm_attn_norm.attn.Wqkv",
        attention_output: "norm_attn_norm.attn.out_proj",
        router: "ffn.router.layer",
        expert_gate: "ffn.experts.mlp.w1",
        expert_up: "ffn.experts.mlp.v1",
        expert_down: "ffn.experts.mlp.w2",
        transposed: false,
        ..GPT2
    },
    gguf: Some(Gguf {
        architecture: "dbrx",
        config: |file| {
            let mut config = file.decoder(&USUAL)?;
            config.qkv_limit = file.number("attention.clamp_kqv")?;
            config.experts = file.experts(true, false)?;
            Ok(config)
        },
        names: |_| Names {
            mlp_norm: "attn_output_norm",
            ..GGUF
        },
    }),
};
