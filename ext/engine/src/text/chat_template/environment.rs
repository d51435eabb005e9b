//! The Jinja dialect of chat templates.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{from_args, Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::json;

/// Instructions per rendering: thousands of times what real templates take.
const FUEL: u64 = 20_000_000;

/// Deeper than any real macro; shallow enough for the stack of a worker thread.
const RECURSION_LIMIT: usize = 100;

/// A template that called `raise_exception`, with its words.
#[derive(Debug)]
pub(super) struct Refusal(pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

pub(super) fn new() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .unwrap_or_default(),
    );
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_unknown_method_callback(python_method);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| strftime_now(format));
    environment.add_filter("tojson", to_json);
    environment.add_test("sequence", |value: &Value| {
        value.is_undefined()
            || matches!(
                value.kind(),
                ValueKind::Seq | ValueKind::String | ValueKind::Map
            )
    });
    environment.add_test("iterable", |value: &Value| {
        value.kind() == ValueKind::String || (!value.is_none() && value.try_iter().is_ok())
    });
    environment
}

/// `{% generation %}` marks the assistant's part for training and prints nothing by itself.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let name = tag
            .trim_start_matches("{%")
            .trim_end_matches("%}")
            .trim_matches(['-', '+'])
            .trim();
        match name {
            "generation" => result.push_str(&tag.replacen(name, "if true", 1)),
            "endgeneration" => result.push_str(&tag.replacen(name, "endif", 1)),
            _ => result.push_str(tag),
        }
        rest = after;
    }
    result.push_str(rest);
    result
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Refusal(message)))
}

/// transformers' filter: `json.dumps` without ASCII escapes, and no HTML escapes either.
fn to_json(value: &Value, ensure_ascii: Option<bool>, options: Kwargs) -> Result<String, Error> {
    let ensure_ascii = match ensure_ascii {
        Some(flag) => Some(flag),
        None => options.get("ensure_ascii")?,
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let style = json::Style {
        indent: options
            .get::<Option<Value>>("indent")?
            .filter(|indent| !indent.is_none())
            .map(|indent| json::indentation(&indent))
            .transpose()?,
        separators: match separators.as_deref() {
            None => None,
            Some([item, key]) => Some((item.clone(), key.clone())),
            Some(_) => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "separators takes two strings",
                ))
            }
        },
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: ensure_ascii.unwrap_or(false),
    };
    options.assert_all_used()?;
    json::dump(value, &style)
}

/// Python's string methods, those beyond what the pycompat module knows included.
fn python_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, method, args);
    };
    match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(text.strip_prefix(prefix).unwrap_or(text).into())
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(text.strip_suffix(suffix).unwrap_or(text).into())
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (before, after) = text.split_once(separator).unwrap_or((text, ""));
            let found = &text[before.len()..text.len() - after.len()];
            Ok([before, found, after].map(str::to_owned).to_vec().into())
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (before, after) = text.rsplit_once(separator).unwrap_or(("", text));
            let found = &text[before.len()..text.len() - after.len()];
            Ok([before, found, after].map(str::to_owned).to_vec().into())
        }
        "rsplit" => {
            let (separator, limit): (&str, Option<i64>) = from_args(args)?;
            let pieces = limit
                .and_then(|limit| usize::try_from(limit).ok())
                .map_or(usize::MAX, |limit| limit.saturating_add(1));
            let mut parts: Vec<String> =
                text.rsplitn(pieces, separator).map(str::to_owned).collect();
            parts.reverse();
            Ok(Value::from(parts))
        }
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// The local time in the given format, as Python's `datetime.now().strftime` writes it.
fn strftime_now(format: &str) -> Result<String, Error> {
    let failed = || {
        Error::new(
            ErrorKind::InvalidOperation,
            "strftime_now takes a date format",
        )
    };
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_err(|_| failed())?
        .as_secs();
    let seconds = seconds.try_into().map_err(|_| failed())?;
    // The marker tells an empty result from a buffer that is too small.
    let format = std::ffi::CString::new(format!("{format}.")).map_err(|_| failed())?;
    // SAFETY: an all-zero tm is a valid value that localtime_r overwrites.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    let mut buffer = vec![0u8; 4096];
    // SAFETY: both pointers are to live values; strftime writes at most `buffer.len()` bytes.
    let length = unsafe {
        if libc::localtime_r(&seconds, &mut parts).is_null() {
            return Err(failed());
        }
        libc::strftime(
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            format.as_ptr(),
            &parts,
        )
    };
    buffer.truncate(length);
    buffer.pop().ok_or_else(failed)?;
    String::from_utf8(buffer).map_err(|_| failed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluate(expression: &str) -> String {
        new()
            .render_str(&format!("{{{{ {expression} }}}}"), Value::UNDEFINED)
            .unwrap()
    }

    #[test]
    fn python_methods_that_templates_use() {
        assert_eq!(
            evaluate("'<think>a</think>b'.split('</think>')[-1].lstrip('\\n')"),
            "b"
        );
        assert_eq!(evaluate("'a.b.c'.rsplit('.', 1)"), "['a.b', 'c']");
        assert_eq!(evaluate("'a=b=c'.partition('=')[2]"), "b=c");
        assert_eq!(evaluate("'a=b=c'.rpartition('=')[0]"), "a=b");
        assert_eq!(evaluate("'unhappy'.removeprefix('un')"), "happy");
        assert_eq!(evaluate("{'a': 1}.get('b', 2)"), "2");
        assert_eq!(
            evaluate("'text' is iterable and 'text' is sequence"),
            "True"
        );
        assert_eq!(evaluate("none is iterable"), "False");
    }

    #[test]
    fn the_time_is_formatted() {
        let year = evaluate("strftime_now('%Y')");
        assert_eq!(year.len(), 4);
        assert!(year.parse::<u32>().unwrap() > 2024);
        assert_eq!(evaluate("strftime_now('')"), "");
    }
}
