use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "exaone4",
    matches: types(&["exaone4"]),
    config: |raw| {
        let mut config = attention(raw)?;
        config.norm_placement = NormPlacement::Output;
        Ok(config)
    },
    names: |_| Names {
        post_attention_norm: "post_attention_layernorm",
        post_mlp_norm: "post_feedforward_layernorm",
        ..LLAMA
    },
    gguf: gguf("exaone4", |file| file.like(FAMILY.config, &[])),
};

/// Layers without a window do not rotate.
pub fn attention(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = decoder(raw, &Usual::LLAMA)?;
    config.query_key_norm = QueryKeyNorm::PerHead;
    let pattern = raw.opt_usize("sliding_window_pattern").ok().flatten();
    sliding(raw, &mut config, pattern.unwrap_or(4))?;
    if raw.opt_usize("sliding_window")?.is_some() {
        rotate_in_windows(&mut config);
    }
    Ok(config)
}
