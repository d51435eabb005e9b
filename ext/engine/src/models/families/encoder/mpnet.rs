use super::*;

/// Distances beyond this one share the last bucket.
const FARTHEST: usize = 128;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "mpnet",
    matches: types(&["mpnet"]).or_classes(&["MPNet"]),
    config: |raw| {
        let config = encoder(raw, "mpnet")?;
        let count = raw.opt_usize("relative_attention_num_buckets")?;
        Ok(EncoderConfig {
            token_types: 0,
            // Whatever pad_token_id says.
            positions: Positions::LearnedAfterPadding { padding_id: 1 },
            relative: Relative::Buckets {
                count: count.unwrap_or(32),
                farthest: FARTHEST,
                directions: Directions::Both,
            },
            heads_on_top: lm_head(raw)?,
            ..config
        })
    },
    names: |_| Names {
        relative_table: "encoder.relative_attention_bias",
        query: "attention.attn.q",
        key: "attention.attn.k",
        value: "attention.attn.v",
        attention_output: "attention.attn.o",
        attention_norm: "attention.LayerNorm",
        ..roberta::NAMES
    },
    gguf: None,
};
