use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "bloom",
    matches: types(&["bloom"]),
    config: |raw| {
        let mut config = grouped(decoder(raw, &Usual::GPT2)?);
        if flag(raw, "apply_residual_connection_post_layernorm", false)? {
            config.residual = Residual::SequentialFromNorm;
        }
        config.embedding_norm = Some(config.norm);
        config.relative = Relative::Alibi {
            slopes: alibi_slopes(config.head_count),
        };
        Ok(config)
    },
    names: |_| Names {
        body: "transformer.",
        embedding_norm: "word_embeddings_layernorm",
        ..GPT_NEOX
    },
    gguf: gguf("bloom", |file| file.like(FAMILY.config, &[])),
};
