//! The order of the folders inside each crate: a folder uses itself and those before it, nothing else, so that
//! there is no circle either. Cargo keeps the order of the crates.

use std::fs;
use std::path::{Path, PathBuf};

/// From the lowest to the highest.
const ORDER: [&str; 15] = [
    "runtime",
    "quant",
    "files",
    "weights",
    "text",
    "image",
    "audio",
    "kernels",
    "tensor",
    "vector_index",
    "generation",
    "nn",
    "models",
    "serving",
    "tasks",
];

/// What the root of the crate has or re-exports, and to which folder that counts.
const ROOT_NAMES: [(&str, &str); 6] = [
    ("CancelToken", "runtime"),
    ("Device", "runtime"),
    ("Error", "runtime"),
    ("Result", "runtime"),
    ("Tokenizer", "text"),
    ("VERSION", "runtime"),
];

/// Which backends a build has is known here alone.
const BACKEND_CFGS: [&str; 2] = ["runtime/device", "kernels/"];
/// Which device a tensor is on is asked here alone.
const DEVICE_QUESTIONS: [&str; 4] = ["runtime/device", "kernels/", "nn/", "tensor/"];

/// One use of a folder by a file of another.
#[derive(Debug, PartialEq)]
struct Arrow {
    file: String,
    from: String,
    to: String,
}

impl Arrow {
    fn rises(&self) -> bool {
        let rank = |name: &str| ORDER.iter().position(|folder| *folder == name);
        rank(&self.to) > rank(&self.from)
    }
}

/// The crates, the lowest first. All of `kernels` but its tensors is one folder.
const CRATES: [&str; 4] = ["base", "kernels", "formats", "engine"];

/// Every source file with its path below `src`, programs left out: they stand above all folders.
fn sources() -> Vec<(String, String)> {
    CRATES.into_iter().flat_map(sources_of).collect()
}

fn sources_of(name: &str) -> Vec<(String, String)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(name)
        .join("src");
    let mut paths = Vec::new();
    walk(&root, &mut paths);
    paths.sort();
    let named = paths.into_iter().map(|path| {
        let below = path.strip_prefix(&root).unwrap();
        let below = below.to_str().unwrap().replace('\\', "/");
        let below = match name {
            "kernels" if !below.starts_with("tensor/") => format!("kernels/{below}"),
            _ => below,
        };
        (below, fs::read_to_string(&path).unwrap())
    });
    named
        .filter(|(name, _)| !name.starts_with("bin/"))
        .collect()
}

/// The code without its comments, doc comments included.
fn without_comments(source: &str) -> String {
    let lines = source.lines();
    lines
        .map(|line| match line.find("//") {
            // A URL in a string is not a comment.
            Some(at) if !line[..at].ends_with(':') => &line[..at],
            _ => line,
        })
        .collect::<Vec<_>>()
        .join("\n")
}

/// The top-level names that the code reaches by `crate::`, or by `super::` out of its folder.
fn reached(file: &str, code: &str) -> Vec<String> {
    let depth = file.trim_end_matches("/mod.rs").split('/').count();
    let outside = format!("{}super::", "super::".repeat(depth - 1));
    let after = |prefix: &str| {
        let mut names = Vec::new();
        for (at, _) in code.match_indices(prefix) {
            let rest = &code[at + prefix.len()..];
            match rest.strip_prefix('{') {
                Some(group) => names.extend(group_heads(group)),
                None => names.push(identifier(rest)),
            }
        }
        names.retain(|name| !name.is_empty());
        names
    };
    let mut names = after("crate::");
    // Inside a module within the file the path reaches less far: only folders count.
    let climbed = after(&outside).into_iter();
    names.extend(climbed.filter(|name| ORDER.contains(&name.as_str())));
    names
}

fn identifier(text: &str) -> String {
    let is_part = |c: &char| c.is_alphanumeric() || *c == '_';
    text.chars().take_while(is_part).collect()
}

/// The first names of the paths in `{a::b, c::{d, e}}`, from behind the opening brace.
fn group_heads(group: &str) -> Vec<String> {
    let mut depth = 0;
    let mut heads = vec![String::new()];
    for character in group.chars() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.push(String::new()),
            _ if depth == 0 => heads.last_mut().unwrap().push(character),
            _ => {}
        }
    }
    heads.iter().map(|head| identifier(head.trim())).collect()
}

fn arrows(file: &str, source: &str) -> Vec<Arrow> {
    let Some((from, _)) = file.split_once('/') else {
        return Vec::new();
    };
    let names = reached(file, &without_comments(source));
    let folder = |name: String| match ROOT_NAMES.iter().find(|(root, _)| *root == name) {
        Some((_, folder)) => (*folder).to_owned(),
        None if matches!(from, "kernels" | "tensor") && !ORDER.contains(&name.as_str()) => {
            "kernels".to_owned()
        }
        None => name,
    };
    let arrow = |name: String| Arrow {
        file: file.to_owned(),
        from: from.to_owned(),
        to: folder(name),
    };
    names.into_iter().map(arrow).collect()
}

/// Lines that ask for the device or the backend.
fn questions(file: &str, source: &str) -> Vec<String> {
    let allowed = |places: &[&str]| places.iter().any(|place| file.starts_with(place));
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
    let code = without_comments(source);
    let found = |line: &str| {
        let has = |words: &[&str]| words.iter().any(|word| line.contains(word));
        (has(&cfgs) && !allowed(&BACKEND_CFGS)) || (has(&asks) && !allowed(&DEVICE_QUESTIONS))
    };
    code.lines()
        .filter(|line| found(line))
        .map(|line| format!("{file}: {}", line.trim()))
        .collect()
}

#[test]
fn linear_layers_know_one_type_of_packed_weights() {
    let linear = sources_of("engine").into_iter();
    let mut linear = linear.filter(|(name, _)| name == "nn/linear.rs");
    let (_, source) = linear.next().unwrap();
    let code = without_comments(&source);
    assert!(code.contains("PackedWeight"));
    assert!(!code.contains("kernels::cpu"));
}

#[test]
fn folders_use_only_those_below_them() {
    let sources = sources();
    assert!(sources.len() > 100, "{} files were read", sources.len());
    let all: Vec<Arrow> = sources
        .iter()
        .flat_map(|(file, source)| arrows(file, source))
        .collect();
    let unknown: Vec<_> = all
        .iter()
        .filter(|arrow| {
            !ORDER.contains(&arrow.to.as_str()) || !ORDER.contains(&arrow.from.as_str())
        })
        .collect();
    assert!(
        unknown.is_empty(),
        "folders without a place in the order: {unknown:?}"
    );
    let rising: Vec<_> = all.iter().filter(|arrow| arrow.rises()).collect();
    assert!(rising.is_empty(), "arrows that go up: {rising:?}");
    // The highest folder reaches far down, so the reading does find what there is.
    let reaches = |from: &str, to: &str| all.iter().any(|a| a.from == from && a.to == to);
    assert!(reaches("tasks", "runtime") && reaches("tasks", "models"));
    assert!(reaches("tensor", "kernels") && reaches("text", "weights"));
}

#[test]
fn only_the_lower_layers_ask_for_the_device() {
    let asked: Vec<_> = sources()
        .iter()
        .flat_map(|(file, source)| questions(file, source))
        .collect();
    assert!(asked.is_empty(), "{asked:#?}");
}

#[test]
fn planted_arrows_and_questions_are_found() {
    let rising = |file: &str, source: &str| {
        let found = arrows(file, source);
        found
            .iter()
            .filter(|a| a.rises())
            .map(|a| a.to.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(rising("kernels/ops.rs", "use crate::nn::Linear;"), ["nn"]);
    assert_eq!(
        rising("runtime/device/cuda.rs", "let x = crate::kernels::open();"),
        ["kernels"]
    );
    let group = "use crate::{\n    runtime::{log, memory},\n    tasks::embed,\n    Result,\n};";
    assert_eq!(rising("models/decoder/mod.rs", group), ["tasks"]);
    assert_eq!(
        rising("quant/mod.rs", "use super::weights::Metadata;"),
        ["weights"]
    );
    assert_eq!(
        rising("quant/blocks.rs", "use super::super::weights::Metadata;"),
        ["weights"]
    );
    let test = "#[cfg(test)]\nmod tests {\n    use crate::tasks::EmbeddingModel;\n}";
    assert_eq!(rising("text/mod.rs", test), ["tasks"]);
    assert!(rising(
        "quant/blocks.rs",
        "use super::weights;\n// crate::tasks\nuse crate::Error;"
    )
    .is_empty());
    assert_eq!(
        rising("generation/run.rs", "use crate::models::decoder::Decoder;"),
        ["models"]
    );
    assert!(rising("tasks/mod.rs", "use crate::kernels::activate;").is_empty());
    let asks = |file: &str, line: &str| questions(file, line).len();
    assert_eq!(asks("models/decoder/cache.rs", "if device.is_cpu() {"), 1);
    assert_eq!(
        asks("serving/batching.rs", "match device == Device::Cpu {"),
        1
    );
    assert_eq!(asks("nn/linear.rs", "#[cfg(feature = \"cuda\")]"), 1);
    assert_eq!(asks("kernels/matrix.rs", "#[cfg(feature = \"cuda\")]"), 0);
}
