//! Words of texts, as Python's regular expressions find them.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

/// A letter, number or underscore: Python's `\w` has no marks, which the `\w` of this crate has.
const WORD: &str = r"[\p{L}\p{N}_]";

/// Words with the hyphens inside them, and every other character that isn't a space by itself.
static WORDS_AND_SIGNS: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(&format!(r"{WORD}+(?:[-_]{WORD}+)*|[^\s\x1c-\x1f]")).ok());

/// Links, addresses, names behind an @, and words with their marks and joiners beside what `WORDS_AND_SIGNS` finds.
/// Python's `[a-z]` without case has two letters more than the one of this crate.
static WORDS_LINKS_AND_SIGNS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    const LETTERS: &str = "a-z\u{130}\u{131}";
    const SPACE: &str = r"\s\x1c-\x1f";
    let word = r"[\p{L}\p{N}\p{M}_\u{200c}\u{200d}]";
    let links = format!(r"https?://[^{SPACE}]+|www\.[^{SPACE}]+");
    let addresses = format!(r"[{LETTERS}0-9._%+-]+@[{LETTERS}0-9.-]+\.[{LETTERS}]{{2,}}");
    let names = format!("@[{LETTERS}0-9_]+");
    let words = format!(r"{word}+(?:[-_]{word}+)*|[^{SPACE}]");
    Regex::new(&format!("(?i){links}|{addresses}|{names}|{words}")).ok()
});

/// Words of two characters or more.
static TERMS: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(&format!(r"{WORD}{{2,}}")).ok());

/// A word and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    pub bytes: Range<usize>,
    pub characters: Range<usize>,
}

/// What GLiNER calls words: `\w+(?:[-_]\w+)*|\S`.
pub fn words_and_signs(text: &str) -> Vec<Word> {
    found(&WORDS_AND_SIGNS, text)
}

/// What GLiNER2 calls words: those of GLiNER, but links, e-mail addresses and names behind an @ are one each.
pub fn words_links_and_signs(text: &str) -> Vec<Word> {
    found(&WORDS_LINKS_AND_SIGNS, text)
}

fn found(pattern: &Option<Regex>, text: &str) -> Vec<Word> {
    let Some(pattern) = pattern else {
        return Vec::new();
    };
    let (mut at, mut characters) = (0, 0);
    let mut words = Vec::new();
    for found in pattern.find_iter(text) {
        let start = characters + text[at..found.start()].chars().count();
        let end = start + found.as_str().chars().count();
        (at, characters) = (found.end(), end);
        words.push(Word {
            bytes: found.range(),
            characters: start..end,
        });
    }
    words
}

/// The terms of a search, `\b\w\w+\b` of the text in lower case.
pub fn terms(text: &str) -> Vec<String> {
    let Some(pattern) = &*TERMS else {
        return Vec::new();
    };
    let text = text.to_lowercase();
    let found = pattern.find_iter(&text);
    found.map(|term| term.as_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        let words = words_and_signs(text);
        words.iter().map(|word| &text[word.bytes.clone()]).collect()
    }

    #[test]
    fn words_keep_their_hyphens_and_signs_stand_alone() {
        assert_eq!(
            texts("état-major, a_b-c  -x $5.0"),
            ["état-major", ",", "a_b-c", "-", "x", "$", "5", ".", "0"]
        );
        assert_eq!(texts("हिन्दी"), ["ह", "ि", "न", "्", "द", "ी"]);
        assert!(texts(" \n\u{1c}").is_empty());
    }

    #[test]
    fn links_addresses_and_names_are_words() {
        let text = "See HTTPS://a.b/c?d, www.x.y or Ann.B@c-d.org, @ann_1 हिन्दी a-b_c!";
        let words = words_links_and_signs(text);
        let words: Vec<&str> = words.iter().map(|word| &text[word.bytes.clone()]).collect();
        let wanted = [
            "See",
            "HTTPS://a.b/c?d,",
            "www.x.y",
            "or",
            "Ann.B@c-d.org",
            ",",
            "@ann_1",
            "हिन्दी",
            "a-b_c",
            "!",
        ];
        assert_eq!(words, wanted);
    }

    #[test]
    fn places_count_characters() {
        let words = words_and_signs("é ü-x");
        assert_eq!(words[1].characters, 2..5);
        assert_eq!(words[1].bytes, 3..7);
    }

    #[test]
    fn terms_have_two_characters_or_more() {
        assert_eq!(terms("A Fox-Ünder x9 _ is"), ["fox", "ünder", "x9", "is"]);
    }
}
