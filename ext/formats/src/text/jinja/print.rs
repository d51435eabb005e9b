//! Values as Python prints them.

use std::fmt::Write as _;

use super::budget::Budget;
use super::failure::Outcome;
use super::value::{ListKind, Value};

/// Appends what `str(value)` is.
pub fn print(value: &Value, text: &mut String, budget: &Budget<'_>) -> Outcome<()> {
    match value {
        Value::Text(content) => append(content, text, budget),
        Value::Undefined(_) => Ok(()),
        other => represent(other, text, budget),
    }
}

pub fn printed(value: &Value, budget: &Budget<'_>) -> Outcome<String> {
    let mut text = String::new();
    print(value, &mut text, budget)?;
    Ok(text)
}

pub fn append(content: &str, text: &mut String, budget: &Budget<'_>) -> Outcome<()> {
    budget.memory(content.len())?;
    text.push_str(content);
    Ok(())
}

/// Appends what `repr(value)` is.
pub fn represent(value: &Value, text: &mut String, budget: &Budget<'_>) -> Outcome<()> {
    budget.steps(1)?;
    match value {
        Value::Undefined(_) => append("Undefined", text, budget),
        Value::None => append("None", text, budget),
        Value::Bool(true) => append("True", text, budget),
        Value::Bool(false) => append("False", text, budget),
        Value::Int(number) => append(&number.to_string(), text, budget),
        Value::Float(number) => append(&float(*number), text, budget),
        Value::Text(content) => quoted(content, text, budget),
        Value::List(list) => {
            let (open, close) = match list.kind {
                ListKind::Tuple => ("(", if list.items.len() == 1 { ",)" } else { ")" }),
                _ => ("[", "]"),
            };
            append(open, text, budget)?;
            for (index, item) in list.items.iter().enumerate() {
                if index > 0 {
                    append(", ", text, budget)?;
                }
                represent(item, text, budget)?;
            }
            append(close, text, budget)
        }
        Value::Dict(dict) => {
            append("{", text, budget)?;
            for (index, (key, item)) in dict.entries.iter().enumerate() {
                if index > 0 {
                    append(", ", text, budget)?;
                }
                represent(key, text, budget)?;
                append(": ", text, budget)?;
                represent(item, text, budget)?;
            }
            append("}", text, budget)
        }
        Value::Namespace(namespace) => {
            append("<Namespace {", text, budget)?;
            for (index, (key, item)) in namespace.entries().iter().enumerate() {
                if index > 0 {
                    append(", ", text, budget)?;
                }
                quoted(key, text, budget)?;
                append(": ", text, budget)?;
                represent(item, text, budget)?;
            }
            append("}>", text, budget)
        }
        other => append(&format!("<{}>", other.type_name()), text, budget),
    }
}

fn quoted(content: &str, text: &mut String, budget: &Budget<'_>) -> Outcome<()> {
    // An escape takes up to ten letters for one byte.
    budget.memory(content.len() + 2)?;
    let quote = if content.contains('\'') && !content.contains('"') {
        '"'
    } else {
        '\''
    };
    let before = text.len();
    text.push(quote);
    for letter in content.chars() {
        match letter {
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\\' => text.push_str("\\\\"),
            letter if letter == quote => text.extend(['\\', letter]),
            letter if !is_printable(letter) => {
                // Writing to a String can't fail.
                let _ = match letter as u32 {
                    code @ 0..=0xff => write!(text, "\\x{code:02x}"),
                    code @ 0x100..=0xffff => write!(text, "\\u{code:04x}"),
                    code => write!(text, "\\U{code:08x}"),
                };
            }
            letter => text.push(letter),
        }
    }
    text.push(quote);
    let written = text.len() - before;
    budget.memory(written.saturating_sub(content.len() + 2))
}

/// The characters that Python shows as they are, but for rare unassigned ones.
fn is_printable(letter: char) -> bool {
    let code = letter as u32;
    let is_space = letter.is_whitespace() && letter != ' ';
    let is_format = matches!(code, 0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x180e
        | 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206f | 0xfeff | 0xfff9..=0xfffb
        | 0xe000..=0xf8ff | 0xe0001 | 0xe0020..=0xe007f | 0xf0000..=0x10_ffff);
    !letter.is_control() && !is_space && !is_format
}

/// Python's `repr` of a float: exponents from 1e16 on and below 1e-4, at least two digits in them.
pub fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let magnitude = number.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let scientific = format!("{number:e}");
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = number.to_string();
    if text.contains('.') {
        text
    } else {
        format!("{text}.0")
    }
}
