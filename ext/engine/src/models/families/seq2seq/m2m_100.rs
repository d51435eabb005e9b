use super::*;

pub const FAMILY: Family<Seq2SeqConfig> = Family {
    name: "m2m_100",
    matches: types(&["m2m_100"]).or_classes(&["M2M100"]),
    config: |raw| {
        let usual = BartLike {
            family: "m2m_100",
            positions: Positions::Sinusoidal {
                frequencies: Frequencies::Closed,
                padding_id: Some(raw.padding_id()?.unwrap_or(1)),
            },
            norm_placement: NormPlacement::Pre,
            activation: "relu",
        };
        bart_like(raw, &usual)
    },
    names: |_| BART_DECODER,
    gguf: None,
};
