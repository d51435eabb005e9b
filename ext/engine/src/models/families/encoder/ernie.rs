use super::*;

/// BERT's layers, with more in the embeddings or less.
pub const FAMILY: Family<EncoderConfig> = Family {
    name: "ernie",
    matches: types(&["ernie", "layoutlm", "bert-generation"]).or_classes(&[
        "ErnieModel",
        "ErnieFor",
        "LayoutLMModel",
        "LayoutLMFor",
    ]),
    config: |raw| {
        require_positions(raw, "absolute")?;
        encoder(raw, "ernie")
    },
    names: |_| BERT,
    gguf: None,
};
