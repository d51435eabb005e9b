use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "glm4_moe_lite",
    matches: types(&["glm4_moe_lite"]),
    config: |raw| {
        let usual = json!({"first_k_dense_replace": 1, "routed_scaling_factor": 1.8});
        deepseek_v3::config(&raw.clone().with_defaults(usual))
    },
    names: |_| latent_shared::NAMES,
    gguf: None,
};
