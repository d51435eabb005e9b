use super::*;
use crate::kernels::Activation;
use crate::models::encoder::parts::Part;

pub const FAMILY: Family = Family {
    name: "nomic_bert",
    matches: |raw| is(raw, &["nomic_bert"], "NomicBert"),
    config,
    names: &[
        (Part::Words, "embeddings.word_embeddings"),
        (Part::TokenTypes, "embeddings.token_type_embeddings"),
        (Part::EmbeddingNorm, "emb_ln"),
        (Part::EmbeddingNorm, "embeddings.LayerNorm"),
        (Part::FusedQkv, "encoder.layers.{}.attn.Wqkv"),
        (Part::Query, "layers.{}.self_attn.q_proj"),
        (Part::Key, "layers.{}.self_attn.k_proj"),
        (Part::Value, "layers.{}.self_attn.v_proj"),
        (Part::AttentionOutput, "encoder.layers.{}.attn.out_proj"),
        (Part::AttentionOutput, "layers.{}.self_attn.o_proj"),
        (Part::AttentionNorm, "encoder.layers.{}.norm1"),
        (Part::AttentionNorm, "layers.{}.post_attention_layernorm"),
        (Part::Gate, "encoder.layers.{}.mlp.fc12"),
        (Part::Gate, "layers.{}.mlp.gate_proj"),
        (Part::Up, "encoder.layers.{}.mlp.fc11"),
        (Part::Up, "encoder.layers.{}.mlp.fc1"),
        (Part::Up, "layers.{}.mlp.up_proj"),
        (Part::Down, "encoder.layers.{}.mlp.fc2"),
        (Part::Down, "layers.{}.mlp.down_proj"),
        (Part::MlpNorm, "encoder.layers.{}.norm2"),
        (Part::MlpNorm, "layers.{}.post_mlp_layernorm"),
        (Part::SequenceDense, "pooler.dense"),
        (Part::SequenceOutput, "classifier"),
        (Part::TokenOutput, "classifier"),
        (Part::MaskedDense, "cls.predictions.transform.dense"),
        (Part::MaskedNorm, "cls.predictions.transform.layer_norm"),
        (Part::MaskedNorm, "cls.predictions.transform.LayerNorm"),
        (Part::MaskedOutput, "cls.predictions.decoder"),
        (Part::MaskedBias, "cls.predictions.bias"),
        (Part::MaskedBias, "cls.predictions.decoder.bias"),
    ],
};

fn config(raw: &RawConfig) -> Result<EncoderConfig> {
    for (key, what) in [
        ("prenorm", "norms before the layers"),
        ("use_rms_norm", "RMS norms"),
    ] {
        if raw.opt_bool(key)? == Some(true) {
            return Err(Error::unsupported(
                raw.file(),
                format!("NomicBERT with {what} is not supported"),
            ));
        }
    }
    if raw.opt_usize("moe_every_n_layers")?.unwrap_or(0) > 0 {
        return Err(Error::unsupported(
            raw.file(),
            "NomicBERT with experts is not supported",
        ));
    }
    let config = common(raw, "nomic_bert")?;
    let (mlp, act) = match raw.opt_string("activation_function")? {
        None => (Mlp::Gated, config.activation),
        Some("swiglu") => (Mlp::Gated, Activation::Silu),
        Some("geglu") => (Mlp::Gated, Activation::Gelu),
        Some("glu") => (Mlp::Gated, Activation::Sigmoid),
        Some(plain) => (Mlp::Plain, activation(plain)?),
    };
    let fraction = raw
        .opt_f64("rotary_emb_fraction")?
        .unwrap_or(1.0)
        .clamp(0.0, 1.0);
    let rope = RopeConfig {
        interleaved: raw.opt_bool("rotary_emb_interleaved")?.unwrap_or(false),
        ..plain_rope(
            rope_theta(raw, &["rope_theta", "rotary_emb_base"], 10_000.0)?,
            (config.head_width as f64 * fraction) as usize,
        )
    };
    // Beyond the trained length the frequencies would have to stretch with the text.
    let stretched = raw.opt_f64("rotary_scaling_factor")?.is_some();
    let trained = raw.opt_usize_in("max_trained_positions", POSITIONS)?;
    Ok(EncoderConfig {
        positions: Positions::None,
        relative: Relative::Rope(vec![rope]),
        max_positions: if stretched {
            trained.or(config.max_positions)
        } else {
            config.max_positions
        },
        mlp,
        activation: act,
        heads_on_top: HeadConfigs {
            masked_activation: act,
            ..config.heads_on_top
        },
        ..config
    })
}
