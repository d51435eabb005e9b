use super::*;

pub const FAMILY: Family<SpeechConfig> = Family {
    name: "wav2vec2",
    matches: types(&["wav2vec2"]).or_classes(&["Wav2Vec2For"]),
    config: |raw| wav2vec2_like(raw, "wav2vec2"),
    names: wav2vec2_names,
    gguf: None,
};
