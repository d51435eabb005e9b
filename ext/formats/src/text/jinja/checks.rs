//! Jinja's tests: what stands after `is`.

use super::budget::Budget;
use super::failure::{wrong, Outcome};
use super::filters;
use super::operators::{compare, is_equal};
use super::syntax::Comparator;
use super::value::{ListKind, Value};

pub fn holds(name: &str, value: &Value, given: &[Value], budget: &Budget<'_>) -> Outcome<bool> {
    budget.steps(1)?;
    if let Some(comparator) = comparator(name) {
        return match given {
            [other] => compare(comparator, value, other, budget),
            _ => wrong(format!("the test {name} takes one value")),
        };
    }
    match (name, given) {
        ("divisibleby", [other]) => match (value.as_int(), other.as_int()) {
            (Some(number), Some(other)) if other != 0 => Ok(number.checked_rem(other) == Some(0)),
            _ => wrong("divisibleby takes whole numbers but 0"),
        },
        ("sameas", [other]) => is_equal(value, other, budget),
        (_, []) => plain(name, value, budget),
        _ => wrong(format!(
            "there is no test {name} with {} arguments",
            given.len()
        )),
    }
}

fn comparator(name: &str) -> Option<Comparator> {
    Some(match name {
        "eq" | "equalto" | "==" => Comparator::Equal,
        "ne" | "!=" => Comparator::NotEqual,
        "lt" | "lessthan" | "<" => Comparator::Less,
        "le" | "<=" => Comparator::LessOrEqual,
        "gt" | "greaterthan" | ">" => Comparator::Greater,
        "ge" | ">=" => Comparator::GreaterOrEqual,
        "in" => Comparator::In,
        _ => return None,
    })
}

fn plain(name: &str, value: &Value, budget: &Budget<'_>) -> Outcome<bool> {
    Ok(match name {
        "defined" => value.is_defined(),
        "undefined" => !value.is_defined(),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_float().is_some(),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "iterable" => matches!(
            value,
            Value::Undefined(_) | Value::Text(_) | Value::List(_) | Value::Dict(_)
        ),
        "sequence" => match value {
            Value::List(list) => list.kind != ListKind::Generator,
            other => matches!(other, Value::Undefined(_) | Value::Text(_) | Value::Dict(_)),
        },
        "callable" => matches!(
            value,
            Value::Macro(_) | Value::Function(_) | Value::Method(..)
        ),
        "odd" | "even" => match value.as_int() {
            Some(number) => (number % 2 == 0) == (name == "even"),
            None => return wrong(format!("the test {name} takes a whole number")),
        },
        "lower" | "upper" => match value {
            Value::Text(text) => {
                budget.text(text.len())?;
                let is_cased = text.chars().any(char::is_alphabetic);
                let other: fn(char) -> bool = match name {
                    "lower" => char::is_uppercase,
                    _ => char::is_lowercase,
                };
                is_cased && !text.chars().any(other)
            }
            _ => false,
        },
        "escaped" => false,
        "filter" => matches!(value, Value::Text(name) if filters::exists(name)),
        _ => return wrong(format!("there is no test {name}")),
    })
}
