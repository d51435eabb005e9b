//! WordPiece: the longest token a word begins with, then the longest of what is left, and so on.

use std::collections::HashSet;

use tokenizers::models::wordpiece::WordPiece as Model;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::tokenizer::Model as _;

use super::bert::{Characters, Fate};
use super::output::Output;
use super::table::{Pairs, Words};
use super::unicode::decode;
use super::{Progress, Scratch, Stop};

/// Which token ends at a node of the tree, if one does.
const NO_TOKEN: u32 = u32::MAX;
/// The nodes that words begin at.
const BEGIN: u32 = 0;
/// The node that what is left of a word begins at.
const REST: u32 = 1;

#[derive(Debug)]
pub(super) struct WordPiece {
    characters: Characters,
    /// What ASCII becomes, which most texts consist of.
    ascii: Box<[Fate]>,
    words: Words,
    /// A tree of bytes: a node and a byte lead to the next node, and to the token that ends there.
    tree: Pairs,
    unknown: u32,
    longest: usize,
}

#[inline]
fn step(node: u32, byte: u8) -> u64 {
    u64::from(node) << 8 | u64::from(byte)
}

impl WordPiece {
    /// `None` for a vocabulary whose ids are not one for each token, or without the unknown token.
    pub fn new(model: &Model, normalizer: BertNormalizer) -> Option<Self> {
        let vocabulary = model.get_vocab();
        let unknown = *vocabulary.get(&model.unk_token)?;
        let ids: HashSet<u32> = vocabulary.values().copied().collect();
        if ids.len() != vocabulary.len() || ids.contains(&NO_TOKEN) {
            return None;
        }
        let mut words = Words::with_capacity(vocabulary.len());
        let mut tree = Tree::new(vocabulary.len());
        for (text, &id) in &vocabulary {
            words.insert(text.as_bytes(), id)?;
            tree.add(BEGIN, text.as_bytes(), id)?;
            if let Some(rest) = text.strip_prefix(&model.continuing_subword_prefix) {
                tree.add(REST, rest.as_bytes(), id)?;
            }
        }
        let characters = Characters::new(normalizer);
        let first = characters.page(0);
        Some(Self {
            ascii: (0..128).map(|code| first.fate(code)).collect(),
            characters,
            words,
            tree: tree.edges,
            unknown,
            longest: model.max_input_chars_per_word,
        })
    }

    pub fn memory_bytes(&self) -> usize {
        self.words.memory_bytes() + self.tree.memory_bytes()
    }

    /// The tokens of a part of a text, whose characters before it are `passed`.
    pub fn encode(
        &self,
        text: &str,
        passed: u32,
        scratch: &mut Scratch,
        output: &mut Output,
    ) -> Progress {
        if output.detailed {
            self.run::<true>(text.as_bytes(), passed, scratch, output)
        } else {
            self.run::<false>(text.as_bytes(), passed, scratch, output)
        }
    }

    fn run<const PLACED: bool>(
        &self,
        bytes: &[u8],
        mut passed: u32,
        scratch: &mut Scratch,
        output: &mut Output,
    ) -> Progress {
        let mut word = Word::<PLACED> {
            pieces: self,
            scratch,
            output,
        };
        word.clear();
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            if byte < 0x80 {
                word.take(self.ascii[usize::from(byte)], passed)?;
                at += 1;
            } else {
                let (code, length) = decode(bytes, at);
                let page = self.characters.page(code);
                match page.fate(code) {
                    Fate::Several(start, count) => {
                        for fate in page.several(start, count) {
                            word.take(*fate, passed)?;
                        }
                    }
                    fate => word.take(fate, passed)?,
                }
                at += length;
            }
            passed += 1;
        }
        word.end()
    }

    /// The longest token that begins at a node, and its length.
    #[inline]
    fn longest(&self, mut node: u32, bytes: &[u8]) -> Option<(u32, usize)> {
        let mut best = None;
        for (&byte, length) in bytes.iter().zip(1..) {
            let Some(next) = self.tree.get(step(node, byte)) else {
                break;
            };
            node = (next >> 32) as u32;
            let token = next as u32;
            if token != NO_TOKEN {
                best = Some((token, length));
            }
        }
        best
    }
}

/// A tree while it grows.
struct Tree {
    edges: Pairs,
    nodes: u32,
}

impl Tree {
    fn new(tokens: usize) -> Self {
        Self {
            edges: Pairs::with_capacity(tokens * 2),
            nodes: 2,
        }
    }

    fn add(&mut self, mut node: u32, text: &[u8], id: u32) -> Option<()> {
        for (&byte, left) in text.iter().zip((0..text.len()).rev()) {
            let key = step(node, byte);
            let (next, mut token) = match self.edges.get(key) {
                Some(edge) => ((edge >> 32) as u32, edge as u32),
                None => {
                    let next = self.nodes;
                    self.nodes = self.nodes.checked_add(1)?;
                    (next, NO_TOKEN)
                }
            };
            if left == 0 {
                token = id;
            }
            self.edges
                .set(key, u64::from(next) << 32 | u64::from(token));
            node = next;
        }
        Some(())
    }
}

/// The word that is being read.
struct Word<'a, 'b, const PLACED: bool> {
    pieces: &'a WordPiece,
    scratch: &'a mut Scratch<'b>,
    output: &'a mut Output,
}

impl<const PLACED: bool> Word<'_, '_, PLACED> {
    fn clear(&mut self) {
        self.scratch.word.clear();
        self.scratch.origins.clear();
    }

    #[inline]
    fn take(&mut self, fate: Fate, origin: u32) -> Progress {
        match fate {
            Fate::Word(character) => {
                self.push(character, origin);
                Ok(())
            }
            Fate::Space => self.end(),
            Fate::Alone(character) => {
                self.end()?;
                self.push(character, origin);
                self.end()
            }
            Fate::Nothing => Ok(()),
            // Several of several are not made.
            Fate::Open | Fate::Several(..) => Err(Stop::Foreign),
        }
    }

    #[inline]
    fn push(&mut self, character: char, origin: u32) {
        if character.is_ascii() {
            self.scratch.word.push(character as u8);
        } else {
            let mut buffer = [0; 4];
            let bytes = character.encode_utf8(&mut buffer).as_bytes();
            self.scratch.word.extend_from_slice(bytes);
        }
        if PLACED {
            let after = self.scratch.word.len();
            self.scratch.origins.resize(after, origin);
        }
    }

    /// The tokens of the word so far.
    #[inline]
    fn end(&mut self) -> Progress {
        if self.scratch.word.is_empty() {
            return Ok(());
        }
        let length = self.scratch.word.len();
        match self.pieces.words.get(&self.scratch.word) {
            _ if self.is_too_long() => self.emit(self.pieces.unknown, 0, length),
            Some((id, _)) => self.emit(id, 0, length),
            None => self.split(),
        }
        self.clear();
        self.scratch.check()?;
        if self.output.end_part(false) {
            Ok(())
        } else {
            Err(Stop::Enough)
        }
    }

    #[inline]
    fn is_too_long(&self) -> bool {
        let word = &self.scratch.word;
        word.len() > self.pieces.longest
            && word.iter().filter(|&&byte| byte & 0xc0 != 0x80).count() > self.pieces.longest
    }

    #[inline]
    fn emit(&mut self, id: u32, start: usize, end: usize) {
        if PLACED {
            let origins = &self.scratch.origins;
            let (start, end) = (origins[start], origins[end - 1] + 1);
            self.output.push_at(id, start, end);
        } else {
            self.output.push(id);
        }
    }

    fn split(&mut self) {
        let begin = self.output.len();
        let length = self.scratch.word.len();
        let (mut at, mut node) = (0, BEGIN);
        while at < length {
            match self.pieces.longest(node, &self.scratch.word[at..]) {
                Some((id, taken)) => {
                    self.emit(id, at, at + taken);
                    at += taken;
                    node = REST;
                }
                None => {
                    self.output.ids.truncate(begin);
                    self.output.places.truncate(begin);
                    return self.emit(self.pieces.unknown, 0, length);
                }
            }
        }
    }
}
