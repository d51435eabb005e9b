//! Checkpoints as other tools and times wrote them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use engine::nn::Pooling;
use engine::tasks::{EmbedOptions, EmbedSettings, EmbeddingModel, LoadOptions};
use engine::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;
use serde_json::{json, Value};

use crate::encoder::{check_model, cosine, difference, embed, load, raw, Expected};
use crate::tiny_folder::tiny;

/// A copy of a fixture to be changed, gone at the end.
struct Copy(PathBuf);

impl Copy {
    fn of(name: &str, as_name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("red-candle-{}-{as_name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        copy_folder(&tiny(name), &folder);
        Self(folder)
    }

    fn config(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let path = self.0.join(file);
        let mut value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut value);
        std::fs::write(path, value.to_string()).unwrap();
    }

    fn tensors(&self, change: impl FnOnce(HashMap<String, Tensor>) -> HashMap<String, Tensor>) {
        let path = self.0.join("model.safetensors");
        let tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
        candle_core::safetensors::save(&change(tensors), path).unwrap();
    }

    fn load(&self) -> Result<EmbeddingModel> {
        let cancel = CancelToken::new();
        let files = ModelFiles::open(self.0.to_str().unwrap(), None, &cancel)?;
        EmbeddingModel::load(
            &files,
            &LoadOptions::default(),
            &EmbedSettings::default(),
            &cancel,
        )
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            std::fs::copy(&path, target).unwrap();
        }
    }
}

fn renamed(
    tensors: HashMap<String, Tensor>,
    rename: impl Fn(&str) -> String,
) -> HashMap<String, Tensor> {
    tensors
        .into_iter()
        .map(|(name, tensor)| (rename(&name), tensor))
        .collect()
}

#[test]
fn gamma_beta_and_no_model_type() {
    let copy = Copy::of("bert", "gamma-beta");
    copy.config("config.json", |config| {
        config.as_object_mut().unwrap().remove("model_type");
    });
    copy.tensors(|tensors| {
        renamed(tensors, |name| {
            let name = name.replace("LayerNorm.weight", "LayerNorm.gamma");
            name.replace("LayerNorm.bias", "LayerNorm.beta")
        })
    });
    check_model("bert", &copy.load().unwrap());
}

#[test]
fn fused_query_key_value_and_a_prefix() {
    let copy = Copy::of("bert", "fused");
    copy.tensors(|mut tensors| {
        for layer in 0..2 {
            for kind in ["weight", "bias"] {
                let own =
                    |part: &str| format!("encoder.layer.{layer}.attention.self.{part}.{kind}");
                let parts =
                    ["query", "key", "value"].map(|part| tensors.remove(&own(part)).unwrap());
                tensors.insert(own("qkv"), Tensor::cat(&parts, 0).unwrap());
            }
        }
        renamed(tensors, |name| format!("bert.{name}"))
    });
    check_model("bert", &copy.load().unwrap());
}

#[test]
fn modernbert_as_it_was_published() {
    let copy = Copy::of("modernbert", "modernbert-old");
    copy.config("config.json", |config| {
        let config = config.as_object_mut().unwrap();
        config.remove("layer_types");
        config.remove("rope_parameters");
        config.insert("global_attn_every_n_layers".into(), json!(3));
        config.insert("global_rope_theta".into(), json!(160000.0));
        config.insert("local_rope_theta".into(), json!(10000.0));
    });
    copy.tensors(|tensors| renamed(tensors, |name| format!("model.{name}")));
    check_model("modernbert", &copy.load().unwrap());
}

#[test]
fn nomic_bert_as_it_was_published() {
    let copy = Copy::of("nomic-bert", "nomic-old");
    copy.config("config.json", |config| {
        let get = |key: &str| config[key].clone();
        *config = json!({
            "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "activation_function": "swiglu",
            "n_embd": get("hidden_size"), "n_head": get("num_attention_heads"), "n_inner": get("intermediate_size"),
            "n_layer": get("num_hidden_layers"), "n_positions": get("max_position_embeddings"),
            "layer_norm_epsilon": get("layer_norm_eps"), "type_vocab_size": 2, "vocab_size": get("vocab_size"),
            "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": false,
            "rotary_scaling_factor": null, "prenorm": false, "qkv_proj_bias": false, "use_rms_norm": false,
        });
    });
    check_model("nomic-bert", &copy.load().unwrap());
}

#[test]
fn gguf_files_equal_their_safetensors() {
    for (name, source) in [
        ("gguf-bert", "bert"),
        ("gguf-nomic-bert", "nomic-bert"),
        ("gguf-jina-bert", "jina-bert"),
        ("gguf-qwen3-embedding", "qwen3-embedding"),
    ] {
        let model = load(name, &LoadOptions::default());
        assert_eq!(model.max_length(), 40);
        let pooling = if source.starts_with("qwen3") {
            Pooling::Last
        } else {
            Pooling::Mean
        };
        assert_eq!(model.pooling(), [pooling]);
        check_model(source, &model);
    }
}

#[test]
fn quantized_gguf_stays_close() {
    let model = load("gguf-bert-q8_0", &LoadOptions::default());
    let expected = Expected::of("bert");
    let found = embed(&model, &expected.texts(), &raw(Pooling::Mean));
    for (vector, row) in found.iter().zip(expected.rows("mean")) {
        assert!(cosine(vector, &row) >= 0.999, "{}", cosine(vector, &row));
    }
}

#[test]
fn a_gguf_file_by_its_own_path() {
    let path = tiny("gguf-bert").join("model.gguf");
    let cancel = CancelToken::new();
    let files = ModelFiles::open(path.to_str().unwrap(), None, &cancel).unwrap();
    let model = EmbeddingModel::load(
        &files,
        &LoadOptions::default(),
        &EmbedSettings::default(),
        &cancel,
    );
    check_model("bert", &model.unwrap());
}

#[test]
fn sentence_transformers_folders() {
    let expected = Expected::of("bert-sentence");
    let model = load("bert-sentence", &LoadOptions::default());
    assert_eq!(model.max_length(), 16);
    assert_eq!(model.dimension(), 32);
    assert!(model.normalizes());
    let texts = expected.texts();
    let check = |options: EmbedOptions, key: &str| {
        for (found, row) in embed(&model, &texts, &options)
            .iter()
            .zip(expected.rows(key))
        {
            let apart = difference(found, &row);
            assert!(apart <= 1e-4, "{key}: {apart}");
        }
    };
    check(EmbedOptions::default(), "default");
    let named = EmbedOptions {
        prompt_name: Some("query".into()),
        ..EmbedOptions::default()
    };
    check(named, "query");
    let given = EmbedOptions {
        prompt: Some("so: ".into()),
        ..EmbedOptions::default()
    };
    check(given, "prompt");
    for mode in [
        "mean",
        "cls",
        "max",
        "lasttoken",
        "weightedmean",
        "mean_sqrt_len_tokens",
    ] {
        check(raw(Pooling::parse(mode).unwrap()), mode);
    }
}

#[test]
fn prompts_can_be_left_out_of_pooling() {
    let expected = Expected::of("bert-sentence");
    for mode in [
        "mean",
        "cls",
        "max",
        "lasttoken",
        "weightedmean",
        "mean_sqrt_len_tokens",
    ] {
        let copy = Copy::of("bert-sentence", &format!("without-prompt-{mode}"));
        copy.config("1_Pooling/config.json", |config| {
            config["pooling_mode"] = json!(mode);
            config["include_prompt"] = json!(false);
        });
        copy.config("modules.json", |modules| {
            modules.as_array_mut().unwrap().truncate(2);
        });
        let model = copy.load().unwrap();
        let options = EmbedOptions {
            prompt_name: Some("query".into()),
            ..EmbedOptions::default()
        };
        let found = embed(&model, &expected.texts(), &options);
        for (found, row) in found
            .iter()
            .zip(expected.rows(&format!("{mode}.without_prompt")))
        {
            let apart = difference(found, &row);
            assert!(apart <= 1e-4, "{mode}: {apart}");
        }
    }
}

#[test]
fn dense_modules_two_poolings_and_a_default_prompt() {
    let expected = Expected::of("bert-sentence-dense");
    let model = load("bert-sentence-dense", &LoadOptions::default());
    assert_eq!((model.dimension(), model.max_length()), (16, 16));
    assert_eq!(model.pooling().len(), 2);
    assert_eq!(model.prompts().1, Some("query"));
    let found = embed(&model, &expected.texts(), &EmbedOptions::default());
    for (found, row) in found.iter().zip(expected.rows("default")) {
        assert!(difference(found, &row) <= 1e-4);
    }
}

#[test]
fn lowercase_is_asked_for_by_the_files() {
    let copy = Copy::of("bert-sentence", "lowercase");
    let settings = json!({"max_seq_length": 12, "do_lower_case": true}).to_string();
    std::fs::write(copy.0.join("sentence_bert_config.json"), settings).unwrap();
    let text = std::fs::read_to_string(copy.0.join("tokenizer.json")).unwrap();
    let text = text.replace("\"lowercase\":true", "\"lowercase\":false");
    std::fs::write(copy.0.join("tokenizer.json"), text).unwrap();
    let model = copy.load().unwrap();
    assert_eq!(model.max_length(), 12);
    let texts = ["HELLO World".to_owned(), "hello world".to_owned()];
    let found = embed(&model, &texts, &EmbedOptions::default());
    assert_eq!(found[0], found[1]);
}

#[test]
fn static_embeddings() {
    for name in ["model2vec", "static-embedding"] {
        let expected = Expected::of(name);
        let model = load(name, &LoadOptions::default());
        assert_eq!(model.dimension(), 24);
        let found = embed(&model, &expected.texts(), &EmbedOptions::default());
        for (found, row) in found.iter().zip(expected.rows("default")) {
            let apart = difference(found, &row);
            assert!(apart <= 1e-5, "{name}: {apart}");
        }
    }
}

#[test]
fn qwen3_takes_the_last_token_by_itself() {
    let expected = Expected::of("qwen3-embedding");
    let model = load("qwen3-embedding", &LoadOptions::default());
    assert_eq!(model.pooling(), [Pooling::Last]);
    let found = embed(&model, &expected.texts(), &EmbedOptions::default());
    for (found, row) in found.iter().zip(expected.rows("last")) {
        let norm = row.iter().map(|value| value * value).sum::<f32>().sqrt();
        let row: Vec<f32> = row.iter().map(|value| value / norm).collect();
        assert!(difference(found, &row) <= 1e-4);
    }
}

#[test]
fn configurations_that_do_not_fit_the_weights_are_corrupt() {
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 6] = [
        ("heads", |config| config["num_attention_heads"] = json!(5)),
        ("hidden", |config| config["hidden_size"] = json!(64)),
        ("layers", |config| config["num_hidden_layers"] = json!(3)),
        ("absurd", |config| {
            config["num_hidden_layers"] = json!(1u64 << 40)
        }),
        ("negative", |config| config["hidden_size"] = json!(-1)),
        ("text", |config| config["hidden_size"] = json!("many")),
    ];
    for (name, change) in changes {
        let copy = Copy::of("bert", &format!("corrupt-{name}"));
        copy.config("config.json", change);
        let error = copy
            .load()
            .err()
            .unwrap_or_else(|| panic!("{name} was loaded"));
        assert!(matches!(error, Error::CorruptModel(_)), "{name}: {error}");
    }
}

#[test]
fn what_is_not_supported_is_said() {
    let cases: [(&str, &str, Value); 3] = [
        ("model_type", "model_type", json!("whisper")),
        (
            "positions",
            "position_embedding_type",
            json!("relative_key"),
        ),
        ("activation", "hidden_act", json!("mish")),
    ];
    for (name, key, value) in cases {
        let copy = Copy::of("bert", &format!("unsupported-{name}"));
        copy.config("config.json", |config| config[key] = value.clone());
        let error = copy.load().err().unwrap();
        assert!(
            matches!(error, Error::UnsupportedModel(_)),
            "{name}: {error}"
        );
        assert!(
            error.to_string().contains(value.as_str().unwrap()),
            "{error}"
        );
    }
}
