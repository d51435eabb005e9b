use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "umt5",
    matches: types(&["umt5"]).or_classes(&["UMT5"]),
    config: encoder_decoder::t5_encoder,
    names: |_| Names {
        relative_table: "encoder.block.{}.layer.0.SelfAttention.relative_attention_bias",
        ..T5_ENCODER
    },
    gguf: None,
};
