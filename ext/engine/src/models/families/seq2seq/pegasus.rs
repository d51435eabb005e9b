use super::*;

pub const FAMILY: Family<Seq2SeqConfig> = Family {
    name: "pegasus",
    matches: types(&["pegasus"]).or_classes(&["Pegasus"]),
    config: |raw| {
        let usual = BartLike {
            family: "pegasus",
            positions: Positions::Sinusoidal {
                frequencies: Frequencies::Open,
                padding_id: None,
            },
            norm_placement: NormPlacement::Pre,
            activation: "gelu",
        };
        bart_like(raw, &usual)
    },
    names: |_| BART_DECODER,
    gguf: None,
};
