//! What the generations of Gemma read alike.

use super::*;

pub const USUAL: Usual = Usual {
    activation: Activation::GeluTanh,
    tied: true,
    ..Usual::LLAMA
};

/// The names of models with inputs of layers.
pub const LAYER_INPUTS: Names = Names {
    layer_scale: "layer_scalar",
    layer_input_table: "embed_tokens_per_layer",
    layer_input_projection: "per_layer_model_projection",
    layer_input_norm: "per_layer_projection_norm",
    layer_input_gate: "per_layer_input_gate",
    layer_input_output: "per_layer_projection",
    post_layer_input_norm: "post_per_layer_input_norm",
    router: "router.proj",
    router_norm: "router.scale",
    expert_scales: "router.per_expert_scale",
    expert_gate_up: "experts.gate_up_proj",
    expert_down: "experts.down_proj",
    expert_input_norm: "pre_feedforward_layernorm_2",
    expert_output_norm: "post_feedforward_layernorm_2",
    beside_experts_norm: "post_feedforward_layernorm_1",
    ..gemma2::NAMES
};

/// Of the second and the third generation.
pub const LAYERS_OF_27B: [usize; 2] = [46, 62];

pub fn config(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = scaled(decoder(raw, &USUAL)?);
    config.norm.offset = 1.0;
    // Early configs say `gelu` where the model was trained with the tanh form.
    if config.mlp.activation == Activation::Gelu && !raw.has("hidden_activation") {
        config.mlp.activation = USUAL.activation;
    }
    Ok(config)
}

pub fn gguf(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    Ok(scaled(file.decoder(&USUAL)?))
}

/// What the models with inputs of layers have in common: values are normalized too, and scores are not scaled.
pub fn with_layer_inputs(raw: &RawConfig, width: usize) -> Result<DecoderConfig> {
    let mut config = scaled(decoder(raw, &USUAL)?);
    config.norm_placement = NormPlacement::Both;
    config.query_key_norm = QueryKeyNorm::PerHead;
    config.value_norm = true;
    config.attention_scale = 1.0;
    config.logit_soft_cap = number(raw, "final_logit_softcapping")?;
    let width = raw
        .opt_usize("hidden_size_per_layer_input")?
        .unwrap_or(width);
    config.layer_input_size = (width > 0).then_some(width);
    Ok(config)
}

fn scaled(mut config: DecoderConfig) -> DecoderConfig {
    config.embedding_scale = (config.hidden_size as f32).sqrt();
    config
}

/// From the second generation on; every `pattern`-th layer sees beyond the window.
pub fn capped(raw: &RawConfig, pattern: usize) -> Result<DecoderConfig> {
    let mut config = config(raw)?;
    config.norm_placement = NormPlacement::Both;
    let scalar = raw.opt_f64("query_pre_attn_scalar")?.unwrap_or(256.0);
    config.attention_scale = (1.0 / scalar.sqrt()) as f32;
    config.attention_soft_cap = number(raw, "attn_logit_softcapping")?;
    config.logit_soft_cap = number(raw, "final_logit_softcapping")?;
    let window = raw.opt_usize("sliding_window")?;
    config.windows = windows(raw, config.layer_count, window, |layer| {
        (layer + 1) % pattern != 0
    })?;
    Ok(config)
}

/// The 27b models of both generations scale attention by the width per head, which the file does not
/// say; they are told by `largest`, their number of layers.
pub fn capped_gguf(file: &GgufFile<'_>, pattern: usize, largest: usize) -> Result<DecoderConfig> {
    let mut config = gguf(file)?;
    config.norm_placement = NormPlacement::Both;
    config.attention_soft_cap = file.number("attn_logit_softcapping")?;
    config.logit_soft_cap = file.number("final_logit_softcapping")?;
    config.windows = file.windows(config.layer_count, pattern)?;
    if config.layer_count == largest {
        config.attention_scale = 1.0 / ((config.hidden_size / config.head_count) as f32).sqrt();
    }
    Ok(config)
}

/// Windowed layers of the third generation rotate by a base of their own.
pub fn with_local_theta(mut config: DecoderConfig, theta: Option<f32>) -> DecoderConfig {
    if let Some(rope) = config.relative.rope_mut() {
        rope.local_theta = Some(theta.unwrap_or(10_000.0));
    }
    config
}

/// In which layers the tokens of an image see each other in the fourth generation.
pub fn image_attention(raw: &RawConfig) -> Result<ImageAttention> {
    match raw.opt_string("use_bidirectional_attention")? {
        Some("all") => {
            let reason = "use_bidirectional_attention: \"all\" is not supported";
            Err(Error::unsupported(raw.file(), reason))
        }
        Some("vision") => Ok(ImageAttention::BidirectionalInWindows),
        _ => Ok(ImageAttention::Causal),
    }
}

/// The fourth generation's layers without a window have heads of another size, and in some models no values but their
/// keys.
pub fn heads_by_layer(raw: &RawConfig, config: &mut DecoderConfig) -> Result<()> {
    let keys_alone = flag(raw, "attention_k_eq_v", false)?;
    let global_size = raw.opt_usize("global_head_dim")?.unwrap_or(512);
    let global_heads = raw.opt_usize("num_global_key_value_heads")?;
    let by_layer = raw.opt_nested("per_layer_config")?;
    let of_layer = |(layer, window): (usize, &Option<usize>)| -> Result<LayerShape> {
        let mut shape = config.shape(layer);
        let is_global = window.is_none();
        let (size, heads) = match &by_layer {
            Some(all) => match all.opt_nested(&*layer.to_string())? {
                Some(own) => (
                    own.opt_usize("head_dim")?,
                    own.opt_usize("num_key_value_heads")?,
                ),
                None => (None, None),
            },
            None if is_global => (Some(global_size), global_heads.filter(|_| keys_alone)),
            None => (None, None),
        };
        shape.head_size = size.unwrap_or(shape.head_size);
        shape.value_size = shape.head_size;
        shape.kv_head_count = heads.unwrap_or(shape.kv_head_count);
        if keys_alone && is_global {
            shape.kv = KvSource::KeysAlone;
        }
        Ok(shape)
    };
    let layers = config.windows.iter().enumerate();
    config.shapes = layers.map(of_layer).collect::<Result<_>>()?;
    Ok(())
}

/// EmbeddingGemma. What the file calls the window is then the whole of it, both sides together.
pub fn bidirectional(mut config: DecoderConfig) -> DecoderConfig {
    config.bidirectional = true;
    for window in config.windows.iter_mut().flatten() {
        *window = *window / 2 + 1;
    }
    config
}

/// What the fourth generation's `config.json` says of heads and rotations. In GGUF the first sizes are those of layers
/// without a window, whose frequencies that do not turn are divided by a huge number.
pub fn heads_gguf(file: &GgufFile<'_>) -> Result<serde_json::Value> {
    let layer_count = file.layer_count()?;
    let windowed = file.flags("attention.sliding_window_pattern", layer_count)?;
    let windowed = windowed.unwrap_or_else(|| vec![true; layer_count]);
    let kv_heads = file.sizes("attention.head_count_kv")?;
    let heads_of = |kind: bool| {
        let layer = windowed.iter().position(|windowed| *windowed == kind);
        let own = layer.and_then(|layer| kv_heads.get(layer));
        own.or(kv_heads.first()).copied()
    };
    let mut globals = (0..layer_count).filter(|&layer| !windowed[layer]);
    let keys_alone = globals.any(|layer| {
        let has = |part: &str| file.has(&format!("blk.{layer}.{part}"));
        has("attn_k") && !has("attn_v")
    });
    let global_size = file.size("attention.key_length", WIDTH)?;
    let divisors = file.divisors("rope_freqs.weight", global_size)?;
    let divisors = divisors.unwrap_or_default();
    let turning = divisors.iter().filter(|&&divisor| divisor < 1e20).count();
    let inputs = file.opt_size("embedding_length_per_layer_input")?;
    let inputs = inputs.unwrap_or(0);
    let theta = |name: &str, usual: f32| file.number(name).map(|theta| theta.unwrap_or(usual));
    Ok(json!({
        "head_dim": file.opt_size("attention.key_length_swa")?.unwrap_or(global_size),
        "global_head_dim": global_size,
        "attention_k_eq_v": keys_alone,
        "num_key_value_heads": heads_of(true),
        "num_global_key_value_heads": heads_of(false),
        // Files do not say it. Those with inputs of layers (E2B, E4B) are the ones whose images are causal.
        "use_bidirectional_attention": (inputs == 0).then_some("vision"),
        "enable_moe_block": file.opt_size("expert_count")?.unwrap_or(0) > 0,
        "top_k_experts": file.opt_size("expert_used_count")?,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": theta("rope.freq_base_swa", 10_000.0)?},
            "full_attention": {
                "rope_type": "proportional", "rope_theta": theta("rope.freq_base", 1_000_000.0)?,
                // A quarter above, so that rounding does not lose one.
                "partial_rotary_factor": (turning as f64 + 0.25) * 2.0 / global_size as f64,
            },
        },
    }))
}
