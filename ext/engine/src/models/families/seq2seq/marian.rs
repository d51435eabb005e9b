use super::*;

pub const FAMILY: Family<Seq2SeqConfig> = Family {
    name: "marian",
    matches: types(&["marian"]).or_classes(&["Marian"]),
    config: |raw| {
        let usual = BartLike {
            family: "marian",
            positions: Positions::Sinusoidal {
                frequencies: Frequencies::Open,
                padding_id: None,
            },
            norm_placement: NormPlacement::Post,
            activation: "gelu",
        };
        bart_like(raw, &usual)
    },
    names: |_| BART_DECODER,
    gguf: None,
};
