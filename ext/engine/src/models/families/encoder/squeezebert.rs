use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "squeezebert",
    matches: types(&["squeezebert"]).or_classes(&["SqueezeBert"]),
    config: |raw| {
        let mut config = encoder(raw, "squeezebert")?;
        // The norms inside layers do not follow the configuration.
        config.mechanisms.layer_norm = Some(NormConfig::new(NormKind::Layer, 1e-12));
        Ok(config)
    },
    names: |_| Names {
        layer: "encoder.layers.{}.",
        query: "attention.query",
        key: "attention.key",
        value: "attention.value",
        attention_output: "post_attention.conv1d",
        attention_norm: "post_attention.layernorm",
        up: "intermediate.conv1d",
        down: "output.conv1d",
        mlp_norm: "output.layernorm",
        ..BERT
    },
    gguf: None,
};
