use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "albert",
    matches: types(&["albert"]).or_classes(&["Albert"]),
    config: |raw| {
        require_positions(raw, "absolute")?;
        let mut config = encoder(raw, "albert")?;
        config.embedding_size = raw.opt_usize_in("embedding_size", WIDTH)?.unwrap_or(128);
        share_layers(raw, &mut config)?;
        Ok(config)
    },
    names: |config| Names {
        sublayers: config.map_or(1, EncoderConfig::sublayers),
        embedding_projection: "encoder.embedding_hidden_mapping_in",
        layer: "encoder.albert_layer_groups.{}.albert_layers.[].",
        query: "attention.query",
        key: "attention.key",
        value: "attention.value",
        attention_output: "attention.dense",
        attention_norm: "attention.LayerNorm",
        up: "ffn",
        down: "ffn_output",
        mlp_norm: "full_layer_layer_norm",
        sequence_dense: "pooler",
        masked_dense: "predictions.dense",
        masked_norm: "predictions.LayerNorm",
        masked_output: "predictions.decoder",
        masked_bias: "predictions.bias|predictions.decoder.bias",
        ..BERT
    },
    gguf: None,
};
