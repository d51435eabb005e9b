//! Words that a thread has merged lately, and their tokens.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::table::hash;

/// Longer words, and words of more tokens, are merged each time.
const BYTES: usize = 23;
const TOKENS: usize = 7;
/// A power of two. Each takes 64 bytes.
const WORDS: usize = 4096;

static VOCABULARIES: AtomicU64 = AtomicU64::new(1);

#[derive(Clone, Copy)]
struct Entry {
    vocabulary: u64,
    length: u8,
    count: u8,
    word: [u8; BYTES],
    tokens: [u32; TOKENS],
}

const NO_ENTRY: Entry = Entry {
    vocabulary: 0,
    length: 0,
    count: 0,
    word: [0; BYTES],
    tokens: [0; TOKENS],
};

thread_local! {
    static ENTRIES: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

/// The part of a vocabulary in what threads remember.
#[derive(Debug)]
pub(super) struct Recent {
    /// Not 0, and that of no other vocabulary of the process.
    vocabulary: u64,
}

impl Recent {
    pub fn new() -> Self {
        Self {
            vocabulary: VOCABULARIES.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn place(&self, word: &[u8]) -> usize {
        hash(self.vocabulary, word) as usize & (WORDS - 1)
    }

    /// Appends the tokens of a word if it is remembered.
    #[inline]
    pub fn get(&self, word: &[u8], ids: &mut Vec<u32>) -> bool {
        if word.len() > BYTES {
            return false;
        }
        ENTRIES.with_borrow(|entries| {
            let Some(entry) = entries.get(self.place(word)) else {
                return false;
            };
            let found = entry.vocabulary == self.vocabulary
                && &entry.word[..usize::from(entry.length)] == word;
            if found {
                ids.extend_from_slice(&entry.tokens[..usize::from(entry.count)]);
            }
            found
        })
    }

    pub fn keep(&self, word: &[u8], tokens: &[u32]) {
        if word.len() > BYTES || tokens.len() > TOKENS {
            return;
        }
        let mut entry = Entry {
            vocabulary: self.vocabulary,
            length: word.len() as u8,
            count: tokens.len() as u8,
            ..NO_ENTRY
        };
        entry.word[..word.len()].copy_from_slice(word);
        entry.tokens[..tokens.len()].copy_from_slice(tokens);
        ENTRIES.with_borrow_mut(|entries| {
            if entries.is_empty() {
                entries.resize(WORDS, NO_ENTRY);
            }
            entries[self.place(word)] = entry;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_remembered_for_one_vocabulary() {
        let (one, other) = (Recent::new(), Recent::new());
        let found = |recent: &Recent, word: &[u8]| {
            let mut ids = Vec::new();
            recent.get(word, &mut ids).then_some(ids)
        };
        one.keep(b"word", &[1, 2]);
        assert_eq!(found(&one, b"word"), Some(vec![1, 2]));
        assert_eq!(found(&other, b"word"), None);
        assert_eq!(found(&one, b"wore"), None);
        let long = [b'x'; BYTES + 1];
        one.keep(&long, &[1]);
        assert_eq!(found(&one, &long), None);
        assert_eq!(size_of::<Entry>(), 64);
    }
}
