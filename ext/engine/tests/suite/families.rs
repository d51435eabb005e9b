//! What a family costs, and what its readers make of files that lie.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device};
use engine::models::families::Blueprint;
use engine::models::vision::vlm::VlmConfig;
use engine::models::{decoder, encoder};
use engine::{CancelToken, Error, Result};
use formats::files::model_files::WeightFiles;
use formats::files::raw_config::RawConfig;
use formats::weights;
use serde_json::{json, Value};

use crate::allocation::peak_during;
use crate::tiny_folder::tiny;
use crate::weight_files::{Folder, Gguf};

/// The folders of families, one per shape.
const FOLDERS: [&str; 5] = ["encoder", "decoder", "vision", "vlm", "seq2seq"];
/// What several families of a folder share; every other file is one family.
const SHARED: [&str; 13] = [
    "mod.rs",
    "disentangled.rs",
    "encoder_shared.rs",
    "gemma_shared.rs",
    "latent_shared.rs",
    "mamba_shared.rs",
    "state_gguf.rs",
    "state_shared.rs",
    "from_gguf.rs",
    "from_json.rs",
    "mmproj_words.rs",
    "paligemma.rs",
    "colmodernvbert.rs",
];
/// Of a family with several mechanisms; most have half as many.
const MOST_LINES_OF_A_DECODER: usize = 60;
const USUAL_LINES_OF_A_DECODER: usize = 30;
const MOST_LINES_OF_AN_ENCODER: usize = 40;
const MOST_LINES_OF_A_TOWER: usize = 30;
const MOST_LINES_OF_A_VLM: usize = 40;
/// What reading a configuration may hold at most.
const MOST_BYTES: usize = 2 << 20;

#[test]
fn a_family_is_a_short_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/models/families");
    let files = FOLDERS.map(|folder| std::fs::read_dir(root.join(folder)).unwrap());
    let files = files.into_iter().flatten();
    let (mut decoders, mut encoders, mut pairs, mut towers, mut vlms) = (0, 0, 0, 0, 0);
    let mut long = 0;
    for path in files.map(|file| file.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if SHARED.contains(&name) {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let most = if text.contains("Family<DecoderConfig>") {
            decoders += 1;
            MOST_LINES_OF_A_DECODER
        } else if text.contains("Family<Seq2SeqConfig>") {
            pairs += 1;
            MOST_LINES_OF_AN_ENCODER
        } else if text.contains("Family<VlmConfig>") {
            vlms += 1;
            MOST_LINES_OF_A_VLM
        } else if text.contains("Family<VisionConfig>") {
            towers += 1;
            MOST_LINES_OF_A_TOWER
        } else {
            assert!(text.contains("Family<EncoderConfig>"), "{name}: no family");
            encoders += 1;
            MOST_LINES_OF_AN_ENCODER
        };
        let lines = text.lines().count();
        assert!(lines <= most, "{name} has {lines} lines of {most}");
        let is_decoder = text.contains("Family<DecoderConfig>");
        long += usize::from(is_decoder && lines > USUAL_LINES_OF_A_DECODER);
    }
    assert!(
        long * 3 <= decoders,
        "{long} of {decoders} decoders are long"
    );
    assert!(decoders >= 21 && encoders >= 15, "{decoders} {encoders}");
    assert!(pairs >= 5 && towers >= 6, "{pairs} {towers}");
    assert!(vlms >= 5, "{vlms}");
}

/// The configuration of a tiny checkpoint with some values replaced.
fn changed(folder: &Folder, name: &str, changes: &Value) -> RawConfig {
    let text = std::fs::read_to_string(tiny(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    let path = folder.write("config.json", config.to_string());
    RawConfig::read(&path).unwrap()
}

#[track_caller]
fn corrupt<T>(result: Result<T>, word: &str) {
    match result.map(drop) {
        Err(Error::CorruptModel(message)) => {
            assert!(message.contains(word), "{word:?} is not in {message:?}");
        }
        other => panic!("{word}: {other:?}"),
    }
}

fn weights_of(name: &str) -> PathBuf {
    tiny(name).join("model.safetensors")
}

/// Reads the blueprint and, where that is sound, the model.
fn load_encoder(name: &str, raw: &RawConfig) -> Result<()> {
    let source = weights::open(&WeightFiles::Safetensors(vec![weights_of(name)]))?;
    let blueprint = encoder::Blueprint::from_config(raw)?;
    let (device, cancel) = (Device::Cpu, CancelToken::new());
    let source = source.as_ref();
    encoder::Encoder::load(&blueprint, source, &device, DType::F32, false, &cancel).map(drop)
}

fn load_decoder(name: &str, raw: &RawConfig) -> Result<()> {
    let source = weights::open(&WeightFiles::Safetensors(vec![weights_of(name)]))?;
    let blueprint = decoder::Blueprint::from_config(raw)?;
    let (device, cancel) = (Device::Cpu, CancelToken::new());
    decoder::Decoder::load(&blueprint, source.as_ref(), &device, DType::F32, &cancel).map(drop)
}

#[test]
fn configurations_that_lie_about_sizes() {
    let folder = Folder::new();
    let refuse = |name: &str, changes: Value, word: &str| {
        let raw = changed(&folder, name, &changes);
        let (result, peak) = peak_during(|| {
            if name.starts_with("decoders/") {
                load_decoder(name, &raw)
            } else {
                load_encoder(name, &raw)
            }
        });
        corrupt(result, word);
        assert!(peak < MOST_BYTES, "{changes}: {peak} bytes were held");
    };
    for name in ["bert", "modernbert", "decoders/llama", "decoders/qwen3"] {
        refuse(
            name,
            json!({"num_hidden_layers": 2_147_483_647}),
            "num_hidden_layers",
        );
        refuse(name, json!({"num_hidden_layers": 0}), "num_hidden_layers");
        refuse(
            name,
            json!({"num_hidden_layers": 4000, "layer_types": null}),
            "4000 layers",
        );
        refuse(
            name,
            json!({"num_attention_heads": 0}),
            "num_attention_heads",
        );
        refuse(
            name,
            json!({"num_attention_heads": 1_000_000_000}),
            "num_attention_heads",
        );
        refuse(name, json!({"hidden_size": 0}), "hidden_size");
        refuse(
            name,
            json!({"hidden_size": 1_099_511_627_776i64}),
            "hidden_size",
        );
    }
    refuse(
        "bert",
        json!({"num_attention_heads": 5}),
        "5 attention heads",
    );
    refuse(
        "roberta",
        json!({"pad_token_id": 4_294_967_295u32}),
        "pad_token_id",
    );
    refuse(
        "modernbert",
        json!({"layer_types": ["full_attention"]}),
        "layer_types",
    );
    refuse(
        "albert",
        json!({"num_hidden_groups": 4096, "num_hidden_layers": 4096}),
        "layers",
    );
    refuse(
        "gte",
        json!({"rope_parameters": {"rope_theta": 0.0}}),
        "rotary positions",
    );
    let llama = "decoders/llama";
    refuse(llama, json!({"vocab_size": 7}), "embed_tokens");
    refuse(llama, json!({"head_dim": 3}), "rotary positions");
    refuse(
        llama,
        json!({"num_key_value_heads": 0}),
        "num_key_value_heads",
    );
    refuse(llama, json!({"num_key_value_heads": 3}), "key-value heads");
    refuse(
        llama,
        json!({"max_position_embeddings": 0}),
        "max_position_embeddings",
    );
    refuse(
        llama,
        json!({"partial_rotary_factor": 0.0}),
        "rotary positions",
    );
    refuse(
        llama,
        json!({"partial_rotary_factor": -1.0}),
        "rotary positions",
    );
    refuse(
        "decoders/gemma2",
        json!({"layer_types": ["full_attention"]}),
        "layer_types",
    );
    refuse("decoders/gemma2", json!({"layer_types": []}), "layer_types");
    refuse(
        "decoders/smollm3",
        json!({"no_rope_layers": [1]}),
        "rotated layers",
    );
    refuse(
        "decoders/mixtral",
        json!({"num_local_experts": 0}),
        "experts",
    );
    refuse(
        "decoders/mixtral",
        json!({"num_local_experts": 2_000_000_000}),
        "experts",
    );
    refuse(
        "decoders/mixtral",
        json!({"num_experts_per_tok": 0}),
        "experts per token",
    );
}

#[test]
fn gguf_metadata_that_lies_about_sizes() {
    let folder = Folder::new();
    let refuse = |key: &str, value: u32, word: &str| {
        let mut file = Gguf::new().key("general.architecture", 8, &text("llama"));
        let sizes = [
            ("embedding_length", 32u32),
            ("block_count", 2),
            ("attention.head_count", 4),
            ("context_length", 64),
        ];
        for (name, size) in sizes {
            let size = if name == key { value } else { size };
            file = file.key(&format!("llama.{name}"), 4, &size.to_le_bytes());
        }
        if !sizes.iter().any(|(name, _)| *name == key) {
            file = file.key(&format!("llama.{key}"), 4, &value.to_le_bytes());
        }
        let file = file
            .tensor("token_embd.weight", &[32, 4], 0, 0)
            .tensor("blk.0.ffn_up.weight", &[32, 4], 0, 512)
            .tensor("blk.0.ffn_down.weight", &[4, 32], 0, 1024)
            .data(vec![0; 1536]);
        let path = folder.write("model.gguf", file.bytes());
        let source = weights::open(&WeightFiles::Gguf(path)).unwrap();
        let (device, cancel) = (Device::Cpu, CancelToken::new());
        let (result, peak) = peak_during(|| {
            let blueprint = decoder::Blueprint::from_gguf(source.as_ref())?;
            decoder::Decoder::load(&blueprint, source.as_ref(), &device, DType::F32, &cancel)
        });
        corrupt(result, word);
        assert!(peak < MOST_BYTES, "{key}: {peak} bytes were held");
    };
    refuse("block_count", u32::MAX, "block_count");
    refuse("block_count", 0, "block_count");
    refuse("block_count", 4000, "4000 layers");
    refuse("attention.head_count", 0, "attention.head_count");
    refuse("attention.head_count_kv", 3, "key-value heads");
    refuse("attention.head_count_kv", 0, "key-value heads");
    refuse("embedding_length", u32::MAX, "embedding_length");
    refuse("context_length", 0, "context_length");
    refuse("rope.dimension_count", 3, "rotary positions");
    refuse("attention.key_length", 0, "size of a head");
}

fn text(value: &str) -> Vec<u8> {
    let mut bytes = (value.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(value.as_bytes());
    bytes
}

#[test]
fn an_unknown_family_is_named_with_the_closest_that_runs() {
    let folder = Folder::new();
    let error = |model_type: &str, decodes: bool| {
        let raw = changed(&folder, "bert", &json!({ "model_type": model_type }));
        let error = if decodes {
            decoder::Blueprint::from_config(&raw).unwrap_err()
        } else {
            encoder::Blueprint::from_config(&raw).unwrap_err()
        };
        error.to_string()
    };
    for (found, decodes, known) in [
        ("modernbert9", false, "modernbert"),
        ("gpt_neox9", true, "gpt_neox"),
    ] {
        let message = error(found, decodes);
        assert!(
            message.contains(&format!("{found:?} is not a")),
            "{message}"
        );
        let closest = format!("The closest it runs is {known:?}");
        assert!(message.contains(&closest), "{message}");
    }
    assert!(!error("xyzzy", true).contains("closest"));
}

#[test]
fn types_that_are_not_supported_yet_are_refused_with_the_reason() {
    let folder = Folder::new();
    let refusal = |model_type: &str, error: fn(&RawConfig) -> Error| {
        let raw = changed(&folder, "bert", &json!({ "model_type": model_type }));
        let error = error(&raw);
        assert!(matches!(error, Error::UnsupportedModel(_)), "{error}");
        let message = error.to_string();
        assert!(
            message.contains(&format!("{model_type:?} is not ")),
            "{message}"
        );
        assert!(!message.contains("closest"), "{message}");
        message
    };
    let of_images = |raw: &RawConfig| Blueprint::<VlmConfig>::from_config(raw).unwrap_err();
    let of_texts = |raw: &RawConfig| decoder::Blueprint::from_config(raw).unwrap_err();
    for error in [of_images, of_texts] {
        assert!(refusal("deepseek_ocr2", error).contains("SAM's"));
    }
    // Of a type without a reason of its own, too, texts alone are told.
    assert!(refusal("aria", of_images).contains("Its texts run as a language model. "));
}

#[test]
fn numbers_of_experts_may_be_listed_for_each_layer() {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/fixtures/seeded/hunyuan_v1_moe");
    let raw = RawConfig::read(&folder.join("config.json")).unwrap();
    let experts = |values: Value| {
        let blueprint = decoder::Blueprint::from_config(&raw.clone().with(values))?;
        Ok::<_, Error>(format!("{:?}", blueprint.config.experts))
    };
    let layers = raw.usize("num_hidden_layers").unwrap();
    let listed = json!({"moe_topk": vec![2; layers], "num_experts": vec![5; layers]});
    assert_eq!(experts(listed).unwrap(), experts(json!({})).unwrap());
    for wrong in [json!({"moe_topk": [2, 3]}), json!({"moe_topk": []})] {
        assert!(matches!(experts(wrong), Err(Error::UnsupportedModel(_))));
    }
}
