use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "gemma3",
    matches: types(&["gemma3", "gemma3_text"]),
    config: |raw| {
        let text = raw.opt_nested("text_config")?;
        let raw = text.as_ref().unwrap_or(raw);
        let pattern = raw.opt_usize("sliding_window_pattern")?.unwrap_or(6);
        let mut config = gemma_shared::capped(raw, pattern.max(1))?;
        config.query_key_norm = QueryKeyNorm::PerHead;
        config.bidirectional_images = ImageAttention::Bidirectional;
        if flag(raw, "use_bidirectional_attention", false)? {
            config = gemma_shared::bidirectional(config);
        }
        Ok(gemma_shared::with_local_theta(config, local_theta(raw)?))
    },
    names: |_| gemma2::NAMES,
    gguf: gguf("gemma3", |file| {
        let mut config = gemma_shared::capped_gguf(file, 6, gemma_shared::LAYERS_OF_27B[1])?;
        config.bidirectional_images = ImageAttention::Bidirectional;
        let theta = file.number("rope.freq_base_swa")?;
        Ok(gemma_shared::with_local_theta(config, theta))
    }),
};
