//! Every decoder family against what transformers says of a checkpoint with the same seeded weights.

use candle_core::{DType, Tensor};
use engine::models::decoder::{Blueprint, Decoder, KvPool};
use engine::nn::PackedSequences;
use engine::{CancelToken, Error};
use formats::files::model_files::WeightFiles;
use formats::files::raw_config::RawConfig;
use formats::weights;
use kernels::paged::KvType;
use serde_json::Value;

use super::decoder::{greedy, in_chunks, numbers, read_checkpoint};
use super::same_answer::in_any_company;
use super::seeded_weights::{checkpoint, fused_experts, names, record, text_part};

/// Absolute, and relative to the logit.
const TOLERANCE: f64 = 1e-4;

/// The fixtures whose model types are refused so far. A name leaves the list when its type loads.
#[rustfmt::skip]
const NOT_YET: &[&str] = &[
    "deepseek_v4",
    "doge",
    "hy_v4",
];

/// All fixtures that load; those that don't are refused by name.
fn loaded() -> Vec<(String, Decoder)> {
    let (mut decoders, mut failures) = (Vec::new(), Vec::new());
    for name in names() {
        let folder = checkpoint(&name);
        match read_checkpoint(&folder.path(""), DType::F32) {
            Ok(decoder) => decoders.push((name, decoder)),
            Err(Error::UnsupportedModel(_)) => {}
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(!decoders.is_empty());
    decoders
}

#[test]
fn types_load_unless_they_are_listed() {
    let loaded: Vec<String> = loaded().into_iter().map(|(name, _)| name).collect();
    let names = names();
    let refused: Vec<&String> = names.iter().filter(|name| !loaded.contains(name)).collect();
    let mut listed = NOT_YET.to_vec();
    listed.sort();
    assert_eq!(refused, listed);
}

/// The largest excess of a logit over its tolerance, as a multiple of it.
pub fn excess(found: &[f32], expected: &Value) -> f64 {
    let expected = expected.as_array().unwrap().iter();
    let pairs = found
        .iter()
        .zip(expected.map(|value| value.as_f64().unwrap()));
    let off = |(&found, expected): (&f32, f64)| {
        let difference = (f64::from(found) - expected).abs();
        difference / (TOLERANCE + TOLERANCE * expected.abs())
    };
    // NaN compares as the largest.
    pairs.map(off).max_by(f64::total_cmp).unwrap()
}

/// What a decoder says otherwise than the reference, if anything.
pub fn difference(decoder: &Decoder, case: &Value) -> Option<String> {
    let prompt = numbers(&case["prompt"]);
    let logits: Vec<Vec<f32>> = in_chunks(decoder, &prompt, prompt.len()).to_vec2().unwrap();
    let last = excess(&logits[prompt.len() - 1], &case["last"]);
    let earlier = case["earlier"].as_object().unwrap().iter();
    let earlier =
        earlier.map(|(position, row)| excess(&logits[position.parse::<usize>().unwrap()], row));
    let worst = earlier.fold(last, |a, b| if a.total_cmp(&b).is_lt() { b } else { a });
    if worst.is_nan() || worst >= 1.0 {
        return Some(format!(
            "logits are off by {worst:.1} tolerances (at the end {last:.1})"
        ));
    }
    let expected = numbers(&case["greedy"]);
    let sequence = greedy(decoder, &prompt, prompt.len() + expected.len());
    let same = sequence[prompt.len()..]
        .iter()
        .zip(&expected)
        .take_while(|(a, b)| a == b);
    let same = same.count();
    (same < expected.len()).then(|| format!("greedy tokens differ from token {same} on"))
}

#[test]
fn logits_and_greedy_tokens_equal_the_reference() {
    let mut failures = Vec::new();
    for (name, decoder) in loaded() {
        let expected = record(&name, "expected.json");
        for case in expected["cases"].as_array().unwrap() {
            let found = difference(&decoder, case);
            failures.extend(found.map(|found| format!("{name}: {found}")));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// One row of latents and rotated elements for a token, whatever heads there are, which is key and value.
#[test]
fn latent_attention_caches_one_row_per_token() {
    let config = record("deepseek_v3", "config.json");
    let size = |key: &str| config[key].as_u64().unwrap() as usize;
    let row = size("kv_lora_rank") + size("qk_rope_head_dim");
    let folder = checkpoint("deepseek_v3");
    let decoder = read_checkpoint(&folder.path(""), DType::F32).unwrap();
    let found = KvPool::token_bytes(decoder.config(), KvType::F16);
    assert_eq!(found, 2 * size("num_hidden_layers") * 2 * row);
}

/// The vision tower of Gemma 3n is another library's, so that its checkpoints have no fixture of their own.
#[test]
fn the_text_parts_of_larger_models_are_found() {
    for (name, model_type) in [
        ("gemma3n_text", "gemma3n"),
        ("gemma4_unified_text", "gemma4_unified"),
        ("granite", "granite4_vision"),
        ("qwen3_5_text", "qwen3_5"),
        ("qwen3_5_moe_text", "qwen3_5_moe"),
    ] {
        let folder = text_part(name, model_type);
        let decoder = read_checkpoint(&folder.path(""), DType::F32).unwrap();
        for case in record(name, "expected.json")["cases"].as_array().unwrap() {
            assert_eq!(difference(&decoder, case), None, "{model_type}");
        }
    }
}

/// Checkpoints of Qwen 3.5 have the experts of a layer one by one or in two tensors.
#[test]
fn fused_experts_are_those_of_single_ones() {
    let folder = fused_experts("qwen3_5_moe_text");
    let decoder = read_checkpoint(&folder.path(""), DType::F32).unwrap();
    let expected = record("qwen3_5_moe_text", "expected.json");
    for case in expected["cases"].as_array().unwrap() {
        assert_eq!(difference(&decoder, case), None);
    }
}

/// More than any size is.
const HUGE: u64 = 1 << 40;

/// What a config says is compared with the weights before anything is reserved for it.
#[test]
fn states_of_impossible_sizes_are_refused() {
    for (name, key, value, word) in [
        ("qwen3_next", "linear_num_value_heads", 3, "can't share"),
        (
            "qwen3_next",
            "linear_num_key_heads",
            0,
            "number of heads with keys",
        ),
        (
            "qwen3_next",
            "linear_key_head_dim",
            HUGE,
            "linear_key_head_dim",
        ),
        ("qwen3_next", "linear_value_head_dim", 11, "in_proj_qkvz"),
        ("qwen3_5_text", "linear_conv_kernel_dim", 0, "convolution"),
        ("qwen3_5_text", "linear_conv_kernel_dim", 3, "conv1d"),
        ("olmo_hybrid", "linear_key_head_dim", 9, "q_proj"),
        ("olmo_hybrid", "linear_conv_kernel_dim", 5, "q_conv1d"),
        ("kimi_linear", "linear_num_heads", HUGE, "linear_num_heads"),
        ("kimi_linear", "linear_head_dim", 9, "q_proj"),
        ("bailing_hybrid", "linear_num_heads", 5, "q_proj"),
        ("minimax", "head_dim", HUGE, "head_dim"),
        ("recurrent_gemma", "lru_width", 37, "37 recurrent units"),
        ("recurrent_gemma", "conv1d_width", HUGE, "conv1d_width"),
        (
            "rwkv",
            "attention_hidden_size",
            HUGE,
            "attention_hidden_size",
        ),
        ("rwkv", "intermediate_size", 41, "feed_forward.key"),
    ] {
        let folder = checkpoint(name);
        let mut config = record(name, "config.json");
        config[key] = Value::from(value);
        folder.write("config.json", config.to_string());
        match read_checkpoint(&folder.path(""), DType::F32).map(drop) {
            Err(Error::CorruptModel(message)) => {
                assert!(message.contains(word), "{name}, {key}: {message}");
            }
            other => panic!("{name}, {key}: {other:?}"),
        }
    }
}

/// Whatever number a config has in another's place, a model loads and computes something, or is refused.
#[test]
fn no_size_of_a_state_makes_loading_fail_otherwise() {
    for name in names() {
        let folder = checkpoint(&name);
        let config = record(&name, "config.json");
        let decoder = read_checkpoint(&folder.path(""), DType::F32);
        if !decoder.is_ok_and(|decoder| decoder.config().state.is_some()) {
            continue;
        }
        let numbers = config.as_object().unwrap().iter();
        for (key, _) in numbers.filter(|(_, value)| value.is_u64()) {
            for value in [0, 7, HUGE] {
                let mut changed = config.clone();
                changed[key] = value.into();
                folder.write("config.json", changed.to_string());
                println!("{name}, {key}: {value}");
                if let Ok(decoder) = read_checkpoint(&folder.path(""), DType::F32) {
                    greedy(&decoder, &[5, 6, 7], 5);
                }
            }
        }
    }
}

/// The self-check loads the first layer a second time, and reads sequences without a cache.
#[test]
fn every_type_passes_its_self_check() {
    let cancel = CancelToken::new();
    let mut failures = Vec::new();
    for name in names() {
        let folder = checkpoint(&name);
        let raw = RawConfig::read(&folder.path("config.json")).unwrap();
        let Ok(blueprint) = Blueprint::from_config(&raw) else {
            continue;
        };
        let files = WeightFiles::Safetensors(vec![folder.path("model.safetensors")]);
        let source = weights::open(&files).unwrap();
        let decoder = read_checkpoint(&folder.path(""), DType::F32).unwrap();
        let verdict = decoder.verify(source.as_ref(), &blueprint.names, &cancel);
        failures.extend(verdict.err().map(|error| format!("{name}: {error}")));
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn states_are_the_same_without_a_cache() {
    let cancel = CancelToken::new();
    let mut failures = Vec::new();
    for (name, decoder) in loaded() {
        let prompt = numbers(&record(&name, "expected.json")["cases"][1]["prompt"]);
        let mut sequences = PackedSequences::new();
        sequences.push(&prompt[..7], None).unwrap();
        sequences.push(&prompt, None).unwrap();
        let whole = decoder.forward_packed(&sequences, &cancel).unwrap();
        let whole = whole.narrow(0, 7, prompt.len()).unwrap();
        let mut cache = decoder.new_cache().unwrap();
        let cached = decoder.hidden_states(&prompt, &mut cache, &cancel).unwrap();
        let values =
            |states: &Tensor| -> Vec<f32> { states.flatten_all().unwrap().to_vec1().unwrap() };
        let mut pairs = values(&whole).into_iter().zip(values(&cached));
        let close = pairs.all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + b.abs()));
        failures.extend((!close).then_some(name));
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn every_type_says_the_same_in_any_company() {
    let decoders = loaded();
    let failures = decoders
        .iter()
        .filter_map(|(name, decoder)| in_any_company(decoder, 3, name));
    let failures: Vec<String> = failures.collect();
    assert!(failures.is_empty(), "{failures:#?}");
}
