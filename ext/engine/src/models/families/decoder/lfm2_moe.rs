use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "lfm2_moe",
    matches: types(&["lfm2_moe"]),
    config: |raw| {
        let mut config = lfm2::config(raw)?;
        config.experts = Some(Experts {
            biased: flag(raw, "use_expert_bias", true)?,
            ..sigmoid_experts(raw, config.layer_count)?
        });
        Ok(config)
    },
    names: |_| Names {
        router: "feed_forward.gate",
        router_bias: "feed_forward.expert_bias",
        expert_gate: "feed_forward.experts.{}.w1",
        expert_up: "feed_forward.experts.{}.w3",
        expert_down: "feed_forward.experts.{}.w2",
        ..lfm2::NAMES
    },
    gguf: gguf_named("lfm2moe", state_gguf::lfm2_moe, |_| state_gguf::LFM2),
};
