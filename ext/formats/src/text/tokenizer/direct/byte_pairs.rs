//! Byte-level BPE: the bytes of a word become tokens, of which the two that merge first become one, and so on.

use std::sync::atomic::{AtomicU8, Ordering};

use tokenizers::models::bpe::BPE;

use super::super::stream::character_bytes;
use super::cuts::{cut, Step};
use super::merges;
use super::merging::{Merging, NO_TOKEN};
use super::output::Output;
use super::recent::Recent;
use super::table::{Pairs, Words};
use super::{Progress, Scratch, Stop};

/// What is known of a token that a word consists of.
mod word {
    pub const UNKNOWN: u8 = 0;
    /// Merging leads to the token.
    pub const WHOLE: u8 = 1;
    /// Merging ends before.
    pub const APART: u8 = 2;
}

#[derive(Debug)]
pub(super) struct BytePairs {
    steps: Vec<Step>,
    /// Whether a space is put before texts without one.
    begins_with_space: bool,
    /// The tokens of single bytes. Some vocabularies have none for bytes that only rare texts have.
    bytes: Box<[u32; 256]>,
    /// Two tokens, and their rank above the token that they become.
    pairs: Pairs,
    words: Words,
    states: Vec<AtomicU8>,
    /// Bytes of each token.
    lengths: Vec<u32>,
    /// A word that is a token stays one, whatever the merges say.
    ignore_merges: bool,
    recent: Recent,
}

/// The bytes that a token stands for, if it stands for any.
fn bytes_of(token: &str) -> Option<Vec<u8>> {
    let table = character_bytes();
    token.chars().map(|it| table.get(&it).copied()).collect()
}

impl BytePairs {
    /// `None` for a model with rules that are not known here.
    pub fn new(model: &BPE, steps: Vec<Step>, begins_with_space: bool) -> Option<Self> {
        let none = |text: &Option<String>| text.as_deref().is_none_or(str::is_empty);
        let known = model.dropout.is_none_or(|chance| chance == 0.0)
            && none(&model.continuing_subword_prefix)
            && none(&model.end_of_word_suffix);
        let vocabulary = model.get_vocab();
        // The ids are those from 0 on, each once: the crate prints a list of all that are not.
        let size = u32::try_from(vocabulary.len()).ok()?;
        let mut seen = vec![false; vocabulary.len()];
        for &id in vocabulary.values().filter(|&&id| id < size) {
            seen[id as usize] = true;
        }
        if !known || seen.contains(&false) {
            return None;
        }
        let mut lengths = vec![0; vocabulary.len()];
        let mut words = Words::with_capacity(vocabulary.len());
        let mut bytes = Box::new([NO_TOKEN; 256]);
        for (token, &id) in &vocabulary {
            let Some(text) = bytes_of(token) else {
                continue;
            };
            lengths[id as usize] = u32::try_from(text.len()).ok()?;
            if let [byte] = text[..] {
                bytes[usize::from(byte)] = id;
            }
            words.insert(&text, id)?;
        }
        let json = serde_json::to_vec(model).ok()?;
        let pairs = merges::read(&json, &vocabulary)?;
        Some(Self {
            steps,
            begins_with_space,
            bytes,
            pairs,
            states: (0..words.places())
                .map(|_| AtomicU8::new(word::UNKNOWN))
                .collect(),
            words,
            lengths,
            ignore_merges: model.ignore_merges,
            recent: Recent::new(),
        })
    }

    pub fn memory_bytes(&self) -> usize {
        self.words.memory_bytes()
            + self.states.len()
            + self.pairs.memory_bytes()
            + self.lengths.len() * size_of::<u32>()
    }

    /// The tokens of a part of a text, whose characters before it are `passed`.
    pub fn encode(
        &self,
        text: &str,
        passed: u32,
        scratch: &mut Scratch,
        output: &mut Output,
    ) -> Progress {
        let spaced: String;
        let (text, added) = if self.begins_with_space && !text.starts_with(' ') {
            spaced = format!(" {text}");
            (spaced.as_str(), 1)
        } else {
            (text, 0)
        };
        let mut places = Places {
            bytes: text.as_bytes(),
            at: 0,
            count: 0,
            added,
            passed,
        };
        let mut outcome = Ok(());
        cut(&self.steps, text, 0, &mut |word, start| {
            let begin = output.ids.len();
            if !self.word(word, &mut scratch.merging, &mut output.ids) {
                outcome = Err(Stop::Foreign);
                return false;
            }
            if output.detailed {
                self.place(start, begin, &mut places, output);
            }
            outcome = scratch.check();
            if !output.end_part(false) {
                outcome = Err(Stop::Enough);
            }
            outcome.is_ok()
        });
        outcome
    }

    /// The places of the tokens of a word.
    fn place(&self, start: usize, begin: usize, places: &mut Places, output: &mut Output) {
        let mut at = start;
        let ids = output.ids.split_off(begin);
        for id in ids {
            let end = at + self.lengths[id as usize] as usize;
            let (first, last) = (places.character(at), places.character(end - 1));
            output.push_at(id, first, last + 1);
            at = end;
        }
    }

    /// Appends the tokens of a word. `false` where a byte has no token.
    #[inline]
    fn word(&self, bytes: &[u8], merging: &mut Merging, ids: &mut Vec<u32>) -> bool {
        if let Some((id, place)) = self.words.get(bytes) {
            if self.ignore_merges || self.is_whole(place, id, bytes, merging) {
                ids.push(id);
                return true;
            }
        }
        if self.recent.get(bytes, ids) {
            return true;
        }
        let Some(tokens) = merging.run(bytes, &self.bytes, &self.pairs) else {
            return false;
        };
        ids.extend_from_slice(tokens);
        self.recent.keep(bytes, tokens);
        true
    }

    /// Whether merging a token's bytes leads to it, which is found out once.
    #[inline]
    fn is_whole(&self, place: usize, id: u32, bytes: &[u8], merging: &mut Merging) -> bool {
        let state = &self.states[place];
        match state.load(Ordering::Relaxed) {
            word::WHOLE => true,
            word::APART => false,
            _ => {
                let whole = merging.run(bytes, &self.bytes, &self.pairs) == Some(&[id][..]);
                let found = if whole { word::WHOLE } else { word::APART };
                state.store(found, Ordering::Relaxed);
                whole
            }
        }
    }
}

/// Characters by their bytes, asked from the beginning on.
struct Places<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Characters that begin before `at`.
    count: u32,
    /// Characters at the beginning that are not the text's.
    added: u32,
    passed: u32,
}

impl Places<'_> {
    /// Which character of the whole text a byte belongs to. What was added belongs to the first.
    fn character(&mut self, byte: usize) -> u32 {
        while self.at <= byte {
            self.count += u32::from(self.bytes[self.at] & 0xc0 != 0x80);
            self.at += 1;
        }
        self.passed + (self.count - 1).saturating_sub(self.added)
    }
}
