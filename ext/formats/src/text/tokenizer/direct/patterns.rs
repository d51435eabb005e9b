//! The patterns that are known by their texts, as checkpoints and the readers of GGUF files have them.

use super::cuts::{Cut, Letters, Tail};

pub(in crate::text::tokenizer) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
pub(in crate::text::tokenizer) const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(in crate::text::tokenizer) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(in crate::text::tokenizer) const SEED: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(in crate::text::tokenizer) const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
pub(in crate::text::tokenizer) const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(in crate::text::tokenizer) const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(in crate::text::tokenizer) const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(in crate::text::tokenizer) const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As tiktoken writes LLAMA3.
const CL100K: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
/// Numbers of up to three digits.
pub(in crate::text::tokenizer) const UP_TO_THREE: &str = r"\p{N}{1,3}";
pub(in crate::text::tokenizer) const DIGIT: &str = r"\p{N}";

#[derive(Clone, Copy, Debug)]
pub(super) enum Pattern {
    Cut(Cut),
    /// Numbers of so many digits at most; what lies between them stays together.
    Numbers(usize),
}

impl Pattern {
    /// `None` for a pattern that is not known.
    pub fn named(text: &str) -> Option<Self> {
        let plain = Cut {
            letters: Letters::AfterAny,
            digits: 1,
            tail: Tail::LineEnds,
        };
        let by_case = |contractions: bool, digits: usize| Cut {
            letters: Letters::ByCase { contractions },
            digits,
            tail: Tail::LineEndsAndSlashes,
        };
        Some(Self::Cut(match text {
            DIGIT => return Some(Self::Numbers(1)),
            UP_TO_THREE => return Some(Self::Numbers(3)),
            GPT2 => Cut {
                letters: Letters::AfterSpace,
                digits: usize::MAX,
                tail: Tail::Nothing,
            },
            LLAMA3 | CL100K => Cut { digits: 3, ..plain },
            QWEN2 | BAILING => plain,
            MINICPM5 => Cut {
                digits: usize::MAX,
                ..plain
            },
            SEED => Cut {
                tail: Tail::Nothing,
                ..plain
            },
            QWEN35 => Cut {
                letters: Letters::AndMarks,
                ..plain
            },
            TEKKEN => by_case(false, 1),
            GPT4O => by_case(true, 3),
            _ => return None,
        }))
    }
}
