use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "t5",
    matches: |raw| is(raw, &["t5", "mt5"], &["T5", "MT5"]),
    config: encoder_decoder::t5_encoder,
    names: |_| T5_ENCODER,
    gguf: None,
};
