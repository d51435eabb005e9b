//! Weights as a function of tensor name and seed, as `spec/fixtures/make_seeded.py` describes them.

use half::{bf16, f16};
use serde_json::{json, Map, Value};

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn fnv1a(name: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The stream of a tensor: splitmix64 from the hash of its name.
fn stream(name: &str, seed: u64) -> impl Iterator<Item = u64> {
    let mut state = fnv1a(name) ^ seed.wrapping_mul(GOLDEN);
    std::iter::repeat_with(move || {
        state = state.wrapping_add(GOLDEN);
        let value = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    })
}

/// The little-endian elements of a tensor, which may be a part of a parameter that is known by another name.
pub fn elements(name: &str, seed: u64, tensor: &Value) -> Vec<u8> {
    if let Some(values) = tensor["values"].as_array() {
        let values = values.iter().map(|value| value.as_f64().unwrap());
        return stored(&values.collect::<Vec<_>>(), &tensor["dtype"]);
    }
    let shape = tensor["shape"].as_array().unwrap();
    let sizes = shape.iter().map(|size| size.as_u64().unwrap() as usize);
    let first = tensor["first"].as_u64().unwrap_or(0) as usize;
    let numbers = stream(tensor["of"].as_str().unwrap_or(name), seed);
    let numbers = numbers.skip(first).take(sizes.product());
    if tensor["dtype"] == "I64" {
        let below = tensor["below"].as_u64().unwrap();
        return numbers
            .flat_map(|number| ((number >> 11) % below).to_le_bytes())
            .collect();
    }
    let [center, spread] = ["center", "spread"].map(|key| tensor[key].as_f64().unwrap());
    let values = numbers
        .map(|number| (number >> 40) as f64 / f64::from(1 << 24) - 0.5)
        .map(|uniform| center + spread * uniform);
    stored(&values.collect::<Vec<_>>(), &tensor["dtype"])
}

/// Numbers as a type of safetensors and GGUF files, rounded to f32 first.
pub fn stored(values: &[f64], dtype: &Value) -> Vec<u8> {
    let values = values.iter().map(|value| *value as f32);
    match dtype.as_str().unwrap() {
        "F32" => values.flat_map(f32::to_le_bytes).collect(),
        "F16" => values
            .flat_map(|value| f16::from_f32(value).to_le_bytes())
            .collect(),
        "BF16" => values
            .flat_map(|value| bf16::from_f32(value).to_le_bytes())
            .collect(),
        other => panic!("{other} has no numbers here"),
    }
}

/// The safetensors file of a fixture, with its tensors under other names.
pub fn safetensors(description: &Value, renamed: impl Fn(&str) -> String) -> Vec<u8> {
    let seed = description["seed"].as_u64().unwrap();
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, tensor) in description["tensors"].as_object().unwrap() {
        let start = data.len();
        data.extend(elements(name, seed, tensor));
        let entry = json!({
            "dtype": tensor["dtype"], "shape": tensor["shape"], "data_offsets": [start, data.len()],
        });
        header.insert(renamed(name), entry);
    }
    let header = Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers that `spec/fixtures/seeded_models/weights.py` gives for two names.
    const NORM: [f32; 3] = [1.0095469, 0.9720191, 1.0780883];
    const CHOICES: [i64; 4] = [3, 2, 4, 0];

    #[test]
    fn weights_are_those_of_the_reference() {
        let tensor = json!({"shape": [3], "dtype": "F32", "center": 1.0, "spread": 0.4});
        let bytes = elements("model.norm.weight", 7, &tensor);
        let values: Vec<f32> = bytes
            .chunks(4)
            .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
            .collect();
        assert_eq!(values, NORM);
        let tensor = json!({"shape": [4], "dtype": "I64", "below": 5});
        let bytes = elements("tid2eid", 3, &tensor);
        let values: Vec<i64> = bytes
            .chunks(8)
            .map(|eight| i64::from_le_bytes(eight.try_into().unwrap()))
            .collect();
        assert_eq!(values, CHOICES);
    }
}
