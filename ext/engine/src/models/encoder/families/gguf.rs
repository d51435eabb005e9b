//! BERT and its relatives as GGUF files name them.

use super::*;
use crate::kernels::Activation;
use crate::models::encoder::parts::Part;

pub const FAMILIES: &[GgufFamily] = &[
    GgufFamily {
        architecture: "bert",
        config: |metadata, architecture| common_gguf(metadata, architecture, "bert"),
        names: NAMES,
    },
    GgufFamily {
        architecture: "nomic-bert",
        config: |metadata, architecture| {
            let config = common_gguf(metadata, architecture, "nomic_bert")?;
            let theta = metadata
                .opt_f32("nomic-bert.rope.freq_base")?
                .unwrap_or(1000.0);
            Ok(EncoderConfig {
                positions: Positions::None,
                relative: Relative::Rope(vec![plain_rope(theta, config.head_width)]),
                mlp: Mlp::Gated,
                activation: Activation::Silu,
                ..config
            })
        },
        names: NAMES,
    },
    GgufFamily {
        architecture: "jina-bert-v2",
        config: |metadata, architecture| {
            let config = common_gguf(metadata, architecture, "jina_bert")?;
            Ok(EncoderConfig {
                positions: Positions::None,
                relative: Relative::Alibi,
                mlp: Mlp::Gated,
                ..config
            })
        },
        names: NAMES,
    },
];

const NAMES: Names = &[
    (Part::Words, "token_embd"),
    (Part::Positions, "position_embd"),
    (Part::TokenTypes, "token_types"),
    (Part::EmbeddingNorm, "token_embd_norm"),
    (Part::FusedQkv, "blk.{}.attn_qkv"),
    (Part::Query, "blk.{}.attn_q"),
    (Part::Key, "blk.{}.attn_k"),
    (Part::Value, "blk.{}.attn_v"),
    (Part::QueryNorm, "blk.{}.attn_q_norm"),
    (Part::KeyNorm, "blk.{}.attn_k_norm"),
    (Part::AttentionOutput, "blk.{}.attn_output"),
    (Part::AttentionNorm, "blk.{}.attn_output_norm"),
    (Part::SecondAttentionNorm, "blk.{}.attn_norm_2"),
    (Part::Gate, "blk.{}.ffn_gate"),
    (Part::Up, "blk.{}.ffn_up"),
    (Part::Down, "blk.{}.ffn_down"),
    (Part::MlpNorm, "blk.{}.layer_output_norm"),
    (Part::SequenceDense, "cls"),
    (Part::SequenceOutput, "cls.output"),
];

fn common_gguf(
    metadata: &Metadata,
    architecture: &str,
    family: &'static str,
) -> Result<EncoderConfig> {
    let size = |key: &str| -> Result<usize> {
        Ok(metadata.u32(&format!("{architecture}.{key}"))? as usize)
    };
    let optional = |key: &str| -> Result<Option<usize>> {
        let value = metadata.opt_u32(&format!("{architecture}.{key}"))?;
        Ok(value.map(|value| value as usize))
    };
    let hidden = size("embedding_length")?;
    let heads = size("attention.head_count")?;
    let layers = size("block_count")?;
    if !LAYERS.contains(&layers) || !HEADS.contains(&heads) || hidden % heads != 0 {
        return Err(Error::corrupt(
            metadata.file(),
            format!("{layers} layers of width {hidden} with {heads} heads are not possible"),
        ));
    }
    let epsilon = metadata.opt_f32(&format!("{architecture}.attention.layer_norm_epsilon"))?;
    Ok(EncoderConfig {
        family,
        vocabulary: optional("vocab_size")?.unwrap_or(0),
        hidden,
        heads,
        head_width: hidden / heads,
        intermediate: size("feed_forward_length")?,
        layers: plain_layers(layers),
        embedding_width: hidden,
        token_types: optional("token_type_count")?.unwrap_or(2).max(1),
        positions: Positions::Learned,
        relative: Relative::None,
        max_positions: optional("context_length")?,
        norm: NormKind::Layer,
        epsilon: epsilon.unwrap_or(1e-12),
        placement: NormPlacement::Post,
        mlp: Mlp::Plain,
        activation: Activation::Gelu,
        fused_qkv: FusedQkv::Stacked,
        heads_on_top: HeadConfigs::default(),
        padding_id: metadata.opt_u32("tokenizer.ggml.padding_token_id")?,
        convolution: None,
    })
}
