//! Names of speech models.

use super::Names;

/// By transformers' names, or by those of OpenAI and whisper.cpp.
pub const WHISPER_ENCODER: Names = Names {
    token_embedding: "",
    embedding_norm: "",
    patch_embedding: "encoder.conv1",
    convolution: "encoder.conv2",
    position_embedding: "encoder.embed_positions|encoder.positional_embedding",
    final_norm: "encoder.layer_norm|encoder.ln_post",
    layer: "encoder.layers.{}.|encoder.blocks.{}.",
    ..WHISPER_LAYER
};

pub const WHISPER_DECODER: Names = Names {
    token_embedding: "decoder.embed_tokens|decoder.token_embedding",
    embedding_norm: "",
    head: "proj_out",
    logit_bias: "",
    position_embedding: "decoder.embed_positions|decoder.positional_embedding",
    final_norm: "decoder.layer_norm|decoder.ln",
    layer: "decoder.layers.{}.|decoder.blocks.{}.",
    cross_norm: "encoder_attn_layer_norm|cross_attn_ln",
    cross_query: "encoder_attn.q_proj|cross_attn.query",
    cross_key: "encoder_attn.k_proj|cross_attn.key",
    cross_value: "encoder_attn.v_proj|cross_attn.value",
    cross_output: "encoder_attn.out_proj|cross_attn.out",
    ..WHISPER_LAYER
};

const WHISPER_LAYER: Names = Names {
    attention_norm: "self_attn_layer_norm|attn_ln",
    query: "self_attn.q_proj|attn.query",
    key: "self_attn.k_proj|attn.key",
    value: "self_attn.v_proj|attn.value",
    attention_output: "self_attn.out_proj|attn.out",
    mlp_norm: "final_layer_norm|mlp_ln",
    up: "fc1|mlp.0",
    down: "fc2|mlp.2",
    ..Names::NONE
};

pub const MOONSHINE_ENCODER: Names = Names {
    patch_embedding: "encoder.conv1",
    stem_convolution: "encoder.conv{}",
    stem_norm: "encoder.groupnorm",
    final_norm: "encoder.layer_norm",
    layer: "encoder.layers.{}.",
    attention_norm: "input_layernorm",
    query: "self_attn.q_proj",
    key: "self_attn.k_proj",
    value: "self_attn.v_proj",
    attention_output: "self_attn.o_proj",
    mlp_norm: "post_attention_layernorm",
    up: "mlp.fc1",
    down: "mlp.fc2",
    ..Names::NONE
};

pub const MOONSHINE_DECODER: Names = Names {
    token_embedding: "decoder.embed_tokens",
    head: "proj_out",
    final_norm: "decoder.norm",
    layer: "decoder.layers.{}.",
    cross_norm: "post_attention_layernorm",
    cross_query: "encoder_attn.q_proj",
    cross_key: "encoder_attn.k_proj",
    cross_value: "encoder_attn.v_proj",
    cross_output: "encoder_attn.o_proj",
    mlp_norm: "final_layernorm",
    up: "",
    up_gate: "mlp.fc1",
    patch_embedding: "",
    stem_convolution: "",
    stem_norm: "",
    ..MOONSHINE_ENCODER
};

pub const WAV2VEC2: Names = Names {
    patch_embedding: "feature_extractor.conv_layers.0.conv",
    stem_convolution: "feature_extractor.conv_layers.{}.conv",
    stem_norm: "feature_extractor.conv_layers.{}.layer_norm",
    feature_norm: "feature_projection.layer_norm",
    feature_projection: "feature_projection.projection",
    position_convolution: "encoder.pos_conv_embed.conv",
    position_gain: "encoder.pos_conv_embed.conv.parametrizations.weight.original0|\
                    encoder.pos_conv_embed.conv.weight_g",
    position_direction: "encoder.pos_conv_embed.conv.parametrizations.weight.original1|\
                         encoder.pos_conv_embed.conv.weight_v",
    embedding_norm: "encoder.layer_norm",
    head: "lm_head",
    layer_weights: "layer_weights",
    sequence_dense: "projector",
    sequence_output: "classifier",
    layer: "encoder.layers.{}.",
    attention_norm: "layer_norm",
    query: "attention.q_proj",
    key: "attention.k_proj",
    value: "attention.v_proj",
    attention_output: "attention.out_proj",
    mlp_norm: "final_layer_norm",
    up: "feed_forward.intermediate_dense",
    down: "feed_forward.output_dense",
    ..Names::NONE
};

pub const WAV2VEC2_STABLE: Names = Names {
    embedding_norm: "",
    final_norm: "encoder.layer_norm",
    ..WAV2VEC2
};

/// As published, or as transformers calls them inside.
pub const SPECTROGRAM_TRANSFORMER: Names = Names {
    body: "audio_spectrogram_transformer.",
    patch_embedding: "embeddings.patch_embeddings.projection",
    class_token: "embeddings.cls_token",
    register_tokens: "embeddings.distillation_token",
    position_embedding: "embeddings.position_embeddings",
    final_norm: "layernorm",
    sequence_norm: "classifier.layernorm",
    sequence_output: "classifier.dense",
    layer: "encoder.layer.{}.|layers.{}.",
    attention_norm: "layernorm_before",
    query: "attention.attention.query|attention.q_proj",
    key: "attention.attention.key|attention.k_proj",
    value: "attention.attention.value|attention.v_proj",
    attention_output: "attention.output.dense|attention.o_proj",
    mlp_norm: "layernorm_after",
    up: "intermediate.dense|mlp.fc1",
    down: "output.dense|mlp.fc2",
    ..Names::NONE
};
