//! The checkpoints of `spec/fixtures/tiny` as whole folders. The repository stores no file that can be computed or is the
//! same as another; `spec/fixtures/tiny_models/compaction.py` says what it stores instead.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use candle_core::{DType, Device};
use serde_json::{Map, Value};

use super::seeded_gguf::{cooked, encoded};
use super::seeded_tensors::{safetensors, stored};
use super::weight_files::Gguf;

const LINKS: &str = "links.json";
const LISTS: &str = "lists.json";
const SEEDED: &str = "tensors.json";
const RECIPES: &str = ".gguf.json";

/// A folder or file of `spec/fixtures/tiny`.
pub fn tiny(name: &str) -> PathBuf {
    static FIXTURES: OnceLock<PathBuf> = OnceLock::new();
    FIXTURES.get_or_init(written).join("tiny").join(name)
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/fixtures")
}

/// All fixtures, in a folder that is named after their state.
fn written() -> PathBuf {
    let source = source();
    let mut files = Vec::new();
    list(&source.join("tiny"), &mut files);
    files.push(std::env::current_exe().unwrap());
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in &files {
        let about = fs::metadata(file).unwrap();
        (file, about.len(), about.modified().unwrap()).hash(&mut hasher);
    }
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = root.join(format!("fixtures-{:016x}", hasher.finish()));
    if folder.exists() {
        return folder;
    }
    let earlier: Vec<_> = fs::read_dir(root).unwrap().flatten().collect();
    let own = root.join(format!("fixtures-{}", std::process::id()));
    write(&source, &own);
    // Another process may have been faster.
    if fs::rename(&own, &folder).is_err() {
        fs::remove_dir_all(&own).unwrap();
    }
    for entry in earlier {
        if entry.file_name().to_string_lossy().starts_with("fixtures-") && entry.path() != folder {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    folder
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            list(&path, files);
        } else {
            files.push(path);
        }
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(from, to).unwrap();
}

fn write(source: &Path, own: &Path) {
    fs::create_dir_all(own).unwrap();
    for entry in fs::read_dir(source).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "tiny" {
            symlink(entry.path(), own.join(entry.file_name())).unwrap();
        }
    }
    let (from, to) = (source.join("tiny"), own.join("tiny"));
    let mut files = Vec::new();
    list(&from, &mut files);
    for file in &files {
        copy(file, &to.join(file.strip_prefix(&from).unwrap()));
    }
    for (target, linked) in json(&from.join(LINKS)).as_object().unwrap() {
        copy(&source.join(linked.as_str().unwrap()), &to.join(target));
    }
    let mut files = Vec::new();
    list(&to, &mut files);
    for file in files.iter().filter(|file| file.ends_with(SEEDED)) {
        let weights = safetensors(&json(file), str::to_owned);
        fs::write(file.with_file_name("model.safetensors"), weights).unwrap();
        fs::remove_file(file).unwrap();
    }
    let lists = json(&to.join(LISTS));
    for file in &files {
        if let Some(name) = file.to_str().unwrap().strip_suffix(RECIPES) {
            fs::write(format!("{name}.gguf"), gguf(&json(file), &to, &lists)).unwrap();
            fs::remove_file(file).unwrap();
        }
    }
    for name in [LINKS, LISTS] {
        fs::remove_file(to.join(name)).unwrap();
    }
}

/// A GGUF file whose tensors are views of a checkpoint's.
fn gguf(description: &Value, root: &Path, lists: &Value) -> Vec<u8> {
    let checkpoint = root.join(description["checkpoint"].as_str().unwrap());
    let sources = tensors(&checkpoint.join("model.safetensors"));
    let object =
        |key: &str| -> Map<String, Value> { description[key].as_object().unwrap().clone() };
    let mut file = Gguf::new();
    for (key, typed) in object("metadata") {
        let value = typed[1]["list"]
            .as_str()
            .map_or(&typed[1], |name| &lists[name]);
        let (kind, value) = encoded(typed[0].as_str().unwrap(), value);
        file = file.key(&key, kind, &value);
    }
    let mut data = Vec::new();
    for (name, recipe) in object("tensors") {
        let shape = recipe["shape"].as_array().unwrap().iter();
        let shape: Vec<u64> = shape.map(|size| size.as_u64().unwrap()).collect();
        let kind = match recipe["dtype"].as_str().unwrap() {
            "F32" => 0,
            "F16" => 1,
            "BF16" => 30,
            other => panic!("{name} is {other}"),
        };
        file = file.tensor(&name, &shape, kind, data.len() as u64);
        let values = cooked(&recipe, &sources).into_iter().map(f64::from);
        data.extend(stored(&values.collect::<Vec<_>>(), &recipe["dtype"]));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    file.data(data).bytes()
}

fn tensors(path: &Path) -> HashMap<String, Vec<f32>> {
    let tensors = candle_core::safetensors::load(path, &Device::Cpu).unwrap();
    let numbers = tensors.into_iter().map(|(name, tensor)| {
        let tensor = tensor.to_dtype(DType::F32).unwrap().flatten_all();
        (name, tensor.unwrap().to_vec1().unwrap())
    });
    numbers.collect()
}

#[test]
fn files_that_are_not_stored_are_written() {
    let stored = source().join("tiny");
    for name in ["trocr/model.safetensors", "gguf-vlms/llava/model.gguf"] {
        assert!(!stored.join(name).exists(), "{name}");
        assert!(tiny(name).exists(), "{name}");
    }
    assert!(!tiny("trocr/tensors.json").exists());
}
