use super::*;

/// Its texts alone: without entities a layer is RoBERTa's.
pub const FAMILY: Family<EncoderConfig> = Family {
    name: "luke",
    matches: types(&["luke"]).or_classes(&["Luke"]),
    config: |raw| after_padding(raw, "luke"),
    names: |_| roberta::LM_HEAD,
    gguf: None,
};
