//! Every decoder family against what transformers says of a checkpoint with the same seeded weights.

use candle_core::DType;
use engine::models::decoder::{Decoder, KvPool};
use engine::Error;
use kernels::paged::KvType;
use serde_json::Value;

use super::decoder::{greedy, in_chunks, numbers, read_checkpoint};
use super::same_answer::in_any_company;
use super::seeded_weights::{checkpoint, names, record};

/// Absolute, and relative to the logit.
const TOLERANCE: f64 = 1e-4;

/// The fixtures whose model types are refused so far. A name leaves the list when its type loads.
#[rustfmt::skip]
const NOT_YET: &[&str] = &[
    "bailing_hybrid",
    "bamba",
    "deepseek_v4",
    "doge",
    "falcon_h1",
    "falcon_h1-norm",
    "falcon_mamba",
    "gemma3n_text",
    "gemma4_text",
    "gemma4_text-experts",
    "gemma4_unified_text",
    "granitemoe_swa",
    "granitemoehybrid",
    "granitemoehybrid-rope",
    "hy_v4",
    "jamba",
    "kimi_linear",
    "laguna",
    "lfm2",
    "lfm2-bias",
    "lfm2_moe",
    "mamba",
    "mamba2",
    "minimax",
    "nemotron_h",
    "nemotron_h-latent",
    "olmo_hybrid",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_next",
    "recurrent_gemma",
    "rwkv",
    "zamba2",
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
fn excess(found: &[f32], expected: &Value) -> f64 {
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
fn difference(decoder: &Decoder, case: &Value) -> Option<String> {
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

#[test]
fn every_type_says_the_same_in_any_company() {
    let decoders = loaded();
    let failures = decoders
        .iter()
        .filter_map(|(name, decoder)| in_any_company(decoder, 3, name));
    let failures: Vec<String> = failures.collect();
    assert!(failures.is_empty(), "{failures:#?}");
}
