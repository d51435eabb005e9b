use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "albert",
    matches: types(&["albert"]).or_classes(&["Albert"]),
    config: |raw| {
        require_positions(raw, "absolute")?;
        let mut config = encoder(raw, "albert")?;
        config.embedding_size = raw.opt_usize_in("embedding_size", WIDTH)?.unwrap_or(128);
        if raw.opt_usize("inner_group_num")?.unwrap_or(1) != 1 {
            return Err(Error::unsupported(raw.file(), "inner_group_num is not 1"));
        }
        // The layers are cut into equal groups, and those of a group share their weights.
        let groups = raw.opt_usize_in("num_hidden_groups", LAYERS)?.unwrap_or(1);
        let count = config.layers.len();
        for (number, layer) in config.layers.iter_mut().enumerate() {
            layer.weights = number * groups / count;
        }
        Ok(config)
    },
    names: |_| Names {
        embedding_projection: "encoder.embedding_hidden_mapping_in",
        layer: "encoder.albert_layer_groups.{}.albert_layers.0.",
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
