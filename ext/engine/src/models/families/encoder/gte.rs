use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "gte",
    matches: types(&["new", "gte"]).or_classes(&["NewModel"]),
    config: |raw| {
        require_positions(raw, "rope")?;
        refuse(raw, &["logn_attention_scale"])?;
        let mut config = rotary(encoder(raw, "gte")?, |config| {
            rope(raw, config.head_size, 1.0, 10_000.0)
        })?;
        if raw.opt_string("layer_norm_type")? == Some("rms_norm") {
            config.norm.kind = NormKind::Rms;
        }
        config.mlp.kind = MlpKind::Gated;
        Ok(config)
    },
    names: |_| Names {
        masked_dense: "lm_head.dense",
        masked_norm: "lm_head.norm|lm_head.layer_norm",
        masked_output: "lm_head.decoder",
        masked_bias: "lm_head.decoder.bias",
        ..NOMIC
    },
    gguf: None,
};
