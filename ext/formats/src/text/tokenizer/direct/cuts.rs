//! The patterns by which byte-level vocabularies cut texts, followed by hand instead of by a machine for patterns that
//! look ahead.

use super::patterns::Pattern;
use super::unicode::{
    class, decode, ASCII, CASELESS, LETTER, LINE_END, LOWER, NUMBER, SPACE, UPPER,
};

/// Which characters make words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text::tokenizer) enum Letters {
    /// Letters, with a space before them: GPT-2's.
    AfterSpace,
    /// Letters, with one character before them that is neither a number nor a line end.
    AfterAny,
    /// The same, with combining marks among the letters.
    AndMarks,
    /// The same, cut before capital letters that follow small ones.
    ByCase { contractions: bool },
}

/// What stays with punctuation before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text::tokenizer) enum Tail {
    Nothing,
    LineEnds,
    LineEndsAndSlashes,
}

/// A pattern that consists of alternatives for words, numbers, punctuation and white space, as all of them do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text::tokenizer) struct Cut {
    pub letters: Letters,
    /// So many digits at most make a number.
    pub digits: usize,
    pub tail: Tail,
}

/// One way to cut a text into parts, of which others may cut each part further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Cut(Cut),
    /// Numbers apart from all else: single digits, or so many.
    Numbers(usize),
    /// As [`Step::Numbers`] by the standard library's idea of a number.
    Numeric {
        single: bool,
    },
}

impl Step {
    pub fn of_pattern(pattern: &str) -> Option<Self> {
        Some(match Pattern::named(pattern)? {
            Pattern::Cut(cut) => Self::Cut(cut),
            Pattern::Numbers(most) => Self::Numbers(most),
        })
    }

    /// Where the part ends that begins at a byte. There is text at it.
    #[inline]
    fn end(&self, text: &str, at: usize) -> usize {
        match self {
            Self::Cut(cut) => cut.end(text.as_bytes(), at),
            Self::Numbers(most) => {
                let bytes = text.as_bytes();
                match run_of(bytes, at, *most, |class| class & NUMBER != 0) {
                    end if end > at => end,
                    _ => run(bytes, at, |class| class & NUMBER == 0),
                }
            }
            Self::Numeric { single } => numeric_end(text, at, *single),
        }
    }
}

fn numeric_end(text: &str, at: usize, single: bool) -> usize {
    let mut characters = text[at..].char_indices();
    let Some((_, first)) = characters.next() else {
        return text.len();
    };
    let number = first.is_numeric();
    if number && single {
        return at + first.len_utf8();
    }
    let mut rest = characters.filter(|(_, character)| character.is_numeric() != number);
    rest.next().map_or(text.len(), |(offset, _)| at + offset)
}

/// Passes on what the steps leave together, with the place it begins at, until `take` wants no more.
pub(super) fn cut(
    steps: &[Step],
    text: &str,
    base: usize,
    take: &mut impl FnMut(&[u8], usize) -> bool,
) -> bool {
    let Some((step, rest)) = steps.split_first() else {
        return take(text.as_bytes(), base);
    };
    let mut at = 0;
    while at < text.len() {
        let end = step.end(text, at);
        if !cut(rest, &text[at..end], base + at, take) {
            return false;
        }
        at = end;
    }
    true
}

#[inline]
fn class_at(bytes: &[u8], ascii: &[u8; 256], at: usize) -> (u8, usize) {
    match bytes[at] {
        byte @ 0..=0x7f => (ascii[byte as usize], 1),
        _ => {
            let (code, length) = decode(bytes, at);
            (class(code), length)
        }
    }
}

/// Where the characters end whose classes are wanted.
#[inline]
fn run(bytes: &[u8], at: usize, wanted: impl Fn(u8) -> bool) -> usize {
    run_of(bytes, at, usize::MAX, wanted)
}

#[inline]
fn run_of(bytes: &[u8], mut at: usize, most: usize, wanted: impl Fn(u8) -> bool) -> usize {
    let ascii: &[u8; 256] = &ASCII;
    let mut count = 0;
    while at < bytes.len() && count < most {
        let (class, length) = class_at(bytes, ascii, at);
        if !wanted(class) {
            break;
        }
        at += length;
        count += 1;
    }
    at
}

/// The bytes of `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll` and `'d`, of which `at` is the apostrophe.
fn contraction(bytes: &[u8], at: usize, any_case: bool) -> Option<usize> {
    let letter = |offset: usize| {
        let byte = bytes.get(at + offset).copied().unwrap_or_default();
        if any_case {
            byte.to_ascii_lowercase()
        } else {
            byte
        }
    };
    match (letter(1), letter(2)) {
        (b's' | b't' | b'm' | b'd', _) => Some(2),
        (b'r' | b'v', b'e') | (b'l', b'l') => Some(3),
        // The long s is an s in another case.
        (0xc5, 0xbf) if any_case => Some(3),
        _ => None,
    }
}

impl Cut {
    fn end(&self, bytes: &[u8], at: usize) -> usize {
        let ascii: &[u8; 256] = &ASCII;
        let (first, length) = class_at(bytes, ascii, at);
        let next = at + length;
        let second = if next < bytes.len() {
            class_at(bytes, ascii, next).0
        } else {
            SPACE
        };
        if let Some(end) = self.word(bytes, at, first, next, second) {
            return end;
        }
        if first & NUMBER != 0 {
            return run_of(bytes, at, self.digits, |class| class & NUMBER != 0);
        }
        let space = bytes[at] == b' ';
        if self.letters == Letters::AfterSpace && space && second & NUMBER != 0 {
            return run_of(bytes, next, self.digits, |class| class & NUMBER != 0);
        }
        if first & self.plain() == 0 || space && second & self.plain() == 0 {
            return self.punctuation(bytes, next);
        }
        self.white_space(bytes, at)
    }

    /// The classes that punctuation has none of.
    #[inline]
    fn plain(&self) -> u8 {
        match self.letters {
            Letters::AndMarks => SPACE | LETTER | NUMBER | CASELESS,
            Letters::AfterSpace | Letters::AfterAny | Letters::ByCase { .. } => {
                SPACE | LETTER | NUMBER
            }
        }
    }

    #[inline]
    fn word(&self, bytes: &[u8], at: usize, first: u8, next: usize, second: u8) -> Option<usize> {
        let letters = match self.letters {
            Letters::AfterSpace => {
                if bytes[at] == b'\'' {
                    if let Some(length) = contraction(bytes, at, false) {
                        return Some(at + length);
                    }
                }
                let begins = first & LETTER != 0 || bytes[at] == b' ' && second & LETTER != 0;
                return begins.then(|| run(bytes, next, |class| class & LETTER != 0));
            }
            Letters::AfterAny => LETTER,
            Letters::AndMarks => LETTER | CASELESS,
            Letters::ByCase { contractions } => {
                return by_case(bytes, at, first, next, contractions);
            }
        };
        if bytes[at] == b'\'' {
            if let Some(length) = contraction(bytes, at, true) {
                return Some(at + length);
            }
        }
        let begins = first & letters != 0
            || first & (LINE_END | LETTER | NUMBER) == 0 && second & letters != 0;
        begins.then(|| run(bytes, next, |class| class & letters != 0))
    }

    /// Punctuation goes on behind its first character, or behind a space before it.
    fn punctuation(&self, bytes: &[u8], next: usize) -> usize {
        let plain = self.plain();
        let mut end = run(bytes, next, |class| class & plain == 0);
        let slashes = match self.tail {
            Tail::Nothing => return end,
            Tail::LineEnds => false,
            Tail::LineEndsAndSlashes => true,
        };
        while let Some(byte) = bytes.get(end) {
            if !(matches!(byte, b'\r' | b'\n') || slashes && *byte == b'/') {
                break;
            }
            end += 1;
        }
        end
    }

    /// Up to the last line end where patterns care for them; else all but the last character, which goes to the word
    /// behind it.
    fn white_space(&self, bytes: &[u8], at: usize) -> usize {
        let ascii: &[u8; 256] = &ASCII;
        let (mut end, mut last, mut lines) = (at, at, at);
        while end < bytes.len() {
            let (class, length) = class_at(bytes, ascii, end);
            if class & SPACE == 0 {
                break;
            }
            last = end;
            end += length;
            if class & LINE_END != 0 {
                lines = end;
            }
        }
        if lines > at && self.letters != Letters::AfterSpace {
            return lines;
        }
        if end == bytes.len() || last == at {
            end
        } else {
            last
        }
    }
}

/// Capital letters, then small ones: where the first alternative ends, and where the capital letters do.
#[inline]
fn cased(bytes: &[u8], start: usize) -> (Option<usize>, usize) {
    let ascii: &[u8; 256] = &ASCII;
    let (mut end, mut either) = (start, None);
    while end < bytes.len() {
        let (class, length) = class_at(bytes, ascii, end);
        if class & (UPPER | CASELESS) == 0 {
            break;
        }
        end += length;
        if class & CASELESS != 0 {
            either = Some(end);
        }
    }
    let small = run(bytes, end, |class| class & (LOWER | CASELESS) != 0);
    // What has no case may be the small letter that has to be there.
    (Some(small).filter(|_| small > end).or(either), end)
}

fn by_case(bytes: &[u8], at: usize, first: u8, next: usize, contractions: bool) -> Option<usize> {
    let behind = (first & (LINE_END | LETTER | NUMBER) == 0).then(|| cased(bytes, next));
    let end = match behind {
        Some((Some(end), _)) => end,
        Some((None, capitals)) => match cased(bytes, at) {
            (Some(end), _) => end,
            _ if capitals > next => capitals,
            (None, end) if end > at => end,
            (None, _) => return None,
        },
        None => match cased(bytes, at) {
            (Some(end), _) => end,
            (None, end) if end > at => end,
            (None, _) => return None,
        },
    };
    if contractions && bytes.get(end) == Some(&b'\'') {
        return Some(end + contraction(bytes, end, true).unwrap_or(0));
    }
    Some(end)
}
