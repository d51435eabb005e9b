use super::*;

pub const FAMILY: Family<Seq2SeqConfig> = Family {
    name: "t5",
    matches: |raw| is(raw, &["t5", "mt5"], &["T5", "MT5"]),
    config: encoder_decoder::t5,
    names: |_| T5_DECODER,
    gguf: None,
};
