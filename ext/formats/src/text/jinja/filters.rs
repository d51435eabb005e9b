//! Jinja's filters.

use std::cmp::Ordering;
use std::sync::Arc;

use super::budget::Budget;
use super::checks;
use super::failure::{wrong, Outcome};
use super::format;
use super::functions::{text_of, Given};
use super::json;
use super::methods;
use super::operators::{self, is_equal, ordering};
use super::print::{append, print, printed, represent};
use super::text::{self, Side};
use super::value::Value;

const NAMES: [&str; 49] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
    "striptags",
];

pub fn exists(name: &str) -> bool {
    NAMES.contains(&name)
}

pub fn apply(name: &str, value: &Value, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    budget.steps(1)?;
    match name {
        "default" | "d" => {
            let [other, boolean] = given.bind(name, ["default_value", "boolean"])?;
            let other = other.unwrap_or_else(|| Value::Text("".into()));
            let is_kept = if boolean.is_some_and(|flag| flag.is_true()) {
                value.is_true()
            } else {
                value.is_defined()
            };
            Ok(if is_kept { value.clone() } else { other })
        }
        "tojson" => to_json(value, given, budget),
        "upper" | "lower" | "title" | "capitalize" | "trim" | "replace" | "indent" | "center"
        | "truncate" | "wordcount" | "format" | "escape" | "e" | "forceescape" | "string"
        | "safe" | "pprint" | "urlencode" | "striptags" => on_text(name, value, given, budget),
        "abs" | "int" | "float" | "round" => on_number(name, value, given, budget),
        "map" | "select" | "reject" | "selectattr" | "rejectattr" => {
            on_each(name, value, given, budget)
        }
        "sort" | "dictsort" | "unique" | "groupby" | "min" | "max" | "sum" | "batch" | "slice" => {
            super::sequences::apply(name, value, given, budget)
        }
        _ => on_items(name, value, given, budget),
    }
}

fn on_items(name: &str, value: &Value, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    match name {
        "length" | "count" => length(value, budget),
        "first" | "last" => {
            let items = value.iterate(budget)?;
            let item = match name {
                "first" => items.items.first(),
                _ => items.items.last(),
            };
            let missing = || Value::Undefined(format!("the {name} item").into());
            Ok(item.cloned().unwrap_or_else(missing))
        }
        "list" => {
            let items = value.iterate(budget)?;
            Value::list(items.items.clone(), budget)
        }
        "items" => match value {
            Value::Dict(dict) => methods::pairs(dict, budget),
            Value::Undefined(_) => Value::list(Vec::new(), budget),
            other => wrong(format!("items takes a dict, not '{}'", other.type_name())),
        },
        "reverse" => match value {
            Value::Text(text) => {
                budget.memory(text.len())?;
                Ok(Value::counted(text.chars().rev().collect()))
            }
            other => {
                let items = other.iterate(budget)?;
                Value::generator(items.items.iter().rev().cloned().collect(), budget)
            }
        },
        "join" => {
            let [separator, attribute] = given.bind(name, ["d", "attribute"])?;
            let separator = match separator {
                Some(separator) => printed(&separator, budget)?,
                None => String::new(),
            };
            let mut text = String::new();
            for (index, item) in value.iterate(budget)?.items.iter().enumerate() {
                if index > 0 {
                    append(&separator, &mut text, budget)?;
                }
                let item = attribute_of(item, attribute.as_ref(), budget)?;
                print(&item, &mut text, budget)?;
            }
            Ok(Value::counted(text))
        }
        "attr" => {
            let [attribute] = given.bind(name, ["name"])?;
            match value {
                Value::Namespace(namespace) => {
                    let attribute = text_of(attribute.as_ref(), name)?;
                    let missing = || Value::Undefined(attribute.clone());
                    Ok(namespace.get(&attribute).unwrap_or_else(missing))
                }
                _ => Ok(Value::Undefined("an attribute".into())),
            }
        }
        _ => wrong(format!("there is no filter {name}")),
    }
}

fn length(value: &Value, budget: &Budget<'_>) -> Outcome<Value> {
    let length = match value {
        Value::Text(text) => {
            budget.text(text.len())?;
            text.chars().count()
        }
        Value::List(list) => list.items.len(),
        Value::Dict(dict) => dict.entries.len(),
        Value::Undefined(_) => 0,
        other => return wrong(format!("'{}' has no length", other.type_name())),
    };
    Ok(Value::Int(i64::try_from(length).unwrap_or(i64::MAX)))
}

fn on_text(name: &str, value: &Value, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    if name == "pprint" {
        let mut text = String::new();
        represent(value, &mut text, budget)?;
        return Ok(Value::counted(text));
    }
    let text: Arc<str> = match value {
        Value::Text(text) => text.clone(),
        other => printed(other, budget)?.into(),
    };
    budget.text(text.len())?;
    match name {
        "string" | "safe" => Ok(Value::Text(text)),
        "upper" => Value::text(&text.to_uppercase(), budget),
        "lower" => Value::text(&text.to_lowercase(), budget),
        "capitalize" => text::capitalize(&text, budget),
        "title" => {
            let begins = |letter| text::is_space(letter) || "-({[<".contains(letter);
            text::title(&text, begins, budget)
        }
        "trim" => {
            let [letters] = given.bind(name, ["chars"])?;
            let letters = match letters {
                None | Some(Value::None) => None,
                given => Some(text_of(given.as_ref(), name)?),
            };
            Value::text(text::strip(&text, letters.as_deref(), Side::Both), budget)
        }
        "replace" => {
            let [old, new, count] = given.bind(name, ["old", "new", "count"])?;
            let (Some(old), Some(new)) = (old, new) else {
                return wrong("replace takes two texts");
            };
            let (old, new) = (printed(&old, budget)?, printed(&new, budget)?);
            let count = count.and_then(|count| count.as_int());
            let count = count.and_then(|count| usize::try_from(count).ok());
            text::replace(&text, &old, &new, count, budget)
        }
        "indent" => {
            let [width, first, blank] = given.bind(name, ["width", "first", "blank"])?;
            let indentation = match width {
                Some(Value::Text(width)) => width.to_string(),
                width => {
                    let width = width.as_ref().map_or(Some(4), Value::as_int);
                    let width = usize::try_from(width.unwrap_or(-1)).unwrap_or(0);
                    budget.memory(width)?;
                    " ".repeat(width)
                }
            };
            let (first, blank) = (is_set(first.as_ref()), is_set(blank.as_ref()));
            text::indent(&text, &indentation, first, blank, budget)
        }
        "center" => {
            let [width] = given.bind(name, ["width"])?;
            let width = width.as_ref().map_or(Some(80), Value::as_int).unwrap_or(0);
            text::padded(
                &text,
                width,
                ' ',
                |free| (free / 2, free - free / 2),
                budget,
            )
        }
        "truncate" => truncate(&text, given, budget),
        "wordcount" => {
            let count = text
                .split(text::is_space)
                .filter(|word| !word.is_empty())
                .count();
            Ok(Value::Int(i64::try_from(count).unwrap_or(i64::MAX)))
        }
        "format" => {
            if given.named.is_empty() {
                format::percent(&text, &given.positional, budget)
            } else {
                wrong("format takes values by place only")
            }
        }
        "urlencode" | "striptags" => wrong(format!("the filter {name} is not supported")),
        _ => escaped(&text, budget),
    }
}

fn is_set(flag: Option<&Value>) -> bool {
    flag.is_some_and(Value::is_true)
}

fn escaped(text: &str, budget: &Budget<'_>) -> Outcome<Value> {
    let mut result = String::new();
    for letter in text.chars() {
        let mut buffer = [0; 4];
        let replaced = match letter {
            '&' => "&amp;",
            '<' => "&lt;",
            '>' => "&gt;",
            '\'' => "&#39;",
            '"' => "&#34;",
            other => &*other.encode_utf8(&mut buffer),
        };
        append(replaced, &mut result, budget)?;
    }
    Ok(Value::counted(result))
}

/// `truncate(length=255, killwords=False, end="...", leeway=5)`
fn truncate(text: &str, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    let names = ["length", "killwords", "end", "leeway"];
    let [length, kill_words, end, leeway] = given.bind("truncate", names)?;
    let count = |value: Option<&Value>, default: i64| {
        let number = value.and_then(Value::as_int).unwrap_or(default);
        usize::try_from(number).unwrap_or(0)
    };
    let (length, leeway) = (count(length.as_ref(), 255), count(leeway.as_ref(), 5));
    let end = match end {
        Some(end) => printed(&end, budget)?,
        None => "...".to_owned(),
    };
    let letters = text.chars().count();
    if letters <= length.saturating_add(leeway) {
        return Value::text(text, budget);
    }
    let kept = length.saturating_sub(end.chars().count());
    let place = text
        .char_indices()
        .nth(kept)
        .map_or(text.len(), |(place, _)| place);
    let mut start = &text[..place];
    if !is_set(kill_words.as_ref()) {
        start = start.rsplit_once(' ').map_or(start, |(start, _)| start);
    }
    Value::text(&[start, &end].concat(), budget)
}

fn on_number(name: &str, value: &Value, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    let text = value
        .as_text()
        .map(|text| text::strip(text, None, Side::Both));
    match name {
        "abs" => match (value.as_int(), value) {
            (Some(number), _) => Ok(Value::Int(number.saturating_abs())),
            (None, Value::Float(number)) => Ok(Value::Float(number.abs())),
            _ => wrong(format!("abs takes a number, not '{}'", value.type_name())),
        },
        "int" => {
            let [default, base] = given.bind(name, ["default", "base"])?;
            let base = base.and_then(|base| base.as_int()).unwrap_or(10);
            let base = u32::try_from(base)
                .ok()
                .filter(|base| (2..=36).contains(base));
            let default = default.unwrap_or(Value::Int(0));
            let parsed = match (value, text) {
                (_, Some(text)) => {
                    let whole = i64::from_str_radix(text, base.unwrap_or(10)).ok();
                    whole.or_else(|| text.parse::<f64>().ok().map(|number| number as i64))
                }
                (Value::Float(number), None) if number.is_finite() => Some(*number as i64),
                (other, None) => other.as_int(),
            };
            Ok(parsed.map_or(default, Value::Int))
        }
        "float" => {
            let [default] = given.bind(name, ["default"])?;
            let parsed = match text {
                Some(text) => text.parse().ok(),
                None => value.as_float(),
            };
            Ok(parsed.map_or(default.unwrap_or(Value::Float(0.0)), Value::Float))
        }
        _ => {
            let [digits, method] = given.bind(name, ["precision", "method"])?;
            let digits = digits
                .and_then(|digits| digits.as_int())
                .unwrap_or(0)
                .clamp(-300, 300);
            let method = match method {
                Some(method) => printed(&method, budget)?,
                None => "common".to_owned(),
            };
            let Some(number) = value.as_float() else {
                return wrong(format!("round takes a number, not '{}'", value.type_name()));
            };
            if let (Value::Int(_), "common", true) = (value, method.as_str(), digits >= 0) {
                return Ok(value.clone());
            }
            let scale = 10f64.powi(digits as i32);
            Ok(Value::Float(match method.as_str() {
                "ceil" => (number * scale).ceil() / scale,
                "floor" => (number * scale).floor() / scale,
                _ => (number * scale).round_ties_even() / scale,
            }))
        }
    }
}

/// An item, or what lies at a dotted path in it.
pub fn attribute_of(item: &Value, path: Option<&Value>, budget: &Budget<'_>) -> Outcome<Value> {
    let path = match path {
        None | Some(Value::None) => return Ok(item.clone()),
        Some(Value::Int(_)) => return part_of(item, path, budget),
        path => text_of(path, "attribute")?,
    };
    let mut value = item.clone();
    for name in path.split('.') {
        let key = match name.parse::<i64>() {
            Ok(index) => Value::Int(index),
            Err(_) => Value::Text(name.into()),
        };
        value = part_of(&value, Some(&key), budget)?;
    }
    Ok(value)
}

fn part_of(value: &Value, key: Option<&Value>, budget: &Budget<'_>) -> Outcome<Value> {
    operators::defined(value)?;
    let found = match (value, key) {
        (Value::Namespace(namespace), Some(Value::Text(name))) => namespace.get(name),
        (_, Some(key)) => operators::item(value, key, budget)?,
        (_, None) => None,
    };
    Ok(found.unwrap_or_else(|| Value::Undefined("an attribute".into())))
}

/// Filters that look at every item, by a filter, a test or an attribute.
fn on_each(name: &str, value: &Value, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    let mut results = Vec::new();
    // Jinja takes whatever is false for nothing.
    if !value.is_true() {
        return Value::generator(results, budget);
    }
    for item in &value.iterate(budget)?.items {
        budget.steps(1)?;
        if name == "map" {
            results.push(mapped(item, given, budget)?);
            continue;
        }
        let by_attribute = name.ends_with("attr");
        let (attribute, test) = if by_attribute {
            (given.positional.first(), given.positional.get(1..))
        } else {
            (None, Some(&given.positional[..]))
        };
        if by_attribute && attribute.is_none() {
            return wrong(format!("{name} takes an attribute"));
        }
        let examined = attribute_of(item, attribute, budget)?;
        let holds = match test {
            Some([test, others @ ..]) => {
                checks::holds(&text_of(Some(test), name)?, &examined, others, budget)?
            }
            _ => examined.is_true(),
        };
        if holds == name.starts_with("select") {
            results.push(item.clone());
        }
    }
    Value::generator(results, budget)
}

fn mapped(item: &Value, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    if let Some((filter, others)) = given.positional.split_first() {
        let given = Given {
            positional: others.to_vec(),
            named: given.named.clone(),
        };
        return apply(&text_of(Some(filter), "map")?, item, &given, budget);
    }
    let [attribute, default] = given.bind("map", ["attribute", "default"])?;
    let found = attribute_of(item, attribute.as_ref(), budget)?;
    match default {
        Some(default) if !found.is_defined() => Ok(default),
        _ => Ok(found),
    }
}

/// transformers' filter: `json.dumps` without ASCII escapes, and no HTML escapes either.
fn to_json(value: &Value, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ensure_ascii, indent, separators, sort_keys] = given.bind("tojson", names)?;
    let indent = indent.filter(|indent| !matches!(indent, Value::None));
    let separators = match separators.filter(|given| !matches!(given, Value::None)) {
        None => None,
        Some(given) => match &given.iterate(budget)?.items[..] {
            [Value::Text(item), Value::Text(key)] => Some((item.to_string(), key.to_string())),
            _ => return wrong("separators takes two strings"),
        },
    };
    let style = json::Style {
        indent: indent.as_ref().map(json::indentation).transpose()?,
        separators,
        sort_keys: is_set(sort_keys.as_ref()),
        ensure_ascii: is_set(ensure_ascii.as_ref()),
    };
    json::dump(value, &style, budget).map(Value::counted)
}

/// How two values are ordered for a sort; text by its letters alone unless case matters.
pub fn sorted_order(
    left: &Value,
    right: &Value,
    with_case: bool,
    budget: &Budget<'_>,
) -> Outcome<Ordering> {
    let order = match (left, right) {
        (Value::Text(one), Value::Text(other)) if !with_case => {
            budget.text(one.len() + other.len())?;
            Some(one.to_lowercase().cmp(&other.to_lowercase()))
        }
        _ => ordering(left, right, budget)?,
    };
    Ok(order.unwrap_or(Ordering::Equal))
}

/// Whether two values are the same to `unique` and `groupby`.
pub fn is_alike(
    left: &Value,
    right: &Value,
    with_case: bool,
    budget: &Budget<'_>,
) -> Outcome<bool> {
    match (left, right) {
        (Value::Text(one), Value::Text(other)) if !with_case => {
            budget.text(one.len() + other.len())?;
            Ok(one.to_lowercase() == other.to_lowercase())
        }
        _ => is_equal(left, right, budget),
    }
}
