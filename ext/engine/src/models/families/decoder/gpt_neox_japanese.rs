use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "gpt_neox_japanese",
    matches: types(&["gpt_neox_japanese"]),
    config: |raw| {
        let mut config = grouped(decoder(
            raw,
            &Usual {
                tied: true,
                ..Usual::LAYER_NORM
            },
        )?);
        config.row_order = RowOrder::Grouped;
        Ok(config)
    },
    names: |_| Names {
        body: "gpt_neox_japanese.",
        attention_output_bias: "attention.dense_bias",
        ..GPT_NEOX
    },
    gguf: None,
};
