//! What the `config.json` of a GLiClass model says.

use serde_json::json;

use crate::models::config::activation;
use crate::{Error, Result};
use formats::files::raw_config::RawConfig;
use kernels::Activation;

/// What stands before each label, and after all.
pub const LABEL: &str = "<<LABEL>>";
pub const SEPARATOR: &str = "<<SEP>>";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextPooling {
    First,
    Last,
    Max,
    Mean,
    Sum,
    RootMeanSquare,
    MaxMagnitude,
    MeanMagnitude,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScorerKind {
    Dot,
    WeightedDot,
    Mlp,
    Hopfield,
}

#[derive(Clone, Debug)]
pub struct LabelConfig {
    pub encoder: RawConfig,
    /// Of the encoder that reads labels by themselves, where they have one, and the model whose tokenizer it uses.
    pub labels: Option<(RawConfig, String)>,
    pub scorer: ScorerKind,
    pub pooling: TextPooling,
    /// Whether labels stand before the text.
    pub labels_first: bool,
    pub label_token: u32,
    /// The token that the text's own part begins with, where only that is pooled.
    pub text_token: Option<u32>,
    /// Whether all tokens of a label are averaged, or the first stands for it.
    pub averages_labels: bool,
    pub embeds_marker: bool,
    pub lstm: bool,
    pub normalizes: bool,
    pub activation: Activation,
}

impl LabelConfig {
    pub fn parse(raw: &RawConfig) -> Result<Self> {
        if raw.model_type()? != Some("GLiClass") {
            return Err(Error::unsupported(
                raw.file(),
                "its model_type is not GLiClass",
            ));
        }
        refuse_others(raw)?;
        let encoder = encoder(raw, "encoder_config")?;
        let labels = match raw.opt_string("architecture_type")? {
            Some(APART) => {
                let base = raw.opt_string("label_model_name")?.unwrap_or_default();
                Some((encoder_of_labels(raw)?, base.to_owned()))
            }
            _ => None,
        };
        let flag =
            |name: &str, usual: bool| -> Result<bool> { Ok(raw.opt_bool(name)?.unwrap_or(usual)) };
        let token = |name: &str, beyond: i64| -> Result<u32> {
            let id = raw.opt_f64(name)?.map(|id| id as i64).filter(|&id| id >= 0);
            let id = match id {
                Some(id) => id,
                None => raw.opt_usize("vocab_size")?.unwrap_or(0) as i64 + beyond,
            };
            u32::try_from(id)
                .map_err(|_| Error::corrupt(raw.file(), format!("{name} is out of range")))
        };
        let act = raw.opt_string("projector_hidden_act")?.unwrap_or("gelu");
        Ok(Self {
            encoder,
            labels,
            scorer: scorer(raw)?,
            pooling: pooling(raw)?,
            labels_first: flag("prompt_first", false)?,
            label_token: token("class_token_index", 0)?,
            text_token: if flag("extract_text_features", false)? {
                Some(token("text_token_index", 1)?)
            } else {
                None
            },
            averages_labels: raw.opt_string("class_token_pooling")? == Some("average"),
            embeds_marker: flag("embed_class_token", true)?,
            lstm: flag("use_lstm", false)?,
            normalizes: flag("normalize_features", false)?,
            activation: activation(act, raw.file())?,
        })
    }
}

/// What `architecture_type` is called where labels have an encoder of their own.
const APART: &str = "bi-encoder";

fn encoder(raw: &RawConfig, name: &str) -> Result<RawConfig> {
    let encoder = raw
        .opt_nested(name)?
        .ok_or_else(|| Error::corrupt(raw.file(), format!("it has no {name}")))?;
    let encoder = encoder.with_defaults(json!({"model_type": "deberta-v2"}));
    Ok(match encoder.model_type()? {
        Some("t5") => encoder.with(json!({"architectures": ["T5EncoderModel"]})),
        Some("mt5") => encoder.with(json!({"architectures": ["MT5EncoderModel"]})),
        Some("umt5") => encoder.with(json!({"architectures": ["UMT5EncoderModel"]})),
        _ => encoder,
    })
}

fn encoder_of_labels(raw: &RawConfig) -> Result<RawConfig> {
    if pooling(raw)? != TextPooling::First {
        return Err(Error::unsupported(
            raw.file(),
            "a bi-encoder whose pooling_strategy is not first is unsupported: the library also pools the padding \
             behind its labels",
        ));
    }
    encoder(raw, "label_model_config")
}

fn scorer(raw: &RawConfig) -> Result<ScorerKind> {
    match raw.opt_string("scorer_type")?.unwrap_or("simple") {
        "simple" => Ok(ScorerKind::Dot),
        "weighted-dot" => Ok(ScorerKind::WeightedDot),
        "mlp" => Ok(ScorerKind::Mlp),
        "hopfield" => Ok(ScorerKind::Hopfield),
        other => Err(Error::unsupported(
            raw.file(),
            format!("scorer_type {other:?} is unsupported; known are simple, weighted-dot, mlp and hopfield"),
        )),
    }
}

fn pooling(raw: &RawConfig) -> Result<TextPooling> {
    match raw.opt_string("pooling_strategy")?.unwrap_or("first") {
        "first" => Ok(TextPooling::First),
        "last" => Ok(TextPooling::Last),
        "max" => Ok(TextPooling::Max),
        "avg" => Ok(TextPooling::Mean),
        "sum" => Ok(TextPooling::Sum),
        "rms" => Ok(TextPooling::RootMeanSquare),
        "abs_max" => Ok(TextPooling::MaxMagnitude),
        "abs_avg" => Ok(TextPooling::MeanMagnitude),
        other => Err(Error::unsupported(
            raw.file(),
            format!("pooling_strategy {other:?} is unsupported"),
        )),
    }
}

fn refuse_others(raw: &RawConfig) -> Result<()> {
    match raw
        .opt_string("architecture_type")?
        .unwrap_or("uni-encoder")
    {
        "uni-encoder" | APART => {}
        other => {
            return Err(Error::unsupported(
                raw.file(),
                format!(
                    "architecture_type {other:?} is unsupported; known are uni-encoder and {APART}"
                ),
            ))
        }
    }
    for name in ["squeeze_layers", "use_segment_embeddings"] {
        if raw.opt_bool(name)?.unwrap_or(false) {
            return Err(Error::unsupported(
                raw.file(),
                format!("{name} is unsupported"),
            ));
        }
    }
    match raw.opt_f64("encoder_layer_id")? {
        Some(layer) if layer != -1.0 => Err(Error::unsupported(
            raw.file(),
            "encoder_layer_id other than the last layer is unsupported",
        )),
        _ => Ok(()),
    }
}

impl TextPooling {
    /// One row out of `rows` rows of `width` numbers each; rows that are missing at the end count as zeros.
    pub fn pool(self, values: &[f32], width: usize, rows: usize) -> Vec<f32> {
        let width = width.max(1);
        let own = values.len() / width;
        let missing = own < rows;
        let fold = |start: f32, with: &dyn Fn(f32, f32) -> f32| -> Vec<f32> {
            let mut out = vec![start; width];
            for row in values.chunks_exact(width) {
                out.iter_mut()
                    .zip(row)
                    .for_each(|(sum, &value)| *sum = with(*sum, value));
            }
            out
        };
        let count = rows.max(1) as f32;
        let greatest = |values: Vec<f32>| -> Vec<f32> {
            values
                .into_iter()
                .map(|value| if missing { value.max(0.0) } else { value })
                .collect()
        };
        let each = |values: Vec<f32>, of: &dyn Fn(f32) -> f32| values.into_iter().map(of).collect();
        match self {
            Self::First => values[..width.min(values.len())].to_vec(),
            Self::Last if missing => vec![0.0; width],
            Self::Last => values[values.len().saturating_sub(width)..].to_vec(),
            Self::Max => greatest(fold(f32::NEG_INFINITY, &f32::max)),
            Self::Mean => each(fold(0.0, &|sum, value| sum + value), &|sum| sum / count),
            Self::Sum => fold(0.0, &|sum, value| sum + value),
            Self::RootMeanSquare => each(fold(0.0, &|sum, value| sum + value * value), &|sum| {
                (sum / count).sqrt()
            }),
            Self::MaxMagnitude => fold(0.0, &|most, value| most.max(value.abs())),
            Self::MeanMagnitude => each(fold(0.0, &|sum, value| sum + value.abs()), &|sum| {
                sum / count
            }),
        }
    }
}
