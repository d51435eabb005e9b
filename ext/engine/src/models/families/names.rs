//! Names that many families inherit.

use super::Names;

/// The decoders of transformers.
pub const LLAMA: Names = Names {
    body: "model.",
    token_embedding: "embed_tokens",
    final_norm: "norm",
    head: "lm_head",
    sequence_output: "score",
    token_output: "score|classifier",
    layer: "layers.{}.",
    attention_norm: "input_layernorm",
    mlp_norm: "post_attention_layernorm",
    query: "self_attn.q_proj",
    key: "self_attn.k_proj",
    value: "self_attn.v_proj",
    qkv: "self_attn.qkv_proj",
    attention_output: "self_attn.o_proj",
    query_norm: "self_attn.q_norm",
    key_norm: "self_attn.k_norm",
    gate: "mlp.gate_proj",
    up: "mlp.up_proj",
    gate_up: "mlp.gate_up_proj",
    down: "mlp.down_proj",
    router: "mlp.gate",
    expert_gate: "mlp.experts.{}.gate_proj",
    expert_up: "mlp.experts.{}.up_proj",
    expert_down: "mlp.experts.{}.down_proj",
    shared_gate: "mlp.shared_expert.gate_proj",
    shared_up: "mlp.shared_expert.up_proj",
    shared_down: "mlp.shared_expert.down_proj",
    shared_router: "mlp.shared_expert_gate",
    ..Names::NONE
};

pub const LLAMA4: Names = Names {
    gate: "feed_forward.gate_proj",
    up: "feed_forward.up_proj",
    down: "feed_forward.down_proj",
    router: "feed_forward.router",
    expert_gate_up: "feed_forward.experts.gate_up_proj",
    expert_down: "feed_forward.experts.down_proj",
    shared_gate: "feed_forward.shared_expert.gate_proj",
    shared_up: "feed_forward.shared_expert.up_proj",
    shared_down: "feed_forward.shared_expert.down_proj",
    ..LLAMA
};

/// GGUF names parts alike for all families; which of them a layer has follows from the config.
pub const GGUF: Names = Names {
    token_embedding: "token_embd",
    position_embedding: "position_embd",
    final_norm: "output_norm",
    head: "output",
    sequence_output: "cls.output",
    layer: "blk.{}.",
    attention_norm: "attn_norm",
    mlp_norm: "ffn_norm",
    post_attention_norm: "post_attention_norm",
    post_mlp_norm: "post_ffw_norm",
    query: "attn_q",
    key: "attn_k",
    value: "attn_v",
    qkv: "attn_qkv",
    attention_output: "attn_output",
    query_norm: "attn_q_norm",
    key_norm: "attn_k_norm",
    gate: "ffn_gate",
    up: "ffn_up",
    gate_up: "ffn_up",
    down: "ffn_down",
    router: "ffn_gate_inp",
    expert_gate: "ffn_gate_exps",
    expert_up: "ffn_up_exps",
    expert_down: "ffn_down_exps",
    shared_gate: "ffn_gate_shexp",
    shared_up: "ffn_up_shexp",
    shared_down: "ffn_down_shexp",
    shared_router: "ffn_gate_inp_shexp",
    embedding_norm: "token_embd_norm",
    expert_gate_up: "ffn_gate_up_exps",
    router_bias: "exp_probs_b.bias|exp_probs_b",
    shared_gate_up: "ffn_up_shexp",
    sinks: "attn_sinks",
    output_gate: "attn_gate",
    attention_sub_norm: "attn_sub_norm",
    mlp_sub_norm: "ffn_sub_norm",
    query_down: "attn_q_a",
    query_down_norm: "attn_q_a_norm",
    query_up: "attn_q_b",
    latent_down: "attn_kv_a_mqa",
    latent_norm: "attn_kv_a_norm",
    latent_up: "attn_kv_b",
    latent_keys: "attn_k_b",
    latent_values: "attn_v_b",
    index_query: "indexer.attn_q_b",
    index_key: "indexer.attn_k",
    index_key_norm: "indexer.k_norm",
    index_weights: "indexer.proj",
    ..Names::NONE
};

/// The norm before the MLP has the name of one that others have after attention.
pub const GGUF_AFTER_ATTENTION: Names = Names {
    mlp_norm: "post_attention_norm",
    post_attention_norm: "",
    ..GGUF
};

/// Gemma 3n and 4.
pub const GGUF_LAYER_INPUTS: Names = Names {
    layer_scale: "layer_output_scale",
    layer_input_table: "per_layer_token_embd",
    layer_input_projection: "per_layer_model_proj",
    layer_input_norm: "per_layer_proj_norm",
    layer_input_gate: "inp_gate",
    layer_input_output: "proj",
    post_layer_input_norm: "post_norm",
    lane_into: "altup_proj",
    lane_out: "altup_unembd_proj",
    lane_router: "altup_router",
    lane_router_norm: "altup_router_norm",
    lane_prediction: "altup_predict_coef",
    lane_correction: "altup_correct_coef",
    lane_scale: "altup_correct_scale",
    narrow_down: "laurel_l",
    narrow_up: "laurel_r",
    narrow_norm: "laurel_post_norm",
    router_norm: "ffn_gate_inp.scale",
    expert_scales: "ffn_down_exps.scale",
    expert_input_norm: "pre_ffw_norm_2",
    expert_output_norm: "post_ffw_norm_2",
    beside_experts_norm: "post_ffw_norm_1",
    ..GGUF
};

/// BERT and its relatives, which normalize after their sublayers.
pub const GGUF_ENCODER: Names = Names {
    token_types: "token_types",
    final_norm: "",
    attention_norm: "attn_output_norm",
    second_attention_norm: "attn_norm_2",
    mlp_norm: "layer_output_norm",
    gate_up: "",
    sequence_dense: "cls",
    ..GGUF
};

/// Falcon 40b keeps the norm of its MLP where others keep that of attention.
pub const GGUF_FALCON: Names = Names {
    attention_norm: "attn_norm_2|attn_norm",
    mlp_norm: "attn_norm",
    ..GGUF
};

/// GPT-NeoX, and Falcon after it.
pub const GPT_NEOX: Names = Names {
    token_embedding: "embed_in|word_embeddings",
    final_norm: "final_layer_norm|ln_f",
    head: "embed_out|lm_head",
    layer: "layers.{}.|h.{}.",
    attention_norm: "input_layernorm|ln_attn",
    mlp_norm: "post_attention_layernorm|ln_mlp",
    qkv: "attention.query_key_value|self_attention.query_key_value",
    attention_output: "attention.dense|self_attention.dense",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    ..LLAMA
};

pub const GPT2: Names = Names {
    body: "transformer.",
    transposed: true,
    token_embedding: "wte",
    position_embedding: "wpe",
    final_norm: "ln_f",
    layer: "h.{}.",
    attention_norm: "ln_1",
    mlp_norm: "ln_2",
    qkv: "attn.c_attn",
    attention_output: "attn.c_proj",
    up: "mlp.c_fc",
    down: "mlp.c_proj",
    ..LLAMA
};

/// BERT, and most of its relatives.
pub const BERT: Names = Names {
    token_embedding: "embeddings.word_embeddings",
    position_embedding: "embeddings.position_embeddings",
    token_types: "embeddings.token_type_embeddings",
    task_types: "embeddings.task_type_embeddings",
    box_columns: "embeddings.x_position_embeddings",
    box_rows: "embeddings.y_position_embeddings",
    box_heights: "embeddings.h_position_embeddings",
    box_widths: "embeddings.w_position_embeddings",
    embedding_norm: "embeddings.LayerNorm",
    layer: "encoder.layer.{}.",
    qkv: "attention.self.qkv|attention.self.Wqkv|attention.self.query_key_value",
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    attention_output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    mlp_norm: "output.LayerNorm",
    sequence_dense: "pooler.dense",
    sequence_output: "classifier",
    token_output: "classifier",
    masked_dense: "cls.predictions.transform.dense",
    masked_norm: "cls.predictions.transform.LayerNorm",
    masked_output: "cls.predictions.decoder",
    masked_bias: "cls.predictions.bias|cls.predictions.decoder.bias",
    question_output: "qa_outputs",
    ..Names::NONE
};

/// BERT's relatives that normalize before attention and MLP, some with a norm of the layer before the MLP.
pub const PRE_NORM_BERT: Names = Names {
    attention_norm: "attention.LayerNorm|attention.self_attn_layer_norm|attention.ln",
    mlp_norm: "intermediate.LayerNorm|LayerNorm|ln",
    final_norm: "encoder.LayerNorm|encoder.ln|encoder.emb_layer_norm_after|LayerNorm",
    ..BERT
};

/// Encoders with the layers of Llama.
pub const BIDIRECTIONAL_LLAMA: Names = Names {
    sequence_dense: "dense",
    sequence_output: "classifier",
    token_output: "classifier",
    masked_dense: "head.linear1",
    masked_second: "head.linear2",
    masked_output: "lm_head|head.decoder|cls",
    masked_bias: "lm_head.bias",
    question_output: "qa_outputs",
    ..LLAMA
};

/// The encoder of a pair whose decoder has the same names (T5Gemma).
pub const ENCODER_LLAMA: Names = Names {
    token_embedding: "encoder.embed_tokens",
    final_norm: "encoder.norm",
    layer: "encoder.layers.{}.",
    ..BIDIRECTIONAL_LLAMA
};

/// XLM and FlauBERT, whose layers stand in four lists.
pub const XLM: Names = Names {
    token_embedding: "embeddings",
    position_embedding: "position_embeddings",
    embedding_norm: "layer_norm_emb",
    layer: "attentions.{}.|ffns.{}.|layer_norm",
    query: "q_lin",
    key: "k_lin",
    value: "v_lin",
    attention_output: "out_lin",
    attention_norm: "1.#",
    up: "lin1",
    down: "lin2",
    mlp_norm: "2.#",
    sequence_output: "sequence_summary.summary",
    token_output: "classifier",
    masked_output: "pred_layer.proj",
    masked_bias: "pred_layer.proj.bias",
    question_output: "qa_outputs",
    ..Names::NONE
};

/// CLIP's and SigLIP's texts.
pub const CLIP_TEXT: Names = Names {
    token_embedding: "embeddings.token_embedding",
    position_embedding: "embeddings.position_embedding",
    layer: "encoder.layers.{}.",
    attention_norm: "layer_norm1",
    query: "self_attn.q_proj",
    key: "self_attn.k_proj",
    value: "self_attn.v_proj",
    attention_output: "self_attn.out_proj",
    mlp_norm: "layer_norm2",
    up: "mlp.fc1",
    down: "mlp.fc2",
    final_norm: "final_layer_norm",
    shared_space: "text_projection|head",
    match_scale: "logit_scale",
    match_bias: "logit_bias",
    ..Names::NONE
};

/// NomicBERT and GTE: as their authors call parts, and as transformers does.
pub const NOMIC: Names = Names {
    embedding_norm: "emb_ln|embeddings.LayerNorm",
    layer: "encoder.layers.{}.|encoder.layer.{}.|layers.{}.",
    qkv: "attn.Wqkv|attention.qkv_proj|mixer.Wqkv",
    query: "attention.q_proj|self_attn.q_proj",
    key: "attention.k_proj|self_attn.k_proj",
    value: "attention.v_proj|self_attn.v_proj",
    attention_output: "attn.out_proj|attention.o_proj|self_attn.o_proj|mixer.out_proj",
    attention_norm: "norm1|attn_ln|post_attention_layernorm",
    gate: "mlp.fc12|mlp.gate_proj",
    up: "mlp.fc11|mlp.fc1|mlp.up_proj",
    up_gate: "mlp.up_gate_proj",
    down: "mlp.fc2|mlp.down_proj",
    mlp_norm: "norm2|mlp_ln|post_mlp_layernorm",
    masked_norm: "cls.predictions.transform.layer_norm|cls.predictions.transform.LayerNorm",
    ..BERT
};

pub const NEOBERT: Names = Names {
    body: "model.",
    token_embedding: "encoder",
    layer: "transformer_encoder.{}.",
    qkv: "qkv",
    attention_output: "wo",
    attention_norm: "attention_norm",
    gate: "ffn.w1",
    up: "ffn.w2",
    gate_up: "ffn.w12",
    down: "ffn.w3",
    mlp_norm: "ffn_norm",
    final_norm: "layer_norm",
    sequence_dense: "dense",
    sequence_output: "classifier",
    token_dense: "dense",
    token_output: "classifier",
    masked_output: "decoder",
    masked_bias: "decoder.bias",
    question_output: "qa_outputs",
    ..Names::NONE
};

/// One head for every task, as ModernBERT has it.
pub const PREDICTION_HEAD: Names = Names {
    sequence_dense: "head.dense",
    sequence_norm: "head.norm",
    sequence_output: "classifier",
    token_dense: "head.dense",
    token_norm: "head.norm",
    token_output: "classifier",
    masked_dense: "head.dense",
    masked_norm: "head.norm",
    masked_output: "decoder",
    masked_bias: "decoder.bias",
    question_dense: "head.dense",
    question_norm: "head.norm",
    question_output: "qa_outputs|classifier",
    ..Names::NONE
};
