use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "glm_moe_dsa",
    matches: types(&["glm_moe_dsa"]),
    config: |raw| {
        let usual = json!({"first_k_dense_replace": 3});
        let mut config = deepseek_v3::config(&raw.clone().with_defaults(usual))?;
        let layers = choosing(raw, config.layer_count)?;
        let pairing = RopeKind::Interleaved;
        config.indexer = Some(deepseek_v32::indexer(raw, pairing, layers)?);
        Ok(config)
    },
    names: |_| deepseek_v32::NAMES,
    gguf: gguf("glm-dsa", |file| {
        let types = file.flags("attention.indexer.types", file.layer_count()?)?;
        let kinds = types.unwrap_or_default().into_iter();
        let kinds: Vec<_> = kinds
            .map(|full| if full { "full" } else { "shared" })
            .collect();
        let said = if kinds.is_empty() {
            json!({})
        } else {
            json!({"indexer_types": kinds})
        };
        file.like_with(FAMILY.config, &[], said)
    }),
};

/// Which layers choose keys: by a list, by the letters F and S, or each so-manieth.
fn choosing(raw: &RawConfig, layer_count: usize) -> Result<Vec<bool>> {
    if let Some(types) = raw.opt_strings("indexer_types")? {
        return Ok(types.iter().map(|kind| kind == "full").collect());
    }
    if let Some(pattern) = raw.opt_string("index_topk_pattern")? {
        return Ok(pattern.chars().map(|letter| letter == 'F').collect());
    }
    let every = raw.opt_usize("index_topk_freq")?.unwrap_or(1).max(1);
    let first = raw.opt_usize("index_skip_topk_offset")?.unwrap_or(2);
    let layers = (1..=layer_count).map(|layer| layer.saturating_sub(first) % every == 0);
    Ok(layers.collect())
}
