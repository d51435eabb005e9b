//! Damaged and malicious files: an error that names the file, little memory, and no code run.

use std::path::Path;

use candle_core::Device;
use engine::{Error, Result};
use formats::files::model_files::WeightFiles;
use formats::files::raw_config::RawConfig;
use formats::files::shard_index;
use formats::text::tokenizer::Tokenizer;
use formats::weights;

use crate::allocation::peak_during;
use crate::weight_files::{self as files, fixture, Folder, Gguf, Member};

/// What reading a file of a few kilobytes may hold at most.
const MOST_BYTES: usize = 2 << 20;

#[derive(Clone, Copy, Debug)]
enum Format {
    Safetensors,
    Gguf,
    Torch,
}

impl Format {
    fn files(self, path: &Path) -> WeightFiles {
        match self {
            Self::Safetensors => WeightFiles::Safetensors(vec![path.to_owned()]),
            Self::Gguf => WeightFiles::Gguf(path.to_owned()),
            Self::Torch => WeightFiles::Pickle(vec![path.to_owned()]),
        }
    }

    /// Opens a file and reads everything in it.
    fn read_all(self, path: &Path) -> Result<()> {
        let source = weights::open(&self.files(path))?;
        for name in source.names() {
            source.tensor(&name, None, &Device::Cpu)?;
            source.quantized(&name)?;
        }
        for (key, value) in source.metadata().iter() {
            if let weights::Value::Array(array) = value {
                array.values().for_each(drop);
                source.metadata().opt_strings(key).ok();
            }
        }
        Ok(())
    }
}

/// The error must be one of the two for bad files, name the file, and have cost little memory.
#[track_caller]
fn refused(format: Format, bytes: &[u8], words: &[&str]) {
    let folder = Folder::new();
    let path = folder.write("hostile.weights", bytes);
    let (result, peak) = peak_during(|| format.read_all(&path));
    check(result, "hostile.weights", words);
    assert!(
        peak < MOST_BYTES + 4 * bytes.len(),
        "{peak} bytes were held"
    );
}

#[track_caller]
fn check<T>(result: Result<T>, file: &str, words: &[&str]) {
    let Err(error) = result else {
        panic!("a hostile file was accepted");
    };
    let known = matches!(error, Error::CorruptModel(_) | Error::UnsupportedModel(_));
    assert!(known, "{error:?}");
    let message = error.to_string();
    for word in [file].iter().chain(words) {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
}

#[test]
fn truncated_files_are_refused_at_every_length() {
    for (format, name) in [
        (Format::Safetensors, "dense.safetensors"),
        (Format::Gguf, "blocks.gguf"),
        (Format::Torch, "pytorch_model.bin"),
    ] {
        let whole = std::fs::read(fixture(name)).unwrap();
        let step = whole.len() / 500 + 1;
        let folder = Folder::new();
        for length in (0..whole.len()).rev().step_by(step) {
            let path = folder.write("hostile.weights", &whole[..length]);
            // GGUF pads its last tensor; without the padding it is still whole.
            if whole.len() - length < 32 && matches!(format, Format::Gguf) {
                continue;
            }
            let (result, peak) = peak_during(|| format.read_all(&path));
            check(result, "hostile.weights", &[]);
            assert!(peak < MOST_BYTES, "{name} at {length}: {peak}");
        }
    }
}

#[test]
fn safetensors_headers_that_lie() {
    let refuse = |header: &str, data: usize, words: &[&str]| {
        refused(
            Format::Safetensors,
            &files::safetensors(header, &vec![0; data]),
            words,
        );
    };
    let tensor = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
    };
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"w":{}}}"#, tensor(dtype, shape, offsets))
    };
    refuse(&one("F32", "[4]", "[0,16]"), 12, &["\"w\"", "truncated"]);
    refuse(&one("F32", "[4]", "[0,12]"), 16, &["\"w\"", "[4]"]);
    refuse(&one("F16", "[4]", "[0,16]"), 16, &["\"w\""]);
    refuse(&one("F32", "[4]", "[16,0]"), 16, &["\"w\""]);
    refuse(
        &one("F4", "[4]", "[0,2]"),
        2,
        &["\"w\"", "F4", "not supported"],
    );
    let most = usize::MAX;
    refuse(
        &one("F32", &format!("[{most},{most}]"), "[0,4]"),
        4,
        &["\"w\""],
    );
    refuse(
        &one("F32", "[4611686018427387904,4]", "[0,0]"),
        0,
        &["\"w\""],
    );
    refuse(
        &one("F32", "[0,4611686018427387904,4]", "[0,0]"),
        0,
        &["\"w\""],
    );
    refuse(
        &one("F32", "[0]", &format!("[{most},{most}]")),
        0,
        &["\"w\""],
    );
    refuse(&one("F32", "[-1]", "[0,4]"), 4, &["header"]);
    refuse(&one("F32", "[1.5]", "[0,4]"), 4, &["header"]);
    refuse(
        &one("F32", &format!("[{}1]", "1,".repeat(40)), "[0,4]"),
        4,
        &["\"w\""],
    );
    let pair = |first: &str, second: &str| format!(r#"{{"v":{first},"w":{second}}}"#);
    let (low, high) = (
        tensor("F32", "[2]", "[0,8]"),
        tensor("F32", "[2]", "[4,12]"),
    );
    refuse(&pair(&low, &high), 12, &["\"v\"", "\"w\"", "overlap"]);
    refuse(&pair(&low, &low), 12, &["overlap"]);
    let inside = tensor("F32", "[1]", "[4,8]");
    refuse(&pair(&low, &inside), 12, &["overlap"]);
    refuse(&format!(r#"{{"w":{low},"w":{low}}}"#), 8, &["twice"]);
    let apart = tensor("F32", "[2]", "[12,20]");
    refuse(&pair(&low, &apart), 20, &["\"w\"", "12"]);
    refuse(&one("F32", "[2]", "[4,12]"), 12, &["\"w\""]);
    refuse(&one("F32", "[2]", "[0,8]"), 9, &["8 bytes", "9 follow"]);
    for header in ["", "[]", "null", "{", "{}x", "\u{0}"] {
        refuse(header, 0, &["header"]);
    }
    refuse(&format!(r#"{{"w":{}"#, "[".repeat(100_000)), 0, &["header"]);
    refuse(
        &format!(r#"{{"w":{{"x":{}"#, "[".repeat(100_000)),
        0,
        &["header"],
    );
    for length in [0u64, 7, 1 << 20, 1 << 40, u64::MAX] {
        let mut file = length.to_le_bytes().to_vec();
        file.extend(b"{}");
        refused(Format::Safetensors, &file, &["header"]);
    }
}

#[test]
fn a_git_lfs_pointer_is_explained() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
    for format in [Format::Safetensors, Format::Gguf, Format::Torch] {
        refused(format, pointer, &["git lfs pull"]);
    }
}

#[test]
fn gguf_counts_that_lie() {
    let refuse = |file: Gguf, words: &[&str]| refused(Format::Gguf, &file.bytes(), words);
    let sound = Gguf::new().tensor("w", &[4], 0, 0).data(vec![0; 16]);
    for count in [2, 1 << 17, 1 << 32, u64::MAX] {
        let mut file = sound.clone();
        file.tensor_count = Some(count);
        refuse(file, &[]);
        let mut file = sound.clone();
        file.key_count = Some(count);
        refuse(file, &[]);
    }
    for length in [1u64 << 20, 1 << 40, u64::MAX] {
        let string = length.to_le_bytes();
        refuse(
            Gguf::new().key("general.name", 8, &string),
            &["general.name"],
        );
        for kind in 0u32..14 {
            let array = [&kind.to_le_bytes()[..], &length.to_le_bytes(), &[0; 64]].concat();
            refuse(Gguf::new().key("tokens", 9, &array), &["tokens"]);
        }
    }
    let level = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
    refuse(
        Gguf::new().key("deep", 9, &level.repeat(10_000)),
        &["deep", "nested"],
    );
    refuse(Gguf::new().key("k", 99, &[0; 8]), &["\"k\"", "99"]);
    refuse(
        Gguf::new().key("k", 0, &[1]).key("k", 0, &[1]),
        &["\"k\"", "twice"],
    );
    for alignment in [0u32, 3, 33, 1 << 30] {
        let file = Gguf::new().key("general.alignment", 4, &alignment.to_le_bytes());
        refuse(file, &["alignment"]);
    }
    for version in [0, 4, u32::MAX, 3u32.swap_bytes()] {
        let mut file = sound.clone();
        file.version = version;
        refuse(file, &[]);
    }
    refused(Format::Gguf, b"GGML", &["GGUF"]);
}

#[test]
fn gguf_tensors_that_lie() {
    let refuse = |file: Gguf, words: &[&str]| refused(Format::Gguf, &file.bytes(), words);
    let file = |shape: &[u64], kind, offset| {
        Gguf::new()
            .tensor("blk.0.w", shape, kind, offset)
            .data(vec![0; 64])
    };
    refuse(file(&[17], 0, 0), &["blk.0.w", "truncated"]);
    refuse(file(&[1], 0, 4), &["blk.0.w", "multiple"]);
    refuse(file(&[1], 0, 64), &["blk.0.w"]);
    refuse(file(&[1], 0, u64::MAX - 31), &["blk.0.w"]);
    refuse(file(&[1 << 40, 1 << 40], 0, 0), &["blk.0.w"]);
    refuse(file(&[u64::MAX, 0, u64::MAX], 0, 0), &["blk.0.w"]);
    refuse(file(&[1; 5], 0, 0), &["blk.0.w", "dimensions"]);
    refuse(file(&[31], 2, 0), &["blk.0.w", "blocks of 32"]);
    refuse(file(&[32, 1 << 58], 2, 0), &["blk.0.w"]);
    for kind in [16, 21, 34, 40] {
        refuse(file(&[512], kind, 0), &["blk.0.w", "truncated"]);
        refuse(file(&[255], kind, 0), &["blk.0.w", "whole blocks"]);
    }
    for kind in [4, 5, 31, 36, 41, 1000, u32::MAX] {
        refuse(file(&[256], kind, 0), &["blk.0.w", "not supported"]);
    }
    let twice = file(&[4], 0, 0).tensor("blk.0.w", &[4], 0, 32);
    refuse(twice, &["blk.0.w", "twice"]);
    let over = file(&[16], 0, 0).tensor("blk.1.w", &[4], 0, 32);
    refuse(over, &["blk.0.w", "blk.1.w", "overlap"]);
}

/// A pickle that runs `touch <path>` when Python loads it, in several dialects.
fn code(path: &Path) -> Vec<Vec<u8>> {
    let path = path.display().to_string();
    let command = format!("touch {path}");
    let short = |text: &str| {
        let mut bytes = vec![0x8c, text.len() as u8];
        bytes.extend_from_slice(text.as_bytes());
        bytes
    };
    vec![
        format!("cposix\nsystem\n(S'{command}'\ntR.").into_bytes(),
        [
            b"\x80\x04".to_vec(),
            short("posix"),
            short("system"),
            b"\x93".to_vec(),
            short(&command),
            b"\x85R.".to_vec(),
        ]
        .concat(),
        b"c__builtin__\neval\n(X\x05\x00\x00\x001+1+1tR.".to_vec(),
        format!("(S'{command}'\nios\nsystem\n.").into_bytes(),
        b"\x80\x02}X\x01\x00\x00\x00wcbuiltins\nexec\n)\x81s.".to_vec(),
        b"\x80\x02ctorch.nn.modules.linear\nLinear\n)\x81}b.".to_vec(),
        b"\x80\x02cnumpy\nload\n.".to_vec(),
    ]
}

#[test]
fn code_in_a_pickle_is_never_run() {
    let folder = Folder::new();
    let mark = folder.path("executed");
    for pickle in code(&mark) {
        let checkpoint = files::checkpoint(&pickle, &[]);
        refused(Format::Torch, &checkpoint, &[]);
        refused(Format::Torch, &pickle, &[]);
        assert!(!mark.exists());
    }
    let named = files::checkpoint(&code(&mark)[0], &[]);
    refused(
        Format::Torch,
        &named,
        &["contains code", "posix.system", "not run"],
    );
}

#[test]
fn pickles_that_lie() {
    let data = files::f32_bytes(&[0.0; 4]);
    let refuse = |pickle: &[u8], words: &[&str]| {
        refused(Format::Torch, &files::checkpoint(pickle, &[&data]), words);
    };
    let view = |elements, offset, shape: &[i32], strides: &[i32]| {
        files::pickle_of("w", elements, offset, shape, strides)
    };
    refuse(&view(5, 0, &[4], &[1]), &["\"w\"", "storage"]);
    refuse(&view(4, 0, &[5], &[1]), &["\"w\"", "beyond"]);
    refuse(&view(4, 1, &[4], &[1]), &["\"w\"", "beyond"]);
    refuse(&view(4, 0, &[2, 2], &[3, 1]), &["\"w\"", "beyond"]);
    refuse(&view(4, 0, &[i32::MAX; 4], &[0; 4]), &["\"w\""]);
    refuse(&view(4, 0, &[1 << 30], &[0]), &["\"w\"", "beyond"]);
    refuse(&view(4, 0, &[2], &[1, 1]), &["\"w\""]);
    refuse(&view(4, 0, &[-1], &[1]), &["-1"]);
    refuse(&view(4, 0, &[2], &[-1]), &["-1"]);
    refuse(&view(-4, 0, &[2], &[1]), &["-4"]);
    refuse(&view(4, 0, &[1; 17], &[1; 17]), &["17 dimensions"]);
    let missing = files::checkpoint(&view(4, 0, &[4], &[1]), &[]);
    refused(Format::Torch, &missing, &["\"w\"", "data/0"]);
    refuse(b"\x80\x02}", &["pickle"]);
    refuse(b"\x80\x02h\x05.", &["pickle"]);
    refuse(b".", &["pickle"]);
    refuse(b"\x80\x02N.", &["state dict"]);
    refuse(b"\x80\x02(u.", &["pickle"]);
    refuse(b"\x80\x02X\xff\xff\xff\xffabc.", &["pickle"]);
    refuse(
        b"\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc.",
        &["pickle"],
    );
    refuse(&[b'('; 100_000], &["pickle"]);
    refuse(&[b'}'; 20_000], &["pickle"]);
}

#[test]
fn pickles_of_any_size_stay_within_bounds() {
    let folder = Folder::new();
    for (length, most) in [(8 << 20, 96 << 20), (33 << 20, 1 << 20)] {
        let file = files::checkpoint(&vec![b'}'; length], &[]);
        let path = folder.write("hostile.weights", file);
        let (result, peak) = peak_during(|| Format::Torch.read_all(&path));
        check(result, "hostile.weights", &["pickle"]);
        assert!(peak < most, "{peak} bytes were held for {length}");
    }
}

#[test]
fn archives_that_lie() {
    let pickle = files::pickle_of("w", 4, 0, &[4], &[1]);
    let zeros = vec![0; 30 << 20];
    let packed = |bytes, claimed| Member {
        packed: true,
        claimed,
        ..Member::stored("m/data/0", bytes)
    };
    let bomb = |claimed| {
        files::zip(&[
            Member::stored("m/data.pkl", &pickle),
            packed(&zeros, claimed),
        ])
    };
    // 30 MB of zeros pack into 30 kB: more than the allowance of 16 MB.
    refused(
        Format::Torch,
        &bomb(None),
        &["\"w\"", "out of all proportion"],
    );
    refused(
        Format::Torch,
        &bomb(Some(16)),
        &["\"w\"", "does not unpack to its size"],
    );
    refused(Format::Torch, &bomb(Some(u32::MAX - 1)), &["\"w\""]);
    let lying = Member {
        claimed: Some(1000),
        ..Member::stored("m/data/0", &[0; 16])
    };
    let file = files::zip(&[Member::stored("m/data.pkl", &pickle), lying]);
    refused(Format::Torch, &file, &["\"w\"", "sizes"]);
    let mut flipped = files::checkpoint(&pickle, &[&[0; 16]]);
    let place = flipped.windows(5).position(|w| w == b"torch").unwrap();
    flipped[place] ^= 1;
    refused(Format::Torch, &flipped, &["checksum", "data.pkl"]);
    let twice = [
        Member::stored("m/data.pkl", &pickle),
        Member::stored("m/data.pkl", b"."),
    ];
    refused(Format::Torch, &files::zip(&twice), &["twice"]);
    refused(Format::Torch, &files::zip(&[]), &["data.pkl"]);
    refused(Format::Torch, b"PK\x03\x04", &["truncated"]);
    let old = std::fs::read(fixture("old_format.bin")).unwrap();
    refused(Format::Torch, &old, &["before 1.6", "save it again"]);
}

#[test]
fn shard_indexes_that_lie() {
    let folder = Folder::new();
    let refuse = |text: &str, words: &[&str]| {
        let path = folder.write("model.safetensors.index.json", text);
        let (result, peak) = peak_during(|| shard_index::read(&path));
        check(result, "index.json", words);
        assert!(peak < MOST_BYTES + 8 * text.len());
    };
    for shard in [
        "../secret.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "model.safetensors.index.json",
        "..",
        "",
    ] {
        refuse(
            &format!(r#"{{"weight_map": {{"w": "{shard}"}}}}"#),
            &["shard"],
        );
    }
    let many: Vec<String> = (0..20_000).map(|i| format!(r#""{i}":"s{i}""#)).collect();
    refuse(
        &format!(r#"{{"weight_map":{{{}}}}}"#, many.join(",")),
        &["20000"],
    );
    for text in [
        "",
        "{}",
        "[]",
        r#"{"weight_map": []}"#,
        r#"{"weight_map": {"w": 1}}"#,
    ] {
        refuse(text, &[]);
    }
    refuse(r#"{"weight_map": {}}"#, &["no shards"]);
    refuse(&format!(r#"{{"weight_map": {}"#, "[".repeat(100_000)), &[]);
}

#[test]
fn shards_that_contradict_their_index_or_each_other() {
    let folder = Folder::new();
    let names = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    let paths = vec![
        folder.write(names[0], files::safetensors_of(&[("a", &[1.0])])),
        folder.write(names[1], files::safetensors_of(&[("b", &[2.0])])),
    ];
    let open = || weights::open(&WeightFiles::Safetensors(paths.clone()));
    let index = |map: &str| {
        folder.write(
            "model.safetensors.index.json",
            format!(r#"{{"weight_map": {map}}}"#),
        );
    };
    assert!(open().is_ok());
    index(&format!(r#"{{"a": "{0}", "b": "{0}"}}"#, names[0]));
    check(open(), "index.json", &["\"b\"", names[1]]);
    index(&format!(
        r#"{{"a": "{}", "b": "{}", "c": "{}"}}"#,
        names[0], names[1], names[1]
    ));
    check(open(), "index.json", &["\"c\"", "no shard has it"]);
    folder.write(names[1], files::safetensors_of(&[("a", &[2.0])]));
    check(open(), names[1], &["\"a\"", names[0]]);
}

#[test]
fn configurations_that_lie() {
    let folder = Folder::new();
    let refuse = |text: &[u8]| {
        let path = folder.write("config.json", text);
        let (result, peak) = peak_during(|| RawConfig::read(&path));
        check(result, "config.json", &[]);
        assert!(peak < MOST_BYTES + 4 * text.len(), "{peak}");
    };
    for text in ["", "{", "[]", "nul", "{\"a\":1,}", "{\"a\":1e999}", "\u{0}"] {
        refuse(text.as_bytes());
    }
    refuse(b"{\"a\":\"\xff\xfe\"}");
    refuse("[".repeat(1 << 20).as_bytes());
    refuse("{\"a\":".repeat(100_000).as_bytes());
    refuse(format!("{{\"a\":[{}1]}}", "1,".repeat(2_000_000)).as_bytes());
    refuse(&vec![b' '; 9 << 20]);
}

#[test]
fn tokenizers_that_lie() {
    let folder = Folder::new();
    let refuse = |text: &[u8]| {
        let path = folder.write("tokenizer.json", text);
        let (result, peak) = peak_during(|| Tokenizer::from_file(&path));
        check(result, "tokenizer.json", &[]);
        assert!(peak < MOST_BYTES + 16 * text.len(), "{peak}");
    };
    let sound = std::fs::read(super::tiny_folder::tiny("bert/tokenizer.json")).unwrap();
    for length in [0, 1, 100, sound.len() / 2, sound.len() - 3] {
        refuse(&sound[..length]);
    }
    refuse("[".repeat(1 << 20).as_bytes());
    refuse("{\"model\":".repeat(100_000).as_bytes());
    refuse(&[0xff; 64]);
}
