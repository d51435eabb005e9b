use super::*;

pub const FAMILY: Family<Seq2SeqConfig> = Family {
    name: "t5",
    matches: types(&["t5", "mt5"]).or_classes(&["T5", "MT5"]),
    config: encoder_decoder::t5,
    names: |_| T5_DECODER,
    gguf: Some(Gguf {
        architecture: "t5",
        config: encoder_decoder::t5_gguf,
        names: |_| GGUF_T5_DECODER,
    }),
};
