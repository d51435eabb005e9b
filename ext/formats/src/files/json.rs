//! JSON files from outside: bounded in size, depth and number of values before they are parsed.

use std::borrow::Cow;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::{Error, Result};
use base::runtime::bytes::unreadable;
use base::runtime::memory;

/// Enough for the label tables of the largest classifiers.
const MOST_BYTES: usize = 8 << 20;
const MOST_VALUES: usize = 500_000;
const MOST_DEPTH: usize = 64;

/// Reads a small JSON file such as a configuration. Python's `NaN` and `Infinity` read as null.
pub fn read(path: &Path) -> Result<Value> {
    parse(path, &read_text(path, MOST_BYTES)?)
}

/// Parses text that came from `path`.
pub fn parse(path: &Path, text: &str) -> Result<Value> {
    let text = check(text).map_err(|reason| Error::corrupt(path, reason))?;
    serde_json::from_str(&text)
        .map_err(|error| Error::corrupt(path, format!("it is not valid JSON ({error})")))
}

/// The text of a file of at most `most` bytes.
pub fn read_text(path: &Path, most: usize) -> Result<String> {
    let file = std::fs::File::open(path).map_err(|error| unreadable(path, &error))?;
    let mut bytes = Vec::new();
    file.take(most as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable(path, &error))?;
    if bytes.len() > most {
        let limit = memory::format_bytes(most);
        return Err(Error::corrupt(
            path,
            format!("it is larger than {limit}, which is too large for such a file"),
        ));
    }
    let text =
        String::from_utf8(bytes).map_err(|_| Error::corrupt(path, "it is not UTF-8 text"))?;
    Ok(match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_owned(),
        None => text,
    })
}

/// Counts depth and values, and replaces what Python writes but JSON does not know.
fn check(text: &str) -> std::result::Result<Cow<'_, str>, String> {
    let bytes = text.as_bytes();
    let mut patches = Vec::new();
    let (mut depth, mut values, mut position) = (0usize, 0usize, 0usize);
    while let Some(&byte) = bytes.get(position) {
        match byte {
            b'"' => position = end_of_string(bytes, position),
            b'[' | b'{' => {
                depth += 1;
                values += 1;
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            b'N' | b'I' | b'-' => {
                let rest = bytes.get(position..).unwrap_or_default();
                let words: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
                if let Some(word) = words.iter().find(|word| rest.starts_with(word)) {
                    patches.push((position, word.len()));
                    position += word.len() - 1;
                }
            }
            _ => {}
        }
        if depth > MOST_DEPTH {
            return Err(format!("it nests deeper than {MOST_DEPTH} levels"));
        }
        if values > MOST_VALUES {
            return Err(format!("it holds more than {MOST_VALUES} values"));
        }
        position += 1;
    }
    Ok(patched(text, &patches))
}

/// The index of the closing quote of the string that opens at `start`, or of the end.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut position = start + 1;
    while let Some(&byte) = bytes.get(position) {
        match byte {
            b'"' => return position,
            b'\\' => position += 2,
            _ => position += 1,
        }
    }
    bytes.len()
}

fn patched<'a>(text: &'a str, patches: &[(usize, usize)]) -> Cow<'a, str> {
    if patches.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut result = String::with_capacity(text.len());
    let mut done = 0;
    for &(start, length) in patches {
        result.push_str(text.get(done..start).unwrap_or_default());
        result.push_str("null");
        done = start + length;
    }
    result.push_str(text.get(done..).unwrap_or_default());
    Cow::Owned(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_str(text: &str) -> Result<Value> {
        parse(Path::new("config.json"), text)
    }

    #[test]
    fn pythons_numbers_are_null_and_strings_are_left_alone() {
        let value = read_str(r#"{"a": NaN, "b": [-Infinity, Infinity, -1], "c": "NaN \" NaN"}"#);
        let expected = serde_json::json!({"a": null, "b": [null, null, -1], "c": "NaN \" NaN"});
        assert_eq!(value.unwrap(), expected);
    }

    #[test]
    fn depth_and_number_of_values_are_bounded() {
        for text in [
            "[".repeat(1_000_000),
            format!("{}1{}", "[".repeat(65), "]".repeat(65)),
            format!("[{}0]", "0,".repeat(MOST_VALUES)),
        ] {
            let error = read_str(&text).unwrap_err();
            assert!(matches!(error, Error::CorruptModel(_)));
            assert!(error.to_string().contains("config.json"));
        }
        assert!(read_str(&format!("{}1{}", "[".repeat(64), "]".repeat(64))).is_ok());
    }
}
