use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "aria_text",
    matches: types(&["aria_text", "aria"]),
    config: |raw| {
        let raw = text_of(raw)?;
        let mut config = decoder(&raw, &Usual::LLAMA)?;
        let (count, used) = (raw.usize("moe_num_experts")?, raw.usize("moe_topk")?);
        config.experts = Some(Experts {
            normalize: true,
            shared: Shared::Plain,
            layout: ExpertLayout::fused(true, false),
            activation: Some(Activation::Silu),
            ..Experts::softmax(count, used, config.layer_count)
        });
        Ok(config)
    },
    names: |_| Names {
        router: "mlp.router",
        expert_gate_up: "mlp.experts.fc1",
        expert_down: "mlp.experts.fc2",
        ..glm4_moe::NAMES
    },
    gguf: None,
};
