use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "kolibri1",
    matches: types(&["kolibri1"]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        config.norm_placement = NormPlacement::Both;
        config.query_key_norm = QueryKeyNorm::PerHead;
        sliding(raw, &mut config, 5)?;
        rotate_in_windows(&mut config);
        config.experts = Some(Experts {
            scoring: Scoring::SigmoidOfChosen,
            normalize: flag(raw, "norm_topk_prob", false)?,
            groups: None,
            scale: 1.0,
            shared: Shared::Plain,
            ..sigmoid_experts(raw, config.layer_count)?
        });
        Ok(config)
    },
    names: |_| Names {
        post_attention_norm: "post_attn_norm",
        post_mlp_norm: "post_ffn_norm",
        router_bias: "moe.router.expert_bias",
        ..glm4_moe::NAMES
    },
    gguf: None,
};
