//! Which class of transformers reads a checkpoint's vocabulary, and which of them have rules that are not here.

use std::path::Path;

use serde_json::Value;

use crate::{Error, Result};

/// The name of the configuration's class, without what all names end in; empty where it names none.
pub(super) fn name(config: &Value) -> &str {
    let class = config["tokenizer_class"].as_str().unwrap_or_default();
    class.trim_end_matches("Fast").trim_end_matches("Tokenizer")
}

/// The class that a model's `config.json` stands for, by its own word or by the model's type.
pub(super) fn of_model(config: &Value) -> Option<String> {
    if let Some(class) = config["tokenizer_class"].as_str() {
        return Some(class.to_owned());
    }
    let name = match config["model_type"].as_str()? {
        "albert" | "nystromformer" => "Albert",
        "big_bird" => "BigBird",
        "camembert" => "Camembert",
        "deberta" => "Deberta",
        "esm" => "Esm",
        "flaubert" => "Flaubert",
        "fnet" => "FNet",
        "luke" => "Luke",
        "bart"
        | "data2vec-text"
        | "ibert"
        | "led"
        | "longformer"
        | "roberta"
        | "roberta-prelayernorm" => "Roberta",
        "rembert" => "RemBert",
        "roformer" => "RoFormer",
        "xlm" => "XLM",
        "jina_embeddings_v3" | "xlm-roberta" | "xlm-roberta-xl" | "xmod" => "XLMRoberta",
        _ => return None,
    };
    Some(format!("{name}Tokenizer"))
}

/// What is said of classes whose own rules for words would have to be known.
const CONVERT: &str = "Save the tokenizer with transformers to get a tokenizer.json";
const REPLACE: &str = "transformers has no tokenizer.json for it either: pass another Tokenizer as tokenizer:, or use \
     a model that comes with a tokenizer.json";

/// An `UnsupportedModel` error for classes that cut texts in ways of their own before they look into a vocabulary.
pub(super) fn refuse_foreign(config: &Value, path: &Path) -> Result<()> {
    let class = name(config);
    let (rules, advice) = match class {
        "XLM" | "Flaubert" | "FSMT" | "BioGpt" => ("Moses' rules for words", REPLACE),
        "BertJapanese" => ("a Japanese dictionary", REPLACE),
        "Bertweet" | "Phobert" => ("merges in a file of another form", REPLACE),
        "CTRL" => ("merges of another form", REPLACE),
        "RoFormer" => ("a Chinese dictionary", CONVERT),
        "Herbert" | "OpenAIGPT" => ("rules of its own for words", CONVERT),
        _ => return Ok(()),
    };
    Err(foreign(path, class, rules, advice))
}

/// The same for a vocabulary whose tokens end words with a mark, as XLM's do, and whose class nothing names.
pub(super) fn refuse_word_ends(path: &Path) -> Error {
    Error::unsupported(
        path,
        format_args!(
            "its tokens mark the ends of words (</w>) as those of XLM and FlauBERT do, whose rules for words are not \
             implemented. If there is a tokenizer.json for it, put it beside; else {REPLACE}"
        ),
    )
}

fn foreign(path: &Path, class: &str, rules: &str, advice: &str) -> Error {
    Error::unsupported(
        path,
        format_args!("{class}Tokenizer cuts texts by {rules}, which is not implemented. {advice}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_class_is_named_by_the_tokenizer_the_model_or_its_type() {
        assert_eq!(name(&json!({"tokenizer_class": "LukeTokenizer"})), "Luke");
        assert_eq!(
            name(&json!({"tokenizer_class": "BertTokenizerFast"})),
            "Bert"
        );
        assert_eq!(name(&json!({})), "");
        let said = of_model(&json!({"tokenizer_class": "FNetTokenizer", "model_type": "bert"}));
        assert_eq!(said.as_deref(), Some("FNetTokenizer"));
        let by_type = of_model(&json!({"model_type": "longformer"}));
        assert_eq!(by_type.as_deref(), Some("RobertaTokenizer"));
        assert_eq!(of_model(&json!({"model_type": "bert"})), None);
        assert_eq!(of_model(&json!({})), None);
    }

    #[test]
    fn foreign_rules_are_refused_with_what_to_do() {
        let refused = |class: &str| {
            let config = json!({ "tokenizer_class": class });
            refuse_foreign(&config, Path::new("vocab.json")).err()
        };
        for class in ["XLMTokenizer", "FlaubertTokenizer", "RoFormerTokenizerFast"] {
            match refused(class) {
                Some(Error::UnsupportedModel(message)) => {
                    assert!(
                        message.contains(class.trim_end_matches("Fast")),
                        "{message}"
                    );
                    assert!(message.contains("tokenizer.json"), "{message}");
                }
                other => panic!("{class}: {other:?}"),
            }
        }
        for class in ["LukeTokenizer", "BertTokenizer", "EsmTokenizer", ""] {
            assert!(refused(class).is_none(), "{class}");
        }
    }
}
