use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "recurrent_gemma",
    matches: types(&["recurrent_gemma"]),
    config: |raw| {
        let raw = &raw
            .clone()
            .with_defaults(json!({"max_position_embeddings": 8192}));
        let usual = Usual {
            rotated: 0.5,
            ..gemma_shared::USUAL
        };
        let mut config = decoder(raw, &usual)?;
        config.norm.offset = 1.0;
        let scale = (config.hidden_size as f32).sqrt();
        config.embedding_scale = half::bf16::from_f32(scale).to_f32();
        config.logit_soft_cap = Some(number(raw, "logits_soft_cap")?.unwrap_or(30.0));
        let window = raw.opt_usize("attention_window_size")?;
        config.windows = vec![window.or(Some(2048)); config.layer_count];
        let kinds = raw.opt_strings("block_types")?.unwrap_or_default();
        config.sublayers = sublayers(raw, config.layer_count, |layer| {
            let kind = kinds.get(layer % kinds.len().max(1));
            kind.map_or(layer % 3 == 2, |kind| kind == "attention")
        })?;
        config.state = Some(StateKind::Rglru(Rglru {
            width: raw.opt_usize("lru_width")?.unwrap_or(config.hidden_size),
            blocks: config.head_count,
            taps: raw.opt_usize("conv1d_width")?.unwrap_or(4),
            activation: config.mlp.activation,
        }));
        Ok(config)
    },
    names: |_| Names {
        final_norm: "final_norm",
        attention_norm: "temporal_pre_norm",
        mlp_norm: "channel_pre_norm",
        query: "temporal_block.q_proj",
        key: "temporal_block.k_proj",
        value: "temporal_block.v_proj",
        attention_output: "temporal_block.o_proj",
        gate: "mlp_block.gate_proj",
        up: "mlp_block.up_proj",
        down: "mlp_block.down_proj",
        state_gate: "temporal_block.linear_y",
        state_input: "temporal_block.linear_x",
        state_convolution: "temporal_block.conv_1d",
        state_input_gate: "temporal_block.rg_lru.input_gate_weight",
        state_input_gate_bias: "temporal_block.rg_lru.input_gate_bias",
        state_fading: "temporal_block.rg_lru.recurrent_gate_weight",
        state_fading_bias: "temporal_block.rg_lru.recurrent_gate_bias",
        state_decay: "temporal_block.rg_lru.recurrent_param",
        state_output: "temporal_block.linear_out",
        ..LLAMA
    },
    gguf: None,
};
