//! A template as tokens, with Jinja's rules for white space: a line break after a block and the
//! blanks before one are dropped, as transformers sets it.

use std::sync::Arc;

use super::failure::{wrong, Outcome};

#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    Text(Arc<str>),
    BlockBegin,
    BlockEnd,
    PrintBegin,
    PrintEnd,
    Name(Arc<str>),
    Str(Arc<str>),
    Int(i64),
    Float(f64),
    Operator(&'static str),
}

/// Longer ones first.
const OPERATORS: [&str; 25] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",",
];

/// The tokens with their lines.
pub fn tokenize(source: &str) -> Outcome<Vec<(Token, usize)>> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer {
        source,
        at: 0,
        line: 1,
        at_line_start: true,
        tokens: Vec::new(),
    };
    lexer.run().map_err(|failure| failure.at(lexer.line))?;
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: usize,
    /// Whether what was read last ended with a line break.
    at_line_start: bool,
    tokens: Vec<(Token, usize)>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn advance(&mut self, bytes: usize) {
        let passed = &self.source[self.at..self.at + bytes];
        self.line += passed.bytes().filter(|&byte| byte == b'\n').count();
        self.at += bytes;
        if bytes > 0 {
            self.at_line_start = passed.ends_with('\n');
        }
    }

    fn push(&mut self, token: Token) {
        self.tokens.push((token, self.line));
    }

    fn run(&mut self) -> Outcome<()> {
        while self.at < self.source.len() {
            let rest = self.rest();
            let Some(start) = next_tag(rest) else {
                self.push(Token::Text(rest.into()));
                return Ok(());
            };
            let (text, tag) = rest.split_at(start);
            let (marker, sign) = (&tag[..2], tag[2..].chars().next().unwrap_or(' '));
            let text = self.before_tag(text, marker, sign);
            if !text.is_empty() {
                self.push(Token::Text(text.into()));
            }
            let signed = usize::from(matches!(sign, '-' | '+'));
            self.advance(start + 2 + signed);
            match marker {
                "{#" => self.comment()?,
                "{%" if self.raw()? => {}
                "{%" => self.tag(Token::BlockBegin, "%}", Token::BlockEnd)?,
                _ => self.tag(Token::PrintBegin, "}}", Token::PrintEnd)?,
            }
        }
        Ok(())
    }

    /// What remains of the text before a tag.
    fn before_tag<'t>(&self, text: &'t str, marker: &str, sign: char) -> &'t str {
        if sign == '-' {
            return text.trim_end();
        }
        if sign == '+' || marker == "{{" {
            return text;
        }
        let line = text.rfind('\n').map_or(0, |place| place + 1);
        let begins = line > 0 || self.at_line_start;
        let blank = text[line..]
            .bytes()
            .all(|byte| matches!(byte, b' ' | b'\t'));
        if begins && blank {
            &text[..line]
        } else {
            text
        }
    }

    fn comment(&mut self) -> Outcome<()> {
        let Some(end) = self.rest().find("#}") else {
            return wrong("a comment does not end");
        };
        let sign = self.rest()[..end].chars().next_back();
        self.advance(end + 2);
        self.after_tag(sign);
        Ok(())
    }

    /// Passes over what the end of a block or comment takes with it.
    fn after_tag(&mut self, sign: Option<char>) {
        let rest = self.rest();
        match sign {
            Some('-') => self.advance(rest.len() - rest.trim_start().len()),
            Some('+') => {}
            _ if rest.starts_with('\n') => self.advance(1),
            _ => {}
        }
    }

    /// Reads a raw block whole, if one begins here.
    fn raw(&mut self) -> Outcome<bool> {
        let Some(inside) = self.rest().trim_start().strip_prefix("raw") else {
            return Ok(false);
        };
        let inside = inside.trim_start();
        let (stripped, begin) = match (inside.strip_prefix("-%}"), inside.strip_prefix("%}")) {
            (Some(body), _) => (true, body),
            (None, Some(body)) => (false, body),
            (None, None) => return Ok(false),
        };
        self.advance(self.rest().len() - begin.len());
        let body = if stripped { begin.trim_start() } else { begin };
        let mut search = 0;
        while let Some(found) = body[search..].find("{%") {
            let start = search + found;
            let tag = &body[start + 2..];
            let sign = tag.chars().next().filter(|sign| matches!(sign, '-' | '+'));
            let name = tag[sign.map_or(0, char::len_utf8)..].trim_start();
            let end = name.strip_prefix("endraw").map(str::trim_start);
            if let Some(end) = end {
                let closing = end.chars().next().filter(|sign| matches!(sign, '-' | '+'));
                if let Some(after) = end[closing.map_or(0, char::len_utf8)..].strip_prefix("%}") {
                    let text = self.before_tag(&body[..start], "{%", sign.unwrap_or(' '));
                    self.push(Token::Text(text.into()));
                    self.advance(self.rest().len() - after.len());
                    self.after_tag(closing);
                    return Ok(true);
                }
            }
            search = start + 2;
        }
        wrong("a raw block does not end")
    }

    fn tag(&mut self, begin: Token, marker: &str, end: Token) -> Outcome<()> {
        self.push(begin);
        let mut open = Vec::new();
        loop {
            let rest = self.rest();
            self.advance(rest.len() - rest.trim_start().len());
            let rest = self.rest();
            if rest.is_empty() {
                return wrong(format!("{marker} is missing"));
            }
            if open.is_empty() {
                let sign = rest.chars().next().filter(|sign| matches!(sign, '-' | '+'));
                let signed = sign.map_or(0, char::len_utf8);
                if rest[signed..].starts_with(marker) {
                    self.push(end);
                    self.advance(signed + marker.len());
                    if marker == "%}" || sign == Some('-') {
                        self.after_tag(sign);
                    }
                    return Ok(());
                }
            }
            let (token, length) = self.token(rest)?;
            match token {
                Token::Operator("(") => open.push(")"),
                Token::Operator("[") => open.push("]"),
                Token::Operator("{") => open.push("}"),
                Token::Operator(closing @ (")" | "]" | "}")) if open.pop() != Some(closing) => {
                    return wrong(format!("unexpected {closing}"));
                }
                _ => {}
            }
            self.push(token);
            self.advance(length);
        }
    }

    fn token(&self, rest: &str) -> Outcome<(Token, usize)> {
        match rest.chars().next() {
            Some(digit) if digit.is_ascii_digit() => self.number(rest),
            Some(quote @ ('"' | '\'')) => string(rest, quote),
            Some(letter) if letter == '_' || letter.is_alphabetic() => {
                let end = rest
                    .find(|letter: char| letter != '_' && !letter.is_alphanumeric())
                    .unwrap_or(rest.len());
                Ok((Token::Name(rest[..end].into()), end))
            }
            other => match OPERATORS.iter().find(|name| rest.starts_with(**name)) {
                Some(name) => Ok((Token::Operator(name), name.len())),
                None => wrong(format!("unexpected {:?}", other.unwrap_or(' '))),
            },
        }
    }

    fn number(&self, rest: &str) -> Outcome<(Token, usize)> {
        let digits = |text: &str, radix: u32| {
            text.find(|digit: char| digit != '_' && !digit.is_digit(radix))
                .unwrap_or(text.len())
        };
        let radix = match rest.get(..2).map(str::to_ascii_lowercase).as_deref() {
            Some("0x") => 16,
            Some("0o") => 8,
            Some("0b") => 2,
            _ => 10,
        };
        let prefix = if radix == 10 { 0 } else { 2 };
        let mut end = prefix + digits(&rest[prefix..], radix);
        let is_item = matches!(self.tokens.last(), Some((Token::Operator("."), _)));
        let mut is_float = false;
        if radix == 10 && !is_item {
            if let Some(fraction) = rest[end..].strip_prefix('.') {
                let length = digits(fraction, 10);
                if length > 0 && fraction.starts_with(|digit: char| digit.is_ascii_digit()) {
                    end += 1 + length;
                    is_float = true;
                }
            }
            if let Some(exponent) = rest[end..].strip_prefix(['e', 'E']) {
                let sign = usize::from(exponent.starts_with(['+', '-']));
                let length = digits(&exponent[sign..], 10);
                if length > 0 {
                    end += 1 + sign + length;
                    is_float = true;
                }
            }
        }
        let text = rest[prefix..end].replace('_', "");
        let token = if is_float {
            text.parse().ok().map(Token::Float)
        } else {
            i64::from_str_radix(&text, radix).ok().map(Token::Int)
        };
        match token {
            Some(token) => Ok((token, end)),
            None => wrong("a number is too large"),
        }
    }
}

fn next_tag(text: &str) -> Option<usize> {
    let mut search = 0;
    while let Some(found) = text[search..].find('{') {
        let place = search + found;
        if matches!(text.as_bytes().get(place + 1), Some(b'{' | b'%' | b'#')) {
            return Some(place);
        }
        search = place + 1;
    }
    None
}

/// A string literal with Python's escapes, and the bytes it takes.
fn string(rest: &str, quote: char) -> Outcome<(Token, usize)> {
    let mut text = String::new();
    let mut letters = rest.char_indices().skip(1);
    while let Some((place, letter)) = letters.next() {
        if letter == quote {
            return Ok((Token::Str(text.into()), place + 1));
        }
        if letter != '\\' {
            text.push(letter);
            continue;
        }
        let Some((place, escaped)) = letters.next() else {
            break;
        };
        let code = |start: usize, most: usize, radix: u32| {
            let digits: String = rest[start..]
                .chars()
                .take(most)
                .take_while(|digit| digit.is_digit(radix))
                .collect();
            let letter = u32::from_str_radix(&digits, radix)
                .ok()
                .and_then(char::from_u32);
            (letter, digits.len())
        };
        let (letter, digits, needed) = match escaped {
            'x' => (code(place + 1, 2, 16), 0, 2),
            'u' => (code(place + 1, 4, 16), 0, 4),
            'U' => (code(place + 1, 8, 16), 0, 8),
            '0'..='7' => (code(place, 3, 8), 1, 0),
            other => {
                match simple_escape(other) {
                    Some(letter) => text.extend(letter),
                    None => text.extend(['\\', other]),
                }
                continue;
            }
        };
        match letter {
            (Some(letter), length) if needed == 0 || length == needed => {
                text.push(letter);
                for _ in digits..length {
                    letters.next();
                }
            }
            _ => return wrong(format!("a string has an incomplete \\{escaped}")),
        }
    }
    wrong("a string does not end")
}

/// What stands for a letter after a backslash; nothing for a line break.
fn simple_escape(letter: char) -> Option<Option<char>> {
    Some(Some(match letter {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'v' => '\u{b}',
        'a' => '\u{7}',
        '\\' | '\'' | '"' => letter,
        '\n' => return Some(None),
        _ => return None,
    }))
}
