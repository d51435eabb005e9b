use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "biogpt",
    matches: types(&["biogpt"]),
    config: |raw| Ok(learned_from(scaled(raw)?, 2)),
    names: |_| Names {
        body: "biogpt.",
        head: "output_projection",
        position_embedding: "embed_positions",
        ..opt::NAMES
    },
    gguf: None,
};

/// Embeddings are multiplied by the root of their width, unless the file says otherwise.
pub fn scaled(raw: &RawConfig) -> Result<DecoderConfig> {
    let given = raw.clone().with(json!({"layer_norm_eps": 1e-5}));
    let usual = Usual {
        tied: true,
        ..Usual::LAYER_NORM
    };
    let mut config = decoder(&given, &usual)?;
    if flag(raw, "scale_embedding", true)? {
        config.embedding_scale = (config.hidden_size as f32).sqrt();
    }
    Ok(config)
}
