use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "roberta",
    matches: types(&["roberta", "xlm-roberta", "camembert"]).or_classes(&[
        "Roberta",
        "XLMRoberta",
        "Camembert",
    ]),
    config: |raw| {
        require_positions(raw, "absolute")?;
        let config = encoder(raw, "roberta")?;
        let padding_id = raw.padding_id()?.unwrap_or(1);
        Ok(EncoderConfig {
            positions: Positions::LearnedAfterPadding { padding_id },
            heads_on_top: HeadConfigs::default(),
            ..config
        })
    },
    names: |_| NAMES,
    gguf: None,
};

pub const NAMES: Names = Names {
    sequence_dense: "classifier.dense",
    sequence_output: "classifier.out_proj",
    masked_dense: "lm_head.dense",
    masked_norm: "lm_head.layer_norm",
    masked_output: "lm_head.decoder",
    masked_bias: "lm_head.bias|lm_head.decoder.bias",
    ..BERT
};
