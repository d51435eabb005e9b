use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "t5",
    matches: types(&["t5", "mt5"]).or_classes(&["T5", "MT5"]),
    config: encoder_decoder::t5_encoder,
    names: |_| T5_ENCODER,
    gguf: Some(Gguf {
        architecture: "t5encoder",
        config: encoder_decoder::t5_encoder_gguf,
        names: |_| GGUF_T5_ENCODER,
    }),
};
