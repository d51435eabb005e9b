//! Tokens that stand in texts as they are, beside the vocabulary that the model's algorithm knows.

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::AddedToken;

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Text(&'a str),
    /// A token, with the white space that it takes along.
    Token(u32, &'a str),
}

#[derive(Debug)]
struct Token {
    id: u32,
    takes_left: bool,
    takes_right: bool,
}

/// Tokens that are looked for at once.
#[derive(Debug)]
struct Group {
    automaton: AhoCorasick,
    tokens: Vec<Token>,
}

/// All tokens of a kind: those found in a text as it is, and those found in what a normalizer made of the rest.
#[derive(Debug)]
pub(super) struct Added {
    plain: Option<Group>,
    normalized: Option<Group>,
}

impl Group {
    /// `None` for tokens whose rules are not known here.
    fn new(tokens: &[(u32, &AddedToken)]) -> Option<Option<Self>> {
        if tokens.is_empty() {
            return Some(None);
        }
        if tokens.iter().any(|(_, token)| token.single_word) {
            return None;
        }
        let contents = tokens.iter().map(|(_, token)| token.content.as_str());
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(contents)
            .ok()?;
        let tokens = tokens.iter().map(|(id, token)| Token {
            id: *id,
            takes_left: token.lstrip,
            takes_right: token.rstrip,
        });
        Some(Some(Self {
            automaton,
            tokens: tokens.collect(),
        }))
    }

    fn split<'a>(&self, text: &'a str, take: &mut impl FnMut(Part<'a>) -> bool) -> bool {
        let mut begin = 0;
        for found in self.automaton.find_iter(text) {
            let token = &self.tokens[found.pattern().as_usize()];
            let (mut start, mut end) = (found.start(), found.end());
            if token.takes_left {
                start = text[..start].trim_end().len().max(begin);
            }
            if token.takes_right {
                end = text.len() - text[end..].trim_start().len();
            }
            if begin < start && !take(Part::Text(&text[begin..start])) {
                return false;
            }
            if !take(Part::Token(token.id, &text[start..end])) {
                return false;
            }
            begin = end;
        }
        begin == text.len() || take(Part::Text(&text[begin..]))
    }
}

impl Added {
    /// `None` for tokens whose rules are not known here.
    pub fn new(core: &tokenizers::Tokenizer, normalizes: bool) -> Option<Self> {
        let vocabulary = core.get_added_vocabulary();
        if vocabulary.get_encode_special_tokens() {
            return None;
        }
        let tokens = vocabulary.get_added_tokens_decoder();
        let mut contents: Vec<&str> = tokens.values().map(|it| it.content.as_str()).collect();
        contents.sort_unstable();
        let twice = contents.windows(2).any(|pair| pair[0] == pair[1]);
        if twice || contents.first().is_some_and(|first| first.is_empty()) {
            return None;
        }
        let group = |normalized: bool| {
            let all = tokens.iter().map(|(id, token)| (*id, token));
            Group::new(
                &all.filter(|(_, it)| it.normalized == normalized)
                    .collect::<Vec<_>>(),
            )
        };
        let (plain, normalized) = (group(false)?, group(true)?);
        if normalizes && normalized.is_some() {
            return None;
        }
        Some(Self { plain, normalized })
    }

    /// Passes on the parts of a text, until `take` wants no more.
    pub fn split<'a>(&self, text: &'a str, mut take: impl FnMut(Part<'a>) -> bool) -> bool {
        let mut rest = |part: Part<'a>| match (part, &self.normalized) {
            (Part::Text(text), Some(group)) => group.split(text, &mut take),
            (part, _) => take(part),
        };
        match &self.plain {
            _ if text.is_empty() => true,
            Some(group) => group.split(text, &mut rest),
            None => rest(Part::Text(text)),
        }
    }
}
