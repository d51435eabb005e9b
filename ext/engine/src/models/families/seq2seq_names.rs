//! What encoder-decoders call their tensors.

use super::names::GGUF;
use super::Names;

pub const T5_ENCODER: Names = Names {
    token_embedding: "shared|encoder.embed_tokens",
    relative_table: "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    final_norm: "encoder.final_layer_norm",
    layer: "encoder.block.{}.",
    attention_norm: "layer.0.layer_norm",
    query: "layer.0.SelfAttention.q",
    key: "layer.0.SelfAttention.k",
    value: "layer.0.SelfAttention.v",
    attention_output: "layer.0.SelfAttention.o",
    mlp_norm: "layer.1.layer_norm",
    gate: "layer.1.DenseReluDense.wi_0",
    up: "layer.1.DenseReluDense.wi|layer.1.DenseReluDense.wi_1",
    down: "layer.1.DenseReluDense.wo",
    token_output: "classifier",
    ..Names::NONE
};

pub const T5_DECODER: Names = Names {
    token_embedding: "shared|decoder.embed_tokens",
    relative_table: "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    final_norm: "decoder.final_layer_norm",
    head: "lm_head",
    layer: "decoder.block.{}.",
    cross_norm: "layer.1.layer_norm",
    cross_query: "layer.1.EncDecAttention.q",
    cross_key: "layer.1.EncDecAttention.k",
    cross_value: "layer.1.EncDecAttention.v",
    cross_output: "layer.1.EncDecAttention.o",
    mlp_norm: "layer.2.layer_norm",
    gate: "layer.2.DenseReluDense.wi_0",
    up: "layer.2.DenseReluDense.wi|layer.2.DenseReluDense.wi_1",
    down: "layer.2.DenseReluDense.wo",
    ..T5_ENCODER
};

pub const PIX2STRUCT_DECODER: Names = Names {
    token_embedding: "decoder.embed_tokens",
    relative_table: "decoder.layer.0.self_attention.attention.relative_attention_bias",
    final_norm: "decoder.final_layer_norm",
    head: "decoder.lm_head",
    layer: "decoder.layer.{}.",
    attention_norm: "self_attention.layer_norm",
    query: "self_attention.attention.query",
    key: "self_attention.attention.key",
    value: "self_attention.attention.value",
    attention_output: "self_attention.attention.output",
    cross_norm: "encoder_decoder_attention.layer_norm",
    cross_query: "encoder_decoder_attention.attention.query",
    cross_key: "encoder_decoder_attention.attention.key",
    cross_value: "encoder_decoder_attention.attention.value",
    cross_output: "encoder_decoder_attention.attention.output",
    mlp_norm: "mlp.layer_norm",
    gate: "mlp.DenseReluDense.wi_0",
    up: "mlp.DenseReluDense.wi_1",
    down: "mlp.DenseReluDense.wo",
    ..Names::NONE
};

/// BART, and most encoder-decoders after it.
pub const BART_ENCODER: Names = Names {
    token_embedding: "shared|encoder.embed_tokens",
    position_embedding: "encoder.embed_positions",
    embedding_norm: "encoder.layernorm_embedding",
    final_norm: "encoder.layer_norm",
    layer: "encoder.layers.{}.",
    attention_norm: "self_attn_layer_norm",
    query: "self_attn.q_proj",
    key: "self_attn.k_proj",
    value: "self_attn.v_proj",
    attention_output: "self_attn.out_proj",
    mlp_norm: "final_layer_norm",
    up: "fc1",
    down: "fc2",
    ..Names::NONE
};

pub const BART_DECODER: Names = Names {
    token_embedding: "shared|decoder.embed_tokens",
    position_embedding: "decoder.embed_positions",
    embedding_norm: "decoder.layernorm_embedding",
    final_norm: "decoder.layer_norm",
    head: "lm_head",
    logit_bias: "final_logits_bias",
    layer: "decoder.layers.{}.",
    cross_norm: "encoder_attn_layer_norm",
    cross_query: "encoder_attn.q_proj",
    cross_key: "encoder_attn.k_proj",
    cross_value: "encoder_attn.v_proj",
    cross_output: "encoder_attn.out_proj",
    sequence_dense: "classification_head.dense",
    sequence_output: "classification_head.out_proj",
    ..BART_ENCODER
};

pub const GGUF_T5_ENCODER: Names = Names {
    relative_table: "enc.blk.0.attn_rel_b",
    final_norm: "enc.output_norm",
    layer: "enc.blk.{}.",
    attention_output: "attn_o",
    qkv: "",
    gate_up: "",
    ..GGUF
};

pub const GGUF_T5_DECODER: Names = Names {
    relative_table: "dec.blk.0.attn_rel_b",
    final_norm: "dec.output_norm",
    layer: "dec.blk.{}.",
    cross_norm: "cross_attn_norm",
    cross_query: "cross_attn_q",
    cross_key: "cross_attn_k",
    cross_value: "cross_attn_v",
    cross_output: "cross_attn_o",
    ..GGUF_T5_ENCODER
};
