use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "roberta-prelayernorm",
    matches: types(&["roberta-prelayernorm", "xlm-roberta-xl"])
        .or_classes(&["RobertaPreLayerNorm", "XLMRobertaXL"]),
    config: |raw| Ok(pre_norm(after_padding(raw, "roberta-prelayernorm")?)),
    names: |_| Names {
        attention_norm: PRE_NORM_BERT.attention_norm,
        mlp_norm: PRE_NORM_BERT.mlp_norm,
        final_norm: PRE_NORM_BERT.final_norm,
        ..roberta::NAMES
    },
    gguf: None,
};
