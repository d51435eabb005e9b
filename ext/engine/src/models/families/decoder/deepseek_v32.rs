use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "deepseek_v32",
    matches: types(&["deepseek_v32"]),
    config: |raw| {
        let usual = json!({"first_k_dense_replace": 3});
        let mut config = deepseek_v3::config(&raw.clone().with_defaults(usual))?;
        let layers = vec![true; config.layer_count];
        config.indexer = Some(indexer(raw, RopeKind::Half, layers)?);
        Ok(config)
    },
    names: |_| NAMES,
    gguf: gguf("deepseek32", |file| file.like(FAMILY.config, &[])),
};

pub fn indexer(raw: &RawConfig, pairing: RopeKind, layers: Vec<bool>) -> Result<Indexer> {
    Ok(Indexer {
        heads: raw.usize("index_n_heads")?,
        size: raw.usize("index_head_dim")?,
        used: raw.usize("index_topk")?,
        pairing,
        layers,
    })
}

pub const NAMES: Names = Names {
    index_query: "self_attn.indexer.wq_b",
    index_key: "self_attn.indexer.wk",
    index_key_norm: "self_attn.indexer.k_norm",
    index_weights: "self_attn.indexer.weights_proj",
    ..latent_shared::NAMES
};
