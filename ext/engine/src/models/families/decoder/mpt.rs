use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "mpt",
    matches: types(&["mpt"]),
    config: |raw| {
        let given = raw.clone().with_defaults(json!({
            "num_hidden_layers": raw.usize("n_layers")?,
            "max_position_embeddings": raw.opt_usize("max_seq_len")?.unwrap_or(2048),
        }));
        let usual = Usual {
            tied: true,
            ..Usual::LAYER_NORM
        };
        let mut config = decoder(&given, &usual)?;
        let attention = raw.opt_nested("attn_config")?;
        let attention = attention.unwrap_or_else(|| raw.clone());
        refuse(&attention, &["qk_ln", "prefix_lm"])?;
        config.qkv_limit = number(&attention, "clip_qkv")?;
        if let Some(scale) = number(&attention, "softmax_scale")? {
            config.attention_scale = scale;
        }
        config.relative = Relative::Alibi {
            slopes: slopes(config.head_count),
        };
        Ok(config)
    },
    names: |_| Names {
        layer: "blocks.{}.",
        final_norm: "norm_f",
        attention_norm: "norm_1",
        mlp_norm: "norm_2",
        qkv: "attn.Wqkv",
        attention_output: "attn.out_proj",
        up: "ffn.up_proj",
        down: "ffn.down_proj",
        transposed: false,
        ..GPT2
    },
    gguf: gguf("mpt", |file| {
        file.like(FAMILY.config, &[("block_count", "n_layers")])
    }),
};

/// The reference ignores `alibi_bias_max`. Every second slope comes first where the number of heads is not a power
/// of two.
fn slopes(heads: usize) -> Vec<f32> {
    let count = heads.next_power_of_two();
    let slope = |k: usize| 2f64.powf(-((k + 1) as f64) * 8.0 / count as f64) as f32;
    if count == heads {
        return (0..heads).map(slope).collect();
    }
    let odd = (1..count).step_by(2);
    odd.chain((0..count).step_by(2))
        .take(heads)
        .map(slope)
        .collect()
}
