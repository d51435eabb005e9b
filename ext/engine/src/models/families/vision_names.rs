//! What families call the tensors of their images.

use super::names::{BERT, CLIP_TEXT};
use super::*;

/// CLIP's and SigLIP's images.
pub const CLIP_VISION: Names = Names {
    token_embedding: "",
    patch_embedding: "embeddings.patch_embedding",
    class_token: "embeddings.class_embedding",
    embedding_norm: "pre_layrnorm|pre_layernorm",
    final_norm: "post_layernorm",
    shared_space: "visual_projection",
    pooling_query: "head.probe",
    pooling_qkv: "head.attention.in_proj_weight",
    pooling_qkv_bias: "head.attention.in_proj_bias",
    pooling_output: "head.attention.out_proj",
    pooling_norm: "head.layernorm",
    pooling_up: "head.mlp.fc1",
    pooling_down: "head.mlp.fc2",
    projector_up: "multi_modal_projector.linear_1",
    projector_down: "multi_modal_projector.linear_2",
    image_newline: "image_newline",
    ..CLIP_TEXT
};

/// Qwen2-VL's and Qwen2.5-VL's images.
pub const QWEN_VISION: Names = Names {
    patch_embedding: "patch_embed.proj",
    layer: "blocks.{}.",
    attention_norm: "norm1",
    qkv: "attn.qkv",
    attention_output: "attn.proj",
    mlp_norm: "norm2",
    gate: "mlp.gate_proj",
    up: "mlp.fc1|mlp.up_proj",
    down: "mlp.fc2|mlp.down_proj",
    projector_norm: "merger.ln_q",
    projector_up: "merger.mlp.0",
    projector_down: "merger.mlp.2",
    ..Names::NONE
};

/// Qwen3-VL's and Qwen 3.5's images.
pub const QWEN3_VISION: Names = Names {
    position_embedding: "pos_embed",
    up: "mlp.linear_fc1",
    down: "mlp.linear_fc2",
    projector_norm: "merger.norm",
    projector_up: "merger.linear_fc1",
    projector_down: "merger.linear_fc2",
    deep_norm: "deepstack_merger_list.{}.norm",
    deep_up: "deepstack_merger_list.{}.linear_fc1",
    deep_down: "deepstack_merger_list.{}.linear_fc2",
    ..QWEN_VISION
};

/// Pixtral's images.
pub const PIXTRAL: Names = Names {
    patch_embedding: "patch_conv",
    embedding_norm: "ln_pre",
    layer: "transformer.layers.{}.",
    attention_norm: "attention_norm",
    query: "attention.q_proj",
    key: "attention.k_proj",
    value: "attention.v_proj",
    attention_output: "attention.o_proj",
    mlp_norm: "ffn_norm",
    gate: "feed_forward.gate_proj",
    up: "feed_forward.up_proj",
    down: "feed_forward.down_proj",
    projector_up: "multi_modal_projector.linear_1",
    projector_down: "multi_modal_projector.linear_2",
    ..Names::NONE
};

/// InternVL's images.
pub const INTERNVL_VISION: Names = Names {
    query: "attention.q_proj",
    key: "attention.k_proj",
    value: "attention.v_proj",
    query_norm: "attention.q_norm",
    key_norm: "attention.k_norm",
    attention_output: "attention.projection_layer",
    attention_scale: "lambda_1",
    mlp_scale: "lambda_2",
    ..VIT
};

/// The towers of `mmproj` files, and what leads from them into a decoder.
pub const GGUF_VISION: Names = Names {
    patch_embedding: "v.patch_embd",
    second_patch_embedding: "v.patch_embd.weight.1",
    class_token: "v.class_embd",
    position_embedding: "v.position_embd",
    embedding_norm: "v.pre_ln",
    final_norm: "v.post_ln",
    layer: "v.blk.{}.",
    attention_norm: "ln1",
    mlp_norm: "ln2",
    qkv: "attn_qkv",
    query: "attn_q",
    key: "attn_k",
    value: "attn_v",
    attention_output: "attn_out",
    gate: "ffn_gate",
    up: "ffn_up",
    down: "ffn_down",
    projector_norm: "mm.soft_emb_norm",
    projector_up: "mm.0",
    projector_down: "mm.2|mm.model.fc|mm.input_projection",
    image_newline: "model.image_newline|v.image_newline",
    deep_norm: "v.deepstack.{}.norm",
    deep_up: "v.deepstack.{}.fc1",
    deep_down: "v.deepstack.{}.fc2",
    ..Names::NONE
};

/// ViT and DINOv2, whose layers are named after BERT's.
pub const VIT: Names = Names {
    token_embedding: "",
    patch_embedding: "embeddings.patch_embeddings.projection",
    class_token: "embeddings.cls_token",
    register_tokens: "embeddings.register_tokens",
    position_embedding: "embeddings.position_embeddings",
    query: "attention.attention.query",
    key: "attention.attention.key",
    value: "attention.attention.value",
    attention_norm: "layernorm_before|norm1",
    attention_scale: "layer_scale1.lambda1",
    mlp_norm: "layernorm_after|norm2",
    mlp_scale: "layer_scale2.lambda1",
    up: "intermediate.dense|mlp.fc1",
    gate_up: "mlp.weights_in",
    down: "output.dense|mlp.fc2|mlp.weights_out",
    final_norm: "layernorm",
    sequence_dense: "",
    ..BERT
};

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
