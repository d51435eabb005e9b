//! The readers on sound files, against values computed without them.

use std::sync::Arc;
use std::time::Instant;

use base::quant::BlockType;
use candle_core::{DType, Device};
use engine::Error;
use formats::files::model_files::WeightFiles;
use formats::weights::{self, Value, WeightSource};

use crate::weight_files::{self as files, fixture, Folder, Gguf};

fn gguf() -> Arc<dyn WeightSource> {
    weights::open(&WeightFiles::Gguf(fixture("blocks.gguf"))).unwrap()
}

fn safetensors() -> Arc<dyn WeightSource> {
    weights::open(&WeightFiles::Safetensors(vec![fixture(
        "dense.safetensors",
    )]))
    .unwrap()
}

fn torch() -> Arc<dyn WeightSource> {
    weights::open(&WeightFiles::Pickle(vec![fixture("pytorch_model.bin")])).unwrap()
}

fn floats(source: &dyn WeightSource, name: &str) -> Vec<f32> {
    let tensor = source.tensor(name, Some(DType::F32), &Device::Cpu).unwrap();
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn blocks_expand_as_the_gguf_package_says() {
    let source = gguf();
    let mut seen = 0;
    for kind in BlockType::ALL {
        let name = kind.name();
        if !source.has(name) {
            continue;
        }
        seen += 1;
        let expected = floats(&*source, &format!("{name}.expected"));
        let values = floats(&*source, name);
        assert_eq!(values.len(), 512);
        for (value, expected) in values.iter().zip(&expected) {
            let tolerance = 1e-6 * expected.abs().max(1.0);
            assert!(
                (value - expected).abs() <= tolerance,
                "{name}: {value} != {expected}"
            );
        }
        let blocks = source.quantized(name).unwrap().unwrap();
        assert_eq!((blocks.kind, &blocks.shape[..]), (kind, &[2, 256][..]));
        assert!(blocks.bytes.is_mapped());
        assert_eq!(blocks.bytes.len(), 512 / kind.elements() * kind.bytes());
    }
    assert_eq!(seen, 12);
}

/// Numbers of MXFP4 are read as blocks that have kernels.
#[test]
fn blocks_of_mxfp4_are_read() {
    // 32 elements: codes 1 and 15 of scale 1, then codes 7 and 0 of scale 2.
    let data: Vec<u8> = [vec![127], vec![0xf1; 16], vec![128], vec![0x07; 16]].concat();
    let file = Gguf::new().tensor("w", &[32, 2], 39, 0).data(data);
    let folder = Folder::new();
    let path = folder.write("m.gguf", file.bytes());
    let source = weights::open(&WeightFiles::Gguf(path)).unwrap();
    let info = source.info("w").unwrap();
    assert_eq!((info.dtype_name, info.bytes), ("mxfp4", 34));
    let runs = [(0.5, 16), (-6.0, 16), (12.0, 16), (0.0, 16)];
    let expected: Vec<f32> = runs
        .into_iter()
        .flat_map(|(value, count)| vec![value; count])
        .collect();
    assert_eq!(floats(&*source, "w"), expected);
    let blocks = source.quantized("w").unwrap().unwrap();
    assert_eq!(blocks.rows(&[0, 1]).unwrap(), expected);
}

#[test]
fn the_formats_of_activations_expand_too() {
    let small: Vec<u8> = [0x00, 0x38, 0, 0].into_iter().chain(0..32).collect();
    let values = base::quant::dequantize(BlockType::Q8_1, &small).unwrap();
    let expected: Vec<f32> = (0..32).map(|i| i as f32 * 0.5).collect();
    assert_eq!(values, expected);
    let mut large = 0.25f32.to_le_bytes().to_vec();
    large.extend(0..=255);
    large.extend([0; 32]);
    let values = base::quant::dequantize(BlockType::Q8K, &large).unwrap();
    let expected: Vec<f32> = (0..=255u8).map(|i| f32::from(i as i8) * 0.25).collect();
    assert_eq!(values, expected);
}

#[test]
fn large_tensors_expand_like_small_ones() {
    let source = gguf();
    let blocks = source.quantized("q4_k").unwrap().unwrap().bytes;
    let once = base::quant::dequantize(BlockType::Q4K, &blocks).unwrap();
    let many = base::quant::dequantize(BlockType::Q4K, &blocks.repeat(2000)).unwrap();
    assert_eq!(many.len(), 2000 * once.len());
    assert!(many.chunks(once.len()).all(|part| part == once));
}

#[test]
fn gguf_metadata_of_every_kind() {
    let source = gguf();
    let metadata = source.metadata();
    assert_eq!(metadata.str("general.architecture").unwrap(), "test");
    assert_eq!(metadata.u32("kinds.u8").unwrap(), 255);
    assert_eq!(metadata.u32("kinds.u32").unwrap(), u32::MAX);
    assert_eq!(metadata.opt_f32("kinds.f32").unwrap(), Some(0.5));
    assert_eq!(metadata.opt_bool("kinds.bool").unwrap(), Some(true));
    assert_eq!(metadata.str("kinds.string").unwrap(), "grüße");
    assert!(matches!(
        metadata.get("kinds.i64"),
        Some(Value::Signed(i64::MIN))
    ));
    assert!(matches!(
        metadata.get("kinds.u64"),
        Some(Value::Unsigned(u64::MAX))
    ));
    assert!(matches!(metadata.get("kinds.f64"), Some(Value::Float(x)) if *x == 0.1));
    let strings = metadata.opt_strings("kinds.strings").unwrap().unwrap();
    assert_eq!(strings, ["a", "", "▁b"]);
    assert_eq!(
        metadata.opt_f32s("kinds.floats").unwrap().unwrap(),
        [0.5, -1.5]
    );
    assert_eq!(
        metadata.opt_i64s("kinds.integers").unwrap().unwrap(),
        [1, -2, 3]
    );
    let nested: Vec<usize> = metadata
        .opt_array("kinds.nested")
        .unwrap()
        .unwrap()
        .values()
        .map(|value| match value {
            Value::Array(inner) => inner.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(nested, [2, 1]);
    for error in [
        metadata.u32("kinds.i8").unwrap_err(),
        metadata.u32("kinds.string").unwrap_err(),
        metadata.str("kinds.absent").unwrap_err(),
        metadata.opt_i64s("kinds.strings").unwrap_err(),
    ] {
        assert!(matches!(error, Error::CorruptModel(_)));
        let message = error.to_string();
        assert!(
            message.contains("blocks.gguf") && message.contains("kinds."),
            "{message}"
        );
    }
}

#[test]
fn every_element_type_of_both_dense_formats() {
    let signed: Vec<f32> = (-3..3).map(|i| i as f32).collect();
    for source in [safetensors(), torch()] {
        for kind in ["f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8"] {
            let name = format!("kind.{kind}");
            assert_eq!(floats(&*source, &name), signed, "{name}");
            let info = source.info(&name).unwrap();
            assert_eq!((info.dtype_name, &info.shape[..]), (kind, &[2, 3][..]));
        }
        assert_eq!(floats(&*source, "kind.u8"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(
            floats(&*source, "kind.bool"),
            [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]
        );
        assert_eq!(floats(&*source, "scalar"), [0.25]);
        assert!(source.info("scalar").unwrap().shape.is_empty());
        assert_eq!(source.info("empty").unwrap().shape, [0, 4]);
        assert!(floats(&*source, "empty").is_empty());
    }
    let source = safetensors();
    assert_eq!(floats(&*source, "kind.u16"), [1.0, 65535.0]);
    assert_eq!(floats(&*source, "kind.f8_e4m3"), [-3.0, 448.0]);
    assert_eq!(floats(&*source, "kind.f8_e5m2"), [-3.0, 57344.0]);
    let wide = source.tensor("kind.u32", None, &Device::Cpu).unwrap();
    assert_eq!(wide.to_vec1::<u32>().unwrap(), [1, u32::MAX]);
    assert_eq!(source.metadata().str("format").unwrap(), "pt");
}

#[test]
fn the_natural_type_is_kept_unless_another_is_asked_for() {
    let source = safetensors();
    let dtype = |name: &str, wanted| source.tensor(name, wanted, &Device::Cpu).unwrap().dtype();
    assert_eq!(dtype("kind.bf16", None), DType::BF16);
    assert_eq!(dtype("kind.bf16", Some(DType::F16)), DType::F16);
    assert_eq!(dtype("kind.f32", Some(DType::BF16)), DType::BF16);
    assert_eq!(dtype("kind.i64", Some(DType::U32)), DType::U32);
    assert_eq!(dtype("kind.i8", None), DType::I16);
    let blocks = gguf()
        .tensor("q8_0", Some(DType::F16), &Device::Cpu)
        .unwrap();
    assert_eq!(blocks.dtype(), DType::F16);
}

#[test]
fn pytorch_views_and_parameters() {
    let source = torch();
    let counting = |range: std::ops::Range<i32>| range.map(|i| i as f32).collect::<Vec<_>>();
    assert_eq!(floats(&*source, "weight"), counting(0..4));
    assert_eq!(floats(&*source, "bias"), counting(4..6));
    assert_eq!(floats(&*source, "middle"), counting(6..12));
    assert_eq!(floats(&*source, "parameter"), counting(0..4));
    let transposed = source.tensor("transposed", None, &Device::Cpu).unwrap();
    assert_eq!(transposed.dims(), [6, 4]);
    let expected: Vec<f32> = (0..6)
        .flat_map(|row| (0..4).map(move |column| (row + 6 * column) as f32))
        .collect();
    assert_eq!(floats(&*source, "transposed"), expected);
}

#[test]
fn packed_archives_are_read() {
    let folder = Folder::new();
    let data = files::f32_bytes(&[1.0, 2.0, 3.0]);
    let pickle = files::pickle_of("w", 3, 1, &[2], &[1]);
    let packed = |name, bytes| files::Member {
        packed: true,
        ..files::Member::stored(name, bytes)
    };
    let file = files::zip(&[packed("a/data.pkl", &pickle), packed("a/data/0", &data)]);
    let path = folder.write("pytorch_model.bin", file);
    let source = weights::open(&WeightFiles::Pickle(vec![path])).unwrap();
    assert_eq!(floats(&*source, "w"), [2.0, 3.0]);
}

#[test]
fn a_missing_tensor_is_named_with_its_file_and_its_neighbours() {
    let error = safetensors()
        .tensor("kind.f31", None, &Device::Cpu)
        .unwrap_err();
    assert!(matches!(error, Error::CorruptModel(_)));
    let message = error.to_string();
    for part in ["\"kind.f31\"", "dense.safetensors", "kind.f32"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn shards_are_one_source() {
    let folder = Folder::new();
    let first = files::safetensors_of(&[("a", &[1.0])]);
    let second = files::safetensors_of(&[("b", &[2.0, 3.0])]);
    let paths = vec![
        folder.write("model-00001-of-00002.safetensors", first),
        folder.write("model-00002-of-00002.safetensors", second),
    ];
    let index = r#"{"metadata": {"total_size": 12}, "weight_map": {
        "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    let index = folder.write("model.safetensors.index.json", index);
    let shards = formats::files::shard_index::read(&index).unwrap();
    assert_eq!(shards.len(), 2);
    let source = weights::open(&WeightFiles::Safetensors(paths.clone())).unwrap();
    assert_eq!(source.names(), ["a", "b"]);
    assert_eq!(floats(&*source, "b"), [2.0, 3.0]);
    assert_eq!(source.file("b"), paths[1]);
    assert_eq!(source.files(), paths);
}

#[test]
fn a_large_vocabulary_is_read_quickly() {
    let folder = Folder::new();
    let mut array = 8u32.to_le_bytes().to_vec();
    array.extend(150_000u64.to_le_bytes());
    for number in 0..150_000 {
        array.extend(Gguf::string(&format!("token{number}")));
    }
    let file = Gguf::new().key("tokenizer.ggml.tokens", 9, &array).bytes();
    let path = folder.write("vocabulary.gguf", file);
    let start = Instant::now();
    let source = weights::open(&WeightFiles::Gguf(path)).unwrap();
    let tokens = source.metadata().opt_strings("tokenizer.ggml.tokens");
    let elapsed = start.elapsed();
    let tokens = tokens.unwrap().unwrap();
    assert_eq!((tokens.len(), tokens[149_999]), (150_000, "token149999"));
    // 10 ms on a quiet machine; the bound leaves room for a busy one.
    assert!(elapsed.as_millis() < 500, "{elapsed:?}");
}

#[test]
fn unaligned_data_is_read_as_well_as_aligned() {
    let folder = Folder::new();
    for padding in 0..8 {
        let spaces = " ".repeat(padding);
        let header =
            format!(r#"{{"w":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}}}{spaces}"#);
        let file = files::safetensors(&header, &files::f32_bytes(&[1.5, -2.5]));
        let path = folder.write("model.safetensors", file);
        let source = weights::open(&WeightFiles::Safetensors(vec![path])).unwrap();
        assert_eq!(floats(&*source, "w"), [1.5, -2.5]);
    }
}

#[test]
fn a_split_gguf_model_is_one_source() {
    let folder = Folder::new();
    let part = |name: &str, value| {
        let file = Gguf::new().tensor(name, &[1], 0, 0);
        file.data(files::f32_bytes(&[value])).bytes()
    };
    let first = folder.write("m-00001-of-00002.gguf", part("a", 1.0));
    let open = || weights::open(&WeightFiles::Gguf(first.clone()));
    let message = open().err().unwrap().to_string();
    assert!(message.contains("m-00002-of-00002.gguf"), "{message}");
    folder.write("m-00002-of-00002.gguf", part("b", 2.0));
    let source = open().unwrap();
    assert_eq!(source.names(), ["a", "b"]);
    assert_eq!(floats(&*source, "b"), [2.0]);
}

#[test]
fn a_file_that_was_shortened_while_it_was_open_is_told() {
    let folder = Folder::new();
    let header = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let file = files::safetensors(header, &files::f32_bytes(&[1.5, -2.5]));
    let path = folder.write("model.safetensors", file);
    let source = weights::open(&WeightFiles::Safetensors(vec![path.clone()])).unwrap();
    assert_eq!(floats(&*source, "w"), [1.5, -2.5]);
    let shortened = std::fs::OpenOptions::new().write(true).open(&path);
    shortened.unwrap().set_len(16).unwrap();
    let error = source.tensor("w", None, &candle_core::Device::Cpu);
    let message = error.unwrap_err().to_string();
    assert!(
        message.contains("model.safetensors") && message.contains("shortened"),
        "{message}"
    );
    assert!(source.quantized("w").is_err());
}
