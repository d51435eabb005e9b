//! Python's operators on values.

use std::cmp::Ordering;

use super::budget::Budget;
use super::failure::{wrong, Outcome};
use super::format;
use super::syntax::{Comparator, Operator};
use super::value::{is_same_key, List, ListKind, Value};

pub fn arithmetic(
    operator: Operator,
    left: &Value,
    right: &Value,
    budget: &Budget<'_>,
) -> Outcome<Value> {
    budget.steps(1)?;
    match (operator, left, right) {
        (Operator::Add, Value::Text(one), Value::Text(other)) => {
            budget.memory(one.len() + other.len())?;
            Ok(Value::counted([&**one, &**other].concat()))
        }
        (Operator::Add, Value::List(one), Value::List(other)) => {
            budget.memory((one.items.len() + other.items.len()) * size_of::<Value>())?;
            let items = [&one.items[..], &other.items[..]].concat();
            Value::list(items, budget)
        }
        (Operator::Multiply, Value::Text(text), count)
        | (Operator::Multiply, count, Value::Text(text))
            if count.as_int().is_some() =>
        {
            let count = repeats(count);
            budget.memory(text.len().saturating_mul(count))?;
            Ok(Value::counted(text.repeat(count)))
        }
        (Operator::Multiply, Value::List(list), count)
        | (Operator::Multiply, count, Value::List(list))
            if count.as_int().is_some() =>
        {
            let count = repeats(count);
            let length = list.items.len().saturating_mul(count);
            budget.memory(length.saturating_mul(size_of::<Value>()))?;
            let items = std::iter::repeat_n(&list.items, count).flatten();
            Value::list(items.cloned().collect(), budget)
        }
        (Operator::Modulo, Value::Text(pattern), _) => {
            let values = match right {
                Value::List(list) if list.kind == ListKind::Tuple => &list.items[..],
                other => std::slice::from_ref(other),
            };
            format::percent(pattern, values, budget)
        }
        _ => numbers(operator, left, right),
    }
}

fn repeats(count: &Value) -> usize {
    usize::try_from(count.as_int().unwrap_or(0)).unwrap_or(0)
}

fn numbers(operator: Operator, left: &Value, right: &Value) -> Outcome<Value> {
    let whole = (left.as_int(), right.as_int());
    if let ((Some(one), Some(other)), false) = (whole, operator == Operator::Divide) {
        return whole_numbers(operator, one, other);
    }
    let (Some(one), Some(other)) = (left.as_float(), right.as_float()) else {
        return unsupported(operator, left, right);
    };
    if other == 0.0
        && matches!(
            operator,
            Operator::Divide | Operator::FloorDivide | Operator::Modulo
        )
    {
        return wrong("division by zero");
    }
    Ok(Value::Float(match operator {
        Operator::Add => one + other,
        Operator::Subtract => one - other,
        Operator::Multiply => one * other,
        Operator::Divide => one / other,
        Operator::FloorDivide => (one / other).floor(),
        Operator::Modulo => one - other * (one / other).floor(),
        Operator::Power => one.powf(other),
    }))
}

fn whole_numbers(operator: Operator, one: i64, other: i64) -> Outcome<Value> {
    if other == 0 && matches!(operator, Operator::FloorDivide | Operator::Modulo) {
        return wrong("division by zero");
    }
    let result = match operator {
        Operator::Add => one.checked_add(other),
        Operator::Subtract => one.checked_sub(other),
        Operator::Multiply => one.checked_mul(other),
        Operator::FloorDivide => one.checked_div(other).map(|quotient| {
            let is_inexact = one % other != 0 && (one < 0) != (other < 0);
            quotient - i64::from(is_inexact)
        }),
        Operator::Modulo => one.checked_rem(other).map(|rest| {
            if rest != 0 && (rest < 0) != (other < 0) {
                rest + other
            } else {
                rest
            }
        }),
        Operator::Power if other < 0 => return Ok(Value::Float((one as f64).powf(other as f64))),
        Operator::Power => u32::try_from(other)
            .ok()
            .and_then(|power| one.checked_pow(power)),
        Operator::Divide => None,
    };
    match result {
        Some(number) => Ok(Value::Int(number)),
        None => wrong("a number is too large"),
    }
}

fn unsupported<T>(operator: Operator, left: &Value, right: &Value) -> Outcome<T> {
    for value in [left, right] {
        defined(value)?;
    }
    let sign = match operator {
        Operator::Add => "+",
        Operator::Subtract => "-",
        Operator::Multiply => "*",
        Operator::Divide => "/",
        Operator::FloorDivide => "//",
        Operator::Modulo => "%",
        Operator::Power => "**",
    };
    wrong(format!(
        "{sign} does not take '{}' and '{}'",
        left.type_name(),
        right.type_name()
    ))
}

/// An error for a value that does not exist.
pub fn defined(value: &Value) -> Outcome<()> {
    match value {
        Value::Undefined(name) => wrong(format!("{name} is undefined")),
        _ => Ok(()),
    }
}

pub fn negative(value: &Value) -> Outcome<Value> {
    match (value.as_int(), value) {
        (Some(number), _) => match number.checked_neg() {
            Some(number) => Ok(Value::Int(number)),
            None => wrong("a number is too large"),
        },
        (None, Value::Float(number)) => Ok(Value::Float(-number)),
        _ => {
            defined(value)?;
            wrong(format!("- does not take '{}'", value.type_name()))
        }
    }
}

pub fn compare(
    comparator: Comparator,
    left: &Value,
    right: &Value,
    budget: &Budget<'_>,
) -> Outcome<bool> {
    let order = |wanted: &[Ordering]| {
        let order = ordering(left, right, budget)?;
        Ok(order.is_some_and(|order| wanted.contains(&order)))
    };
    match comparator {
        Comparator::Equal => is_equal(left, right, budget),
        Comparator::NotEqual => Ok(!is_equal(left, right, budget)?),
        Comparator::Less => order(&[Ordering::Less]),
        Comparator::LessOrEqual => order(&[Ordering::Less, Ordering::Equal]),
        Comparator::Greater => order(&[Ordering::Greater]),
        Comparator::GreaterOrEqual => order(&[Ordering::Greater, Ordering::Equal]),
        Comparator::In => contains(right, left, budget),
        Comparator::NotIn => Ok(!contains(right, left, budget)?),
    }
}

pub fn is_equal(left: &Value, right: &Value, budget: &Budget<'_>) -> Outcome<bool> {
    budget.steps(1)?;
    match (left, right) {
        (Value::Text(one), Value::Text(other)) => {
            budget.text(one.len().min(other.len()))?;
            Ok(one == other)
        }
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => Ok(true),
        (Value::List(one), Value::List(other)) => {
            if one.kind != other.kind || one.items.len() != other.items.len() {
                return Ok(false);
            }
            for (one, other) in one.items.iter().zip(&other.items) {
                if !is_equal(one, other, budget)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Value::Dict(one), Value::Dict(other)) => {
            if one.entries.len() != other.entries.len() {
                return Ok(false);
            }
            for (key, value) in &one.entries {
                match other.get(key, budget)? {
                    Some(found) if is_equal(value, found, budget)? => {}
                    _ => return Ok(false),
                }
            }
            Ok(true)
        }
        (Value::Namespace(one), Value::Namespace(other)) => Ok(std::rc::Rc::ptr_eq(one, other)),
        _ => Ok(is_same_key(left, right)),
    }
}

/// How two values are ordered; nothing for NaN.
pub fn ordering(left: &Value, right: &Value, budget: &Budget<'_>) -> Outcome<Option<Ordering>> {
    budget.steps(1)?;
    match (left, right) {
        (Value::Text(one), Value::Text(other)) => {
            budget.text(one.len().min(other.len()))?;
            Ok(Some(one.cmp(other)))
        }
        (Value::List(one), Value::List(other)) => {
            for (left, right) in one.items.iter().zip(&other.items) {
                if !is_equal(left, right, budget)? {
                    return ordering(left, right, budget);
                }
            }
            Ok(Some(one.items.len().cmp(&other.items.len())))
        }
        _ => match (left.as_int(), right.as_int()) {
            (Some(one), Some(other)) => Ok(Some(one.cmp(&other))),
            _ => match (left.as_float(), right.as_float()) {
                (Some(one), Some(other)) => Ok(one.partial_cmp(&other)),
                _ => {
                    defined(left)?;
                    defined(right)?;
                    wrong(format!(
                        "'{}' and '{}' can't be compared",
                        left.type_name(),
                        right.type_name()
                    ))
                }
            },
        },
    }
}

pub fn contains(container: &Value, value: &Value, budget: &Budget<'_>) -> Outcome<bool> {
    match container {
        Value::Text(text) => match value {
            Value::Text(part) => {
                budget.text(text.len() + part.len())?;
                Ok(text.contains(&**part))
            }
            other => wrong(format!("a text does not contain '{}'", other.type_name())),
        },
        Value::Dict(dict) => Ok(dict.get(value, budget)?.is_some()),
        other => {
            for item in &other.iterate(budget)?.items {
                if is_equal(item, value, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

/// `value[key]`; nothing where there is no such item.
pub fn item(value: &Value, key: &Value, budget: &Budget<'_>) -> Outcome<Option<Value>> {
    budget.steps(1)?;
    match (value, key.as_int()) {
        (Value::Dict(dict), _) => Ok(dict.get(key, budget)?.cloned()),
        (Value::List(list), Some(index)) => {
            let index = position(index, list.items.len());
            Ok(index.and_then(|index| list.items.get(index)).cloned())
        }
        (Value::Text(text), Some(index)) => {
            budget.text(text.len())?;
            let letter = match usize::try_from(index) {
                Ok(index) => text.chars().nth(index),
                Err(_) => usize::try_from(index.unsigned_abs() - 1)
                    .ok()
                    .and_then(|back| text.chars().nth_back(back)),
            };
            Ok(letter.map(|letter| Value::counted(letter.to_string())))
        }
        _ => Ok(None),
    }
}

fn position(index: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).ok()?;
    let index = if index < 0 { index + length } else { index };
    usize::try_from(index).ok()
}

/// `value[start:stop:step]` with Python's rules.
pub fn slice(value: &Value, parts: [Value; 3], budget: &Budget<'_>) -> Outcome<Value> {
    let mut bounds = [None; 3];
    for (bound, part) in bounds.iter_mut().zip(&parts) {
        *bound = match part {
            Value::None => None,
            other => match other.as_int() {
                Some(number) => Some(number),
                None => return wrong("the parts of a slice are whole numbers"),
            },
        };
    }
    let [start, stop, step] = bounds;
    let step = step.unwrap_or(1);
    if step == 0 {
        return wrong("the step of a slice can't be 0");
    }
    match value {
        Value::List(list) => {
            let places = places(list.items.len(), start, stop, step);
            budget.memory(places.len() * size_of::<Value>())?;
            let items = places.filter_map(|place| list.items.get(place).cloned());
            sliced(list, items.collect(), budget)
        }
        Value::Text(text) => {
            budget.memory(text.len() * 4)?;
            let letters: Vec<char> = text.chars().collect();
            let places = places(letters.len(), start, stop, step);
            let text: String = places.filter_map(|place| letters.get(place)).collect();
            Ok(Value::counted(text))
        }
        other => {
            defined(other)?;
            wrong(format!("'{}' has no slices", other.type_name()))
        }
    }
}

fn sliced(list: &List, items: Vec<Value>, budget: &Budget<'_>) -> Outcome<Value> {
    match list.kind {
        ListKind::Tuple => Value::tuple(items, budget),
        _ => Value::list(items, budget),
    }
}

fn places(
    length: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl ExactSizeIterator<Item = usize> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let (lowest, highest) = if step > 0 {
        (0, length)
    } else {
        (-1, length - 1)
    };
    let bound = |given: Option<i64>, default: i64| match given {
        None => default,
        Some(index) if index < 0 => (index.saturating_add(length)).clamp(lowest, highest),
        Some(index) => index.clamp(lowest, highest),
    };
    let (first, end) = if step > 0 {
        (bound(start, 0), bound(stop, length))
    } else {
        (bound(start, length - 1), bound(stop, -1))
    };
    let distance = if step > 0 { end - first } else { first - end };
    let stride = step.unsigned_abs();
    let count = match u64::try_from(distance) {
        Ok(distance) => usize::try_from(distance.div_ceil(stride)).unwrap_or(0),
        Err(_) => 0,
    };
    (0..count).map(move |turn| {
        let place = first.saturating_add(step.saturating_mul(turn as i64));
        usize::try_from(place).unwrap_or(usize::MAX)
    })
}

/// Sorts by what fails.
pub fn sort<T: Clone>(
    items: &mut Vec<T>,
    compare: &mut impl FnMut(&T, &T) -> Outcome<Ordering>,
) -> Outcome<()> {
    let mut width = 1;
    while width < items.len() {
        let mut merged = Vec::with_capacity(items.len());
        for pair in items.chunks(2 * width) {
            let (left, right) = pair.split_at(width.min(pair.len()));
            let (mut one, mut other) = (0, 0);
            while one < left.len() && other < right.len() {
                if compare(&right[other], &left[one])? == Ordering::Less {
                    merged.push(right[other].clone());
                    other += 1;
                } else {
                    merged.push(left[one].clone());
                    one += 1;
                }
            }
            merged.extend_from_slice(&left[one..]);
            merged.extend_from_slice(&right[other..]);
        }
        *items = merged;
        width *= 2;
    }
    Ok(())
}
