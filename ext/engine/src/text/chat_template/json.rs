//! JSON as Python's `json.dumps` writes it, which is what models were trained on.

use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

const MAX_DEPTH: usize = 100;

pub(super) struct Style {
    /// The text of one level of indentation.
    pub indent: Option<String>,
    /// Between items, and after a key.
    pub separators: Option<(String, String)>,
    pub sort_keys: bool,
    pub ensure_ascii: bool,
}

/// `indent` as Python takes it: a number of spaces, or a string.
pub(super) fn indentation(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let spaces = value
        .as_usize()
        .filter(|&spaces| spaces <= 64)
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "indent takes 0 to 64 spaces"))?;
    Ok(" ".repeat(spaces))
}

pub(super) fn dump(value: &Value, style: &Style) -> Result<String, Error> {
    let mut text = String::new();
    Writer {
        style,
        item: match (&style.separators, &style.indent) {
            (Some((item, _)), _) => item,
            (None, None) => ", ",
            (None, Some(_)) => ",",
        },
        key: style.separators.as_ref().map_or(": ", |(_, key)| key),
    }
    .value(value, 0, &mut text)?;
    Ok(text)
}

struct Writer<'a> {
    style: &'a Style,
    item: &'a str,
    key: &'a str,
}

impl Writer<'_> {
    fn value(&self, value: &Value, depth: usize, text: &mut String) -> Result<(), Error> {
        let refused = |what: &str| Err(Error::new(ErrorKind::BadSerialization, what.to_owned()));
        if depth > MAX_DEPTH {
            return refused("the value is nested too deeply for JSON");
        }
        match value.kind() {
            ValueKind::None => text.push_str("null"),
            ValueKind::Bool => text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => text.push_str(&value.to_string()),
            ValueKind::Number => match f64::try_from(value.clone()) {
                Ok(number) => text.push_str(&python_float(number)),
                Err(error) => return Err(error),
            },
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), text),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.sequence(
                    ('[', ']'),
                    items.len(),
                    depth,
                    text,
                    |index, text| match items.get(index) {
                        Some(item) => self.value(item, depth + 1, text),
                        None => Ok(()),
                    },
                )?;
            }
            ValueKind::Map => self.map(value, depth, text)?,
            ValueKind::Undefined => return refused("an undefined value is not JSON"),
            kind => return refused(&format!("a {kind} is not JSON")),
        }
        Ok(())
    }

    fn map(&self, value: &Value, depth: usize, text: &mut String) -> Result<(), Error> {
        let mut entries = Vec::new();
        for key in value.try_iter()? {
            let item = value.get_item(&key)?;
            let name = match key.kind() {
                ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
                ValueKind::Bool | ValueKind::None | ValueKind::Number => {
                    let mut name = String::new();
                    self.value(&key, depth, &mut name)?;
                    name
                }
                kind => {
                    return Err(Error::new(
                        ErrorKind::BadSerialization,
                        format!("a {kind} is no key of a JSON object"),
                    ))
                }
            };
            entries.push((name, item));
        }
        if self.style.sort_keys {
            entries.sort_by(|left, right| left.0.cmp(&right.0));
        }
        self.sequence(('{', '}'), entries.len(), depth, text, |index, text| {
            let Some((name, item)) = entries.get(index) else {
                return Ok(());
            };
            self.string(name, text);
            text.push_str(self.key);
            self.value(item, depth + 1, text)
        })
    }

    fn sequence(
        &self,
        brackets: (char, char),
        length: usize,
        depth: usize,
        text: &mut String,
        write: impl Fn(usize, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let new_line = |depth: usize, text: &mut String| {
            if let Some(indent) = &self.style.indent {
                text.push('\n');
                text.push_str(&indent.repeat(depth));
            }
        };
        text.push(brackets.0);
        for index in 0..length {
            if index > 0 {
                text.push_str(self.item);
            }
            new_line(depth + 1, text);
            write(index, text)?;
        }
        if length > 0 {
            new_line(depth, text);
        }
        text.push(brackets.1);
        Ok(())
    }

    fn string(&self, content: &str, text: &mut String) {
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
    }
}

fn escape_units(character: char, text: &mut String) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        // Writing to a String cannot fail.
        let _ = write!(text, "\\u{unit:04x}");
    }
}

/// Python's `repr` of a float: exponents from 1e16 on and below 1e-4, at least two digits in them.
fn python_float(number: f64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::value::Serde;
    use serde_json::json;

    fn style() -> Style {
        Style {
            indent: None,
            separators: None,
            sort_keys: false,
            ensure_ascii: false,
        }
    }

    #[test]
    fn it_writes_what_python_writes() {
        let value = Value::from(Serde(json!({
            "b": [1, 2.0, -0.5, 1e-5, 1e16, 123456789.125], "a": {}, "é\"\n\u{1}": null, "t": true, "e": []
        })));
        assert_eq!(
            dump(&value, &style()).unwrap(),
            "{\"b\": [1, 2.0, -0.5, 1e-05, 1e+16, 123456789.125], \"a\": {}, \"é\\\"\\n\\u0001\": null, \"t\": true, \"e\": []}"
        );
    }

    #[test]
    fn indent_sorting_and_ascii_follow_python() {
        let value = Value::from(Serde(json!({"b": [1], "a": "é😀"})));
        let style = Style {
            indent: Some("  ".to_owned()),
            sort_keys: true,
            ensure_ascii: true,
            separators: None,
        };
        assert_eq!(
            dump(&value, &style).unwrap(),
            "{\n  \"a\": \"\\u00e9\\ud83d\\ude00\",\n  \"b\": [\n    1\n  ]\n}"
        );
    }

    #[test]
    fn undefined_values_are_refused() {
        assert!(dump(&Value::UNDEFINED, &style()).is_err());
    }
}
