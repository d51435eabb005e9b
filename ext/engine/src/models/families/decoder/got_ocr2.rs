use super::*;

/// The texts of GOT-OCR and Ovis 2 are Qwen2's. What stands outside of them says whether the head is tied.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "got_ocr2",
    matches: types(&["got_ocr2", "ovis2"]),
    config: |raw| {
        let tied = flag(raw, "tie_word_embeddings", true)?;
        let text = raw.nested("text_config")?;
        let text = text.with(json!({"tie_word_embeddings": tied}));
        match text.model_type()? {
            Some("qwen2") | None => (qwen2::FAMILY.config)(&text),
            Some(other) => {
                let reason =
                    format!("texts of the type {other:?} in such a model are not supported");
                Err(Error::unsupported(raw.file(), reason))
            }
        }
    },
    names: |_| LLAMA,
    gguf: None,
};
