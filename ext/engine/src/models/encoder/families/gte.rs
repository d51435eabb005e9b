use super::*;
use crate::models::encoder::parts::Part;

pub const FAMILY: Family = Family {
    name: "gte",
    matches: |raw| is(raw, &["new", "gte"], "NewModel"),
    config,
    names: &[
        (Part::Words, "embeddings.word_embeddings"),
        (Part::TokenTypes, "embeddings.token_type_embeddings"),
        (Part::EmbeddingNorm, "embeddings.LayerNorm"),
        (Part::FusedQkv, "encoder.layer.{}.attention.qkv_proj"),
        (Part::Query, "encoder.layer.{}.attention.q_proj"),
        (Part::Query, "layers.{}.self_attn.q_proj"),
        (Part::Key, "encoder.layer.{}.attention.k_proj"),
        (Part::Key, "layers.{}.self_attn.k_proj"),
        (Part::Value, "encoder.layer.{}.attention.v_proj"),
        (Part::Value, "layers.{}.self_attn.v_proj"),
        (Part::AttentionOutput, "encoder.layer.{}.attention.o_proj"),
        (Part::AttentionOutput, "layers.{}.self_attn.o_proj"),
        (Part::AttentionNorm, "encoder.layer.{}.attn_ln"),
        (Part::AttentionNorm, "layers.{}.post_attention_layernorm"),
        (Part::UpGate, "encoder.layer.{}.mlp.up_gate_proj"),
        (Part::Gate, "layers.{}.mlp.gate_proj"),
        (Part::Up, "layers.{}.mlp.up_proj"),
        (Part::Down, "encoder.layer.{}.mlp.down_proj"),
        (Part::Down, "layers.{}.mlp.down_proj"),
        (Part::MlpNorm, "encoder.layer.{}.mlp_ln"),
        (Part::MlpNorm, "layers.{}.post_mlp_layernorm"),
        (Part::SequenceDense, "pooler.dense"),
        (Part::SequenceOutput, "classifier"),
        (Part::TokenOutput, "classifier"),
        (Part::MaskedDense, "lm_head.dense"),
        (Part::MaskedNorm, "lm_head.norm"),
        (Part::MaskedNorm, "lm_head.layer_norm"),
        (Part::MaskedOutput, "lm_head.decoder"),
        (Part::MaskedBias, "lm_head.decoder.bias"),
    ],
};

fn config(raw: &RawConfig) -> Result<EncoderConfig> {
    require_positions(raw, "rope")?;
    if raw.opt_bool("logn_attention_scale")? == Some(true) {
        return Err(Error::unsupported(
            raw.file(),
            "logn_attention_scale is not supported",
        ));
    }
    let config = common(raw, "gte")?;
    let rope = plain_rope(
        rope_theta(raw, &["rope_theta"], 10_000.0)?,
        config.head_width,
    );
    Ok(EncoderConfig {
        positions: Positions::None,
        relative: Relative::Rope(vec![scaled(raw, rope)?]),
        norm: match raw.opt_string("layer_norm_type")? {
            Some("rms_norm") => NormKind::Rms,
            _ => NormKind::Layer,
        },
        mlp: Mlp::Gated,
        ..config
    })
}

/// The fixed stretch of the frequencies that the first releases were trained with.
fn scaled(raw: &RawConfig, rope: RopeConfig) -> Result<RopeConfig> {
    let Some(scaling) = raw.opt_nested("rope_scaling")? else {
        return Ok(rope);
    };
    let kind = scaling
        .opt_string(["type", "rope_type"])?
        .unwrap_or("default");
    let factor = scaling.opt_f64("factor")?.unwrap_or(1.0) as f32;
    match kind {
        "default" => Ok(rope),
        "ntk" if factor >= 1.0 && factor.is_finite() && !scaling.has("mixed_b") => Ok(RopeConfig {
            theta: rope.theta * factor,
            divisor: factor.powf(2.0 / rope.rotary as f32),
            ..rope
        }),
        other => Err(Error::unsupported(
            raw.file(),
            format!("rope_scaling of type {other:?} with factor {factor} is not supported"),
        )),
    }
}
