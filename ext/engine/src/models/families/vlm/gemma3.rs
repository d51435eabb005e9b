use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "gemma3",
    matches: types(&["gemma3"]),
    config: gemma_config,
    names: |config| Names {
        projector_norm: "multi_modal_projector.mm_soft_emb_norm",
        projector_down: "multi_modal_projector.mm_input_projection_weight",
        ..tower_names(config)
    },
    gguf: mmproj("gemma3", gemma_gguf),
};
