use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "minimax_m2",
    matches: types(&["minimax_m2"]),
    config: |raw| {
        let mut config = decoder(raw, &glm4::USUAL)?;
        config.query_key_norm = QueryKeyNorm::Whole;
        if raw.has("rotary_dim") {
            rotate_first(raw, &mut config)?;
        }
        config.experts = Some(Experts {
            normalize: true,
            groups: None,
            scale: 1.0,
            shared: Shared::None,
            ..sigmoid_experts(raw, config.layer_count)?
        });
        Ok(config)
    },
    names: |_| Names {
        router_bias: "block_sparse_moe.e_score_correction_bias",
        ..mixtral::NAMES
    },
    gguf: gguf("minimax-m2", |file| file.like(FAMILY.config, &[])),
};
