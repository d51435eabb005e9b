use super::*;
use crate::kernels::Activation;
use crate::models::encoder::parts::Part;

pub const FAMILY: Family = Family {
    name: "jina_bert",
    matches: |raw| {
        is(raw, &["bert", "jina_bert"], "JinaBert")
            && matches!(raw.opt_string("position_embedding_type"), Ok(Some("alibi")))
    },
    config: |raw| {
        let config = common(raw, "jina_bert")?;
        let (mlp, act) = match raw.opt_string("feed_forward_type")?.unwrap_or("original") {
            "geglu" => (Mlp::Gated, Activation::Gelu),
            "reglu" => (Mlp::Gated, Activation::Relu),
            "original" => (Mlp::Plain, config.activation),
            other => {
                return Err(Error::unsupported(
                    raw.file(),
                    format!("feed_forward_type {other:?} is not one of geglu, reglu, original"),
                ))
            }
        };
        Ok(EncoderConfig {
            positions: Positions::None,
            relative: Relative::Alibi,
            mlp,
            activation: act,
            ..config
        })
    },
    names: &[
        (Part::Words, "embeddings.word_embeddings"),
        (Part::TokenTypes, "embeddings.token_type_embeddings"),
        (Part::EmbeddingNorm, "embeddings.LayerNorm"),
        (Part::Query, "encoder.layer.{}.attention.self.query"),
        (Part::Key, "encoder.layer.{}.attention.self.key"),
        (Part::Value, "encoder.layer.{}.attention.self.value"),
        (
            Part::QueryNorm,
            "encoder.layer.{}.attention.self.layer_norm_q",
        ),
        (
            Part::KeyNorm,
            "encoder.layer.{}.attention.self.layer_norm_k",
        ),
        (
            Part::AttentionOutput,
            "encoder.layer.{}.attention.output.dense",
        ),
        (
            Part::AttentionNorm,
            "encoder.layer.{}.attention.output.LayerNorm",
        ),
        (Part::SecondAttentionNorm, "encoder.layer.{}.layer_norm_1"),
        (Part::GateUp, "encoder.layer.{}.mlp.gated_layers"),
        (Part::UpGate, "encoder.layer.{}.mlp.up_gated_layer"),
        (Part::Up, "encoder.layer.{}.intermediate.dense"),
        (Part::Up, "encoder.layer.{}.mlp.up_layer"),
        (Part::Down, "encoder.layer.{}.mlp.wo"),
        (Part::Down, "encoder.layer.{}.mlp.down_layer"),
        (Part::Down, "encoder.layer.{}.output.dense"),
        (Part::MlpNorm, "encoder.layer.{}.mlp.layernorm"),
        (Part::MlpNorm, "encoder.layer.{}.layer_norm_2"),
        (Part::MlpNorm, "encoder.layer.{}.output.LayerNorm"),
        (Part::SequenceDense, "pooler.dense"),
        (Part::SequenceOutput, "classifier"),
        (Part::TokenOutput, "classifier"),
        (Part::MaskedDense, "cls.predictions.transform.dense"),
        (Part::MaskedNorm, "cls.predictions.transform.LayerNorm"),
        (Part::MaskedOutput, "cls.predictions.decoder"),
        (Part::MaskedBias, "cls.predictions.bias"),
        (Part::MaskedBias, "cls.predictions.decoder.bias"),
    ],
};
