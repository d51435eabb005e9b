//! What the generations of Gemma read alike.

use super::*;

const USUAL: Usual = Usual {
    activation: Activation::GeluTanh,
    tied: true,
    ..Usual::LLAMA
};

/// Of the second and the third generation.
pub const LAYERS_OF_27B: [usize; 2] = [46, 62];

pub fn config(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = scaled(decoder(raw, &USUAL)?);
    config.norm.offset = 1.0;
    // Early configs say `gelu` where the model was trained with the tanh form.
    config.mlp.activation = USUAL.activation;
    Ok(config)
}

pub fn gguf(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    Ok(scaled(file.decoder(&USUAL)?))
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

/// EmbeddingGemma. What the file calls the window is then the whole of it, both sides together.
pub fn bidirectional(mut config: DecoderConfig) -> DecoderConfig {
    config.bidirectional = true;
    for window in config.windows.iter_mut().flatten() {
        *window = *window / 2 + 1;
    }
    config
}
