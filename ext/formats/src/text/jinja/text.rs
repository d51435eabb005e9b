//! What Python's string methods do, for methods and filters alike.

use super::budget::Budget;
use super::failure::{wrong, Outcome};
use super::value::Value;

/// What Python takes for white space.
pub fn is_space(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, '\u{1c}'..='\u{1f}')
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Both,
    Left,
    Right,
}

/// Without the given letters, or white space, at its ends.
pub fn strip<'a>(text: &'a str, letters: Option<&str>, side: Side) -> &'a str {
    let goes = |letter: char| match letters {
        Some(letters) => letters.contains(letter),
        None => is_space(letter),
    };
    match side {
        Side::Both => text.trim_matches(goes),
        Side::Left => text.trim_start_matches(goes),
        Side::Right => text.trim_end_matches(goes),
    }
}

/// The pieces between separators, or between white space without one.
pub fn split(
    text: &str,
    separator: Option<&str>,
    most: Option<usize>,
    from_right: bool,
    budget: &Budget<'_>,
) -> Outcome<Value> {
    let pieces = most.map_or(usize::MAX, |most| most.saturating_add(1));
    let mut parts: Vec<&str> = match separator {
        Some("") => return wrong("empty separator"),
        Some(separator) => {
            budget.memory(text.matches(separator).count().min(pieces) * 16)?;
            if from_right {
                text.rsplitn(pieces, separator).collect()
            } else {
                text.splitn(pieces, separator).collect()
            }
        }
        None => {
            budget.memory(text.len().min(pieces) * 8)?;
            if from_right {
                words(text, pieces, Side::Right)
            } else {
                words(text, pieces, Side::Left)
            }
        }
    };
    if from_right {
        parts.reverse();
    }
    let parts: Outcome<Vec<Value>> = parts.iter().map(|part| Value::text(part, budget)).collect();
    Value::list(parts?, budget)
}

fn words(text: &str, pieces: usize, side: Side) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), strip(text, None, side));
    while !rest.is_empty() {
        let cut = match side {
            _ if words.len() + 1 == pieces => None,
            Side::Right => rest.rfind(is_space).map(|place| {
                let length = rest[place..].chars().next().map_or(0, char::len_utf8);
                (&rest[place + length..], &rest[..place])
            }),
            _ => rest
                .find(is_space)
                .map(|place| (&rest[..place], &rest[place..])),
        };
        let Some((word, after)) = cut else {
            words.push(rest);
            break;
        };
        words.push(word);
        rest = strip(after, None, side);
    }
    words
}

/// Lines without their ends, which are all that Python knows.
pub fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let is_end = |letter: char| {
        matches!(
            letter,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(place) = rest.find(is_end) {
        let mut length = rest[place..].chars().next().map_or(1, char::len_utf8);
        if rest[place..].starts_with("\r\n") {
            length = 2;
        }
        lines.push(&rest[..if keep_ends { place + length } else { place }]);
        rest = &rest[place + length..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

pub fn replace(
    text: &str,
    old: &str,
    new: &str,
    count: Option<usize>,
    budget: &Budget<'_>,
) -> Outcome<Value> {
    budget.text(text.len() + old.len())?;
    let count = count.unwrap_or(usize::MAX);
    let found = text.matches(old).count().min(count);
    budget.memory(text.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(Value::counted(text.replacen(old, new, count)))
}

pub fn capitalize(text: &str, budget: &Budget<'_>) -> Outcome<Value> {
    budget.memory(2 * text.len())?;
    let mut letters = text.chars();
    let first: String = letters
        .next()
        .into_iter()
        .flat_map(char::to_uppercase)
        .collect();
    Ok(Value::counted(first + &letters.as_str().to_lowercase()))
}

/// Every word with a capital; `begins` tells whether one begins after a letter.
pub fn title(text: &str, begins: fn(char) -> bool, budget: &Budget<'_>) -> Outcome<Value> {
    budget.memory(2 * text.len())?;
    let (mut result, mut at_start) = (String::with_capacity(text.len()), true);
    for letter in text.chars() {
        if at_start {
            result.extend(letter.to_uppercase());
        } else {
            result.extend(letter.to_lowercase());
        }
        at_start = begins(letter);
    }
    Ok(Value::counted(result))
}

/// With as many fill letters on the left and on the right as make it that wide.
pub fn padded(
    text: &str,
    width: i64,
    fill: char,
    share: fn(usize) -> (usize, usize),
    budget: &Budget<'_>,
) -> Outcome<Value> {
    budget.text(text.len())?;
    let width = usize::try_from(width).unwrap_or(0);
    let missing = width.saturating_sub(text.chars().count());
    let length = missing.saturating_mul(fill.len_utf8());
    budget.memory(text.len().saturating_add(length))?;
    let (left, right) = share(missing);
    let mut result = String::with_capacity(text.len() + length);
    result.extend(std::iter::repeat_n(fill, left));
    result.push_str(text);
    result.extend(std::iter::repeat_n(fill, right));
    Ok(Value::counted(result))
}

/// Every line but the first one moved to the right, as the filter of that name does.
pub fn indent(
    text: &str,
    indentation: &str,
    first: bool,
    blank: bool,
    budget: &Budget<'_>,
) -> Outcome<Value> {
    budget.text(text.len())?;
    let text = format!("{text}\n");
    let lines = lines(&text, false);
    let more = lines.len().saturating_mul(indentation.len() + 1);
    budget.memory(text.len().saturating_add(more))?;
    let mut result = String::with_capacity(text.len());
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            result.push('\n');
        }
        let is_moved = if index == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        if is_moved {
            result.push_str(indentation);
        }
        result.push_str(line);
    }
    Ok(Value::counted(result))
}
