//! What `config.json` of a GLiNER2 checkpoint says.

use formats::files::raw_config::RawConfig;

use crate::{Error, Result};

/// How the tokens of a word become its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordPooling {
    First,
    Mean,
    Max,
}

/// What makes the queries of each instance out of those of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// A recurrent layer and two matrices.
    Lstm,
    /// A recurrent layer and a small transformer.
    LstmTransformer,
    /// A recurrent layer and experts.
    LstmExperts,
}

#[derive(Clone, Copy, Debug)]
pub struct SchemaConfig {
    /// Words of a span.
    pub longest: usize,
    pub pooling: WordPooling,
    pub counting: Counting,
}

/// More than any model has; beyond it a file is damaged.
const MOST: usize = 1 << 20;

impl SchemaConfig {
    pub fn parse(raw: &RawConfig) -> Result<Self> {
        let architecture = raw.opt_string("architecture")?.unwrap_or("span");
        match architecture.trim().to_lowercase().as_str() {
            "span" => {}
            "boundary" => {
                return Err(Error::unsupported(
                    raw.file(),
                    "its architecture is \"boundary\", whose heads for starts and ends of spans are unsupported; known \
                     is \"span\"",
                ))
            }
            other => {
                return Err(Error::unsupported(
                    raw.file(),
                    format!("architecture {other:?} is unsupported; known is \"span\""),
                ))
            }
        }
        let head = raw.opt_nested("span_head")?;
        let longest = match &head {
            Some(head) => head.opt_usize_in("max_width", 1..=MOST)?,
            None => None,
        };
        let longest = match longest {
            Some(longest) => longest,
            None => raw.opt_usize_in("max_width", 1..=MOST)?.unwrap_or(8),
        };
        // The library writes the span mode down, and always builds this one.
        let pooling = match raw.opt_string("token_pooling")? {
            Some("mean") => WordPooling::Mean,
            Some("max") => WordPooling::Max,
            _ => WordPooling::First,
        };
        let counting = match raw.opt_string("counting_layer")? {
            None | Some("" | "count_lstm") => Counting::Lstm,
            Some("count_lstm_v2") => Counting::LstmTransformer,
            Some("count_lstm_moe") => Counting::LstmExperts,
            Some(other) => {
                return Err(Error::unsupported(
                    raw.file(),
                    format!(
                        "counting_layer {other:?} is unsupported; known are count_lstm, count_lstm_v2 and \
                         count_lstm_moe"
                    ),
                ))
            }
        };
        Ok(Self {
            longest,
            pooling,
            counting,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parsed(text: &str) -> Result<SchemaConfig> {
        SchemaConfig::parse(&RawConfig::parse(Path::new("config.json"), text)?)
    }

    #[test]
    fn defaults_are_those_of_the_library() {
        let config = parsed("{}").unwrap();
        assert_eq!((config.longest, config.pooling), (8, WordPooling::First));
        assert_eq!(config.counting, Counting::Lstm);
        let config = parsed(r#"{"max_width": 5, "span_head": {"max_width": 3}}"#).unwrap();
        assert_eq!(config.longest, 3);
        assert_eq!(parsed(r#"{"max_width": 5}"#).unwrap().longest, 5);
    }

    #[test]
    fn what_is_unsupported_is_named() {
        for text in [
            r#"{"architecture": "boundary"}"#,
            r#"{"architecture": "other"}"#,
            r#"{"counting_layer": "count_gru"}"#,
            r#"{"max_width": 0}"#,
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}
