use super::*;
use crate::kernels::Activation;
use crate::models::encoder::config::{LayerConfig, SequencePooling};
use crate::models::encoder::parts::Part;
use crate::nn::AttentionKind;

/// A decoder read as an encoder: the last token has seen the whole text.
pub const FAMILY: Family = Family {
    name: "qwen3",
    matches: |raw| is(raw, &["qwen3"], "Qwen3"),
    config,
    names: &[
        (Part::Words, "embed_tokens"),
        (Part::Query, "layers.{}.self_attn.q_proj"),
        (Part::Key, "layers.{}.self_attn.k_proj"),
        (Part::Value, "layers.{}.self_attn.v_proj"),
        (Part::QueryNorm, "layers.{}.self_attn.q_norm"),
        (Part::KeyNorm, "layers.{}.self_attn.k_norm"),
        (Part::AttentionOutput, "layers.{}.self_attn.o_proj"),
        (Part::AttentionNorm, "layers.{}.input_layernorm"),
        (Part::Gate, "layers.{}.mlp.gate_proj"),
        (Part::Up, "layers.{}.mlp.up_proj"),
        (Part::Down, "layers.{}.mlp.down_proj"),
        (Part::MlpNorm, "layers.{}.post_attention_layernorm"),
        (Part::FinalNorm, "norm"),
        (Part::SequenceOutput, "score"),
        (Part::TokenOutput, "score"),
        (Part::MaskedOutput, "lm_head"),
    ],
};

fn config(raw: &RawConfig) -> Result<EncoderConfig> {
    if raw.opt_bool("use_sliding_window")? == Some(true) {
        return Err(Error::unsupported(
            raw.file(),
            "sliding windows are not supported here",
        ));
    }
    if let Some(scaling) = raw.opt_nested("rope_scaling")? {
        let kind = scaling
            .opt_string(["rope_type", "type"])?
            .unwrap_or("default");
        if kind != "default" {
            return Err(Error::unsupported(
                raw.file(),
                format!("rope_scaling of type {kind:?} is not supported here"),
            ));
        }
    }
    let config = common(raw, "qwen3")?;
    let head_width = raw.opt_usize_in("head_dim", WIDTH)?.unwrap_or(128);
    let rope = plain_rope(rope_theta(raw, &["rope_theta"], 1_000_000.0)?, head_width);
    let causal = |layer: &LayerConfig| LayerConfig {
        attention: AttentionKind::Causal,
        ..*layer
    };
    Ok(EncoderConfig {
        key_heads: raw
            .opt_usize_in("num_key_value_heads", HEADS)?
            .unwrap_or(config.heads),
        head_width,
        layers: config.layers.iter().map(causal).collect(),
        positions: Positions::None,
        relative: Relative::Rope(vec![rope]),
        norm: NormKind::Rms,
        epsilon: raw.opt_f64("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        placement: NormPlacement::Pre,
        mlp: Mlp::Gated,
        activation: Activation::Silu,
        heads_on_top: HeadConfigs {
            pooling: SequencePooling::Last,
            ..config.heads_on_top
        },
        ..config
    })
}
