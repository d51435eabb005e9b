use super::*;

/// GGUF files call it llama.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "mixtral",
    matches: types(&["mixtral"]),
    config: |raw| {
        let mut config = mistral::windowed(raw, &Usual::LLAMA)?;
        config.experts = experts(raw, config.layer_count, true, Shared::None)?;
        Ok(config)
    },
    names: |_| NAMES,
    gguf: None,
};

pub const NAMES: Names = Names {
    router: "block_sparse_moe.gate",
    expert_gate: "block_sparse_moe.experts.{}.w1",
    expert_up: "block_sparse_moe.experts.{}.w3",
    expert_down: "block_sparse_moe.experts.{}.w2",
    ..LLAMA
};
