//! What both generations of DeBERTa read alike from a `config.json`.

use super::*;

pub fn encoder(
    raw: &RawConfig,
    family: &'static str,
    buckets: Option<usize>,
) -> Result<EncoderConfig> {
    let config = config_json::encoder(raw, family)?;
    let positions = if flag(raw, "position_biased_input", true)? {
        Positions::Learned
    } else {
        Positions::None
    };
    let disentangled = disentangled(raw, &config, buckets)?;
    let (relative, attention_scale) = if flag(raw, "relative_attention", false)? {
        (Relative::Disentangled(disentangled), None)
    } else {
        // Scores are divided as if they were summed with those of positions.
        let width = (config.head_size * disentangled.scores()) as f32;
        (Relative::None, Some(1.0 / width.sqrt()))
    };
    let pooler = raw.opt_string("pooler_hidden_act")?.unwrap_or("gelu");
    let embedding_size = raw.opt_usize_in("embedding_size", WIDTH)?;
    Ok(EncoderConfig {
        positions,
        relative,
        attention_scale,
        embedding_size: embedding_size.unwrap_or(config.hidden_size),
        heads_on_top: HeadConfigs {
            sequence_activation: activation(pooler, raw.file())?,
            ..config.heads_on_top
        },
        ..config
    })
}

fn disentangled(
    raw: &RawConfig,
    config: &EncoderConfig,
    buckets: Option<usize>,
) -> Result<DisentangledConfig> {
    let kinds = match raw.get("pos_att_type") {
        Some(serde_json::Value::String(joined)) => joined.split('|').map(str::to_owned).collect(),
        _ => raw.opt_strings("pos_att_type")?.unwrap_or_default(),
    };
    let has = |kind: &str| kinds.iter().any(|found| found.trim() == kind);
    let farthest = positive(raw, "max_relative_positions")?.or(config.max_positions);
    let norm = raw.opt_string("norm_rel_ebd")?.unwrap_or("none");
    Ok(DisentangledConfig {
        from_query: has("c2p"),
        from_key: has("p2c"),
        farthest: farthest.unwrap_or(512),
        buckets,
        shared: flag(raw, "share_att_key", false)?,
        normed: norm.to_ascii_lowercase().contains("layer_norm"),
    })
}

/// A size for which files also write −1 or 0, meaning none.
pub fn positive(raw: &RawConfig, key: &str) -> Result<Option<usize>> {
    let numbers = raw.opt_integers(key)?.unwrap_or_default();
    let size = numbers.first().and_then(|&size| usize::try_from(size).ok());
    match size.filter(|&size| size > 0) {
        Some(size) if !POSITIONS.contains(&size) => Err(Error::corrupt(
            raw.file(),
            format!("{key} is {size}, and should be at most {}", POSITIONS.end()),
        )),
        size => Ok(size),
    }
}

/// DeBERTa-v2's convolution.
pub fn convolution(raw: &RawConfig) -> Result<Option<Convolution>> {
    let kernel = raw.opt_usize_in("conv_kernel_size", 0..=1024)?;
    let Some(kernel) = kernel.filter(|&kernel| kernel > 0) else {
        return Ok(None);
    };
    Ok(Some(Convolution {
        kernel,
        groups: raw.opt_usize_in("conv_groups", WIDTH)?.unwrap_or(1),
        activation: activation(raw.opt_string("conv_act")?.unwrap_or("tanh"), raw.file())?,
    }))
}
