use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "mimo_v2_flash",
    matches: types(&["mimo_v2_flash"]),
    config: |raw| {
        let rope = |theta: f64| json!({"rope_theta": theta, "partial_rotary_factor": 0.334});
        let epsilon = raw.opt_f64("layernorm_epsilon")?.unwrap_or(1e-5);
        // What the original files call the window does not count the token itself.
        let before = raw.opt_usize("sliding_window_size")?;
        let raw = &raw.clone().with_defaults(json!({
            "first_k_dense_replace": 1, "rms_norm_eps": epsilon,
            "sliding_window": before.unwrap_or(128) + 1,
            "rope_parameters": {
                "full_attention": rope(5_000_000.0), "sliding_attention": rope(10_000.0),
            },
        }));
        let mut config = decoder(raw, &Usual::LLAMA)?;
        let window = raw.opt_usize("sliding_window")?;
        config.windows = windows(raw, config.layer_count, window, |layer| {
            layer != 0 && (layer + 1) % 6 != 0
        })?;
        let value_size = raw.opt_usize("v_head_dim")?.unwrap_or(config.head_size);
        let shape = |window: &Option<usize>| LayerShape {
            kv_head_count: config.kv_head_count * if window.is_some() { 2 } else { 1 },
            value_size,
            ..config.shape(0)
        };
        config.shapes = config.windows.iter().map(shape).collect();
        config.value_scale = if raw.keys().any(|key| key == "attention_value_scale") {
            number(raw, "attention_value_scale")?.unwrap_or(1.0)
        } else {
            0.707
        };
        config.sinks = Sinks::Windowed;
        rotate_by_type(raw, &mut config)?;
        config.experts = Some(sigmoid_experts(raw, config.layer_count)?);
        Ok(config)
    },
    names: |_| Names {
        sinks: "self_attn.attention_sink_bias|self_attn.sinks",
        router_bias: "mlp.gate.e_score_correction_bias",
        ..LLAMA
    },
    gguf: gguf("mimo2", |file| {
        let scale = file.number("attention.value_scale")?.unwrap_or(1.0);
        let said = json!({
            "rope_parameters": file.ropes_by_type()?, "attention_value_scale": scale,
            "v_head_dim": file.opt_size("attention.value_length")?,
        });
        let mut config = file.like_with(FAMILY.config, &[], said)?;
        let heads = file.sizes("attention.head_count_kv")?;
        for (layer, shape) in config.shapes.iter_mut().enumerate() {
            let own = heads.get(layer).or(heads.first());
            shape.kv_head_count = *own.unwrap_or(&shape.head_count);
        }
        Ok(config)
    }),
};
