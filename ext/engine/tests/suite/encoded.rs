//! Blocks of every GGUF type: how they expand, and how numbers become them.

use base::quant::{self, BlockType};
use candle_core::{DType, Device};
use engine::Error;
use formats::files::model_files::WeightFiles;
use formats::weights;

use super::weight_files::{fixture, Folder, Gguf};

const CODED: [(&str, Option<BlockType>); 11] = [
    ("iq1_s", Some(BlockType::Q6K)),
    ("iq1_m", Some(BlockType::Q6K)),
    ("iq2_xxs", Some(BlockType::Iq2)),
    ("iq2_xs", Some(BlockType::Iq2)),
    ("iq2_s", Some(BlockType::Iq2)),
    ("iq3_xxs", Some(BlockType::Q6K)),
    ("iq3_s", Some(BlockType::Q6K)),
    ("tq1_0", Some(BlockType::Q2K)),
    ("tq2_0", Some(BlockType::Q2K)),
    ("mxfp4", Some(BlockType::Q5_0)),
    ("nvfp4", Some(BlockType::Q6K)),
];

#[test]
fn coded_blocks_expand_as_the_gguf_package_says_bit_for_bit() {
    let source = weights::open(&WeightFiles::Gguf(fixture("coded.gguf"))).unwrap();
    let floats = |name: &str| -> Vec<f32> {
        let tensor = source.tensor(name, Some(DType::F32), &Device::Cpu).unwrap();
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    };
    let mut failures = Vec::new();
    for (name, read_as) in CODED {
        let (found, expected) = (floats(name), floats(&format!("{name}.expected")));
        assert_eq!(source.info(name).unwrap().dtype_name, name);
        if found != expected {
            let at = found.iter().zip(&expected).position(|(a, b)| a != b);
            failures.push(format!("{name} from {at:?} on"));
        }
        // A type with kernels has the same numbers.
        let blocks = source.quantized(name).unwrap();
        if blocks.as_ref().map(|blocks| blocks.kind) != read_as {
            failures.push(format!("{name}: {:?}", blocks.map(|blocks| blocks.kind)));
        } else if let Some(blocks) = blocks {
            let same = quant::dequantize(blocks.kind, &blocks.bytes).unwrap() == expected;
            failures.extend((!same).then(|| format!("{name} as {:?}", blocks.kind)));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// What stands beside a weight of NVFP4 multiplies it.
#[test]
fn scales_beside_nvfp4_are_multiplied() {
    // Scales of 1 (0x38), and the code 2, which is 1.
    let data = [vec![0x38; 4], vec![0x22; 32]].concat();
    let scale = 0.5f32.to_le_bytes();
    let data = [data, vec![0; 28], scale.to_vec()].concat();
    let file = Gguf::new()
        .tensor("blk.0.attn_q.weight", &[64, 1], 40, 0)
        .tensor("blk.0.attn_q.scale", &[1], 0, 64)
        .data(data);
    let folder = Folder::new();
    let path = folder.write("m.gguf", file.bytes());
    let source = weights::open(&WeightFiles::Gguf(path)).unwrap();
    let name = "blk.0.attn_q.weight";
    let tensor = source.tensor(name, Some(DType::F32), &Device::Cpu).unwrap();
    let values: Vec<f32> = tensor.flatten_all().unwrap().to_vec1().unwrap();
    assert_eq!(values, [0.5; 64]);
    assert!(source.quantized(name).unwrap().is_none());
}

/// The numbers of `make_blocks.py`.
fn values() -> Vec<f32> {
    (0..2048u64)
        .map(|index| {
            let uniform =
                ((index * 2_654_435_761 % (1 << 32)) >> 8) as f64 / f64::from(1 << 24) - 0.5;
            let group = index / 32;
            let factor = (group % 5 + 1) * u64::from(group != 4);
            (uniform * factor as f64) as f32
        })
        .collect()
}

/// The importance of 256 columns, as `make_blocks.py` has it.
fn importance() -> Vec<f32> {
    (0..256u64)
        .map(|index| ((index * 40_503 % 65_536) as f32 / 65_536.0).powi(2) + 0.01)
        .collect()
}

fn hash(blocks: &[u8]) -> String {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    blocks.iter().fold(0xcbf2_9ce4_8422_2325, step).to_string()
}

#[test]
fn numbers_become_the_blocks_that_llama_cpp_makes() {
    let expected = std::fs::read_to_string(fixture("encoded.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&expected).unwrap();
    let importance = importance();
    let mut failures = Vec::new();
    for (given, hashes) in expected.as_object().unwrap() {
        let given = Some(&importance[..]).filter(|_| given == "importance");
        for (name, expected) in hashes.as_object().unwrap() {
            let blocks = weights::blocks(name, &values(), given).unwrap();
            // llama.cpp puts what follows a group of zeros in the wrong place.
            let compared = if name == "iq3_s" {
                &blocks[110..]
            } else {
                &blocks[..]
            };
            if expected != &serde_json::json!(hash(compared)) {
                failures.push((name.clone(), given.is_some()));
            }
            let Some(kind) = BlockType::named(name) else {
                continue;
            };
            let error = quant::dequantize(kind, &blocks).unwrap();
            let error = error.iter().zip(values()).map(|(a, b)| (a - b).abs());
            assert!(error.fold(0.0, f32::max) < 1.5, "{name}");
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn an_importance_matrix_that_does_not_fit_is_refused() {
    for importance in [
        vec![1.0; 33],
        vec![1.0; 96],
        vec![-1.0; 32],
        vec![f32::NAN; 32],
        vec![],
    ] {
        let found = quant::quantize(BlockType::Q4_0, &[0.5; 128], Some(&importance));
        assert!(
            matches!(found, Err(Error::InvalidInput(_))),
            "{importance:?}"
        );
    }
}

#[test]
fn numbers_that_can_not_become_blocks_are_refused() {
    for (kind, values) in [
        (BlockType::Q4_0, vec![0.0; 33]),
        (BlockType::Q4K, vec![0.0; 32]),
        (BlockType::Q8K, vec![0.0; 256]),
        (BlockType::Q4_0, vec![f32::NAN; 32]),
    ] {
        let found = quant::quantize(kind, &values, None);
        assert!(matches!(found, Err(Error::InvalidInput(_))), "{kind:?}");
    }
}

#[test]
fn types_of_less_than_three_bits_need_an_importance_matrix() {
    for name in ["iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s"] {
        let found = weights::blocks(name, &[0.5; 256], None);
        let Err(Error::InvalidInput(reason)) = found else {
            panic!("{name}: {found:?}");
        };
        assert!(reason.contains("importance"), "{reason}");
    }
    let found = weights::blocks("mxfp4", &[f32::INFINITY; 32], None);
    assert!(matches!(found, Err(Error::InvalidInput(_))));
    let found = weights::blocks("nvfp4", &[1.0; 32], None);
    assert!(matches!(found, Err(Error::InvalidInput(_))));
}
