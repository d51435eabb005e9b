//! JSON as Python's `json.dumps` writes it, which is what models were trained on.

use std::fmt::Write as _;

use super::budget::Budget;
use super::failure::{wrong, Outcome};
use super::print::{append, float};
use super::value::Value;

#[derive(Default)]
pub struct Style {
    /// The text of one level of indentation.
    pub indent: Option<String>,
    /// Between items, and after a key.
    pub separators: Option<(String, String)>,
    pub sort_keys: bool,
    pub ensure_ascii: bool,
}

/// `indent` as Python takes it: a number of spaces, or a string.
pub fn indentation(value: &Value) -> Outcome<String> {
    if let Some(text) = value.as_text() {
        return Ok(text.to_string());
    }
    match value
        .as_int()
        .and_then(|spaces| usize::try_from(spaces).ok())
    {
        Some(spaces @ 0..=64) => Ok(" ".repeat(spaces)),
        _ => wrong("indent takes 0 to 64 spaces"),
    }
}

pub fn dump(value: &Value, style: &Style, budget: &Budget<'_>) -> Outcome<String> {
    let mut text = String::new();
    Writer {
        style,
        item: match (&style.separators, &style.indent) {
            (Some((item, _)), _) => item,
            (None, None) => ", ",
            (None, Some(_)) => ",",
        },
        key: style.separators.as_ref().map_or(": ", |(_, key)| key),
        budget,
    }
    .value(value, 0, &mut text)?;
    Ok(text)
}

struct Writer<'a> {
    style: &'a Style,
    item: &'a str,
    key: &'a str,
    budget: &'a Budget<'a>,
}

impl Writer<'_> {
    fn value(&self, value: &Value, depth: usize, text: &mut String) -> Outcome<()> {
        self.budget.steps(1)?;
        match value {
            Value::None => append("null", text, self.budget),
            Value::Bool(true) => append("true", text, self.budget),
            Value::Bool(false) => append("false", text, self.budget),
            Value::Int(number) => append(&number.to_string(), text, self.budget),
            Value::Float(number) => append(&json_float(*number), text, self.budget),
            Value::Text(content) => self.string(content, text),
            Value::List(list) => {
                let write = |index: usize, text: &mut String| match list.items.get(index) {
                    Some(item) => self.value(item, depth + 1, text),
                    None => Ok(()),
                };
                self.sequence(("[", "]"), list.items.len(), depth, text, write)
            }
            Value::Dict(dict) => self.map(&dict.entries, depth, text),
            Value::Undefined(_) => wrong("an undefined value is not JSON"),
            other => wrong(format!("a {} is not JSON", other.type_name())),
        }
    }

    fn map(&self, entries: &[(Value, Value)], depth: usize, text: &mut String) -> Outcome<()> {
        let mut named = Vec::with_capacity(entries.len());
        for (key, item) in entries {
            let name = match key {
                Value::Text(name) => name.to_string(),
                Value::Bool(_) | Value::None | Value::Int(_) | Value::Float(_) => {
                    let mut name = String::new();
                    self.value(key, depth, &mut name)?;
                    name
                }
                other => {
                    return wrong(format!(
                        "a {} can't be a key of a JSON object",
                        other.type_name()
                    ))
                }
            };
            self.budget.memory(name.len())?;
            named.push((name, item));
        }
        if self.style.sort_keys {
            named.sort_by(|left, right| left.0.cmp(&right.0));
        }
        self.sequence(("{", "}"), named.len(), depth, text, |index, text| {
            let Some((name, item)) = named.get(index) else {
                return Ok(());
            };
            self.string(name, text)?;
            append(self.key, text, self.budget)?;
            self.value(item, depth + 1, text)
        })
    }

    fn sequence(
        &self,
        brackets: (&str, &str),
        length: usize,
        depth: usize,
        text: &mut String,
        write: impl Fn(usize, &mut String) -> Outcome<()>,
    ) -> Outcome<()> {
        let new_line = |depth: usize, text: &mut String| {
            let Some(indent) = &self.style.indent else {
                return Ok(());
            };
            append("\n", text, self.budget)?;
            (0..depth).try_for_each(|_| append(indent, text, self.budget))
        };
        append(brackets.0, text, self.budget)?;
        for index in 0..length {
            if index > 0 {
                append(self.item, text, self.budget)?;
            }
            new_line(depth + 1, text)?;
            write(index, text)?;
        }
        if length > 0 {
            new_line(depth, text)?;
        }
        append(brackets.1, text, self.budget)
    }

    fn string(&self, content: &str, text: &mut String) -> Outcome<()> {
        self.budget.memory(content.len() + 2)?;
        let before = text.len();
        text.push('"');
        for character in content.chars() {
            match character {
                '"' => text.push_str("\\\""),
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\u{8}' => text.push_str("\\b"),
                '\u{c}' => text.push_str("\\f"),
                control if control < ' ' => escape_units(control, text),
                other if self.style.ensure_ascii && !other.is_ascii() => escape_units(other, text),
                other => text.push(other),
            }
        }
        text.push('"');
        let written = text.len() - before;
        self.budget
            .memory(written.saturating_sub(content.len() + 2))
    }
}

fn escape_units(character: char, text: &mut String) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        // Writing to a String cannot fail.
        let _ = write!(text, "\\u{unit:04x}");
    }
}

fn json_float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned();
    }
    float(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::runtime::cancel::CancelToken;
    use serde_json::json;

    fn dumped(json: serde_json::Value, style: &Style) -> String {
        let cancel = CancelToken::new();
        let budget = Budget::new(&cancel);
        let value = Value::from_json(&json, &budget).unwrap();
        dump(&value, style, &budget).unwrap()
    }

    #[test]
    fn it_writes_what_python_writes() {
        let value = json!({
            "b": [1, 2.0, -0.5, 1e-5, 1e16, 123456789.125], "a": {}, "é\"\n\u{1}": null, "t": true, "e": []
        });
        assert_eq!(
            dumped(value, &Style::default()),
            "{\"b\": [1, 2.0, -0.5, 1e-05, 1e+16, 123456789.125], \"a\": {}, \"é\\\"\\n\\u0001\": null, \"t\": true, \"e\": []}"
        );
    }

    #[test]
    fn indent_sorting_and_ascii_follow_python() {
        let style = Style {
            indent: Some("  ".to_owned()),
            sort_keys: true,
            ensure_ascii: true,
            separators: None,
        };
        assert_eq!(
            dumped(json!({"b": [1], "a": "é😀"}), &style),
            "{\n  \"a\": \"\\u00e9\\ud83d\\ude00\",\n  \"b\": [\n    1\n  ]\n}"
        );
    }

    #[test]
    fn undefined_values_are_refused() {
        let cancel = CancelToken::new();
        let value = Value::Undefined("x".into());
        assert!(dump(&value, &Style::default(), &Budget::new(&cancel)).is_err());
    }
}
