use super::*;

/// The texts of LFM2-VL, which says itself whether the head is tied.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "lfm2_vl",
    matches: types(&["lfm2_vl"]),
    config: |raw| {
        let tied = flag(raw, "tie_word_embeddings", true)?;
        let tied = flag(raw, "tie_embedding", tied)?;
        let text = raw.nested("text_config")?;
        let text = text.with(json!({"tie_word_embeddings": tied}));
        match text.model_type()? {
            Some("lfm2") | None => lfm2::config(&text),
            Some("lfm2_moe") => (lfm2_moe::FAMILY.config)(&text),
            Some(other) => {
                let reason = format!("texts of the type {other:?} in LFM2-VL are not supported");
                Err(Error::unsupported(raw.file(), reason))
            }
        }
    },
    names: |config| match config.and_then(|config| config.experts.as_ref()) {
        Some(_) => (lfm2_moe::FAMILY.names)(None),
        None => lfm2::NAMES,
    },
    gguf: None,
};
