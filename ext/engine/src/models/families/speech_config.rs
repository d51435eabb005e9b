//! What families of speech models read alike.

use super::*;

/// wav2vec 2.0 and those after it.
pub fn wav2vec2_like(raw: &RawConfig, family: &'static str) -> Result<SpeechConfig> {
    let raw = &raw.clone().with_defaults(json!({
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "hidden_act": "gelu",
        "layer_norm_eps": 1e-5, "vocab_size": 32, "feat_extract_norm": "group", "feat_extract_activation": "gelu",
        "conv_dim": [512, 512, 512, 512, 512, 512, 512], "conv_kernel": [10, 3, 3, 3, 3, 2, 2],
        "conv_stride": [5, 2, 2, 2, 2, 2, 2], "num_conv_pos_embedding_groups": 16, "pad_token_id": 0,
    }));
    for key in ["add_adapter", "conv_pos_batch_norm"] {
        if flag(raw, key, false)? {
            return Err(Error::unsupported(
                raw.file(),
                format!("{key} is not supported"),
            ));
        }
    }
    if raw.opt_usize("adapter_attn_dim")?.is_some() {
        return Err(Error::unsupported(
            raw.file(),
            "adapters for languages (adapter_attn_dim) are not supported",
        ));
    }
    let hidden = raw.usize_in("hidden_size", WIDTH)?;
    let heads = raw.usize_in("num_attention_heads", HEADS)?;
    let stable = flag(raw, "do_stable_layer_norm", false)?;
    let activation = |key: &str| config::activation(raw.string(key)?, raw.file());
    let encoder = EncoderConfig {
        norm_placement: if stable {
            NormPlacement::Pre
        } else {
            NormPlacement::Post
        },
        ..stack(
            family,
            (hidden, heads, hidden / heads),
            (
                raw.usize_in("num_hidden_layers", LAYERS)?,
                AttentionKind::Bidirectional,
            ),
            NormConfig::new(NormKind::Layer, raw.f64("layer_norm_eps")? as f32),
            Mlp {
                kind: MlpKind::Plain,
                activation: activation("hidden_act")?,
            },
        )
    };
    Ok(SpeechConfig {
        family,
        stem: StemConfig::Samples(SamplesStem {
            layers: convolutions(raw)?,
            norm: match raw.string("feat_extract_norm")? {
                "layer" => StemNorm::Frames,
                _ => StemNorm::Channels,
            },
            activation: activation("feat_extract_activation")?,
            position_groups: raw.usize_in("num_conv_pos_embedding_groups", WIDTH)?,
            norm_first: !stable,
        }),
        encoder,
        output: SpeechOutput::Labels {
            vocab_size: raw.usize_in("vocab_size", VOCABULARY)?,
            blank: raw.padding_id()?.unwrap_or(0),
        },
    })
}

fn convolutions(raw: &RawConfig) -> Result<Vec<ConvolutionShape>> {
    let list = |key: &str| -> Result<Vec<usize>> {
        let numbers = raw.opt_integers(key)?.unwrap_or_default().into_iter();
        let sizes = numbers.map(|number| usize::try_from(number).unwrap_or(0));
        Ok(sizes.collect())
    };
    let (outputs, kernels, strides) = (
        list("conv_dim")?,
        list("conv_kernel")?,
        list("conv_stride")?,
    );
    if outputs.is_empty() || outputs.len() != kernels.len() || outputs.len() != strides.len() {
        return Err(Error::corrupt(
            raw.file(),
            "conv_dim, conv_kernel and conv_stride are not of one length",
        ));
    }
    let shapes = outputs.into_iter().zip(kernels).zip(strides);
    Ok(shapes
        .map(|((outputs, kernel), stride)| ConvolutionShape {
            outputs,
            kernel,
            stride,
        })
        .collect())
}

/// With norms before the sublayers, the one of the first states stands after the last layer.
pub fn wav2vec2_names(config: Option<&SpeechConfig>) -> Names {
    match config.map(|config| config.encoder.norm_placement) {
        Some(NormPlacement::Pre) => WAV2VEC2_STABLE,
        _ => WAV2VEC2,
    }
}
