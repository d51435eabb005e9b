//! Where each family keeps its tensors.
//!
//! Names inside a layer are relative to the layer's prefix; an empty name stands for a part that
//! the family does not have. Biases are looked for beside every weight.

use super::adapter::Part;

#[derive(Clone, Copy, Debug)]
pub struct Names {
    pub embedding: &'static str,
    pub position_embedding: &'static str,
    pub final_norm: &'static str,
    pub head: &'static str,
    /// `{}` stands for the layer's number.
    pub layer: &'static str,
    pub attention_norm: &'static str,
    pub mlp_norm: &'static str,
    pub post_attention_norm: &'static str,
    pub post_mlp_norm: &'static str,
    pub query: &'static str,
    pub key: &'static str,
    pub value: &'static str,
    pub qkv: &'static str,
    pub attention_output: &'static str,
    pub query_norm: &'static str,
    pub key_norm: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    pub gate_up: &'static str,
    pub down: &'static str,
    pub router: &'static str,
    /// `{}` stands for the expert's number, where experts are stored apart.
    pub expert_gate: &'static str,
    pub expert_up: &'static str,
    pub expert_down: &'static str,
    pub shared_gate: &'static str,
    pub shared_up: &'static str,
    pub shared_down: &'static str,
    pub shared_router: &'static str,
}

impl Names {
    /// The name of a part within its layer.
    pub fn part(&self, part: Part) -> &'static str {
        match part {
            Part::Query => self.query,
            Part::Key => self.key,
            Part::Value => self.value,
            Part::Qkv => self.qkv,
            Part::Output => self.attention_output,
            Part::Gate => self.gate,
            Part::Up => self.up,
            Part::GateUp => self.gate_up,
            Part::Down => self.down,
        }
    }
}

pub const LLAMA: Names = Names {
    embedding: "model.embed_tokens",
    position_embedding: "",
    final_norm: "model.norm",
    head: "lm_head",
    layer: "model.layers.{}.",
    attention_norm: "input_layernorm",
    mlp_norm: "post_attention_layernorm",
    post_attention_norm: "",
    post_mlp_norm: "",
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
};

pub const MIXTRAL: Names = Names {
    router: "block_sparse_moe.gate",
    expert_gate: "block_sparse_moe.experts.{}.w1",
    expert_up: "block_sparse_moe.experts.{}.w3",
    expert_down: "block_sparse_moe.experts.{}.w2",
    ..LLAMA
};

pub const GEMMA2: Names = Names {
    post_attention_norm: "post_attention_layernorm",
    mlp_norm: "pre_feedforward_layernorm",
    post_mlp_norm: "post_feedforward_layernorm",
    ..LLAMA
};

pub const OLMO2: Names = Names {
    attention_norm: "",
    mlp_norm: "",
    post_attention_norm: "post_attention_layernorm",
    post_mlp_norm: "post_feedforward_layernorm",
    ..LLAMA
};

pub const GLM4: Names = Names {
    post_attention_norm: "post_self_attn_layernorm",
    post_mlp_norm: "post_mlp_layernorm",
    ..LLAMA
};

pub const PHI: Names = Names {
    final_norm: "model.final_layernorm",
    attention_output: "self_attn.dense",
    up: "mlp.fc1",
    down: "mlp.fc2",
    mlp_norm: "",
    ..LLAMA
};

pub const STARCODER2: Names = Names {
    up: "mlp.c_fc",
    down: "mlp.c_proj",
    ..LLAMA
};

pub const FALCON: Names = Names {
    embedding: "transformer.word_embeddings",
    final_norm: "transformer.ln_f",
    layer: "transformer.h.{}.",
    qkv: "self_attention.query_key_value",
    attention_output: "self_attention.dense",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    ..LLAMA
};

pub const FALCON_TWO_NORMS: Names = Names {
    attention_norm: "ln_attn",
    mlp_norm: "ln_mlp",
    ..FALCON
};

pub const GPT_NEOX: Names = Names {
    embedding: "gpt_neox.embed_in",
    final_norm: "gpt_neox.final_layer_norm",
    head: "embed_out",
    layer: "gpt_neox.layers.{}.",
    qkv: "attention.query_key_value",
    attention_output: "attention.dense",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    ..LLAMA
};

pub const GPT2: Names = Names {
    embedding: "transformer.wte",
    position_embedding: "transformer.wpe",
    final_norm: "transformer.ln_f",
    layer: "transformer.h.{}.",
    attention_norm: "ln_1",
    mlp_norm: "ln_2",
    qkv: "attn.c_attn",
    attention_output: "attn.c_proj",
    up: "mlp.c_fc",
    down: "mlp.c_proj",
    ..LLAMA
};

/// GGUF names parts alike for all families; which of them a layer has follows from the config.
pub const GGUF: Names = Names {
    embedding: "token_embd",
    position_embedding: "position_embd",
    final_norm: "output_norm",
    head: "output",
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
};

/// Falcon 40b keeps the norm of its MLP where others keep that of attention.
pub const GGUF_FALCON_TWO_NORMS: Names = Names {
    attention_norm: "attn_norm_2",
    mlp_norm: "attn_norm",
    ..GGUF
};
