use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "gpt_oss",
    matches: types(&["gpt_oss"]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        let window = raw.opt_usize("sliding_window")?;
        config.windows = windows(raw, config.layer_count, window, |layer| layer % 2 == 0)?;
        config.sinks = Sinks::All;
        let given = experts(raw, config.layer_count, true, Shared::None)?;
        config.experts = given.map(|experts| Experts {
            normalize: true,
            layout: ExpertLayout::fused(true, true),
            glu: Some(ClampedGlu {
                limit: number(raw, "swiglu_limit").ok().flatten().unwrap_or(7.0),
                alpha: number(raw, "swiglu_alpha").ok().flatten().unwrap_or(1.702),
            }),
            ..experts
        });
        Ok(config)
    },
    names: |_| Names {
        sinks: "self_attn.sinks",
        router: "mlp.router",
        expert_gate_up: "mlp.experts.gate_up_proj",
        expert_gate_up_bias: "mlp.experts.gate_up_proj_bias",
        expert_down: "mlp.experts.down_proj",
        expert_down_bias: "mlp.experts.down_proj_bias",
        ..LLAMA
    },
    gguf: gguf_named(
        "gpt-oss",
        |file| {
            let mut config = file.like(FAMILY.config, &[])?;
            if let Some(rope) = config.relative.rope_mut() {
                rope.scaling.keep_edges();
            }
            Ok(config)
        },
        |_| GGUF_AFTER_ATTENTION,
    ),
};
