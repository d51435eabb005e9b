//! What `gliner_config.json` says.

use serde_json::json;

use crate::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;

pub const CONFIG: &str = "gliner_config.json";

/// How spans are made of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanMode {
    /// Of the first and the last word, by one matrix (`marker`) or two (`markerV0`); `markerV1` adds the mean of all.
    Marker,
    MarkerV0,
    MarkerV1,
    /// Every word by itself may start a span, end it and be inside it.
    Tokens,
}

#[derive(Clone, Debug)]
pub struct ExtractConfig {
    /// Of the text's encoder.
    pub encoder: RawConfig,
    /// Of the encoder of labels where they have one, and the model whose tokenizer it uses.
    pub labels: Option<(RawConfig, String)>,
    pub mode: SpanMode,
    /// Words of a span.
    pub longest: usize,
    /// Words that are read at once.
    pub words: usize,
    pub lstm_layers: usize,
    /// What stands before each label, and after all.
    pub marker: String,
    pub separator: String,
    /// Whether the marker stands for its label; else the token after it does.
    pub embeds_marker: bool,
    /// Whether spans that words make are judged once more as a whole.
    pub represents_spans: bool,
    pub relations: Option<RelationConfig>,
}

/// How relations between entities are found.
#[derive(Clone, Debug)]
pub struct RelationConfig {
    /// How pairs are chosen; `None` keeps all of them.
    pub nearness: Option<Nearness>,
    /// How a pair is compared with a relation; `None` means a head of its own.
    pub triples: Option<Triples>,
    /// What stands before each relation.
    pub marker: String,
    /// Whether the marker stands for its relation; else the token after it does.
    pub embeds_marker: bool,
}

/// How near two entities are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nearness {
    Dot,
    Mlp,
    Attention,
    Bilinear,
    Graph,
    GraphAttention,
}

/// What a head, a relation and a tail say together, without weights of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Triples {
    Unstructured,
    Structure,
    Translation,
    Product,
    Halves,
    Sums,
    Complex,
    Quaternions,
    Correlation,
}

/// More than any model has; beyond it a file is damaged.
const MOST: usize = 1 << 20;

impl ExtractConfig {
    pub fn read(files: &ModelFiles, cancel: &CancelToken) -> Result<Self> {
        let path = files.require(CONFIG, cancel)?;
        Self::parse(&RawConfig::read(&path)?, |base| {
            let config = files.sibling(base)?.require("config.json", cancel)?;
            RawConfig::read(&config)
        })
    }

    /// `of_base` reads the configuration of another model by its name.
    fn parse(raw: &RawConfig, of_base: impl Fn(&str) -> Result<RawConfig>) -> Result<Self> {
        refuse_others(raw)?;
        let base = raw.opt_string("model_name")?;
        let encoder = match (raw.opt_nested("encoder_config")?, base) {
            (Some(config), _) => config,
            (None, Some(base)) => of_base(base)?,
            (None, None) => {
                return Err(Error::corrupt(
                    raw.file(),
                    "it has neither encoder_config nor model_name",
                ))
            }
        };
        let labels = match raw.opt_string("labels_encoder")? {
            Some(name) => {
                let config = match raw.opt_nested("labels_encoder_config")? {
                    Some(config) => config,
                    None => of_base(name)?,
                };
                Some((of_encoder(config)?, name.to_owned()))
            }
            None => None,
        };
        if labels.is_some()
            && raw
                .opt_string("post_fusion_schema")?
                .is_some_and(|schema| !schema.is_empty())
        {
            return Err(Error::unsupported(
                raw.file(),
                "post_fusion_schema (attention between labels and words) is unsupported",
            ));
        }
        let count = |name: &str, usual: usize| -> Result<usize> {
            Ok(raw.opt_usize_in(name, 1..=MOST)?.unwrap_or(usual))
        };
        Ok(Self {
            encoder: of_encoder(encoder)?,
            mode: mode(raw)?,
            longest: count("max_width", 12)?,
            words: count("max_len", 384)?,
            // The two encoders of one model leave out the LSTM that they have.
            lstm_layers: match labels {
                Some(_) => 0,
                None => raw.opt_usize_in("num_rnn_layers", 0..=64)?.unwrap_or(1),
            },
            marker: raw.opt_string("ent_token")?.unwrap_or("<<ENT>>").to_owned(),
            separator: raw.opt_string("sep_token")?.unwrap_or("<<SEP>>").to_owned(),
            embeds_marker: raw.opt_bool("embed_ent_token")?.unwrap_or(true),
            represents_spans: raw.opt_bool("represent_spans")?.unwrap_or(false),
            relations: match labels {
                Some(_) => None,
                None => relations(raw)?,
            },
            labels,
        })
    }
}

/// The configuration of an encoder inside the whole. T5 stands there without its decoder.
fn of_encoder(config: RawConfig) -> Result<RawConfig> {
    let config = config.with_defaults(json!({"model_type": "deberta-v2"}));
    let architecture = match config.model_type()? {
        Some("t5") => "T5EncoderModel",
        Some("mt5") => "MT5EncoderModel",
        Some("umt5") => "UMT5EncoderModel",
        _ => return Ok(config),
    };
    Ok(config.with(json!({"architectures": [architecture]})))
}

fn mode(raw: &RawConfig) -> Result<SpanMode> {
    match raw.opt_string("span_mode")?.unwrap_or("markerV0") {
        "marker" => Ok(SpanMode::Marker),
        "markerV0" => Ok(SpanMode::MarkerV0),
        "markerV1" => Ok(SpanMode::MarkerV1),
        "token_level" | "token-level" => Ok(SpanMode::Tokens),
        other => Err(Error::unsupported(
            raw.file(),
            format!("span_mode {other:?} is unsupported; known are marker, markerV0, markerV1 and token_level"),
        )),
    }
}

fn relations(raw: &RawConfig) -> Result<Option<RelationConfig>> {
    let Some(layer) = raw.opt_string("relations_layer")? else {
        return Ok(None);
    };
    let nearness = match layer.to_lowercase().as_str() {
        "none" => None,
        "dot" => Some(Nearness::Dot),
        "mlp" => Some(Nearness::Mlp),
        "attention" | "attn" => Some(Nearness::Attention),
        "bilinear" => Some(Nearness::Bilinear),
        "gcn" => Some(Nearness::Graph),
        "gat" => Some(Nearness::GraphAttention),
        _ => {
            return Err(Error::unsupported(
                raw.file(),
                format!(
                    "relations_layer {layer:?} is unsupported; known are dot, mlp, attention, bilinear, gcn, gat and \
                     \"none\""
                ),
            ))
        }
    };
    let triples = match raw.opt_string("triples_layer")? {
        None => None,
        Some("UM") => Some(Triples::Unstructured),
        Some("SE") => Some(Triples::Structure),
        Some("TransE") => Some(Triples::Translation),
        Some("DistMult") => Some(Triples::Product),
        Some("SimplE") => Some(Triples::Halves),
        Some("DistMA") => Some(Triples::Sums),
        Some("ComplEx") => Some(Triples::Complex),
        Some("QuatE") => Some(Triples::Quaternions),
        Some("HolE") => Some(Triples::Correlation),
        Some(other) => {
            return Err(Error::unsupported(
                raw.file(),
                format!(
                    "triples_layer {other:?} is unsupported; known are UM, SE, TransE, DistMult, SimplE, DistMA, \
                     ComplEx, QuatE and HolE"
                ),
            ))
        }
    };
    Ok(Some(RelationConfig {
        nearness,
        triples,
        marker: raw.opt_string("rel_token")?.unwrap_or("<<REL>>").to_owned(),
        embeds_marker: raw.opt_bool("embed_rel_token")?.unwrap_or(true),
    }))
}

/// Kinds of GLiNER that do more, or split texts by a program of their own.
fn refuse_others(raw: &RawConfig) -> Result<()> {
    let is_set = |name: &str| {
        raw.get(name)
            .is_some_and(|value| !value.is_null() && value != false)
    };
    let reasons = [
        ("labels_decoder", "it writes labels by a decoder"),
        (
            "span_encoder_config",
            "it reads the words once more before it judges spans",
        ),
        ("fuse_layers", "it mixes the states of all layers"),
        (
            "precomputed_prompts_mode",
            "its labels were computed before",
        ),
    ];
    for (name, reason) in reasons {
        if is_set(name) {
            return Err(Error::unsupported(raw.file(), format!("{reason} ({name})")));
        }
    }
    match raw.opt_string("subtoken_pooling")? {
        None | Some("first") => {}
        Some(other) => {
            return Err(Error::unsupported(
                raw.file(),
                format!("subtoken_pooling {other:?} is unsupported; known is first"),
            ))
        }
    }
    match raw.opt_string("words_splitter_type")? {
        None | Some("whitespace") => Ok(()),
        Some(other) => Err(Error::unsupported(
            raw.file(),
            format!("words_splitter_type {other:?} is unsupported; known is whitespace"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parsed(text: &str) -> Result<ExtractConfig> {
        let raw = RawConfig::parse(Path::new(CONFIG), text)?;
        ExtractConfig::parse(&raw, |base| Err(Error::ModelNotFound(base.to_owned())))
    }

    #[test]
    fn defaults_are_those_of_the_library() {
        let config = parsed(r#"{"encoder_config": {"hidden_size": 4}}"#).unwrap();
        assert_eq!(
            (config.longest, config.words, config.lstm_layers),
            (12, 384, 1)
        );
        assert_eq!(config.mode, SpanMode::MarkerV0);
        assert_eq!(config.encoder.model_type().unwrap(), Some("deberta-v2"));
    }

    #[test]
    fn what_is_unsupported_is_named() {
        for text in [
            r#"{"encoder_config": {}, "span_mode": "conv_max"}"#,
            r#"{"encoder_config": {}, "labels_decoder": "gpt2"}"#,
            r#"{"encoder_config": {}, "words_splitter_type": "spacy"}"#,
            r#"{"encoder_config": {}, "relations_layer": "cosine"}"#,
            r#"{"encoder_config": {}, "relations_layer": "dot", "triples_layer": "ConvE"}"#,
            r#"{"encoder_config": {}, "subtoken_pooling": "mean"}"#,
            r#"{"model_name": "a/b"}"#,
            "{}",
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}
