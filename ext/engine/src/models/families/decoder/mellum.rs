use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "mellum",
    matches: types(&["mellum"]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        config.query_key_norm = QueryKeyNorm::PerHead;
        sliding(raw, &mut config, 4)?;
        let local = local_theta(raw)?;
        if let Some(rope) = config.relative.rope_mut() {
            rope.local_theta = local;
            rope.unscaled_windows = true;
        }
        let given = experts(raw, config.layer_count, true, Shared::None)?;
        let layers = sparse_layers(raw, config.layer_count)?;
        config.experts = given.map(|experts| Experts { layers, ..experts });
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: gguf("mellum", |file| file.like(FAMILY.config, &[])),
};
