//! What a character is to the patterns by which byte-level vocabularies cut texts. The `regex` crate says it, page by
//! page, when a page is first needed: the patterns of the tokenizers crate read the same tables.

use std::sync::{LazyLock, OnceLock};

use regex::Regex;

pub(super) const LETTER: u8 = 1;
pub(super) const NUMBER: u8 = 2;
pub(super) const SPACE: u8 = 4;
/// `\r` and `\n`.
pub(super) const LINE_END: u8 = 8;
/// Upper and title case.
pub(super) const UPPER: u8 = 16;
pub(super) const LOWER: u8 = 32;
/// Letters without case, and combining marks.
pub(super) const CASELESS: u8 = 64;

const CLASSES: [(u8, &str); 6] = [
    (LETTER, r"^\p{L}$"),
    (NUMBER, r"^\p{N}$"),
    (SPACE, r"^\s$"),
    (UPPER, r"^[\p{Lu}\p{Lt}]$"),
    (LOWER, r"^\p{Ll}$"),
    (CASELESS, r"^[\p{Lm}\p{Lo}\p{M}]$"),
];

type Page = Box<[u8; 256]>;

static PATTERNS: LazyLock<Vec<(u8, Regex)>> = LazyLock::new(|| {
    let compiled = CLASSES.iter().map(|(class, pattern)| {
        let pattern = Regex::new(pattern);
        pattern.ok().map(|pattern| (*class, pattern))
    });
    compiled.flatten().collect()
});

static PAGES: [OnceLock<Page>; 0x1100] = [const { OnceLock::new() }; 0x1100];

/// The classes of ASCII, which most texts consist of.
pub(super) static ASCII: LazyLock<Page> = LazyLock::new(|| page(0));

fn page(number: u32) -> Page {
    let mut classes = Box::new([0; 256]);
    let mut buffer = [0; 4];
    for (low, class) in (0u32..).zip(classes.iter_mut()) {
        let Some(character) = char::from_u32(number << 8 | low) else {
            continue;
        };
        let text = &*character.encode_utf8(&mut buffer);
        for (bit, pattern) in PATTERNS.iter() {
            *class |= bit * u8::from(pattern.is_match(text));
        }
        *class |= LINE_END * u8::from(matches!(character, '\r' | '\n'));
    }
    classes
}

/// The classes of a character.
#[inline]
pub(super) fn class(code: u32) -> u8 {
    match PAGES.get(code as usize >> 8) {
        Some(found) => found.get_or_init(|| page(code >> 8))[code as usize & 255],
        None => 0,
    }
}

/// The character at a byte of valid UTF-8, and its length.
#[inline]
pub(super) fn decode(bytes: &[u8], at: usize) -> (u32, usize) {
    let next = |offset: usize| u32::from(bytes[at + offset] & 0x3f);
    match bytes[at] {
        first @ 0..=0x7f => (u32::from(first), 1),
        first @ 0x80..=0xdf => (u32::from(first & 0x1f) << 6 | next(1), 2),
        first @ 0xe0..=0xef => (u32::from(first & 0xf) << 12 | next(1) << 6 | next(2), 3),
        first => {
            let top = u32::from(first & 7) << 18 | next(1) << 12;
            (top | next(2) << 6 | next(3), 4)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_classes_are_told_apart() {
        assert_eq!(PATTERNS.len(), CLASSES.len());
        for (character, expected) in [
            ('a', LETTER | LOWER),
            ('É', LETTER | UPPER),
            ('ǅ', LETTER | UPPER),
            ('ª', LETTER | CASELESS),
            ('漢', LETTER | CASELESS),
            ('\u{301}', CASELESS),
            ('٣', NUMBER),
            ('½', NUMBER),
            ('\n', SPACE | LINE_END),
            ('\u{3000}', SPACE),
            ('\u{200b}', 0),
            ('!', 0),
            ('\u{10ffff}', 0),
        ] {
            assert_eq!(class(character as u32), expected, "{character:?}");
        }
    }

    #[test]
    fn characters_are_decoded() {
        let text = "aé漢🙂\u{7f}\u{80}\u{7ff}\u{800}\u{ffff}\u{10000}\u{10ffff}";
        for (at, character) in text.char_indices() {
            let expected = (character as u32, character.len_utf8());
            assert_eq!(decode(text.as_bytes(), at), expected);
        }
    }
}
