//! The functions of chat templates, and arguments by place and by name.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::budget::Budget;
use super::failure::{wrong, Cause, Outcome};
use super::operators;
use super::print::printed;
use super::value::{is_same_key, Namespace, Value};

/// As long as a range may be in Jinja's sandbox.
const LONGEST_RANGE: u64 = 100_000;

const NAMES: [&str; 5] = [
    "range",
    "namespace",
    "dict",
    "raise_exception",
    "strftime_now",
];

pub fn named(name: &str) -> Option<&'static str> {
    NAMES.into_iter().find(|known| *known == name)
}

/// What a call was given.
#[derive(Default)]
pub struct Given {
    pub positional: Vec<Value>,
    pub named: Vec<(Arc<str>, Value)>,
}

impl Given {
    /// The arguments in the order of their names; an error for any other.
    pub fn bind<const COUNT: usize>(
        &self,
        what: &str,
        names: [&str; COUNT],
    ) -> Outcome<[Option<Value>; COUNT]> {
        if self.positional.len() > COUNT {
            return wrong(format!(
                "{what} takes {COUNT} arguments at most, not {}",
                self.positional.len()
            ));
        }
        let mut bound = [const { None }; COUNT];
        for (place, value) in bound.iter_mut().zip(&self.positional) {
            *place = Some(value.clone());
        }
        for (name, value) in &self.named {
            match names.iter().position(|known| **known == **name) {
                Some(place) if bound[place].is_none() => bound[place] = Some(value.clone()),
                _ => return wrong(format!("{what} has no argument {name}, or has it twice")),
            }
        }
        Ok(bound)
    }
}

/// The text in an argument that must be one.
pub fn text_of(value: Option<&Value>, what: &str) -> Outcome<Arc<str>> {
    match value {
        Some(Value::Text(text)) => Ok(text.clone()),
        Some(other) => wrong(format!("{what} takes a text, not '{}'", other.type_name())),
        None => wrong(format!("{what} takes a text")),
    }
}

pub fn call(name: &str, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    match name {
        "range" => range(given, budget),
        "namespace" => {
            let namespace = Namespace::default();
            if let [Value::Dict(dict)] = &given.positional[..] {
                for (key, value) in &dict.entries {
                    let key = text_of(Some(key), "namespace")?;
                    namespace.set(&key, value.clone(), budget)?;
                }
            } else if !given.positional.is_empty() {
                return wrong("namespace takes a dict, or named values");
            }
            for (key, value) in &given.named {
                namespace.set(key, value.clone(), budget)?;
            }
            Ok(Value::Namespace(Rc::new(namespace)))
        }
        "dict" => {
            let mut entries = match &given.positional[..] {
                [] => Vec::new(),
                [Value::Dict(dict)] => dict.entries.clone(),
                _ => return wrong("dict takes a dict, or named values"),
            };
            for (key, value) in &given.named {
                insert(
                    &mut entries,
                    Value::Text(key.clone()),
                    value.clone(),
                    budget,
                )?;
            }
            Value::dict(entries, budget)
        }
        "raise_exception" => {
            let [message] = given.bind(name, ["message"])?;
            let message = message.unwrap_or(Value::None);
            Err(Cause::Refused(printed(&message, budget)?).into())
        }
        _ => {
            let [format] = given.bind(name, ["format"])?;
            strftime_now(&text_of(format.as_ref(), name)?, budget)
        }
    }
}

/// Adds an entry to those of a dict, in the place of one with the same key.
pub fn insert(
    entries: &mut Vec<(Value, Value)>,
    key: Value,
    value: Value,
    budget: &Budget<'_>,
) -> Outcome<()> {
    budget.steps(1 + entries.len() / 16)?;
    if !matches!(key, Value::Text(_) | Value::None) && key.as_float().is_none() {
        operators::defined(&key)?;
        return wrong(format!("'{}' can't be the key of a dict", key.type_name()));
    }
    match entries
        .iter_mut()
        .find(|(known, _)| is_same_key(known, &key))
    {
        Some((_, old)) => *old = value,
        None => entries.push((key, value)),
    }
    Ok(())
}

fn range(given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    let whole: Option<Vec<i64>> = given.positional.iter().map(Value::as_int).collect();
    let (start, stop, step) = match whole.as_deref() {
        Some([stop]) => (0, *stop, 1),
        Some([start, stop]) => (*start, *stop, 1),
        Some([start, stop, step]) if *step != 0 => (*start, *stop, *step),
        _ => return wrong("range takes one to three whole numbers"),
    };
    let distance = if step > 0 {
        i128::from(stop) - i128::from(start)
    } else {
        i128::from(start) - i128::from(stop)
    };
    let distance = u128::try_from(distance).unwrap_or(0);
    let count = distance.div_ceil(u128::from(step.unsigned_abs()));
    let Some(count) = u64::try_from(count)
        .ok()
        .filter(|count| *count <= LONGEST_RANGE)
    else {
        return wrong(format!("a range has {LONGEST_RANGE} numbers at most"));
    };
    let items =
        (0..count as i64).map(|turn| Value::Int(start.wrapping_add(step.wrapping_mul(turn))));
    Value::list(items.collect(), budget)
}

/// The local time in the given format, as Python's `datetime.now().strftime` writes it.
fn strftime_now(format: &str, budget: &Budget<'_>) -> Outcome<Value> {
    let failed = || wrong("strftime_now takes a date format");
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let Some(seconds) = now.ok().and_then(|now| now.as_secs().try_into().ok()) else {
        return failed();
    };
    // The marker tells an empty result from a buffer that is too small.
    let Ok(format) = std::ffi::CString::new(format!("{format}.")) else {
        return failed();
    };
    // SAFETY: an all-zero tm is a valid value that localtime_r overwrites.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    let mut buffer = vec![0u8; 4096];
    // SAFETY: both pointers are to live values; strftime writes at most `buffer.len()` bytes.
    let length = unsafe {
        if libc::localtime_r(&seconds, &mut parts).is_null() {
            return failed();
        }
        libc::strftime(
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            format.as_ptr(),
            &parts,
        )
    };
    buffer.truncate(length);
    buffer.pop();
    match String::from_utf8(buffer) {
        Ok(text) if length > 0 => Value::text(&text, budget),
        _ => failed(),
    }
}
