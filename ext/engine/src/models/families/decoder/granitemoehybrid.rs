use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "granitemoehybrid",
    matches: types(&["granitemoehybrid"]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        config.attention_scale = 1.0;
        if raw.opt_string("position_embedding_type")? != Some("rope") {
            config.relative = Relative::None;
        }
        config.state = Some(StateKind::Ssm(mamba_shared::ssm(raw, &config)?));
        config.sublayers = sublayers(raw, config.layer_count, |_| false)?;
        match raw.opt_usize("num_local_experts")?.unwrap_or(0) {
            0 => multiplied(raw, &mut config).map(|()| config),
            _ => granitemoe::with_experts(raw, config),
        }
    },
    names: |_| Names {
        router: granitemoe::NAMES.router,
        expert_gate_up: granitemoe::NAMES.expert_gate_up,
        expert_down: granitemoe::NAMES.expert_down,
        shared_gate_up: granitemoe::NAMES.shared_gate_up,
        shared_down: granitemoe::NAMES.shared_down,
        shared_gate: "",
        shared_up: "",
        // Without experts, the one that all tokens pass is the MLP.
        gate_up: granitemoe::NAMES.shared_gate_up,
        down: granitemoe::NAMES.shared_down,
        ..mamba_shared::HYBRID
    },
    gguf: gguf_named("granitehybrid", state_gguf::granite, |_| state_gguf::NAMES),
};
