use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "t5",
    matches: |raw| is(raw, &["t5", "mt5"], &["T5", "MT5"]),
    config: encoder_decoder::t5_encoder,
    names: |_| T5_ENCODER,
    gguf: Some(Gguf {
        architecture: "t5encoder",
        config: encoder_decoder::t5_encoder_gguf,
        names: |_| GGUF_T5_ENCODER,
    }),
};
