use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "minicpm3",
    matches: types(&["minicpm3"]),
    config: |raw| {
        let mut config = latent_shared::latent(raw, &Usual::TIED, false)?;
        let factor = |key, usual| number(raw, key).map(|value| value.unwrap_or(usual));
        config.embedding_scale = factor("scale_emb", 12.0)?;
        let depth = (config.layer_count as f32).sqrt();
        config.residual_scale = factor("scale_depth", 1.4)? / depth;
        config.logit_scale = factor("dim_model_base", 256.0)? / config.hidden_size as f32;
        Ok(config)
    },
    names: |_| latent_shared::NAMES,
    gguf: gguf("minicpm3", |file| file.like(FAMILY.config, &[])),
};
