//! What encoder-decoders read alike.

use super::*;

/// Distances beyond this one share T5's last bucket.
const FARTHEST: usize = 128;

/// Where BART's relatives differ.
pub struct BartLike {
    pub family: &'static str,
    pub positions: Positions,
    pub norm_placement: NormPlacement,
    pub activation: &'static str,
}

/// BART and those after it.
pub fn bart_like(raw: &RawConfig, usual: &BartLike) -> Result<Seq2SeqConfig> {
    let (encoder, decoder) = bart_stacks(raw, usual)?;
    seq2seq(raw, (encoder, BART_ENCODER), decoder, 1.0)
}

/// Their encoder and decoder.
pub fn bart_stacks(raw: &RawConfig, usual: &BartLike) -> Result<(EncoderConfig, EncoderConfig)> {
    let hidden_size = raw.usize_in(["d_model", "hidden_size"], WIDTH)?;
    let activation = raw.opt_string("activation_function")?;
    let activation = config::activation(activation.unwrap_or(usual.activation), raw.file())?;
    let scale = if flag(raw, "scale_embedding", false)? {
        (hidden_size as f32).sqrt()
    } else {
        1.0
    };
    let stack = |layers: &str, heads: &str, attention: AttentionKind| -> Result<EncoderConfig> {
        let head_count = raw.usize_in(heads, HEADS)?;
        if !hidden_size.is_multiple_of(head_count) {
            return Err(Error::corrupt(
                raw.file(),
                format!("{hidden_size} dimensions can't be divided among {head_count} heads"),
            ));
        }
        let layers = raw.usize_in(layers, LAYERS)?;
        Ok(EncoderConfig {
            positions: usual.positions,
            max_positions: raw.opt_usize_in("max_position_embeddings", POSITIONS)?,
            norm_placement: usual.norm_placement,
            embedding_scale: scale,
            ..stack(
                usual.family,
                (hidden_size, head_count, hidden_size / head_count),
                (layers, attention),
                NormConfig::new(NormKind::Layer, 1e-5),
                Mlp {
                    kind: MlpKind::Plain,
                    activation,
                },
            )
        })
    };
    let encoder = stack(
        "encoder_layers",
        "encoder_attention_heads",
        AttentionKind::Bidirectional,
    )?;
    let decoder = stack(
        "decoder_layers",
        "decoder_attention_heads",
        AttentionKind::Causal,
    )?;
    Ok((encoder, decoder))
}

/// The decoder of a model that reads images, with the names of its tensors.
pub fn reading_decoder(raw: &RawConfig) -> Result<(DecoderShape, Names)> {
    if is_type(raw, &["pix2struct_text_model"]) {
        return patches_decoder(raw);
    }
    let learned = Positions::LearnedFrom { first: 2 };
    let (family, norm_placement) = match raw.model_type()? {
        Some("trocr") => ("trocr", NormPlacement::Post),
        Some("bart") => ("bart", NormPlacement::Post),
        Some("mbart") => ("mbart", NormPlacement::Pre),
        found => {
            let found = found.unwrap_or("(none)");
            return Err(unknown(
                raw.file(),
                ("decoder", found),
                "the decoder of a model that reads images",
                &["trocr", "mbart", "bart"],
            ));
        }
    };
    let raw = &raw.clone().with_defaults(json!({
        "vocab_size": 50265, "d_model": 1024, "decoder_layers": 12, "decoder_attention_heads": 16,
        "max_position_embeddings": if family == "trocr" { 512 } else { 1024 },
    }));
    let trocr = family == "trocr";
    let usual = BartLike {
        family,
        positions: if trocr && !flag(raw, "use_learned_position_embeddings", true)? {
            Positions::Sinusoidal {
                frequencies: Frequencies::Closed,
                padding_id: Some(raw.padding_id()?.unwrap_or(1)),
            }
        } else {
            learned
        },
        norm_placement,
        activation: "gelu",
    };
    let decoder = raw.clone().with(json!({
        "encoder_layers": 1,
        "encoder_attention_heads": raw.usize_in("decoder_attention_heads", HEADS)?,
    }));
    let (_, mut stack) = bart_stacks(&decoder, &usual)?;
    if trocr {
        stack.mechanisms.memory_size = raw.opt_usize_in("cross_attention_hidden_size", WIDTH)?;
    }
    let vocab_size = raw.usize_in("vocab_size", VOCABULARY)?;
    let checked = stack.check();
    checked.map_err(|reason| Error::corrupt(raw.file(), reason))?;
    let shape = DecoderShape {
        stack,
        vocab_size,
        output_scale: 1.0,
        few_rows: false,
    };
    let names = Names {
        head: "lm_head|output_projection",
        ..BART_DECODER
    };
    Ok((shape, names))
}

/// Pix2Struct's, which is T5's.
fn patches_decoder(raw: &RawConfig) -> Result<(DecoderShape, Names)> {
    let raw = raw.clone().with_defaults(json!({
        "vocab_size": 50_244, "hidden_size": 768, "d_kv": 64, "num_layers": 12, "num_heads": 12,
        "dense_act_fn": "gelu_new",
    }));
    let layers = raw.usize_in("num_layers", LAYERS)?;
    let form = format!("gated-{}", raw.string("dense_act_fn")?);
    let raw = raw.clone().with(json!({
        "d_model": raw.usize_in("hidden_size", WIDTH)?, "feed_forward_proj": form,
    }));
    let stack = t5_stack(&raw, layers, AttentionKind::Causal)?;
    let checked = stack.check();
    checked.map_err(|reason| Error::corrupt(raw.file(), reason))?;
    let shape = DecoderShape {
        stack: EncoderConfig {
            family: "pix2struct",
            ..stack
        },
        vocab_size: raw.usize_in("vocab_size", VOCABULARY)?,
        output_scale: 1.0,
        few_rows: false,
    };
    Ok((shape, PIX2STRUCT_DECODER))
}

/// T5's encoder, alone or beside its decoder.
pub fn t5_encoder(raw: &RawConfig) -> Result<EncoderConfig> {
    t5_stack(
        raw,
        raw.usize_in("num_layers", LAYERS)?,
        AttentionKind::Bidirectional,
    )
}

pub fn t5(raw: &RawConfig) -> Result<Seq2SeqConfig> {
    let encoder = t5_encoder(raw)?;
    let layers = raw.opt_usize_in("num_decoder_layers", LAYERS)?;
    let layers = layers.unwrap_or(encoder.layers.len());
    let decoder = t5_stack(raw, layers, AttentionKind::Causal)?;
    // T5 of 2019 reads its logits off the embedding; later ones have a matrix of their own.
    let tied = is_type(raw, &["t5"]) && flag(raw, "tie_word_embeddings", true)?;
    let scale = if tied {
        1.0 / (decoder.hidden_size as f32).sqrt()
    } else {
        1.0
    };
    seq2seq(raw, (encoder, T5_ENCODER), decoder, scale)
}

fn t5_stack(raw: &RawConfig, layers: usize, attention: AttentionKind) -> Result<EncoderConfig> {
    let hidden_size = raw.usize_in("d_model", WIDTH)?;
    let (head_count, head_size) = (
        raw.usize_in("num_heads", HEADS)?,
        raw.usize_in("d_kv", WIDTH)?,
    );
    let epsilon = number(raw, "layer_norm_epsilon")?.unwrap_or(1e-6);
    let form = raw.opt_string("feed_forward_proj")?.unwrap_or("relu");
    let mlp = match form.strip_prefix("gated-") {
        Some("gelu") => ("gelu_new", MlpKind::Gated),
        Some(name) => (name, MlpKind::Gated),
        None => (form, MlpKind::Plain),
    };
    Ok(t5_config(
        raw.opt_usize("relative_attention_num_buckets")?,
        raw.opt_usize("relative_attention_max_distance")?,
        stack(
            "t5",
            (hidden_size, head_count, head_size),
            (layers, attention),
            NormConfig::new(NormKind::Rms, epsilon),
            Mlp {
                kind: mlp.1,
                activation: config::activation(mlp.0, raw.file())?,
            },
        ),
    ))
}

/// T5's encoder as GGUF files have it.
pub fn t5_encoder_gguf(file: &GgufFile<'_>) -> Result<EncoderConfig> {
    let layers = file.size("block_count", LAYERS)?;
    t5_stack_gguf(file, layers, ("enc", AttentionKind::Bidirectional))
}

pub fn t5_gguf(file: &GgufFile<'_>) -> Result<Seq2SeqConfig> {
    let encoder = t5_encoder_gguf(file)?;
    let layers = match file.opt_size("decoder_block_count")? {
        Some(_) => file.size("decoder_block_count", LAYERS)?,
        None => encoder.layers.len(),
    };
    let decoder = t5_stack_gguf(file, layers, ("dec", AttentionKind::Causal))?;
    let start = file.opt_size("decoder_start_token_id")?;
    let output_scale = if file.has("output") {
        1.0
    } else {
        1.0 / (decoder.hidden_size as f32).sqrt()
    };
    Ok(Seq2SeqConfig {
        family: encoder.family,
        encoder: Blueprint {
            config: encoder,
            names: GGUF_T5_ENCODER,
            modules: T5_ENCODER,
            padding_id: file.padding_id()?,
        },
        decoder,
        vocab_size: file.vocabulary()?,
        start: start.and_then(|id| u32::try_from(id).ok()).unwrap_or(0),
        end: file.end_id()?,
        output_scale,
    })
}

fn t5_stack_gguf(
    file: &GgufFile<'_>,
    layers: usize,
    (part, attention): (&str, AttentionKind),
) -> Result<EncoderConfig> {
    let hidden_size = file.size("embedding_length", WIDTH)?;
    let head_count = file.size("attention.head_count", HEADS)?;
    let head_size = match file.opt_size("attention.key_length")? {
        Some(_) => file.size("attention.key_length", WIDTH)?,
        None => hidden_size / head_count,
    };
    let epsilon = file.number("attention.layer_norm_rms_epsilon")?;
    let mlp = if file.has(&format!("{part}.blk.0.ffn_gate")) {
        Mlp {
            kind: MlpKind::Gated,
            activation: Activation::GeluTanh,
        }
    } else {
        Mlp {
            kind: MlpKind::Plain,
            activation: Activation::Relu,
        }
    };
    Ok(t5_config(
        file.opt_size("attention.relative_buckets_count")?,
        None,
        stack(
            "t5",
            (hidden_size, head_count, head_size),
            (layers, attention),
            NormConfig::new(NormKind::Rms, epsilon.unwrap_or(1e-6)),
            mlp,
        ),
    ))
}

/// What every T5 has: no positions but the distances of attention, whose scores are not scaled.
pub fn t5_config(
    buckets: Option<usize>,
    farthest: Option<usize>,
    config: EncoderConfig,
) -> EncoderConfig {
    let directions = match config.layers.first() {
        Some(layer) if layer.attention == AttentionKind::Causal => Directions::Back,
        _ => Directions::Both,
    };
    EncoderConfig {
        relative: Relative::Buckets {
            count: buckets.unwrap_or(32),
            farthest: farthest.unwrap_or(FARTHEST),
            directions,
        },
        attention_scale: Some(1.0),
        norm_placement: NormPlacement::Pre,
        ..config
    }
}

/// Layers of one kind, without positions.
pub fn stack(
    family: &'static str,
    (hidden_size, head_count, head_size): (usize, usize, usize),
    (layers, attention): (usize, AttentionKind),
    norm: NormConfig,
    mlp: Mlp,
) -> EncoderConfig {
    EncoderConfig {
        family,
        hidden_size,
        head_count,
        head_size,
        layers: (0..layers)
            .map(|weights| LayerConfig { attention, weights })
            .collect(),
        attention_scale: None,
        embedding_scale: 1.0,
        embedding_size: hidden_size,
        token_types: 0,
        positions: Positions::None,
        relative: Relative::None,
        max_positions: None,
        norm,
        norm_placement: NormPlacement::Post,
        mlp,
        qkv: QkvLayout::Stacked,
        heads_on_top: HeadConfigs::default(),
        convolution: None,
        mechanisms: Mechanisms::default(),
    }
}

fn seq2seq(
    raw: &RawConfig,
    (encoder, names): (EncoderConfig, Names),
    decoder: EncoderConfig,
    output_scale: f32,
) -> Result<Seq2SeqConfig> {
    let vocab_size = raw.usize_in(["decoder_vocab_size", "vocab_size"], VOCABULARY)?;
    let token = |keys: &[&str]| -> Result<Option<u32>> {
        let ids = raw.opt_integers(keys)?.unwrap_or_default();
        Ok(ids.first().and_then(|&id| u32::try_from(id).ok()))
    };
    let start = token(&["decoder_start_token_id", "bos_token_id", "pad_token_id"])?;
    Ok(Seq2SeqConfig {
        family: encoder.family,
        encoder: Blueprint {
            config: encoder,
            names,
            modules: names,
            padding_id: raw.padding_id()?,
        },
        decoder,
        vocab_size,
        start: start.unwrap_or(0),
        end: token(&["eos_token_id"])?,
        output_scale,
    })
}
