//! What may stand in a repository id, a revision and a file name, and how they go into a URL.
//!
//! All three become paths in the cache, so nothing that leaves its directory gets through.

use crate::{Error, Result};

const LONGEST_PART: usize = 96;
const LONGEST_REVISION: usize = 250;

/// A text for a message, without the user names and passwords of the addresses in it.
pub fn redacted(text: &str) -> String {
    let (mut result, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(place) = rest.find("://") {
        let (before, after) = rest.split_at(place + 3);
        result.push_str(before);
        let end = after
            .find(|letter: char| "/?#\"".contains(letter) || letter.is_whitespace())
            .unwrap_or(after.len());
        rest = match after[..end].rfind('@') {
            Some(secret) => {
                result.push_str("***");
                &after[secret..]
            }
            None => after,
        };
    }
    result.push_str(rest);
    result
}

/// `owner/name` or `name`, by the hub's own rules.
pub fn check_id(id: &str) -> Result<()> {
    let parts: Vec<&str> = id.split('/').collect();
    let sound = parts.len() <= 2 && parts.iter().all(|part| is_id_part(part));
    if sound && !id.contains("--") && !id.contains("..") && !id.ends_with(".git") {
        return Ok(());
    }
    Err(Error::InvalidInput(format!(
        "{id:?} is not a repository id, which is \"owner/name\" or \"name\", of letters, digits, \
         \"-\", \"_\" and \".\", each at most {LONGEST_PART} characters"
    )))
}

fn is_id_part(part: &str) -> bool {
    !part.is_empty()
        && part.len() <= LONGEST_PART
        && part
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        && !part.starts_with(['-', '.'])
        && !part.ends_with(['-', '.'])
}

/// A branch, a tag, `refs/pr/1` or a commit.
pub fn check_revision(revision: &str) -> Result<()> {
    if revision.len() <= LONGEST_REVISION && is_relative_path(revision) {
        return Ok(());
    }
    Err(Error::InvalidInput(format!(
        "{revision:?} is not a revision, which is a branch, a tag or a commit"
    )))
}

/// A path below the root of a repository.
pub fn check_file(file: &str) -> Result<()> {
    if is_relative_path(file) {
        return Ok(());
    }
    Err(Error::InvalidInput(format!(
        "{file:?} can't be a file of a repository, which is a relative path without \"..\""
    )))
}

fn is_relative_path(path: &str) -> bool {
    path.split('/').all(is_path_part) && !path.contains(['\\', ':'])
}

fn is_path_part(part: &str) -> bool {
    !matches!(part, "" | "." | "..") && !part.chars().any(char::is_control)
}

/// Whether `value`, sent by a server, can name a file of the cache.
pub fn is_safe_component(value: &str) -> bool {
    value.len() <= LONGEST_REVISION && is_path_part(value) && !value.contains(['/', '\\', ':'])
}

/// A full commit hash needs no look-up.
pub fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && is_lower_hex(revision)
}

pub fn is_lower_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// `text` for one segment of a URL's path.
pub fn encode_segment(text: &str) -> String {
    encode(text, |_| false)
}

/// `text` for several segments of a URL's path.
pub fn encode_path(text: &str) -> String {
    encode(text, |byte| byte == b'/')
}

/// A URL that a server sent, with what a URL must not hold escaped.
pub fn encode_foreign_url(text: &str) -> String {
    encode(text, |byte| {
        byte.is_ascii_graphic()
            && !matches!(
                byte,
                b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}'
            )
    })
}

fn encode(text: &str, keep: impl Fn(u8) -> bool) -> String {
    use std::fmt::Write;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || keep(byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_addresses_are_not_shown() {
        assert_eq!(
            redacted("a https://me:p@ss@hub.example:1/x?y=@ and http://plain.example/@"),
            "a https://***@hub.example:1/x?y=@ and http://plain.example/@"
        );
        assert_eq!(redacted("\"http://token@h\" ://"), "\"http://***@h\" ://");
    }

    #[test]
    fn ids_follow_the_hubs_rules() {
        for id in ["gpt2", "BAAI/bge-small-en-v1.5", "a_b/c.d"] {
            assert!(check_id(id).is_ok(), "{id}");
        }
        let long = "x".repeat(97);
        for id in [
            "", "/", "a/", "/a", "a/b/c", "..", "a/..", "../b", "a..b", "a--b/c", "a b", "a/b.git",
            "-a/b", "a/b.", "a\\b", "é/b", "a/b\0", &long,
        ] {
            assert!(matches!(check_id(id), Err(Error::InvalidInput(_))), "{id}");
        }
    }

    #[test]
    fn names_that_leave_the_repository_are_refused() {
        for file in [
            "config.json",
            "1_Pooling/config.json",
            "a b/ü.json",
            "..hidden",
        ] {
            assert!(check_file(file).is_ok(), "{file}");
        }
        for file in [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a//b",
            "a\\..\\b",
            "C:/x",
            "a/.",
            "a\nb",
        ] {
            assert!(check_file(file).is_err(), "{file}");
        }
        assert!(check_revision("refs/pr/1").is_ok());
        assert!(check_revision("../../main").is_err());
        assert!(!is_safe_component("../x") && !is_safe_component("") && is_safe_component("abc-1"));
    }

    #[test]
    fn urls_are_escaped() {
        assert_eq!(encode_segment("refs/pr/1"), "refs%2Fpr%2F1");
        assert_eq!(encode_path("a b/ü#.json"), "a%20b/%C3%BC%23.json");
        assert_eq!(
            encode_foreign_url("http://h/a b?X=1&Y=%20~"),
            "http://h/a%20b?X=1&Y=%20~"
        );
    }
}
