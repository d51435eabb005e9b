use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "xglm",
    matches: types(&["xglm"]),
    config: |raw| {
        let given = raw.clone().with_defaults(json!({
            "num_attention_heads": raw.usize("attention_heads")?,
            "num_hidden_layers": raw.usize("num_layers")?,
        }));
        Ok(DecoderConfig {
            positions: Positions::SinusoidalFrom {
                first: 2,
                zero_row: raw.padding_id()?,
            },
            relative: Relative::None,
            ..biogpt::scaled(&given)?
        })
    },
    names: |_| opt::NAMES,
    gguf: None,
};
