use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "deberta",
    matches: types(&["deberta"]).or_classes(&["DebertaModel"]),
    config: |raw| {
        let mut config = disentangled::encoder(raw, "deberta", None)?;
        config.qkv = QkvLayout::ByHead;
        Ok(config)
    },
    names: |_| NAMES,
    gguf: None,
};

pub const NAMES: Names = Names {
    embedding_projection: "embeddings.embed_proj",
    relative_table: "encoder.rel_embeddings",
    relative_norm: "encoder.LayerNorm",
    qkv: "attention.self.in_proj",
    query_bias: "attention.self.q_bias",
    value_bias: "attention.self.v_bias",
    position_key: "attention.self.pos_proj|attention.self.pos_key_proj",
    position_query: "attention.self.pos_q_proj|attention.self.pos_query_proj",
    masked_dense: "cls.predictions.transform.dense|lm_predictions.lm_head.dense",
    masked_norm: "cls.predictions.transform.LayerNorm|lm_predictions.lm_head.LayerNorm",
    masked_bias: "cls.predictions.bias|cls.predictions.decoder.bias|lm_predictions.lm_head.bias",
    ..BERT
};
