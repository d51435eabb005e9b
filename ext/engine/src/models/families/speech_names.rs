//! Names of speech models.

use super::names::*;
use super::Names;

pub const WHISPER_ENCODER: Names = Names {
    token_embedding: "",
    embedding_norm: "",
    patch_embedding: "encoder.conv1",
    convolution: "encoder.conv2",
    ..BART_ENCODER
};

pub const WHISPER_DECODER: Names = Names {
    token_embedding: "decoder.embed_tokens",
    embedding_norm: "",
    head: "proj_out",
    logit_bias: "",
    ..BART_DECODER
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
