use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "hyperclovax",
    matches: types(&["hyperclovax"]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        multiplied(raw, &mut config)?;
        // Granite divides by what this multiplies with.
        config.logit_scale = number(raw, "logits_scaling")?.unwrap_or(1.0);
        if flag(raw, "use_post_norm", true)? {
            config.norm_placement = NormPlacement::Both;
        }
        Ok(config)
    },
    names: |_| Names {
        post_attention_norm: "post_norm1",
        post_mlp_norm: "post_norm2",
        ..LLAMA
    },
    gguf: None,
};
