use super::*;

/// Of GGUF files alone: its checkpoints run code of their own.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "minicpm",
    matches: types(&[]),
    config: |raw| decoder(raw, &Usual::LLAMA),
    names: |_| LLAMA,
    gguf: gguf("minicpm", |file| {
        let config = neighbours(file.decoder(&Usual::LLAMA)?);
        let depth = (config.layer_count as f32).sqrt();
        let factor = |key, usual| file.number(key).map(|value| value.unwrap_or(usual));
        Ok(DecoderConfig {
            embedding_scale: factor("embedding_scale", 12.0)?,
            residual_scale: factor("residual_scale", 1.4 / depth)?,
            logit_scale: 1.0 / factor("logit_scale", config.hidden_size as f32 / 256.0)?,
            ..config
        })
    }),
};
