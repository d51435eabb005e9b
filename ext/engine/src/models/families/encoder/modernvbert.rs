use super::*;

/// Its texts alone.
pub const FAMILY: Family<EncoderConfig> = Family {
    name: "modernvbert",
    matches: types(&["modernvbert"]).or_classes(&["ModernVBert"]),
    config: |raw| {
        let text = text_of(raw)?;
        let mut config = modernbert::config(&text)?;
        config.heads_on_top.pooling = classifier_heads(raw)?.pooling;
        Ok(config)
    },
    names: |_| Names {
        masked_dense: "projection_head.dense",
        masked_norm: "projection_head.norm",
        masked_output: "lm_head",
        masked_bias: "lm_head.bias",
        ..modernbert::NAMES
    },
    gguf: None,
};
