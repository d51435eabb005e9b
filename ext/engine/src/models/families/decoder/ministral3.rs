use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "ministral3",
    matches: types(&["ministral3", "mistral3"]),
    config: |raw| {
        let raw = text_of(raw)?;
        let mut config = mistral::windowed(&raw, &Usual::LLAMA)?;
        if let Some(rope) = raw.opt_nested("rope_parameters")? {
            let period = rope.opt_usize("original_max_position_embeddings")?;
            config.temperature = match (rope.opt_f64("llama_4_scaling_beta")?, period) {
                (Some(beta), Some(period)) => {
                    Some(Temperature::steps(beta as f32, 0.0, period as f32))
                }
                _ => None,
            };
        }
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: gguf("mistral3", |file| {
        let config = file.like(FAMILY.config, &[])?;
        let beta = file.number("attention.temperature_scale")?;
        let period = file.number("rope.scaling.original_context_length")?;
        let temperature = match (beta, period) {
            (Some(beta), Some(period)) if beta != 0.0 && period > 0.0 => {
                Some(Temperature::steps(beta, 0.0, period))
            }
            _ => None,
        };
        Ok(neighbours(DecoderConfig {
            temperature,
            ..config
        }))
    }),
};
