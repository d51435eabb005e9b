//! Many terms in a text at once, by one automaton.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use regex::Regex;

use super::Span;
use crate::{CancelToken, Error, Result};
use base::runtime::memory;

/// Matches between two looks at the cancel token.
const INTERVAL: usize = 1 << 12;
/// Folded bytes that begin no character of the text.
const INSIDE: u32 = u32::MAX;

/// A letter of a script that puts spaces between words; the others have no word boundaries to look for.
static LETTER: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"\A[\w--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]\z")
        .ok()
});

/// Terms that are found as whole words. Where case does not count, texts and terms are folded
/// character by character, so that every place is known in the text as it is.
pub struct Gazetteer {
    automaton: AhoCorasick,
    /// For each term whether it begins and ends with a letter, so that no other may stand beside it.
    bounds: Vec<(bool, bool)>,
    case_sensitive: bool,
}

impl Gazetteer {
    pub fn new<T: AsRef<str>>(
        terms: &[T],
        case_sensitive: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let mut folded = Vec::with_capacity(terms.len());
        let mut bounds = Vec::with_capacity(terms.len());
        for (index, term) in terms.iter().enumerate() {
            if index.is_multiple_of(INTERVAL) {
                cancel.check()?;
            }
            let term = term.as_ref();
            let mut bytes = String::with_capacity(term.len());
            for character in term.chars() {
                fold(character, case_sensitive, &mut bytes);
            }
            folded.push(bytes);
            bounds.push((
                term.chars().next().is_some_and(is_letter),
                term.chars().next_back().is_some_and(is_letter),
            ));
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(folded)
            .map_err(|error| {
                Error::InvalidInput(format!("the terms can't be searched together: {error}"))
            })?;
        Ok(Self {
            automaton,
            bounds,
            case_sensitive,
        })
    }

    /// The bytes that the automaton takes.
    pub fn memory(&self) -> usize {
        self.automaton.memory_usage() + self.bounds.len() * size_of::<(bool, bool)>()
    }

    /// Every place of every term, also those that overlap, by their start and the longest first.
    pub fn find(&self, text: &str, cancel: &CancelToken) -> Result<Vec<Span>> {
        // Its folded bytes, where each of them stands, and its characters.
        memory::ensure_elements(&[text.len()], 9, "searching a text for terms")?;
        let (folded, places) = self.folded(text, cancel)?;
        let characters: Vec<char> = text.chars().collect();
        let mut found = Vec::new();
        let matches = self
            .automaton
            .try_find_overlapping_iter(&folded)
            .map_err(|error| Error::Internal(error.to_string()))?;
        for (index, matched) in matches.enumerate() {
            if index.is_multiple_of(INTERVAL) {
                cancel.check()?;
            }
            let place = |byte: usize| {
                let character = places.get(byte).copied();
                character.filter(|&character| character != INSIDE)
            };
            let (Some(start), Some(end)) = (place(matched.start()), place(matched.end())) else {
                continue;
            };
            let (start, end) = (start as usize, end as usize);
            let (first, last) = self.bounds[matched.pattern().as_usize()];
            let before = start.checked_sub(1).and_then(|index| characters.get(index));
            let after = characters.get(end);
            let runs_on = (first && before.copied().is_some_and(is_letter))
                || (last && after.copied().is_some_and(is_letter));
            if start < end && !runs_on {
                let span = Span { start, end };
                memory::push(&mut found, span, "the terms that are found in a text")?;
            }
        }
        found.sort_unstable_by_key(|span| (span.start, usize::MAX - span.end));
        found.dedup();
        Ok(found)
    }

    /// The text folded, and for each of its bytes, and for its end, which character begins there.
    fn folded(&self, text: &str, cancel: &CancelToken) -> Result<(String, Vec<u32>)> {
        let mut folded = String::with_capacity(text.len());
        let mut places = Vec::with_capacity(text.len() + 1);
        let mut count = 0u32;
        for character in text.chars() {
            if (count as usize).is_multiple_of(INTERVAL) {
                cancel.check()?;
            }
            places.resize(folded.len(), INSIDE);
            places.push(count);
            fold(character, self.case_sensitive, &mut folded);
            count = count
                .checked_add(1)
                .filter(|&count| count != INSIDE)
                .ok_or_else(|| {
                    Error::InvalidInput("a text of more than four billion characters".to_owned())
                })?;
        }
        places.resize(folded.len(), INSIDE);
        places.push(count);
        Ok((folded, places))
    }
}

/// A character as all its forms are written: `ß` and `SS` are both `ss`, `Σ` and `ς` both `σ`.
fn fold(character: char, case_sensitive: bool, folded: &mut String) {
    if case_sensitive {
        folded.push(character);
    } else if character.is_ascii() {
        folded.push(character.to_ascii_lowercase());
    } else if character == 'ı' {
        // Its capital is the I of other languages, which it is not.
        folded.push(character);
    } else {
        folded.extend(character.to_uppercase().flat_map(char::to_lowercase));
    }
}

fn is_letter(character: char) -> bool {
    if character.is_ascii() {
        return character.is_ascii_alphanumeric() || character == '_';
    }
    let mut buffer = [0; 4];
    let text = &*character.encode_utf8(&mut buffer);
    LETTER.as_ref().is_some_and(|letter| letter.is_match(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(terms: &[&str], case_sensitive: bool, text: &str) -> Vec<String> {
        let gazetteer = Gazetteer::new(terms, case_sensitive, &CancelToken::new()).unwrap();
        let spans = gazetteer.find(text, &CancelToken::new()).unwrap();
        let part = |span: &Span| text.chars().skip(span.start).take(span.end - span.start);
        spans.iter().map(|span| part(span).collect()).collect()
    }

    #[test]
    fn terms_are_whole_words() {
        assert_eq!(
            found(&["cat"], false, "Cat, concat, cats, cat"),
            ["Cat", "cat"]
        );
        assert_eq!(
            found(&["c++", ".net"], false, "C++ and .NET, abc++"),
            ["C++", ".NET"]
        );
        assert_eq!(found(&["naïve"], false, "naïvely NAÏVE"), ["NAÏVE"]);
        assert_eq!(found(&["東京"], false, "私は東京に住む"), ["東京"]);
        assert!(found(&["Cat"], true, "cat").is_empty());
    }

    #[test]
    fn overlapping_terms_are_all_found() {
        let terms = ["new york", "york", "new york times"];
        assert_eq!(
            found(&terms, false, "The New York Times"),
            ["New York Times", "New York", "York"]
        );
    }

    #[test]
    fn folding_keeps_places() {
        assert_eq!(found(&["straße"], false, "İn der STRASSE"), ["STRASSE"]);
        assert_eq!(found(&["strasse"], false, "eine Straße"), ["Straße"]);
        assert_eq!(found(&["σοφός"], false, "ΣΟΦΌΣ"), ["ΣΟΦΌΣ"]);
        // Half of an ß is not an s.
        assert!(found(&["stras"], false, "straß").is_empty());
        assert!(found(&["i"], false, "ı").is_empty());
    }

    #[test]
    fn nothing_is_found_in_nothing() {
        assert!(found(&[], false, "text").is_empty());
        assert!(found(&["term"], false, "").is_empty());
    }
}
