use super::*;

const PER_LAYER: [&str; 3] = ["moe_topk", "num_experts", "moe_intermediate_size"];

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "hunyuan_v1_moe",
    matches: types(&["hunyuan_v1_moe"]),
    config: |raw| {
        let raw = &with_single_numbers(raw, &PER_LAYER)?;
        let mut config = hunyuan_v1_dense::config(raw)?;
        let given = experts(raw, config.layer_count, true, Shared::Plain)?;
        config.experts = given.map(|experts| Experts {
            normalize: true,
            ..experts
        });
        Ok(config)
    },
    names: |_| Names {
        router: "mlp.gate.wg",
        shared_gate: "mlp.shared_mlp.gate_proj",
        shared_up: "mlp.shared_mlp.up_proj",
        shared_down: "mlp.shared_mlp.down_proj",
        ..hunyuan_v1_dense::NAMES
    },
    gguf: gguf("hunyuan-moe", |file| file.like(FAMILY.config, &[])),
};
