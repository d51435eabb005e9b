//! The methods of Python's texts, lists and dicts.

use std::sync::Arc;

use super::budget::Budget;
use super::failure::{wrong, Outcome};
use super::format;
use super::functions::{text_of, Given};
use super::operators::{self, is_equal};
use super::print::append;
use super::text::{self, Side};
use super::value::{Dict, List, Loop, Value};

const TEXT: [&str; 39] = [
    "capitalize",
    "center",
    "count",
    "endswith",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "casefold",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "title",
    "upper",
    "zfill",
];
const LIST: [&str; 2] = ["count", "index"];
const DICT: [&str; 5] = ["copy", "get", "items", "keys", "values"];
const LOOP: [&str; 2] = ["changed", "cycle"];

pub fn exists(value: &Value, name: &str) -> bool {
    match value {
        Value::Text(_) => TEXT.contains(&name),
        Value::List(_) => LIST.contains(&name),
        Value::Dict(_) => DICT.contains(&name),
        Value::Loop(_) => LOOP.contains(&name),
        _ => false,
    }
}

pub fn call(value: &Value, name: &str, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    match value {
        Value::Text(text) => {
            budget.text(text.len())?;
            of_text(text, name, given, budget)
        }
        Value::List(list) => of_list(list, name, given, budget),
        Value::Dict(dict) => of_dict(value, dict, name, given, budget),
        Value::Loop(turn) => of_loop(turn, name, given, budget),
        other => wrong(format!("'{}' has no method {name}", other.type_name())),
    }
}

fn of_text(text: &Arc<str>, name: &str, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    match name {
        "upper" => Value::text(&text.to_uppercase(), budget),
        "lower" | "casefold" => Value::text(&text.to_lowercase(), budget),
        "capitalize" => text::capitalize(text, budget),
        "title" => text::title(text, |letter| !letter.is_alphabetic(), budget),
        "strip" | "lstrip" | "rstrip" => {
            let [letters] = given.bind(name, ["chars"])?;
            let letters = optional_text(letters.as_ref(), name)?;
            let side = match name {
                "strip" => Side::Both,
                "lstrip" => Side::Left,
                _ => Side::Right,
            };
            Value::text(text::strip(text, letters.as_deref(), side), budget)
        }
        "split" | "rsplit" => {
            let [separator, most] = given.bind(name, ["sep", "maxsplit"])?;
            let separator = optional_text(separator.as_ref(), name)?;
            let most = optional_count(most.as_ref(), name)?;
            text::split(text, separator.as_deref(), most, name == "rsplit", budget)
        }
        "splitlines" => {
            let [keep] = given.bind(name, ["keepends"])?;
            let lines = text::lines(text, keep.is_some_and(|keep| keep.is_true()));
            let lines = lines.iter().map(|line| Value::text(line, budget));
            Value::list(lines.collect::<Outcome<Vec<Value>>>()?, budget)
        }
        "replace" => {
            let [old, new, count] = given.bind(name, ["old", "new", "count"])?;
            let (old, new) = (text_of(old.as_ref(), name)?, text_of(new.as_ref(), name)?);
            let count = optional_count(count.as_ref(), name)?;
            text::replace(text, &old, &new, count, budget)
        }
        "join" => {
            let [items] = given.bind(name, ["iterable"])?;
            let items = items.unwrap_or(Value::None).iterate(budget)?;
            let mut result = String::new();
            for (index, item) in items.items.iter().enumerate() {
                if index > 0 {
                    append(text, &mut result, budget)?;
                }
                append(&text_of(Some(item), name)?, &mut result, budget)?;
            }
            Ok(Value::counted(result))
        }
        "format" => format::braces(text, &given.positional, &given.named, budget),
        "center" | "ljust" | "rjust" | "zfill" => pad(text, name, given, budget),
        _ => search(text, name, given, budget),
    }
}

fn pad(text: &str, name: &str, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    let [width, fill] = given.bind(name, ["width", "fillchar"])?;
    let Some(width) = width.as_ref().and_then(Value::as_int) else {
        return wrong(format!("{name} takes a whole number"));
    };
    let fill = optional_text(fill.as_ref(), name)?;
    let fill = fill.and_then(|fill| fill.chars().next()).unwrap_or(' ');
    match name {
        "center" => text::padded(
            text,
            width,
            fill,
            |free| (free / 2, free - free / 2),
            budget,
        ),
        "ljust" => text::padded(text, width, fill, |free| (0, free), budget),
        "rjust" => text::padded(text, width, fill, |free| (free, 0), budget),
        _ => text::padded(text, width, '0', |free| (free, 0), budget),
    }
}

/// Methods that look for something in a text.
fn search(text: &str, name: &str, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    if let Some(test) = letter_test(name) {
        let holds = match name {
            "isascii" => text.is_ascii(),
            "isupper" | "islower" => {
                let cased = text
                    .chars()
                    .any(|letter| letter.is_uppercase() || letter.is_lowercase());
                cased && !text.chars().any(test)
            }
            _ => !text.is_empty() && text.chars().all(test),
        };
        return Ok(Value::Bool(holds));
    }
    let [part] = given.bind(name, ["part"])?;
    if let ("startswith" | "endswith", Some(Value::List(parts))) = (name, &part) {
        for part in &parts.items {
            let part = text_of(Some(part), name)?;
            budget.text(part.len())?;
            if is_at_end(text, &part, name) {
                return Ok(Value::Bool(true));
            }
        }
        return Ok(Value::Bool(false));
    }
    let part = text_of(part.as_ref(), name)?;
    let part = &*part;
    let place = |found: Option<usize>| match (found, name) {
        (Some(place), _) => Ok(number(text[..place].chars().count())),
        (None, "find" | "rfind") => Ok(Value::Int(-1)),
        (None, _) => wrong("substring not found"),
    };
    let three = |before: &str, after: &str| {
        let found = &text[before.len()..text.len() - after.len()];
        let parts = [before, found, after].map(|part| Value::text(part, budget));
        Value::tuple(parts.into_iter().collect::<Outcome<Vec<Value>>>()?, budget)
    };
    match name {
        "startswith" | "endswith" => Ok(Value::Bool(is_at_end(text, part, name))),
        "removeprefix" => Value::text(text.strip_prefix(part).unwrap_or(text), budget),
        "removesuffix" => Value::text(text.strip_suffix(part).unwrap_or(text), budget),
        "find" | "index" => place(text.find(part)),
        "rfind" | "rindex" => place(text.rfind(part)),
        "count" => Ok(number(text.matches(part).count())),
        "partition" | "rpartition" if part.is_empty() => wrong("empty separator"),
        "partition" => {
            let (before, after) = text.split_once(part).unwrap_or((text, ""));
            three(before, after)
        }
        "rpartition" => {
            let (before, after) = text.rsplit_once(part).unwrap_or(("", text));
            three(before, after)
        }
        _ => wrong(format!("a text has no method {name}")),
    }
}

fn is_at_end(text: &str, part: &str, name: &str) -> bool {
    match name {
        "startswith" => text.starts_with(part),
        _ => text.ends_with(part),
    }
}

/// What all letters are, or none may be for the two about case.
fn letter_test(name: &str) -> Option<fn(char) -> bool> {
    Some(match name {
        "isalnum" => char::is_alphanumeric,
        "isalpha" => char::is_alphabetic,
        "isascii" => |letter| letter.is_ascii(),
        "isdecimal" | "isdigit" | "isnumeric" => char::is_numeric,
        "isspace" => text::is_space,
        "isupper" => char::is_lowercase,
        "islower" => char::is_uppercase,
        _ => return None,
    })
}

fn number(number: usize) -> Value {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

fn optional_text(value: Option<&Value>, what: &str) -> Outcome<Option<Arc<str>>> {
    match value {
        None | Some(Value::None) => Ok(None),
        given => text_of(given, what).map(Some),
    }
}

/// A count; none for a negative one, which stands for "all" in Python.
fn optional_count(value: Option<&Value>, what: &str) -> Outcome<Option<usize>> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(value) => match value.as_int() {
            Some(count) => Ok(usize::try_from(count).ok()),
            None => wrong(format!("{what} takes a whole number")),
        },
    }
}

fn of_list(list: &List, name: &str, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    let [wanted] = given.bind(name, ["value"])?;
    let wanted = wanted.unwrap_or(Value::None);
    let mut count = 0;
    for (index, item) in list.items.iter().enumerate() {
        if is_equal(item, &wanted, budget)? {
            if name == "index" {
                return Ok(number(index));
            }
            count += 1;
        }
    }
    match name {
        "count" => Ok(number(count)),
        _ => wrong("the value is not in the list"),
    }
}

fn of_dict(
    value: &Value,
    dict: &Dict,
    name: &str,
    given: &Given,
    budget: &Budget<'_>,
) -> Outcome<Value> {
    if name == "get" {
        let [key, default] = given.bind(name, ["key", "default"])?;
        let key = key.unwrap_or(Value::None);
        operators::defined(&key)?;
        let found = dict.get(&key, budget)?.cloned();
        return Ok(found.or(default).unwrap_or(Value::None));
    }
    given.bind::<0>(name, [])?;
    match name {
        "copy" => Ok(value.clone()),
        "keys" => {
            let keys = dict.entries.iter().map(|(key, _)| key.clone());
            Value::list(keys.collect(), budget)
        }
        "values" => {
            let values = dict.entries.iter().map(|(_, value)| value.clone());
            Value::list(values.collect(), budget)
        }
        _ => pairs(dict, budget),
    }
}

/// The entries of a dict as tuples.
pub fn pairs(dict: &Dict, budget: &Budget<'_>) -> Outcome<Value> {
    let pairs: Outcome<Vec<Value>> = dict
        .entries
        .iter()
        .map(|(key, value)| Value::tuple(vec![key.clone(), value.clone()], budget))
        .collect();
    Value::list(pairs?, budget)
}

fn of_loop(turn: &Loop, name: &str, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    let values = &given.positional;
    if name == "cycle" {
        return match values.len() {
            0 => wrong("cycle takes values"),
            count => Ok(values[turn.index % count].clone()),
        };
    }
    let now = Value::list(values.clone(), budget)?;
    if now.is_changeable() {
        return wrong("changed takes plain values");
    }
    let before = turn.last.borrow().clone();
    let is_same = match &before {
        Some(before) => is_equal(before, &now, budget)?,
        None => false,
    };
    *turn.last.borrow_mut() = Some(now);
    Ok(Value::Bool(!is_same))
}
