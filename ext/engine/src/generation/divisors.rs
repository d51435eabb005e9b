//! `multipleOf` of schemas. The compiler makes a state of each remainder, of the divisor's digits without their
//! point, and where several schemas describe one value, of their least common multiple. It was seen to take memory
//! without end for large ones, also after nobody waited for it any more.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::{Error, Result};

/// The digits of a divisor, and of the common multiple of several.
pub(super) const LARGEST: u64 = 1_000_000;
/// References within references are followed so far.
const DEEPEST: usize = 12;
/// And so many schemas in all.
const MOST: usize = 100_000;

pub(super) fn is_divisor(number: f64) -> bool {
    number > 0.0 && Digits::of(number).is_some_and(|divisor| divisor.digits <= LARGEST.into())
}

/// A number as an integer and how many of its digits are decimals.
#[derive(Clone, Copy)]
struct Digits {
    digits: u128,
    decimals: u32,
}

impl Digits {
    fn of(number: f64) -> Option<Self> {
        let text = number.to_string();
        let decimals = text.split_once('.').map_or(0, |(_, after)| after.len());
        let digits: String = text.chars().filter(char::is_ascii_digit).collect();
        Some(Self {
            digits: digits.parse().ok()?,
            decimals: u32::try_from(decimals).ok()?,
        })
    }

    /// The least common multiple; `None` where it is beyond all bounds.
    fn lcm(self, other: Self) -> Option<Self> {
        let decimals = self.decimals.max(other.decimals);
        let scaled = |one: Self| {
            let factor = 10u128.checked_pow(decimals - one.decimals)?;
            one.digits.checked_mul(factor)
        };
        let (a, b) = (scaled(self)?, scaled(other)?);
        let (mut x, mut y) = (a, b);
        while y != 0 {
            (x, y) = (y, x % y);
        }
        let digits = a.checked_div(x)?.checked_mul(b)?;
        Some(Self { digits, decimals })
    }
}

/// An error where the divisors of one value have a common multiple that is too large.
pub(super) fn check(schema: &Value) -> Result<()> {
    let mut found = Found {
        root: schema,
        by_path: HashMap::new(),
        referred: HashSet::new(),
        count: 0,
    };
    found.collect(schema, "", 0)?;
    found.check_any()
}

/// What values at paths must be multiples of. A `*` stands for any property or element.
struct Found<'a> {
    root: &'a Value,
    by_path: HashMap<String, Digits>,
    referred: HashSet<(String, &'a str)>,
    count: usize,
}

impl<'a> Found<'a> {
    fn collect(&mut self, schema: &'a Value, path: &str, depth: usize) -> Result<()> {
        let Value::Object(map) = schema else {
            return Ok(());
        };
        self.count += 1;
        if self.count > MOST {
            return Err(too_large());
        }
        if let Some(divisor) = map.get("multipleOf").and_then(Value::as_f64) {
            self.add(path, divisor)?;
        }
        if depth <= DEEPEST {
            self.refer(map, path, depth)?;
        }
        for keyword in ["allOf", "anyOf", "oneOf"] {
            for part in lists(map, keyword) {
                self.collect(part, path, depth)?;
            }
        }
        if let Some(Value::Object(properties)) = map.get("properties") {
            for (name, part) in properties {
                self.collect(part, &format!("{path}/{name}"), depth)?;
            }
        }
        let any = format!("{path}/*");
        let patterns = map.get("patternProperties").and_then(Value::as_object);
        let patterns = patterns.into_iter().flat_map(Map::values);
        let others = ["additionalProperties", "additionalItems", "items"];
        let others = others.iter().filter_map(|&keyword| map.get(keyword));
        let each = ["items", "prefixItems"].map(|keyword| lists(map, keyword));
        for part in patterns.chain(others).chain(each.into_iter().flatten()) {
            self.collect(part, &any, depth)?;
        }
        Ok(())
    }

    fn refer(&mut self, map: &'a Map<String, Value>, path: &str, depth: usize) -> Result<()> {
        let Some(at) = map.get("$ref").and_then(Value::as_str) else {
            return Ok(());
        };
        if !self.referred.insert((path.to_owned(), at)) {
            return Ok(());
        }
        let target = at.strip_prefix('#').and_then(|at| self.root.pointer(at));
        match target {
            Some(target) => self.collect(target, path, depth + 1),
            None => Ok(()),
        }
    }

    /// Adds a divisor of the values at a path.
    fn add(&mut self, path: &str, divisor: f64) -> Result<()> {
        let divisor = Digits::of(divisor).ok_or_else(too_large)?;
        let known = self.by_path.get(path).copied();
        let own = known.map_or(Some(divisor), |known| known.lcm(divisor));
        let own = bounded(own)?;
        self.by_path.insert(path.to_owned(), own);
        Ok(())
    }

    /// What holds for any property or element holds for each that has a name.
    fn check_any(&self) -> Result<()> {
        for (path, own) in &self.by_path {
            let any = path.rfind('/').map(|at| format!("{}/*", &path[..at]));
            if let Some(any) = any.and_then(|any| self.by_path.get(&any)) {
                bounded(any.lcm(*own))?;
            }
        }
        Ok(())
    }
}

fn bounded(divisor: Option<Digits>) -> Result<Digits> {
    divisor
        .filter(|divisor| divisor.digits <= LARGEST.into())
        .ok_or_else(too_large)
}

fn lists<'a>(map: &'a Map<String, Value>, keyword: &str) -> impl Iterator<Item = &'a Value> {
    let list = map.get(keyword).and_then(Value::as_array);
    list.into_iter().flatten()
}

fn too_large() -> Error {
    Error::InvalidInput(format!(
        "the schema has several multipleOf for one value, and the digits of their least common multiple are more than \
         {LARGEST}: leave some of them out"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn divisors_of_one_value_have_a_small_common_multiple() {
        let many = |divisors: &[u64]| -> Vec<Value> {
            let part = |&divisor: &u64| json!({ "type": "integer", "multipleOf": divisor });
            divisors.iter().map(part).collect()
        };
        let large = [999_983, 999_979];
        for fine in [
            json!({ "allOf": many(&[7, 11, 13]) }),
            json!({ "allOf": many(&[1000, 500, 250]), "multipleOf": 0.5 }),
            json!({ "properties": { "a": many(&large)[0], "b": many(&large)[1] } }),
            json!({ "$defs": { "a": { "multipleOf": 7, "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" }),
            json!(true),
        ] {
            assert!(check(&fine).is_ok(), "{fine}");
        }
        for wrong in [
            json!({ "allOf": many(&large) }),
            json!({ "multipleOf": 999_983, "anyOf": many(&[2, 3]) }),
            json!({ "allOf": many(&[1009, 1013]), "multipleOf": 0.01 }),
            json!({ "allOf": [{ "properties": { "a": many(&large)[0] } },
                              { "properties": { "a": many(&large)[1] } }] }),
            json!({ "additionalProperties": many(&large)[0],
                    "allOf": [{ "properties": { "a": many(&large)[1] } }] }),
            json!({ "$defs": { "a": many(&large)[0] }, "$ref": "#/$defs/a", "multipleOf": large[1] }),
        ] {
            let message = check(&wrong).map_err(|error| error.to_string());
            assert!(
                message.is_err_and(|message| message.contains("least common multiple")),
                "{wrong}"
            );
        }
    }
}
