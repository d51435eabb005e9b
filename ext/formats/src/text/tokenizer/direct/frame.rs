//! What a post-processor puts around texts, found out by giving it texts of two tokens: their places are left, and all
//! else is its own.

use tokenizers::tokenizer::Token;
use tokenizers::Encoding;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Special {
        id: u32,
        type_id: u32,
        token: String,
    },
    /// The first text, or the second.
    Text { second: bool, type_id: u32 },
}

/// The order of texts and special tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::text::tokenizer) struct Frame(Vec<Piece>);

/// By whether there are two texts, and whether special tokens are wanted; `None` where a post-processor does more.
#[derive(Debug, Default)]
pub(in crate::text::tokenizer) struct Frames([[Option<Frame>; 2]; 2]);

/// Places by which the tokens of texts are told from others.
const FIRST: [(usize, usize); 2] = [(11, 12), (12, 13)];
const SECOND: [(usize, usize); 2] = [(21, 22), (22, 23)];

fn text(places: [(usize, usize); 2], type_id: u32) -> Encoding {
    let tokens = places.map(|place| Token::new(7, String::new(), place));
    Encoding::from_tokens(tokens.into(), type_id)
}

impl Frames {
    pub fn new(process: impl Fn(Encoding, Option<Encoding>, bool) -> Option<Encoding>) -> Self {
        let frame = |pair: bool, special: bool| {
            let second = pair.then(|| text(SECOND, 1));
            Frame::read(&process(text(FIRST, 0), second, special)?, pair)
        };
        let both = |pair: bool| [frame(pair, false), frame(pair, true)];
        Self([both(false), both(true)])
    }

    pub fn get(&self, pair: bool, special: bool) -> Option<&Frame> {
        self.0[usize::from(pair)][usize::from(special)].as_ref()
    }
}

impl Frame {
    fn read(encoding: &Encoding, pair: bool) -> Option<Self> {
        let offsets = encoding.get_offsets();
        let sequences = encoding.get_sequence_ids();
        let types = encoding.get_type_ids();
        let masks = encoding.get_special_tokens_mask();
        let (mut pieces, mut at) = (Vec::new(), 0);
        while at < encoding.len() {
            let second = [FIRST, SECOND]
                .iter()
                .position(|&it| offsets[at..].starts_with(&it));
            if let Some(second) = second {
                let plain = |at: usize| masks[at] == 0 && sequences[at] == Some(second);
                if !plain(at) || !plain(at + 1) || types[at] != types[at + 1] {
                    return None;
                }
                pieces.push(Piece::Text {
                    second: second == 1,
                    type_id: types[at],
                });
                at += 2;
                continue;
            }
            let special = offsets[at] == (0, 0) && masks[at] == 1 && sequences[at].is_none();
            if !special || encoding.get_word_ids()[at].is_some() {
                return None;
            }
            pieces.push(Piece::Special {
                id: encoding.get_ids()[at],
                type_id: types[at],
                token: encoding.get_tokens()[at].clone(),
            });
            at += 1;
        }
        let texts = pieces.iter().filter_map(|piece| match piece {
            Piece::Text { second, .. } => Some(*second),
            Piece::Special { .. } => None,
        });
        let expected: &[bool] = if pair { &[false, true] } else { &[false] };
        let complete = texts.eq(expected.iter().copied())
            && encoding.get_attention_mask().iter().all(|&mask| mask == 1);
        complete.then_some(Self(pieces))
    }

    /// The encoding of one or two texts without places.
    pub fn fill(&self, first: &[u32], second: &[u32], one_type: bool) -> Encoding {
        let length = first.len() + second.len() + self.0.len();
        let mut ids = Vec::with_capacity(length);
        let mut types = Vec::with_capacity(length);
        let mut masks = Vec::with_capacity(length);
        let mut tokens = Vec::with_capacity(length);
        let mut texts = Vec::with_capacity(2);
        for piece in &self.0 {
            let begin = ids.len();
            let (type_id, special) = match piece {
                Piece::Special { id, type_id, token } => {
                    ids.push(*id);
                    tokens.push(token.clone());
                    (*type_id, 1)
                }
                Piece::Text {
                    second: of_second,
                    type_id,
                } => {
                    ids.extend_from_slice(if *of_second { second } else { first });
                    tokens.resize(ids.len(), String::new());
                    texts.push((usize::from(*of_second), begin..ids.len()));
                    (*type_id, 0)
                }
            };
            types.resize(ids.len(), if one_type { 0 } else { type_id });
            masks.resize(ids.len(), special);
        }
        let length = ids.len();
        Encoding::new(
            ids,
            types,
            tokens,
            vec![None; length],
            vec![(0, 0); length],
            masks,
            vec![1; length],
            Vec::new(),
            texts.into_iter().collect(),
        )
    }
}
