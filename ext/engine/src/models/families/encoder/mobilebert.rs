use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "mobilebert",
    matches: types(&["mobilebert"]).or_classes(&["MobileBert"]),
    config: |raw| {
        let mut config = encoder(raw, "mobilebert")?;
        let narrow = narrow(raw, config.hidden_size)?;
        config.head_size = narrow.width / config.head_count;
        config.embedding_size = opt_width(raw, "embedding_size")?.unwrap_or(128);
        config.mechanisms.embedding_order = if flag(raw, "trigram_input", true)? {
            EmbeddingOrder::FirstOfThree
        } else {
            EmbeddingOrder::First
        };
        config.mechanisms.narrow = Some(narrow);
        Ok(config)
    },
    names: |_| Names {
        embedding_projection: "embeddings.embedding_transformation",
        narrow_input: "bottleneck.input.dense",
        narrow_input_norm: "bottleneck.input.LayerNorm",
        narrow_shared: "bottleneck.attention.dense",
        narrow_shared_norm: "bottleneck.attention.LayerNorm",
        narrow_output: "output.bottleneck.dense",
        narrow_output_norm: "output.bottleneck.LayerNorm",
        earlier_up: "ffn.{}.intermediate.dense",
        earlier_down: "ffn.{}.output.dense",
        earlier_norm: "ffn.{}.output.LayerNorm",
        masked_rest: "cls.predictions.dense",
        ..BERT
    },
    gguf: None,
};
