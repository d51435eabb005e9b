use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "jina_embeddings_v3",
    matches: types(&["jina_embeddings_v3", "xlm-roberta"])
        .or_classes(&["JinaEmbeddingsV3"])
        .only_if(|raw| {
            let positions = raw.opt_string("position_embedding_type");
            let named = !matches!(raw.model_type(), Ok(Some("xlm-roberta")));
            named || matches!(positions, Ok(Some("rotary")))
        }),
    config: |raw| {
        let mut config = rotary(encoder(raw, "jina_embeddings_v3")?, |config| {
            rope(raw, config.head_size, 1.0, 20_000.0)
        })?;
        config.heads_on_top = lm_head(raw)?;
        Ok(config)
    },
    names: |_| Names {
        sequence_dense: "classifier.dense",
        sequence_output: "classifier.out_proj",
        masked_dense: "lm_head.dense",
        masked_norm: "lm_head.layer_norm",
        masked_output: "lm_head.decoder",
        masked_bias: "lm_head.bias|lm_head.decoder.bias",
        ..NOMIC
    },
    gguf: None,
};
