use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "deberta-v2",
    matches: types(&["deberta-v2"]).or_classes(&["DebertaV2"]),
    config: |raw| {
        let buckets = disentangled::positive(raw, "position_buckets")?;
        let mut config = disentangled::encoder(raw, "deberta-v2", buckets)?;
        config.convolution = disentangled::convolution(raw)?;
        Ok(config)
    },
    names: |_| Names {
        convolution: "encoder.conv.conv",
        convolution_norm: "encoder.conv.LayerNorm",
        query: "attention.self.query_proj",
        key: "attention.self.key_proj",
        value: "attention.self.value_proj",
        ..deberta::NAMES
    },
    gguf: None,
};
