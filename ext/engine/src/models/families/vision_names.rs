//! What later families call the tensors of their images.

use super::names::CLIP_TEXT;
use super::*;

/// GLM-4V's images.
pub const GLM_VISION: Names = Names {
    patch_norm: "post_conv_layernorm",
    position_embedding: "embeddings.position_embedding",
    query_norm: "attn.q_norm",
    key_norm: "attn.k_norm",
    final_norm: "post_layernorm",
    projector_merge: "downsample",
    projector_inner: "merger.proj",
    projector_inner_norm: "merger.post_projection_norm",
    projector_gate: "merger.gate_proj",
    projector_up: "merger.up_proj",
    projector_down: "merger.down_proj",
    ..QWEN_VISION
};

/// Ovis 2's images.
pub const OVIS_VISION: Names = Names {
    patch_embedding: "embeddings.patch_embedding",
    patch_norm: "embeddings.rms_norm",
    position_embedding: "embeddings.position_embedding",
    layer: "encoder.layers.{}.",
    attention_norm: "rms_norm1",
    query: "attention.q_proj",
    key: "attention.k_proj",
    value: "attention.v_proj",
    attention_output: "attention.out_proj",
    mlp_norm: "rms_norm2",
    gate: "ffn.gate_proj",
    up: "ffn.up_proj",
    down: "ffn.down_proj",
    final_norm: "rms_norm",
    projector_inner: "vision_tower.head_linear",
    projector_inner_norm: "vision_tower.head_norm",
    projector_down: "visual_embeddings_table",
    ..Names::NONE
};

/// Llama 4's images.
pub const LLAMA4_VISION: Names = Names {
    patch_embedding: "patch_embedding.linear",
    class_token: "class_embedding",
    position_embedding: "positional_embedding_vlm",
    embedding_norm: "layernorm_pre",
    final_norm: "layernorm_post",
    layer: "model.layers.{}.",
    attention_norm: "input_layernorm",
    attention_output: "self_attn.o_proj",
    mlp_norm: "post_attention_layernorm",
    projector_up: "vision_adapter.mlp.fc1",
    projector_down: "vision_adapter.mlp.fc2",
    projector_output: "multi_modal_projector.linear_1",
    query: CLIP_TEXT.query,
    key: CLIP_TEXT.key,
    value: CLIP_TEXT.value,
    up: CLIP_TEXT.up,
    down: CLIP_TEXT.down,
    ..Names::NONE
};
