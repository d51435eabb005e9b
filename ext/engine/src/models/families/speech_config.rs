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
    if flag(raw, "conv_pos_batch_norm", false)? {
        return Err(Error::unsupported(
            raw.file(),
            "conv_pos_batch_norm is not supported",
        ));
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
        conformer: None,
        // HuBERT has none, whatever its file says.
        adapter: if family == "hubert" {
            None
        } else {
            state_adapter(raw, AdapterKind::Convolutions)?
        },
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

/// Layers of a Conformer with labels on top.
pub fn conformer_like(
    raw: &RawConfig,
    family: &'static str,
    stem: StemConfig,
    conformer: ConformerConfig,
) -> Result<SpeechConfig> {
    let hidden = raw.usize_in("hidden_size", WIDTH)?;
    let heads = raw.usize_in("num_attention_heads", HEADS)?;
    let layers = raw.usize_in("num_hidden_layers", LAYERS)?;
    Ok(SpeechConfig {
        family,
        stem,
        encoder: stack(
            family,
            (hidden, heads, hidden / heads),
            (layers, AttentionKind::Bidirectional),
            NormConfig::new(NormKind::Layer, raw.f64("layer_norm_eps")? as f32),
            Mlp {
                kind: MlpKind::Plain,
                activation: config::activation(raw.string("hidden_act")?, raw.file())?,
            },
        ),
        conformer: Some(conformer),
        adapter: None,
        // Files of models that do not transcribe say of no vocabulary.
        output: match raw.opt_usize_in("vocab_size", VOCABULARY)? {
            Some(vocab_size) => SpeechOutput::Labels {
                vocab_size,
                blank: raw.padding_id()?.unwrap_or(0),
            },
            None => SpeechOutput::States,
        },
    })
}

pub fn wav2vec2_bert_positions(raw: &RawConfig) -> Result<ConformerPositions> {
    Ok(match raw.opt_string("position_embeddings_type")? {
        Some("relative_key") => ConformerPositions::Table {
            back: raw.usize_in("left_max_position_embeddings", POSITIONS)?,
            ahead: raw.usize_in("right_max_position_embeddings", POSITIONS)?,
        },
        Some("relative") => ConformerPositions::Sines,
        // States are rotated themselves.
        Some("rotary") | None => ConformerPositions::None,
        Some(other) => {
            return Err(Error::unsupported(
                raw.file(),
                format!("position_embeddings_type {other:?} is not supported"),
            ))
        }
    })
}

/// What makes the states of an encoder fewer, where a file says so.
pub fn state_adapter(raw: &RawConfig, kind: AdapterKind) -> Result<Option<AdapterConfig>> {
    if !flag(raw, "add_adapter", false)? {
        return Ok(None);
    }
    let size = |key: &str, usual: usize| -> Result<usize> {
        Ok(raw.opt_usize_in(key, 0..=1 << 16)?.unwrap_or(usual))
    };
    let (layers, epsilon) = match kind {
        AdapterKind::Convolutions => (3, 1e-5),
        AdapterKind::Attention { .. } => (1, raw.f64("layer_norm_eps")? as f32),
    };
    let hidden = raw.usize_in("hidden_size", WIDTH)?;
    let width = match size("output_hidden_size", hidden)? {
        0 => hidden,
        width => width,
    };
    Ok(Some(AdapterConfig {
        kind,
        layers: size("num_adapter_layers", layers)?,
        width,
        kernel: size("adapter_kernel_size", 3)?,
        stride: size("adapter_stride", 2)?,
        feeds_before: flag(raw, "use_intermediate_ffn_before_adapter", false)?,
        epsilon,
    }))
}

/// The rotation of states, where a file asks for rotary positions (wav2vec2-bert).
pub fn rotated_states(raw: &RawConfig, head_size: usize) -> Result<Relative> {
    if raw.opt_string("position_embeddings_type")? != Some("rotary") {
        return Ok(Relative::None);
    }
    let base = raw.opt_f64("rotary_embedding_base")?.unwrap_or(10_000.0);
    Ok(Relative::Rope(rope(raw, head_size, 1.0, base)?))
}

/// The encoder's settings with the vocabulary beside them.
pub fn parakeet_settings(raw: &RawConfig) -> Result<RawConfig> {
    let vocabulary = raw.opt_usize("vocab_size")?.unwrap_or(1025);
    let blank = raw.padding_id()?.unwrap_or(1024);
    let encoder = raw.opt_nested("encoder_config")?;
    let encoder = encoder.unwrap_or_else(|| raw.clone());
    let encoder = encoder.with(json!({ "vocab_size": vocabulary, "pad_token_id": blank }));
    Ok(encoder.with_defaults(json!({
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8, "hidden_act": "silu",
        "layer_norm_eps": 1e-5, "conv_kernel_size": 9, "subsampling_factor": 8, "num_mel_bins": 80,
        "subsampling_conv_channels": 256, "subsampling_conv_kernel_size": 3, "subsampling_conv_stride": 2,
    })))
}

pub const WAV2VEC2_BERT: Names = Names {
    patch_embedding: "feature_projection.projection",
    feature_norm: "feature_projection.layer_norm",
    feature_projection: "feature_projection.projection",
    head: "lm_head",
    layer_weights: "layer_weights",
    sequence_dense: "projector",
    sequence_output: "classifier",
    layer: "encoder.layers.{}.",
    first_mlp_norm: "ffn1_layer_norm",
    first_up: "ffn1.intermediate_dense",
    first_down: "ffn1.output_dense",
    attention_norm: "self_attn_layer_norm",
    query: "self_attn.linear_q",
    key: "self_attn.linear_k",
    value: "self_attn.linear_v",
    attention_output: "self_attn.linear_out",
    position_table: "self_attn.distance_embedding",
    position_key: "self_attn.linear_pos",
    content_bias: "self_attn.pos_bias_u",
    position_bias: "self_attn.pos_bias_v",
    convolution_input_norm: "conv_module.layer_norm",
    pointwise_in: "conv_module.pointwise_conv1",
    depthwise: "conv_module.depthwise_conv",
    depthwise_norm: "conv_module.depthwise_layer_norm",
    pointwise_out: "conv_module.pointwise_conv2",
    mlp_norm: "ffn2_layer_norm",
    up: "ffn2.intermediate_dense",
    down: "ffn2.output_dense",
    post_mlp_norm: "final_layer_norm",
    ..Names::NONE
};

pub const PARAKEET: Names = Names {
    patch_embedding: "encoder.subsampling.layers.0",
    stem_convolution: "encoder.subsampling.layers.{}",
    feature_projection: "encoder.subsampling.linear",
    head: "ctc_head",
    layer: "encoder.layers.{}.",
    first_mlp_norm: "norm_feed_forward1",
    first_up: "feed_forward1.linear1",
    first_down: "feed_forward1.linear2",
    attention_norm: "norm_self_att",
    query: "self_attn.q_proj",
    key: "self_attn.k_proj",
    value: "self_attn.v_proj",
    attention_output: "self_attn.o_proj",
    position_key: "self_attn.relative_k_proj",
    content_bias: "self_attn.bias_u",
    position_bias: "self_attn.bias_v",
    convolution_input_norm: "norm_conv",
    pointwise_in: "conv.pointwise_conv1",
    depthwise: "conv.depthwise_conv",
    depthwise_norm: "conv.norm",
    depthwise_mean: "conv.norm.running_mean",
    depthwise_variance: "conv.norm.running_var",
    pointwise_out: "conv.pointwise_conv2",
    mlp_norm: "norm_feed_forward2",
    up: "feed_forward2.linear1",
    down: "feed_forward2.linear2",
    post_mlp_norm: "norm_out",
    ..Names::NONE
};

/// One half of Moonshine: its names begin with `half`.
pub fn moonshine_stack(raw: &RawConfig, half: &str) -> Result<EncoderConfig> {
    let raw = &raw.clone().with_defaults(json!({
        "hidden_size": 288, "encoder_num_hidden_layers": 6, "decoder_num_hidden_layers": 6,
        "encoder_num_attention_heads": 8, "encoder_hidden_act": "gelu", "decoder_hidden_act": "silu",
        "max_position_embeddings": 512,
    }));
    let hidden = raw.usize_in("hidden_size", WIDTH)?;
    // As transformers, whose decoder has as many heads as the encoder, whatever the file says of it.
    let heads = raw.usize_in("encoder_num_attention_heads", HEADS)?;
    let shared = raw.opt_usize("encoder_num_key_value_heads")?;
    if shared.is_some_and(|count| count != heads) {
        return Err(Error::unsupported(
            raw.file(),
            "encoder_num_key_value_heads other than encoder_num_attention_heads is not supported",
        ));
    }
    let head_size = match raw.opt_usize_in("head_dim", WIDTH)? {
        Some(size) => size,
        None => hidden / heads,
    };
    let decodes = half == "decoder";
    let activation = raw.string(format!("{half}_hidden_act").as_str())?;
    let layers = raw.usize_in(format!("{half}_num_hidden_layers").as_str(), LAYERS)?;
    let attention = if decodes {
        AttentionKind::Causal
    } else {
        AttentionKind::Bidirectional
    };
    Ok(EncoderConfig {
        norm_placement: NormPlacement::Pre,
        relative: Relative::Rope(moonshine_rope(raw, head_size)?),
        ..stack(
            "moonshine",
            (hidden, heads, head_size),
            (layers, attention),
            NormConfig::new(NormKind::Layer, 1e-5),
            Mlp {
                kind: if decodes {
                    MlpKind::Gated
                } else {
                    MlpKind::Plain
                },
                activation: config::activation(activation, raw.file())?,
            },
        )
    })
}

/// Neighbours rotate together; of an odd number of dimensions, one more does, by the frequencies of the odd number.
fn moonshine_rope(raw: &RawConfig, head_size: usize) -> Result<RopeConfig> {
    let mut rope = rope(raw, head_size, 0.9, 10_000.0)?;
    rope.pairing = RopeKind::Interleaved;
    let wanted = rope.rotary_size;
    let parameters = raw.opt_nested(["rope_parameters", "rope_scaling"])?;
    let kind = match &parameters {
        Some(parameters) => parameters.opt_string(["rope_type", "type"])?,
        None => None,
    };
    if let Some(kind @ ("dynamic" | "longrope")) = kind {
        return Err(Error::unsupported(
            raw.file(),
            format!("the rope_type {kind:?} is not supported in speech models"),
        ));
    }
    match &rope.scaling {
        RopeScaling::None if !wanted.is_multiple_of(2) && wanted < head_size => {
            rope.rotary_size = wanted + 1;
            let theta = f64::from(rope.theta);
            let divisor = |pair: usize| {
                let exponent = |size: usize| (2 * pair) as f64 / size as f64;
                theta.powf(exponent(wanted) - exponent(wanted + 1)) as f32
            };
            rope.scaling = RopeScaling::Divisors((0..wanted.div_ceil(2)).map(divisor).collect());
            Ok(rope)
        }
        _ => Ok(rope),
    }
}

/// The layers of an audio spectrogram transformer.
pub fn spectrogram_stack(raw: &RawConfig) -> Result<EncoderConfig> {
    let hidden = raw.usize_in("hidden_size", WIDTH)?;
    let heads = raw.usize_in("num_attention_heads", HEADS)?;
    let head_size = raw.opt_usize_in("head_dim", WIDTH)?;
    let layers = raw.usize_in("num_hidden_layers", LAYERS)?;
    Ok(EncoderConfig {
        norm_placement: NormPlacement::Pre,
        ..stack(
            "audio-spectrogram-transformer",
            (hidden, heads, head_size.unwrap_or(hidden / heads)),
            (layers, AttentionKind::Bidirectional),
            NormConfig::new(NormKind::Layer, raw.f64("layer_norm_eps")? as f32),
            Mlp {
                kind: MlpKind::Plain,
                activation: config::activation(raw.string("hidden_act")?, raw.file())?,
            },
        )
    })
}
