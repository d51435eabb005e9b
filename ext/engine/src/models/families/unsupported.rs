//! What is said of checkpoints whose type is not among those known.

use std::path::Path;

use super::{known, DecoderConfig, Shape, VlmConfig};
use crate::{Error, VERSION};

/// Types that people look for, with what they need that there is no forward for; docs/reference/models.md has them.
const NOT_YET: [(&str, &str); 3] = [
    // What mmproj files call it.
    (
        "gemma3nv",
        "its images are read from safetensors files only",
    ),
    (
        "deepseek_ocr2",
        "its images need an encoder like Qwen2 behind SAM's, its texts experts of DeepSeek-V2 with plain attention",
    ),
    (
        "deepseekocr2",
        "its images need an encoder like Qwen2 behind SAM's",
    ),
];

/// The error for a checkpoint whose type is not among those known.
pub fn unknown(file: &Path, (key, found): (&str, &str), kind: &str, known: &[&str]) -> Error {
    Error::unsupported(
        file,
        format!(
            "{key} {found:?} is not {kind} that red-candle {VERSION} can run. {}A newer release may know it; \
             `red-candle models --supported` lists what this one runs",
            hint(found, kind, known)
        ),
    )
}

/// Why a type is not known, or else the known one that is most like it.
fn hint(found: &str, kind: &str, runs: &[&str]) -> String {
    let reason = NOT_YET.iter().find(|(name, _)| *name == found);
    let reason = reason.map(|(_, reason)| format!("Not supported yet: {reason}. "));
    let texts = kind == VlmConfig::KIND && known::<DecoderConfig>().contains(&found);
    let texts = texts.then_some("Its texts run as a language model. ");
    match (reason, texts) {
        (None, None) => match closest(found, runs) {
            Some(name) => format!("The closest it runs is {name:?}. "),
            None => String::new(),
        },
        (reason, texts) => reason.unwrap_or_default() + texts.unwrap_or_default(),
    }
}

/// The known name that begins most like the one found, if they share three letters or more.
fn closest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    let shared = |name: &str| {
        let pairs = name.bytes().zip(found.bytes());
        pairs.take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count()
    };
    let near = known.iter().filter(|name| shared(name) >= 3);
    let order = |name: &&&str| (shared(name), std::cmp::Reverse(name.len()));
    near.max_by_key(order).copied()
}
