use super::*;

pub const FAMILY: Family<Seq2SeqConfig> = Family {
    name: "bart",
    matches: types(&["bart"]).or_classes(&["Bart"]),
    config: |raw| {
        let usual = BartLike {
            family: "bart",
            positions: Positions::LearnedFrom { first: 2 },
            norm_placement: NormPlacement::Post,
            activation: "gelu",
        };
        bart_like(raw, &usual)
    },
    names: |_| BART_DECODER,
    gguf: None,
};
