//! LoRA adapters against what peft makes of them, on dense bases and on GGUF ones.

use std::path::Path;
use std::sync::Arc;

use engine::generation::GenerationConfig;
use engine::serving::ContextOverflow;
use engine::tasks::{AdapterFiles, Generation, LanguageModel, LoadOptions, Request};
use engine::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;

use super::decoder::{folders, worst, Expectations};
use super::tiny_folder::tiny;

const TOLERANCE: f32 = 1e-4;

fn open(path: &Path) -> ModelFiles {
    ModelFiles::open(path.to_str().unwrap(), None, &CancelToken::new()).unwrap()
}

fn load(base: &Path, adapters: &[&str]) -> Result<LanguageModel> {
    let adapters: Vec<AdapterFiles> = adapters
        .iter()
        .map(|name| AdapterFiles {
            name: (*name).to_owned(),
            files: open(&tiny("adapters").join(name)),
        })
        .collect();
    LanguageModel::load(
        &open(base),
        &LoadOptions::default(),
        &adapters,
        &CancelToken::new(),
    )
}

fn refusal(base: &Path, adapter: &str) -> String {
    match load(base, &[adapter]).err() {
        Some(Error::UnsupportedModel(message)) => message,
        other => panic!("{adapter}: {other:?}"),
    }
}

fn base(adapter: &str) -> String {
    let text = std::fs::read_to_string(tiny("adapters").join(adapter).join("expected.json"));
    let record: serde_json::Value = serde_json::from_str(&text.unwrap()).unwrap();
    record["base"].as_str().unwrap().to_owned()
}

fn greedy(model: &Arc<LanguageModel>, adapter: Option<&str>, prompt: &[u32]) -> Vec<u32> {
    let request = Request {
        prompt: prompt.to_vec(),
        instructions: 0,
        config: GenerationConfig {
            max_new_tokens: 24,
            temperature: 0.0,
            ..Default::default()
        },
        overflow: ContextOverflow::Error,
        adapter: model.adapter(adapter).unwrap(),
        constraint: None,
        afresh: false,
    };
    let generation = Generation::new(model.clone(), request).unwrap();
    while generation.step(&CancelToken::new()).unwrap().is_some() {}
    generation.read(|run| run.choices().iter().map(|choice| choice.token).collect())
}

#[test]
fn an_adapted_model_says_what_peft_says() {
    for folder in folders("adapters") {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        if name == "llama-dora" {
            continue;
        }
        let expected = Expectations::read(&folder);
        for kind in ["decoders", "gguf-decoders"] {
            let model = load(&tiny(kind).join(base(&name)), &[&name]).unwrap();
            let model = Arc::new(model);
            for (index, ids) in expected.sequences.iter().enumerate() {
                let got = model.logprobs(ids, Some(&name), &CancelToken::new());
                let off = worst(&expected.logprobs(index), &got.unwrap());
                assert!(off < TOLERANCE, "{name} on {kind}: {off}");
                let length = expected.prompt_lengths[index];
                let said = greedy(&model, Some(&name), &ids[..length]);
                assert!(ids[length..].starts_with(&said), "{name} on {kind}");
            }
        }
    }
}

#[test]
fn adapters_leave_the_base_and_each_other_alone() {
    let names = ["llama", "llama-patterns", "llama-embeddings"];
    let model = load(&tiny("decoders/llama"), &names).unwrap();
    let base = Expectations::read(&tiny("decoders/llama"));
    let cancel = CancelToken::new();
    for _ in 0..2 {
        for name in names {
            let expected = Expectations::read(&tiny("adapters").join(name));
            let got = model.logprobs(&expected.sequences[4], Some(name), &cancel);
            assert!(
                worst(&expected.logprobs(4), &got.unwrap()) < TOLERANCE,
                "{name}"
            );
        }
        let got = model.logprobs(&base.sequences[4], None, &cancel).unwrap();
        assert!(worst(&base.logprobs(4), &got) < TOLERANCE);
    }
}

#[test]
fn a_cache_of_another_adapter_is_not_used() {
    let model = load(&tiny("decoders/llama"), &["llama"]).unwrap();
    let mut cache = model.decoder().new_cache().unwrap();
    let adapter = model.adapter(Some("llama")).unwrap();
    let read = |cache: &mut engine::models::decoder::KvCache| {
        model
            .decoder()
            .hidden_states(&[5, 6, 7], cache, &CancelToken::new())
            .unwrap();
    };
    read(&mut cache);
    cache.adapt(None);
    assert_eq!(cache.length(), 3);
    cache.adapt(adapter.clone());
    assert_eq!(cache.length(), 0);
    read(&mut cache);
    cache.adapt(adapter);
    assert_eq!(cache.length(), 3);
    cache.adapt(None);
    assert_eq!(cache.length(), 0);
    let error = model.adapter(Some("other")).err().unwrap().to_string();
    assert!(
        error.contains("\"other\"") && error.contains("llama"),
        "{error}"
    );
}

#[test]
fn what_cannot_be_adapted_is_refused_by_name() {
    let message = refusal(&tiny("decoders/llama"), "llama-dora");
    assert!(message.contains("use_dora"), "{message}");
    let message = refusal(&tiny("decoders/llama"), "gpt2");
    assert!(message.contains("transformer.h.0.attn.c_attn"), "{message}");
    let message = refusal(&tiny("decoders/gemma"), "llama");
    assert!(
        message.contains("o_proj") && message.contains("tiny/llama"),
        "{message}"
    );
    let message = refusal(&tiny("decoders/mixtral"), "llama");
    assert!(message.contains("mlp.down_proj"), "{message}");
    let error = load(&tiny("decoders/llama"), &["../decoders/llama"]).err();
    assert!(
        matches!(&error, Some(Error::ModelNotFound(text)) if text.contains("adapter_config.json")),
        "{error:?}"
    );
}

#[test]
fn an_adapter_of_another_family_is_refused_though_its_shapes_agree() {
    let folder = std::env::temp_dir().join(format!("red-candle-adapter-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let own = tiny("adapters/llama");
    std::fs::copy(
        own.join("adapter_model.safetensors"),
        folder.join("adapter_model.safetensors"),
    )
    .unwrap();
    let text = std::fs::read_to_string(own.join("adapter_config.json")).unwrap();
    let said = |key: &str, value: serde_json::Value| -> Option<String> {
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config[key] = value;
        std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
        let files = AdapterFiles {
            name: "other".to_owned(),
            files: open(&folder),
        };
        let options = LoadOptions::default();
        let base = open(&tiny("decoders/llama"));
        let loaded = LanguageModel::load(&base, &options, &[files], &CancelToken::new());
        loaded.err().map(|error| error.to_string())
    };
    let base = |family: &str| {
        let path = tiny("decoders").join(family);
        serde_json::json!(path.to_str().unwrap())
    };
    let message = said("base_model_name_or_path", base("qwen2")).unwrap();
    assert!(
        message.contains("qwen2") && message.contains("made for"),
        "{message}"
    );
    assert_eq!(said("base_model_name_or_path", base("llama")), None);
    assert_eq!(
        said("base_model_name_or_path", serde_json::json!("a/b")),
        None
    );
    let class = |name: &str| serde_json::json!({ "base_model_class": name });
    let message = said("auto_mapping", class("Qwen2ForCausalLM")).unwrap();
    assert!(
        message.contains("made for Qwen2ForCausalLM") && message.contains("LlamaForCausalLM"),
        "{message}"
    );
    assert_eq!(said("auto_mapping", class("LlamaForCausalLM")), None);
    std::fs::remove_dir_all(folder).unwrap();
}
