//! Rotary positions as `config.json` has them.

use super::*;

/// Reads both spellings: `rope_theta` with `rope_scaling`, and the newer `rope_parameters`. `rotated`
/// and `theta` hold where the file says nothing.
pub fn rope(raw: &RawConfig, head_size: usize, rotated: f64, theta: f64) -> Result<RopeConfig> {
    let parameters = parameters(raw)?;
    given(raw, parameters, head_size, rotated, theta)
}

/// The rotation of layers of one type, as `rope_parameters` lists them; `None` where these do not rotate.
pub fn rope_of_type(raw: &RawConfig, kind: &str, head_size: usize) -> Result<Option<RopeConfig>> {
    let parameters = match raw.opt_nested("rope_parameters")? {
        Some(all) => all.opt_nested(kind)?,
        None => None,
    };
    parameters
        .map(|parameters| given(raw, Some(parameters), head_size, 1.0, 10_000.0))
        .transpose()
}

fn given(
    raw: &RawConfig,
    parameters: Option<RawConfig>,
    head_size: usize,
    rotated: f64,
    theta: f64,
) -> Result<RopeConfig> {
    let read = |inner: &str, outer: &[&str], otherwise: f64| -> Result<f64> {
        let inner = match &parameters {
            Some(parameters) => parameters.opt_f64(inner)?,
            None => None,
        };
        match inner {
            Some(value) => Ok(value),
            None => Ok(raw.opt_f64(outer)?.unwrap_or(otherwise)),
        }
    };
    let bases = ["rope_theta", "rotary_emb_base", "global_rope_theta"];
    let portions = ["partial_rotary_factor", "rotary_pct", "rotary_emb_fraction"];
    let portion = read("partial_rotary_factor", &portions, rotated)?;
    if !(0.0..=1.0).contains(&portion) {
        return Err(Error::corrupt(
            raw.file(),
            format!("rotary positions can't rotate {portion} of a head"),
        ));
    }
    let kind = match &parameters {
        Some(parameters) => parameters.opt_string(["rope_type", "type"])?,
        None => None,
    };
    let rotary_size = match kind {
        Some("proportional") => head_size,
        _ => (head_size as f64 * portion) as usize,
    };
    Ok(RopeConfig {
        theta: read("rope_theta", &bases, theta)? as f32,
        local_theta: None,
        rotary_size,
        pairing: RopeKind::Half,
        scaling: match &parameters {
            Some(parameters) if kind == Some("proportional") => RopeScaling::Proportional {
                turning: (head_size as f64 * portion / 2.0) as usize,
                factor: number(parameters, "factor")?.unwrap_or(1.0),
            },
            Some(parameters) => scaling(raw, parameters, rotary_size)?,
            None => RopeScaling::None,
        },
        layers: Vec::new(),
        by_layer: Vec::new(),
        unscaled_windows: false,
        backwards: false,
        axes: RopeAxes::Line,
    })
}

/// What says how frequencies are scaled.
fn parameters(raw: &RawConfig) -> Result<Option<RawConfig>> {
    match raw.opt_nested("rope_parameters")? {
        Some(parameters) => Ok(Some(match parameters.opt_nested("full_attention")? {
            Some(global) => global,
            None => parameters,
        })),
        None => raw.opt_nested("rope_scaling"),
    }
}

/// What scores are multiplied by where positions are scaled (DeepSeek).
pub fn score_scale(raw: &RawConfig) -> Result<f32> {
    let Some(parameters) = parameters(raw)? else {
        return Ok(1.0);
    };
    let kind = parameters.opt_string(["rope_type", "type"])?;
    let factor = parameters.opt_f64("factor")?.unwrap_or(1.0);
    let scale = parameters.opt_f64("mscale_all_dim")?.unwrap_or(0.0);
    if matches!(kind, None | Some("default")) || factor <= 1.0 {
        return Ok(1.0);
    }
    Ok((0.1 * scale * factor.ln() + 1.0).powi(2) as f32)
}

/// The base of layers with a sliding window, where the file has one.
pub fn local_theta(raw: &RawConfig) -> Result<Option<f32>> {
    let parameters = match raw.opt_nested("rope_parameters")? {
        Some(parameters) => parameters.opt_nested("sliding_attention")?,
        None => None,
    };
    let theta = match parameters {
        Some(parameters) => parameters.opt_f64("rope_theta")?,
        None => raw.opt_f64(["rope_local_base_freq", "local_rope_theta"])?,
    };
    Ok(theta.map(|theta| theta as f32))
}

fn scaling(raw: &RawConfig, parameters: &RawConfig, rotary_size: usize) -> Result<RopeScaling> {
    let kind = parameters
        .opt_string(["rope_type", "type"])?
        .unwrap_or("default");
    let number = |key: &str| -> Result<Option<f32>> {
        Ok(parameters.opt_f64(key)?.map(|value| value as f32))
    };
    let original = match parameters.opt_usize("original_max_position_embeddings")? {
        Some(original) => Some(original),
        None => raw.opt_usize("original_max_position_embeddings")?,
    };
    let original = match original {
        Some(original) => original,
        None => raw.opt_usize("max_position_embeddings")?.unwrap_or(2048),
    };
    let longest = raw
        .opt_usize("max_position_embeddings")?
        .unwrap_or(original);
    let factor = number("factor")?.unwrap_or(longest as f32 / original as f32);
    match kind {
        // `dynamic` changes the base beyond `max_position_embeddings` alone, where our context ends.
        "default" | "mrope" | "dynamic" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor }),
        "ntk" if factor >= 1.0 && factor.is_finite() && !parameters.has("mixed_b") => {
            Ok(RopeScaling::Ntk { factor })
        }
        "llama3" => Ok(RopeScaling::Llama3 {
            factor,
            low_frequency_factor: number("low_freq_factor")?.unwrap_or(1.0),
            high_frequency_factor: number("high_freq_factor")?.unwrap_or(4.0),
            original_positions: original,
        }),
        "yarn" => {
            let magnitude = |scale: f32| {
                if factor <= 1.0 {
                    1.0
                } else {
                    0.1 * scale * factor.ln() + 1.0
                }
            };
            let (scale, all) = (number("mscale")?, number("mscale_all_dim")?);
            let default = match (scale, all) {
                (Some(scale), Some(all)) if scale != 0.0 && all != 0.0 => {
                    magnitude(scale) / magnitude(all)
                }
                _ => magnitude(1.0),
            };
            Ok(RopeScaling::Yarn {
                factor,
                beta_fast: number("beta_fast")?.unwrap_or(32.0),
                beta_slow: number("beta_slow")?.unwrap_or(1.0),
                original_positions: original,
                attention_factor: number("attention_factor")?.unwrap_or(default),
                truncate: parameters.opt_bool("truncate")?.unwrap_or(true),
            })
        }
        "longrope" | "su" => {
            let divisors = |key: &str| -> Result<Vec<f32>> {
                let divisors = parameters.opt_numbers(key)?.unwrap_or_default();
                if divisors.len() != rotary_size / 2 {
                    return Err(Error::corrupt(
                        raw.file(),
                        format!(
                            "{key} has {} entries instead of {}",
                            divisors.len(),
                            rotary_size / 2
                        ),
                    ));
                }
                Ok(divisors.into_iter().map(|divisor| divisor as f32).collect())
            };
            let default = if factor <= 1.0 {
                1.0
            } else {
                (1.0 + factor.ln() / (original as f32).ln()).sqrt()
            };
            Ok(RopeScaling::LongRope {
                short: divisors("short_factor")?,
                long: divisors("long_factor")?,
                original_positions: original,
                attention_factor: number("attention_factor")?.unwrap_or(default),
            })
        }
        other => Err(Error::unsupported(
            raw.file(),
            format!("rope scaling {other:?} is not supported"),
        )),
    }
}
