//! Words of preprocessed Metal source, and the brackets between them.

use std::ops::Range;

#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    /// What stands between the word before and this one.
    pub space: &'a str,
    pub text: &'a str,
}

/// An attribute's name and what its parentheses hold.
pub type Attribute = (String, String);

pub struct Tokens<'a>(Vec<Token<'a>>);

const OPERATORS: [&str; 14] = [
    "->*", "->", "::", "<<", ">=", "<=", "==", "!=", "&&", "||", "+=", "-=", "*=", "/=",
];

impl<'a> Tokens<'a> {
    pub fn of(text: &'a str) -> Result<Self, String> {
        let bytes = text.as_bytes();
        let mut tokens = Vec::new();
        let (mut at, mut space_start, mut line_start) = (0, 0, true);
        while let Some(&byte) = bytes.get(at) {
            if byte.is_ascii_whitespace() {
                line_start |= byte == b'\n';
                at += 1;
            } else if byte == b'#' && line_start {
                at += text[at..].find('\n').unwrap_or(text.len() - at);
            } else {
                line_start = false;
                let end = at + length(&text[at..], text[..at].as_bytes().last().copied())?;
                tokens.push(Token {
                    space: &text[space_start..at],
                    text: &text[at..end],
                });
                (at, space_start) = (end, end);
            }
        }
        Ok(Self(tokens))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The word at `i`; an empty one beyond the end.
    pub fn text(&self, i: usize) -> &'a str {
        self.0.get(i).map_or("", |token| token.text)
    }

    pub fn space(&self, i: usize) -> &'a str {
        self.0.get(i).map_or("", |token| token.space)
    }

    pub fn join(&self, range: Range<usize>) -> String {
        let words = self.0.get(range).unwrap_or_default();
        words
            .iter()
            .flat_map(|token| [token.space, token.text])
            .collect()
    }

    /// The index of the token that closes the bracket at `open`.
    pub fn close(&self, open: usize) -> Result<usize, String> {
        let left = self.text(open);
        let right = match left {
            "(" => ")",
            "[" => "]",
            "{" => "}",
            "<" => ">",
            other => return Err(format!("{other:?} is no bracket")),
        };
        let (mut depth, mut i) = (0, open);
        while i < self.len() {
            let text = self.text(i);
            if text == left {
                depth += 1;
            } else if text == right {
                depth -= 1;
                if depth == 0 {
                    return Ok(i);
                }
            } else if left == "<" && text == "(" {
                i = self.close(i)?;
            }
            i += 1;
        }
        Err(format!("{left} without {right}"))
    }

    /// The token after the next one that is `wanted`, brackets passed over as a whole.
    pub fn after(&self, wanted: &str, start: usize) -> Result<usize, String> {
        let mut i = start;
        while i < self.len() {
            match self.text(i) {
                text if text == wanted => return Ok(i + 1),
                "(" | "{" | "[" => i = self.close(i)? + 1,
                _ => i += 1,
            }
        }
        Err(format!("no {wanted:?} follows {:?}", self.text(start)))
    }

    pub fn is_attribute(&self, i: usize) -> bool {
        self.text(i) == "[" && self.text(i + 1) == "[" && self.space(i + 1).is_empty()
    }

    /// The attributes at `i`, and the token after them.
    pub fn attributes(&self, mut i: usize) -> Result<(Vec<Attribute>, usize), String> {
        let mut found = Vec::new();
        while self.is_attribute(i) {
            let end = self.close(i)?;
            let mut at = i + 2;
            while at + 1 < end {
                let mut name = self.text(at).to_string();
                if self.text(at + 1) == "::" {
                    name = format!("{name}::{}", self.text(at + 2));
                    at += 2;
                }
                let mut value = String::new();
                if self.text(at + 1) == "(" {
                    let close = self.close(at + 1)?;
                    value = self.join(at + 2..close).trim().to_string();
                    at = close;
                }
                found.push((name, value));
                at += 1;
                if self.text(at) == "," {
                    at += 1;
                }
            }
            i = end + 1;
        }
        Ok((found, i))
    }
}

/// How long the word is that a text begins with, after the byte `before`.
fn length(text: &str, before: Option<u8>) -> Result<usize, String> {
    let bytes = text.as_bytes();
    let first = bytes[0];
    if first == b'"' || first == b'\'' {
        return quoted(bytes).ok_or_else(|| "a quotation without an end".to_string());
    }
    let follows_a_value =
        before.is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b')' | b']'));
    let fraction =
        first == b'.' && bytes.get(1).is_some_and(u8::is_ascii_digit) && !follows_a_value;
    if !(first.is_ascii_alphanumeric() || first == b'_' || fraction) {
        let operator = OPERATORS
            .iter()
            .find(|operator| text.starts_with(*operator));
        return if first.is_ascii() {
            Ok(operator.map_or(1, |operator| operator.len()))
        } else {
            Err(format!("the character {:?}", text.chars().next()))
        };
    }
    let number = first.is_ascii_digit() || fraction;
    let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    let mut at = 1;
    while let Some(&byte) = bytes.get(at) {
        let signs = if hexadecimal { b"pP" } else { b"eE" };
        let exponent_sign = number && matches!(byte, b'+' | b'-') && signs.contains(&bytes[at - 1]);
        if !(byte.is_ascii_alphanumeric()
            || byte == b'_'
            || (number && byte == b'.')
            || exponent_sign)
        {
            break;
        }
        at += 1;
    }
    Ok(at)
}

fn quoted(bytes: &[u8]) -> Option<usize> {
    let mut at = 1;
    while *bytes.get(at)? != bytes[0] {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    Some(at + 1)
}

pub fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// `float4` and the like, but not matrices.
pub fn is_vector(text: &str) -> bool {
    let base = text.trim_end_matches(|c: char| c.is_ascii_digit() || c == 'x');
    let scalars = [
        "float", "half", "bfloat", "int", "uint", "short", "ushort", "char", "uchar", "long",
        "ulong", "bool",
    ];
    scalars.contains(&base) && matches!(&text[base.len()..], "2" | "3" | "4")
}
