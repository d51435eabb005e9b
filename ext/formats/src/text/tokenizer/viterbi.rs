//! Cuts texts into the tokens whose scores add up to most: PLaMo 2's vocabulary. A character that no token holds
//! becomes its bytes.

use std::collections::HashMap;

use tokenizers::tokenizer::Token;

/// What a score of 1 counts; sums are whole numbers, so that equal ones are.
const UNIT: f64 = 1e4;
/// What a character costs that becomes bytes.
const BYTES_COST: i64 = 10_000_000;
/// Tokens at this cost or above are never taken.
const NEVER_COST: i64 = 20_000_000;

#[derive(Debug, Clone, Copy)]
struct Piece {
    id: u32,
    cost: i64,
}

/// A tree of characters, whose root is node 0.
#[derive(Debug)]
pub(super) struct Viterbi {
    children: HashMap<(u32, char), u32>,
    pieces: Vec<Option<Piece>>,
    bytes: Vec<u32>,
}

/// The best way from a position to the end.
#[derive(Debug, Clone, Copy)]
struct Best {
    cost: i64,
    /// In characters.
    length: usize,
    /// `None`: the bytes of one character.
    id: Option<u32>,
}

impl Viterbi {
    /// `pieces`: tokens, ids and scores; `bytes`: the 256 ids of single bytes.
    pub fn new<'a>(pieces: impl Iterator<Item = (&'a str, u32, f32)>, bytes: Vec<u32>) -> Self {
        let mut tree = Self {
            children: HashMap::new(),
            pieces: vec![None],
            bytes,
        };
        for (token, id, score) in pieces {
            let cost = -(f64::from(score) * UNIT).round();
            if token.is_empty() || !cost.is_finite() || cost as i64 >= NEVER_COST {
                continue;
            }
            let node = tree.node(token);
            tree.pieces[node as usize] = Some(Piece {
                id,
                cost: cost as i64,
            });
        }
        tree
    }

    fn node(&mut self, token: &str) -> u32 {
        let mut node = 0;
        for character in token.chars() {
            let next = self.pieces.len() as u32;
            let child = *self.children.entry((node, character)).or_insert(next);
            if child == next {
                self.pieces.push(None);
            }
            node = child;
        }
        node
    }

    /// The tokens that `text` consists of. A byte order mark at its beginning is left out.
    pub fn tokenize(&self, text: &str) -> Vec<Token> {
        let skipped = if text.starts_with('\u{feff}') { 3 } else { 0 };
        let characters: Vec<(usize, char)> = text[skipped..]
            .char_indices()
            .map(|(at, character)| (at + skipped, character))
            .collect();
        let best = self.best(&characters);
        let (mut tokens, mut at) = (Vec::new(), 0);
        while at < characters.len() {
            let start = characters[at].0;
            let next = at + best[at].length;
            let end = characters.get(next).map_or(text.len(), |(at, _)| *at);
            let part = &text[start..end];
            match best[at].id {
                Some(id) => tokens.push(Token::new(id, part.to_owned(), (start, end))),
                None => tokens.extend(part.bytes().map(|byte| {
                    let id = self.bytes[usize::from(byte)];
                    Token::new(id, format!("<0x{byte:02X}>"), (start, end))
                })),
            }
            at = next;
        }
        tokens
    }

    /// The best ways from every character, found from the last one on. Of equal ones the longer token is taken.
    fn best(&self, characters: &[(usize, char)]) -> Vec<Best> {
        let end = Best {
            cost: 0,
            length: 1,
            id: None,
        };
        let mut best = vec![end; characters.len() + 1];
        for at in (0..characters.len()).rev() {
            let mut found = Best {
                cost: best[at + 1].cost.saturating_add(BYTES_COST),
                length: 1,
                id: None,
            };
            let mut node = 0;
            for (length, (_, character)) in (1..).zip(&characters[at..]) {
                let Some(&child) = self.children.get(&(node, *character)) else {
                    break;
                };
                node = child;
                if let Some(piece) = self.pieces[node as usize] {
                    let cost = best[at + length].cost.saturating_add(piece.cost);
                    if cost <= found.cost {
                        found = Best {
                            cost,
                            length,
                            id: Some(piece.id),
                        };
                    }
                }
            }
            best[at] = found;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(viterbi: &Viterbi, text: &str) -> Vec<u32> {
        viterbi
            .tokenize(text)
            .iter()
            .map(|token| token.id)
            .collect()
    }

    fn small() -> Viterbi {
        let pieces = [
            ("a", 300, -1.0),
            ("b", 301, -1.0),
            ("ab", 302, -2.0),
            ("abc", 303, -9.0),
            ("日本", 304, -3.0),
            ("本", 305, -0.5),
            ("never", 306, -2000.0),
            ("nan", 307, f32::NAN),
        ];
        Viterbi::new(pieces.into_iter(), (0..256).collect())
    }

    #[test]
    fn the_sum_decides_and_of_equal_sums_the_longer_token() {
        let viterbi = small();
        assert_eq!(ids(&viterbi, "abab"), [302, 302]);
        assert_eq!(ids(&viterbi, "ba"), [301, 300]);
        // The letter c alone would cost its byte.
        assert_eq!(ids(&viterbi, "abc"), [303]);
        assert_eq!(ids(&viterbi, "日本本"), [304, 305]);
        assert!(ids(&viterbi, "").is_empty());
    }

    #[test]
    fn characters_without_a_token_become_bytes_at_their_place() {
        let viterbi = small();
        let tokens = viterbi.tokenize("a日b");
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        assert_eq!(ids, [300, 0xe6, 0x97, 0xa5, 301]);
        assert_eq!(tokens[2].offsets, (1, 4));
        assert_eq!(tokens[4].offsets, (4, 5));
        assert_eq!(self::ids(&viterbi, "\u{feff}a"), [300]);
        assert_eq!(self::ids(&viterbi, "a\u{feff}").len(), 4);
        assert_eq!(self::ids(&viterbi, "never").len(), 5);
        assert_eq!(self::ids(&viterbi, "nan"), [0x6e, 300, 0x6e]);
    }
}
