//! Checkpoints that other libraries quantized, against their own expansions, and damaged ones.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::quant::BlockType;
use candle_core::{DType, Device};
use engine::Error;
use formats::files::model_files::WeightFiles;
use formats::files::raw_config::RawConfig;
use formats::weights::{self, WeightSource};
use serde_json::{json, Value};

use super::decoder::{greedy, in_chunks, numbers, read_checkpoint};
use super::weight_files::Folder;

/// Absolute, and relative to the logit: inputs of layers on blocks are rounded to 1/64516.
const TOLERANCE: f32 = 1e-3;

pub(super) const Q: &str = "model.layers.0.self_attn.q_proj";

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../spec/fixtures/quantized")
        .join(name)
}

fn names() -> Vec<String> {
    let folders = std::fs::read_dir(folder("")).unwrap();
    let mut names: Vec<String> = folders
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names.len(), 19);
    names
}

fn record(name: &str, file: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder(name).join(file)).unwrap()).unwrap()
}

pub(super) fn open(folder: &Path) -> engine::Result<Arc<dyn WeightSource>> {
    let config = RawConfig::read(&folder.join("config.json"))?;
    let files = WeightFiles::Safetensors(vec![folder.join("model.safetensors")]);
    weights::unpacked(weights::open(&files)?, &config)
}

fn floats(source: &dyn WeightSource, name: &str) -> Vec<f32> {
    let tensor = source.tensor(name, Some(DType::F32), &Device::Cpu).unwrap();
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn fnv1a(values: &[f32]) -> u64 {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, step)
}

#[test]
fn weights_expand_as_their_libraries_say_bit_for_bit() {
    let mut failures = Vec::new();
    for name in names() {
        let source = open(&folder(&name)).unwrap();
        for (tensor, hash) in record(&name, "expected.json")["hashes"]
            .as_object()
            .unwrap()
        {
            let found = fnv1a(&floats(&*source, tensor)).to_string();
            if hash != &json!(found) {
                failures.push(format!("{name}: {tensor}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn logits_and_greedy_tokens_are_those_of_the_expanded_weights() {
    let mut failures = Vec::new();
    for name in names() {
        let expected = record(&name, "expected.json");
        let decoder = read_checkpoint(&folder(&name), DType::F32).unwrap();
        let prompt = numbers(&expected["prompt"]);
        let rows: Vec<Vec<f32>> = in_chunks(&decoder, &prompt, prompt.len())
            .to_vec2()
            .unwrap();
        let logits = expected["last"].as_array().unwrap().iter();
        let logits = logits.map(|value| value.as_f64().unwrap() as f32);
        let worst = rows[prompt.len() - 1]
            .iter()
            .zip(logits)
            .map(|(found, expected)| (found - expected).abs() / (1.0 + expected.abs()))
            .max_by(f32::total_cmp);
        if worst.is_none_or(|worst| worst.is_nan() || worst > TOLERANCE) {
            failures.push(format!("{name}: {worst:?}"));
        }
        let wanted = numbers(&expected["greedy"]);
        let sequence = greedy(&decoder, &prompt, prompt.len() + wanted.len());
        if sequence[prompt.len()..] != wanted {
            failures.push(format!("{name}: {sequence:?}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn parts_of_weights_are_not_tensors_of_the_model() {
    let source = open(&folder("gptq")).unwrap();
    assert!(!source.has(&format!("{Q}.qweight")));
    let info = source.info(&format!("{Q}.weight")).unwrap();
    assert_eq!((info.dtype_name, &info.shape[..]), ("gptq", &[64, 64][..]));
    assert!(info.bytes > 64 * 64 / 2);
    let names = source.names();
    assert!(names.contains(&format!("{Q}.weight")));
    assert!(!names.iter().any(|name| name.ends_with("scales")));
}

#[test]
fn weights_that_a_block_type_has_stay_quantized() {
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    for (name, tensor, expected) in [
        ("gptq", layer("self_attn.q_proj"), Some(BlockType::Q4_0)),
        ("gptq", layer("self_attn.k_proj"), Some(BlockType::Q5_0)),
        ("gptq", layer("self_attn.v_proj"), Some(BlockType::Q8_0)),
        ("gptq", layer("mlp.gate_proj"), Some(BlockType::Q4_0)),
        ("gptq", layer("mlp.up_proj"), Some(BlockType::Q5_0)),
        ("gptq", layer("mlp.down_proj"), Some(BlockType::Q4_0)),
        ("awq", layer("self_attn.q_proj"), Some(BlockType::Q5_0)),
        ("mlx", layer("self_attn.q_proj"), Some(BlockType::Q4_1)),
        ("mlx", layer("self_attn.k_proj"), Some(BlockType::Q4_1)),
        ("mlx", layer("mlp.down_proj"), Some(BlockType::Int8Of32)),
        (
            "compressed",
            layer("self_attn.q_proj"),
            Some(BlockType::Q4_0),
        ),
        (
            "compressed",
            layer("self_attn.o_proj"),
            Some(BlockType::Q8_0),
        ),
        ("compressed", layer("mlp.up_proj"), Some(BlockType::Fp8)),
        ("fp8", layer("self_attn.q_proj"), Some(BlockType::Fp8)),
        ("fp8", layer("mlp.down_proj"), Some(BlockType::Fp8)),
        ("hqq", layer("mlp.gate_proj"), None),
        // Groups of 16, and rows that end within a block.
        ("hqq", layer("self_attn.v_proj"), Some(BlockType::Int4Of16)),
        ("hqq", layer("mlp.down_proj"), Some(BlockType::Int4Of32)),
        (
            "modelopt",
            layer("self_attn.q_proj"),
            Some(BlockType::NvFp4),
        ),
        (
            "bitsandbytes",
            layer("self_attn.q_proj"),
            Some(BlockType::Nf4),
        ),
        (
            "bitsandbytes",
            layer("self_attn.v_proj"),
            Some(BlockType::Fp4),
        ),
        // Rounded to 16 bits.
        (
            "bitsandbytes",
            layer("self_attn.o_proj"),
            Some(BlockType::Fp4Bf16),
        ),
        (
            "bitsandbytes",
            layer("mlp.gate_proj"),
            Some(BlockType::Nf4F16),
        ),
        (
            "bitsandbytes",
            layer("mlp.up_proj"),
            Some(BlockType::Nf4Bf16),
        ),
        (
            "gpt_oss",
            "model.layers.0.mlp.experts.gate_up_proj".to_owned(),
            Some(BlockType::Q5_0),
        ),
        (
            "auto_round",
            layer("self_attn.q_proj"),
            Some(BlockType::Q4_0),
        ),
        (
            "mlx_mxfp4",
            layer("self_attn.q_proj"),
            Some(BlockType::Q5_0),
        ),
        (
            "compressed_mxfp4",
            layer("mlp.down_proj"),
            Some(BlockType::Q5_0),
        ),
        (
            "fbgemm_fp8",
            layer("self_attn.q_proj"),
            Some(BlockType::Fp8),
        ),
        (
            "torchao_int4",
            layer("self_attn.q_proj"),
            Some(BlockType::Int4Of32),
        ),
        (
            "torchao_int4",
            layer("self_attn.k_proj"),
            Some(BlockType::Int4),
        ),
        (
            "fp8_stacks",
            "model.layers.0.block_sparse_moe.experts.gate_up_proj".to_owned(),
            Some(BlockType::Fp8),
        ),
        (
            "fp8_stacks",
            layer("self_attn.q_proj"),
            Some(BlockType::E5m2),
        ),
    ] {
        let source = open(&folder(name)).unwrap();
        let blocks = source.quantized(&tensor).unwrap();
        assert_eq!(
            blocks.as_ref().map(|blocks| blocks.kind),
            expected,
            "{name}: {tensor}"
        );
        let Some(blocks) = blocks else { continue };
        let found = blocks.dequantize().unwrap();
        let dense = source
            .tensor(&tensor, Some(DType::F32), &Device::Cpu)
            .unwrap();
        // Experts of gpt-oss are the other way round.
        let dense = if blocks.shape == dense.dims() {
            dense
        } else {
            dense.transpose(1, 2).unwrap()
        };
        let dense: Vec<f32> = dense.flatten_all().unwrap().to_vec1().unwrap();
        // Minimums and factors round by themselves; bitsandbytes has neither.
        let most = match blocks.kind {
            kind if !kind.is_grouped() => 0.0,
            BlockType::Nf4
            | BlockType::Fp4
            | BlockType::Nf4Bf16
            | BlockType::Nf4F16
            | BlockType::Fp4Bf16 => 0.0,
            _ => 1e-6,
        };
        // A minimum may be nearly all of a number.
        let largest = dense.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let close = |(found, wanted): (&f32, &f32)| (found - wanted).abs() <= most * largest;
        assert!(found.iter().zip(&dense).all(close), "{name}: {tensor}");
    }
}

#[test]
fn scales_of_columns_stay_with_their_codes() {
    let source = open(&folder("hqq_columns")).unwrap();
    for (name, lines, bits) in [
        ("self_attn.q_proj", 1, 4),
        ("self_attn.k_proj", 2, 8),
        ("self_attn.o_proj", 4, 4),
        ("mlp.gate_proj", 10, 4),
        ("mlp.up_proj", 5, 4),
        ("mlp.down_proj", 8, 4),
    ] {
        let tensor = format!("model.layers.0.{name}.weight");
        assert!(source.quantized(&tensor).unwrap().is_none());
        let codes = source.lined(&tensor).unwrap().unwrap();
        assert_eq!((codes.lines, codes.bits), (lines, bits), "{name}");
        let wanted = floats(&*source, &tensor);
        let close =
            |(found, wanted): (&f32, &f32)| (found - wanted).abs() <= 1e-5 * (1.0 + wanted.abs());
        assert!(codes.dequantize().iter().zip(&wanted).all(close), "{name}");
    }
    let other = open(&folder("hqq")).unwrap();
    assert!(other.lined(&format!("{Q}.weight")).unwrap().is_none());
}

/// Of the two ways that experts are stacked, which square matrices do not show.
#[test]
fn stacks_of_experts_say_whether_their_blocks_are_turned() {
    for (name, place, turned, shape) in [
        ("gpt_oss", "mlp", true, [3, 64, 96]),
        ("fp8_turned", "mlp", false, [2, 64, 64]),
        ("fp8_stacks", "block_sparse_moe", false, [2, 64, 64]),
    ] {
        let experts = format!("model.layers.0.{place}.experts.down_proj");
        let source = open(&folder(name)).unwrap();
        assert_eq!(source.turned(&experts), turned, "{name}");
        let blocks = source.quantized(&experts).unwrap();
        assert!(blocks.is_none_or(|blocks| blocks.shape == shape), "{name}");
    }
}

/// A fixture whose header, data and configuration were changed.
pub(super) fn changed(name: &str, change: impl Fn(&mut Value, &mut [u8], &mut Value)) -> Folder {
    let bytes = std::fs::read(folder(name).join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let mut data = bytes[8 + length..].to_vec();
    let mut config = record(name, "config.json");
    change(&mut header, &mut data, &mut config);
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    let folder = Folder::new();
    folder.write("model.safetensors", file);
    folder.write("config.json", config.to_string());
    folder
}

/// Opening and reading all weights.
fn read_all(folder: &Folder) -> engine::Result<()> {
    let source = open(&folder.path(""))?;
    for name in source.names() {
        source.tensor(&name, Some(DType::F32), &Device::Cpu)?;
        source.quantized(&name)?;
    }
    Ok(())
}

/// Bytes of a tensor become others.
fn overwrite(header: &Value, data: &mut [u8], tensor: &str, bytes: &[u8]) {
    let start = header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    data[start..start + bytes.len()].copy_from_slice(bytes);
}

fn rename(header: &mut Value, from: &str, to: &str) {
    let entry = header.as_object_mut().unwrap().remove(from).unwrap();
    header[to] = entry;
}

pub(super) type Change = Box<dyn Fn(&mut Value, &mut [u8], &mut Value)>;

fn shape(tensor: String, shape: Value) -> Change {
    Box::new(move |header, _, _| header[&tensor]["shape"] = shape.clone())
}

pub(super) fn setting(key: &'static str, value: Value) -> Change {
    Box::new(move |_, _, config| {
        let place = match config.get("quantization_config") {
            Some(_) => "quantization_config",
            None => "quantization",
        };
        config[place][key] = value.clone();
    })
}

fn data(tensor: String, bytes: Vec<u8>) -> Change {
    Box::new(move |header, data, _| overwrite(header, data, &tensor, &bytes))
}

fn missing(tensor: String) -> Change {
    Box::new(move |header, _, _| rename(header, &tensor, "elsewhere"))
}

#[test]
fn damaged_parts_are_named_with_their_tensor_and_file() {
    let q = |part: &str| format!("{Q}.{part}");
    let up = |part: &str| format!("model.layers.0.mlp.up_proj.{part}");
    let down = |part: &str| format!("model.layers.0.mlp.down_proj.{part}");
    let k = |part: &str| format!("model.layers.0.self_attn.k_proj.{part}");
    let experts = |part: &str| format!("model.layers.0.mlp.experts.gate_up_proj_{part}");
    let cases: Vec<(&str, Change, &str)> = vec![
        ("gptq", missing(q("scales")), "scales"),
        ("gptq", shape(q("scales"), json!([64, 2])), "scales"),
        ("gptq", shape(q("qzeros"), json!([8, 2])), "qzeros"),
        ("gptq", shape(q("qweight"), json!([64, 8])), "q_proj"),
        (
            "gptq",
            data(q("scales"), vec![0, 0x7c]),
            "scale is not a number",
        ),
        (
            "gptq",
            data(up("g_idx"), vec![9, 0, 0, 0]),
            "none of 2 groups",
        ),
        ("awq", shape(q("qzeros"), json!([8, 2])), "qzeros"),
        ("awq", missing(q("qzeros")), "qzeros"),
        ("fp8", missing(q("weight_scale_inv")), "weight_scale_inv"),
        (
            "fp8",
            shape(down("weight_scale_inv"), json!([2, 1])),
            "weight_scale_inv",
        ),
        (
            "compressed",
            data(q("weight_shape"), vec![0xff; 8]),
            "weight_shape",
        ),
        (
            "compressed",
            data(q("weight_shape"), vec![65, 0, 0, 0, 0, 0, 0, 0]),
            "weight_packed",
        ),
        (
            "compressed",
            missing(down("weight_global_scale")),
            "weight_global_scale",
        ),
        (
            "compressed",
            shape(k("weight_zero_point"), json!([2, 4])),
            "weight_zero_point",
        ),
        ("modelopt", missing(q("weight_scale_2")), "weight_scale_2"),
        (
            "bitsandbytes",
            data(q("weight.quant_state.bitsandbytes__nf4"), b"[".to_vec()),
            "JSON",
        ),
        ("bitsandbytes", missing(q("weight.absmax")), "absmax"),
        (
            "bitsandbytes",
            data(q("weight.quant_map"), vec![0, 0, 0xc0, 0x7f]),
            "scale is not a number",
        ),
        (
            "bitsandbytes",
            Box::new(|header, _, _| {
                header["model.layers.0.self_attn.q_proj.weight.quant_map"]["dtype"] = json!("I32");
            }),
            "quant_map",
        ),
        (
            "bitsandbytes",
            missing(q("weight.quant_state.bitsandbytes__nf4")),
            "quant_state",
        ),
        ("bitsandbytes", missing(down("SCB")), "SCB"),
        ("hqq", data(q("group_size"), vec![0; 4]), "groups of 0"),
        ("hqq", data(q("axis"), vec![7, 0, 0, 0]), "axis 7"),
        ("hqq", missing(q("zero")), "zero"),
        ("hqq_columns", shape(q("scale"), json!([64, 1])), "scale"),
        (
            "hqq_columns",
            data(q("scale"), vec![0, 0, 0xc0, 0x7f]),
            "not a number",
        ),
        (
            "torchao",
            missing(format!("{Q}._weight_scale")),
            "_weight_scale",
        ),
        ("mlx", setting("group_size", json!(64)), "groups of 64"),
        ("mlx", missing(q("biases")), "biases"),
        ("gpt_oss", missing(experts("scales")), "scales"),
        (
            "gpt_oss",
            shape(experts("blocks"), json!([3, 192, 4, 8])),
            "blocks",
        ),
        (
            "gpt_oss",
            data(experts("scales"), vec![255]),
            "scale is not a number",
        ),
        (
            "gptq",
            setting("modules_to_not_convert", json!("q_proj")),
            "not a list",
        ),
        (
            "gptq",
            setting("modules_to_not_convert", json!([7])),
            "not the name",
        ),
    ];
    let mut failures = Vec::new();
    for (number, (name, change, word)) in cases.iter().enumerate() {
        let folder = changed(name, change);
        match read_all(&folder) {
            Err(Error::CorruptModel(message)) if message.contains(word) => {
                assert!(
                    message.contains(&folder.path("").display().to_string()),
                    "{message}"
                );
            }
            other => failures.push(format!("{number}, {name}, {word}: {other:?}")),
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn versions_and_methods_that_are_not_known_are_refused() {
    let method = || setting("quant_method", json!("aqlm"));
    let cases: Vec<(&str, Change, &str)> = vec![
        ("gptq", method(), "aqlm"),
        (
            "gptq",
            setting("checkpoint_format", json!("marlin")),
            "marlin",
        ),
        ("gptq", setting("bits", json!(5)), "5 bits"),
        (
            "gptq",
            setting("modules_to_not_convert", json!(["transformer.nonsense"])),
            "nonsense",
        ),
        ("awq", setting("version", json!("gemv")), "gemv"),
        ("fp8", setting("fmt", json!("e3m4")), "e3m4"),
        ("mlx", setting("mode", json!("nvfp8")), "nvfp8"),
        (
            "compressed",
            setting("format", json!("marlin-24")),
            "marlin-24",
        ),
        (
            "hqq",
            data(format!("{Q}.nbits"), vec![7, 0, 0, 0]),
            "7 bits",
        ),
        (
            "torchao",
            Box::new(|header, _, _| header["__metadata__"] = json!({})),
            "__metadata__",
        ),
    ];
    for (name, change, word) in cases {
        let folder = changed(name, change);
        match read_all(&folder) {
            Err(Error::UnsupportedModel(message)) => assert!(message.contains(word), "{message}"),
            other => panic!("{name}, {word}: {other:?}"),
        }
    }
}

/// The checkpoint says so of all FP8 weights, or of none.
/// The halves of a norm as zero points of four bits.
#[test]
fn zero_points_out_of_range_are_refused() {
    let folder = changed("compressed", |header, _, _| {
        let norm = header.as_object_mut().unwrap().remove("model.norm.weight");
        let place = norm.unwrap()["data_offsets"].clone();
        let zeros = json!({"dtype": "I8", "shape": [64, 2], "data_offsets": place});
        header[format!("{Q}.weight_zero_point")] = zeros;
    });
    match read_all(&folder) {
        Err(Error::CorruptModel(message)) => {
            assert!(message.contains("not within 4 bits"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}
