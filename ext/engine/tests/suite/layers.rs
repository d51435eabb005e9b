//! The order of the folders inside each crate: a folder uses itself and those before it, nothing else, so that
//! there is no circle either. Cargo keeps the order of the crates.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders of each crate, the lowest first. What isn't named stands below them (the kernels themselves).
const ORDERS: [(&str, &[&str]); 4] = [
    ("base", &["runtime", "quant"]),
    ("kernels", &["tensor"]),
    ("formats", &["files", "weights", "text", "image", "audio"]),
    (
        "engine",
        &[
            "vector_index",
            "generation",
            "nn",
            "models",
            "serving",
            "tasks",
        ],
    ),
];

/// Which backends a build has is known here alone.
const BACKEND_CFGS: [&str; 3] = [
    "base/runtime/autorelease",
    "base/runtime/device",
    "kernels/",
];
/// Which device a tensor is on is asked here alone.
const DEVICE_QUESTIONS: [&str; 3] = ["base/runtime/device", "kernels/", "engine/nn/"];

/// Every source file of a crate with its path below `src`.
fn sources(name: &str) -> Vec<(String, String)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => walk(&path, found),
                Some(kind) if kind == "rs" => found.push(path),
                _ => {}
            }
        }
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = crates.join(name).join("src");
    let mut paths = Vec::new();
    walk(&root, &mut paths);
    let read = |path: PathBuf| {
        let below = path.strip_prefix(&root).unwrap().to_str().unwrap();
        (below.replace('\\', "/"), fs::read_to_string(&path).unwrap())
    };
    // Programs stand above all folders.
    let sources = paths.into_iter().map(read);
    sources
        .filter(|(name, _)| !name.starts_with("bin/"))
        .collect()
}

/// The code without its comments, doc comments included.
fn without_comments(source: &str) -> String {
    let lines = source.lines().map(|line| match line.find("//") {
        // A URL in a string is not a comment.
        Some(at) if !line[..at].ends_with(':') => &line[..at],
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The names that the code reaches by `crate::`, or by `super::` out of its folder: the first of a path, all of a group.
fn reached(file: &str, source: &str) -> Vec<String> {
    let depth = file.trim_end_matches("/mod.rs").split('/').count();
    // The crate names its tokenizer at its root.
    let code = without_comments(source)
        .replace(&"super::".repeat(depth), "crate::")
        .replace("crate::Tokenizer", "crate::text");
    let mut names = Vec::new();
    for path in code.split("crate::").skip(1) {
        let (path, most) = match path.strip_prefix('{') {
            Some(group) => (group.split(';').next().unwrap_or(group), usize::MAX),
            None => (path, 1),
        };
        let words = path.split(|c: char| !c.is_alphanumeric() && c != '_');
        names.extend(words.take(most).map(str::to_owned));
    }
    names
}

/// The folders above its own that a file uses.
fn rising(order: &[&str], file: &str, source: &str) -> Vec<String> {
    let folder = file.split('/').next().unwrap_or(file);
    let rank = |name: &str| order.iter().position(|folder| *folder == name);
    let mut names = reached(file, source);
    names.retain(|name| rank(name) > rank(folder));
    names
}

/// Lines that ask for the device or the backend.
fn questions(file: &str, source: &str) -> Vec<String> {
    let cfgs = [
        "feature = \"cuda\"",
        "feature = \"metal\"",
        "target_os = \"macos\"",
    ];
    let asks = [
        "is_cpu()",
        "is_cuda()",
        "is_metal()",
        "= Device::Cpu",
        "matches!(device",
    ];
    let allowed = |places: &[&str]| places.iter().any(|place| file.starts_with(place));
    let found = |line: &&str| {
        let has = |words: &[&str]| words.iter().any(|word| line.contains(word));
        (has(&cfgs) && !allowed(&BACKEND_CFGS)) || (has(&asks) && !allowed(&DEVICE_QUESTIONS))
    };
    let code = without_comments(source);
    let lines = code.lines().filter(found);
    lines
        .map(|line| format!("{file}: {}", line.trim()))
        .collect()
}

#[test]
fn linear_layers_know_one_type_of_packed_weights() {
    let sources = sources("engine");
    let (_, source) = sources
        .iter()
        .find(|(name, _)| name == "nn/linear.rs")
        .unwrap();
    let code = without_comments(source);
    assert!(code.contains("PackedWeight"));
    assert!(!code.contains("kernels::cpu"));
}

#[test]
fn folders_use_only_those_below_them() {
    for (name, order) in ORDERS {
        let sources = sources(name);
        assert!(sources.len() > 15, "{name}: {} files", sources.len());
        for (file, source) in &sources {
            let above = rising(order, file, source);
            assert!(above.is_empty(), "{name}/{file} uses {above:?}");
            let placed = file.split_once('/').map(|(folder, _)| folder);
            let placed = placed.is_none_or(|folder| name == "kernels" || order.contains(&folder));
            assert!(placed, "the folder of {name}/{file} is not in the order");
        }
    }
    // The highest folder reaches far down, so the reading does find what there is.
    let engine = sources("engine");
    let of_tasks = engine.iter().filter(|(file, _)| file.starts_with("tasks/"));
    let used: Vec<_> = of_tasks
        .flat_map(|(file, source)| reached(file, source))
        .collect();
    assert!(used.iter().any(|name| name == "models") && used.iter().any(|name| name == "serving"));
}

#[test]
fn only_the_lower_layers_ask_for_the_device() {
    for (name, _) in ORDERS {
        for (file, source) in sources(name) {
            let asked = questions(&format!("{name}/{file}"), &source);
            assert!(asked.is_empty(), "{asked:#?}");
        }
    }
}

#[test]
fn planted_arrows_and_questions_are_found() {
    let [(_, base), (_, kernels), (_, formats), (_, engine)] = ORDERS;
    for (order, file, source, above) in [
        (
            engine,
            "nn/norm.rs",
            "use crate::models::Decoder;",
            "models",
        ),
        (
            engine,
            "models/decoder/mod.rs",
            "use crate::{\n    nn::{linear, norm},\n    tasks::embed,\n};",
            "tasks",
        ),
        (
            engine,
            "generation/run.rs",
            "#[cfg(test)]\nmod tests {\n    use crate::serving::Step;\n}",
            "serving",
        ),
        (
            engine,
            "serving/mod.rs",
            "let task = super::tasks::embed();",
            "tasks",
        ),
        (
            base,
            "runtime/device/cuda.rs",
            "let x = crate::quant::open();",
            "quant",
        ),
        (kernels, "ops.rs", "use crate::tensor::Tensor;", "tensor"),
        (
            formats,
            "weights/torch/mod.rs",
            "use super::super::text;",
            "text",
        ),
        (formats, "files/hub.rs", "use crate::Tokenizer;", "text"),
    ] {
        assert_eq!(rising(order, file, source), [above], "{file}");
    }
    let below = "use super::linear;\n// crate::tasks\nuse crate::{vector_index, Error};";
    assert!(rising(engine, "nn/norm.rs", below).is_empty());
    assert!(rising(engine, "tasks/mod.rs", "use crate::models::decoder;").is_empty());
    for (file, line, count) in [
        ("engine/models/decoder/cache.rs", "if device.is_cpu() {", 1),
        (
            "engine/serving/batching.rs",
            "match device == Device::Cpu {",
            1,
        ),
        ("engine/nn/linear.rs", "#[cfg(feature = \"cuda\")]", 1),
        ("engine/nn/linear.rs", "if device.is_cpu() {", 0),
        ("kernels/matrix.rs", "#[cfg(feature = \"cuda\")]", 0),
    ] {
        assert_eq!(questions(file, line).len(), count, "{file}: {line}");
    }
}
