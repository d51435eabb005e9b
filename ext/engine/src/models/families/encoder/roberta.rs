use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "roberta",
    matches: types(&[
        "roberta",
        "xlm-roberta",
        "camembert",
        "data2vec-text",
        "ibert",
    ])
    .or_classes(&["Roberta", "XLMRoberta", "Camembert", "Data2VecText"]),
    config: |raw| {
        refuse(raw, &["quant_mode"])?;
        after_padding(raw, "roberta")
    },
    names: |_| NAMES,
    gguf: None,
};

pub const NAMES: Names = Names {
    sequence_dense: "classifier.dense",
    sequence_output: "classifier.out_proj",
    ..LM_HEAD
};

/// RoBERTa's head for masks on BERT's pooler and classifier.
pub const LM_HEAD: Names = Names {
    masked_dense: "lm_head.dense",
    masked_norm: "lm_head.layer_norm",
    masked_output: "lm_head.decoder",
    masked_bias: "lm_head.bias|lm_head.decoder.bias",
    ..BERT
};
