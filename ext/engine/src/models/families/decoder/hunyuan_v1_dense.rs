use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "hunyuan_v1_dense",
    matches: types(&["hunyuan_v1_dense"]),
    config: |raw| config(raw),
    names: |_| NAMES,
    gguf: gguf("hunyuan-dense", |file| file.like(FAMILY.config, &[])),
};

pub const NAMES: Names = Names {
    query_norm: "self_attn.query_layernorm",
    key_norm: "self_attn.key_layernorm",
    ..LLAMA
};

/// A fixed `alpha` makes its dynamic scaling a larger base.
pub fn config(raw: &RawConfig) -> Result<DecoderConfig> {
    let nested = raw.opt_nested("rope_parameters")?;
    let parameters = match nested {
        Some(parameters) => Some(parameters),
        None => raw.opt_nested("rope_scaling")?,
    };
    let alpha = match &parameters {
        Some(parameters) => parameters.opt_f64("alpha")?,
        None => None,
    };
    let mut config = match alpha {
        Some(_) => {
            let plain = json!({"rope_parameters": null, "rope_scaling": null});
            decoder(&raw.clone().with(plain), &Usual::LLAMA)?
        }
        None => decoder(raw, &Usual::LLAMA)?,
    };
    if let (Some(rope), Some(alpha), Some(given)) = (config.relative.rope_mut(), alpha, parameters)
    {
        let size = rope.rotary_size as f64;
        let theta = given
            .opt_f64("rope_theta")?
            .unwrap_or(f64::from(rope.theta));
        rope.theta = (theta * alpha.powf(size / (size - 2.0))) as f32;
    }
    config.query_key_norm = QueryKeyNorm::PerHead;
    config.norm_after_rope = true;
    Ok(config)
}
