use super::*;

pub const FAMILY: Family<SpeechConfig> = Family {
    name: "hubert",
    matches: types(&["hubert"]).or_classes(&["Hubert"]),
    config: |raw| wav2vec2_like(raw, "hubert"),
    names: wav2vec2_names,
    gguf: None,
};
