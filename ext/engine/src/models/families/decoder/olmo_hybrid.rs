use super::state_shared::delta_rule;
use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "olmo_hybrid",
    matches: types(&["olmo_hybrid"]),
    config: |raw| {
        let heads = raw.usize_in("num_attention_heads", 1..=4096)?;
        let raw = raw.clone().with_defaults(json!({
            "linear_num_key_heads": heads, "linear_num_value_heads": heads,
        }));
        let hidden = raw.usize_in("hidden_size", WIDTH)?;
        let keys = raw.usize_in("linear_num_key_heads", 1..=hidden)?;
        let raw = raw.with_defaults(json!({"linear_key_head_dim": hidden * 3 / 4 / keys}));
        let size = raw.usize_in("linear_key_head_dim", WIDTH)?;
        let raw = &raw.with_defaults(json!({"linear_value_head_dim": 2 * size}));
        let mut config = olmo2::shape(decoder(raw, &Usual::LLAMA)?);
        let parameters = raw.opt_nested("rope_parameters")?;
        if !parameters.is_some_and(|parameters| parameters.has("rope_theta")) {
            config.relative = Relative::None;
        }
        let last = config.layer_count - 1;
        config.sublayers = sublayers(raw, config.layer_count, |at| {
            at % 4 == 3 || last < 3 && at == last
        })?;
        config.state_norm_placement = Some(NormPlacement::Pre);
        let mut rule = DeltaRule {
            epsilon: 1e-5,
            ..delta_rule(raw, &config)?
        };
        if flag(raw, "linear_allow_neg_eigval", true)? {
            rule.most_written = 2.0;
        }
        config.state = Some(StateKind::DeltaRule(rule));
        Ok(config)
    },
    names: |_| Names {
        attention_norm: "input_layernorm|attention_layer_norm",
        mlp_norm: "post_attention_layernorm|feedforward_layer_norm",
        post_attention_norm: "post_attention_layernorm|feedforward_layer_norm",
        state_query: "linear_attn.q_proj",
        state_key: "linear_attn.k_proj",
        state_value: "linear_attn.v_proj",
        state_query_convolution: "linear_attn.q_conv1d",
        state_key_convolution: "linear_attn.k_conv1d",
        state_value_convolution: "linear_attn.v_conv1d",
        state_gate: "linear_attn.g_proj",
        state_written: "linear_attn.b_proj",
        state_fading: "linear_attn.a_proj",
        state_norm: "linear_attn.o_norm",
        state_output: "linear_attn.o_proj",
        post_mlp_norm: olmo2::NAMES.post_mlp_norm,
        query: "self_attn.q_proj",
        query_gate: "",
        ..qwen3_next::NAMES
    },
    gguf: None,
};
