use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "granitemoe",
    matches: types(&["granitemoe"]),
    config: |raw| with_experts(raw, decoder(raw, &Usual::LLAMA)?),
    names: |_| NAMES,
    gguf: gguf("granitemoe", |file| {
        file.like(FAMILY.config, &[("logit_scale", "logits_scaling")])
            .map(neighbours)
    }),
};

pub const NAMES: Names = Names {
    router: "block_sparse_moe.router.layer|block_sparse_moe.router",
    expert_gate_up: "block_sparse_moe.input_linear|block_sparse_moe.experts.gate_up_proj",
    expert_down: "block_sparse_moe.output_linear|block_sparse_moe.experts.down_proj",
    shared_gate_up: "shared_mlp.input_linear",
    shared_down: "shared_mlp.output_linear",
    shared_gate: "",
    shared_up: "",
    ..LLAMA
};

pub fn with_experts(raw: &RawConfig, mut config: DecoderConfig) -> Result<DecoderConfig> {
    multiplied(raw, &mut config)?;
    let given = experts(raw, config.layer_count, true, Shared::None)?;
    let shared = raw.opt_usize("shared_intermediate_size")?.unwrap_or(0);
    config.experts = given.map(|experts| Experts {
        normalize: true,
        shared: match shared {
            0 => Shared::None,
            _ => Shared::Plain,
        },
        layout: ExpertLayout::fused(false, false),
        ..experts
    });
    Ok(config)
}
