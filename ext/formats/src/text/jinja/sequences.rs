//! Filters that arrange the items of a sequence.

use super::budget::Budget;
use super::failure::{wrong, Outcome};
use super::filters::{attribute_of, is_alike, sorted_order};
use super::functions::Given;
use super::operators::{arithmetic, sort};
use super::syntax::Operator;
use super::value::Value;

pub fn apply(name: &str, value: &Value, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    match name {
        "sort" => {
            let names = ["reverse", "case_sensitive", "attribute"];
            let [reverse, with_case, attribute] = given.bind(name, names)?;
            let keyed = keyed(value, attribute.as_ref(), budget)?;
            let sorted = in_order(keyed, is_set(reverse), is_set(with_case), budget)?;
            Value::list(sorted, budget)
        }
        "dictsort" => dict_sort(value, given, budget),
        "unique" => {
            let [with_case, attribute] = given.bind(name, ["case_sensitive", "attribute"])?;
            let with_case = is_set(with_case);
            let mut kept: Vec<(Value, Value)> = Vec::new();
            for (key, item) in keyed(value, attribute.as_ref(), budget)? {
                if find(&kept, &key, with_case, budget)?.is_none() {
                    kept.push((key, item));
                }
            }
            let items = kept.into_iter().map(|(_, item)| item);
            Value::generator(items.collect(), budget)
        }
        "groupby" => group_by(value, given, budget),
        "min" | "max" => {
            let [with_case, attribute] = given.bind(name, ["case_sensitive", "attribute"])?;
            let keyed = keyed(value, attribute.as_ref(), budget)?;
            let sorted = in_order(keyed, name == "max", is_set(with_case), budget)?;
            let missing = || Value::Undefined(format!("the {name} of nothing").into());
            Ok(sorted.into_iter().next().unwrap_or_else(missing))
        }
        "sum" => {
            let [attribute, start] = given.bind(name, ["attribute", "start"])?;
            let mut total = start.unwrap_or(Value::Int(0));
            for (key, _) in keyed(value, attribute.as_ref(), budget)? {
                total = arithmetic(Operator::Add, &total, &key, budget)?;
            }
            Ok(total)
        }
        "batch" => batch(value, given, budget),
        _ => slices(value, given, budget),
    }
}

fn is_set(flag: Option<Value>) -> bool {
    flag.is_some_and(|flag| flag.is_true())
}

/// The items with what they are arranged by.
fn keyed(
    value: &Value,
    attribute: Option<&Value>,
    budget: &Budget<'_>,
) -> Outcome<Vec<(Value, Value)>> {
    let items = value.iterate(budget)?;
    budget.memory(items.items.len() * size_of::<(Value, Value)>())?;
    let items = items.items.iter();
    items
        .map(|item| Ok((attribute_of(item, attribute, budget)?, item.clone())))
        .collect()
}

fn in_order(
    mut keyed: Vec<(Value, Value)>,
    reverse: bool,
    with_case: bool,
    budget: &Budget<'_>,
) -> Outcome<Vec<Value>> {
    let mut compare = |left: &(Value, Value), right: &(Value, Value)| {
        let order = sorted_order(&left.0, &right.0, with_case, budget)?;
        Ok(if reverse { order.reverse() } else { order })
    };
    sort(&mut keyed, &mut compare)?;
    Ok(keyed.into_iter().map(|(_, item)| item).collect())
}

fn dict_sort(value: &Value, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    let [with_case, by, reverse] = given.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
    let Value::Dict(dict) = value else {
        return wrong(format!(
            "dictsort takes a dict, not '{}'",
            value.type_name()
        ));
    };
    let by_value = match by {
        None => false,
        Some(Value::Text(by)) if &*by == "key" => false,
        Some(Value::Text(by)) if &*by == "value" => true,
        Some(_) => return wrong("dictsort sorts by \"key\" or \"value\""),
    };
    let mut pairs = Vec::with_capacity(dict.entries.len());
    for (key, item) in &dict.entries {
        let pair = Value::tuple(vec![key.clone(), item.clone()], budget)?;
        pairs.push((if by_value { item } else { key }.clone(), pair));
    }
    let sorted = in_order(pairs, is_set(reverse), is_set(with_case), budget)?;
    Value::list(sorted, budget)
}

fn find(
    kept: &[(Value, Value)],
    key: &Value,
    with_case: bool,
    budget: &Budget<'_>,
) -> Outcome<Option<usize>> {
    for (place, (known, _)) in kept.iter().enumerate() {
        if is_alike(known, key, with_case, budget)? {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

fn group_by(value: &Value, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    let names = ["attribute", "default", "case_sensitive"];
    let [attribute, default, with_case] = given.bind("groupby", names)?;
    let with_case = is_set(with_case);
    let mut keyed = keyed(value, attribute.as_ref(), budget)?;
    for (key, _) in &mut keyed {
        if let (Some(default), false) = (&default, key.is_defined()) {
            *key = default.clone();
        }
    }
    let mut compare = |left: &(Value, Value), right: &(Value, Value)| {
        sorted_order(&left.0, &right.0, with_case, budget)
    };
    sort(&mut keyed, &mut compare)?;
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in keyed {
        match groups.last_mut() {
            Some((known, items)) if is_alike(known, &key, with_case, budget)? => items.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let groups: Outcome<Vec<Value>> = groups
        .into_iter()
        .map(|(key, items)| Value::tuple(vec![key, Value::list(items, budget)?], budget))
        .collect();
    Value::list(groups?, budget)
}

fn count_of(value: Option<&Value>, name: &str) -> Outcome<usize> {
    let count = value.and_then(Value::as_int);
    match count.and_then(|count| usize::try_from(count).ok()) {
        Some(count) if count > 0 => Ok(count),
        _ => wrong(format!("{name} takes a whole number above 0")),
    }
}

/// Rows of so many items; the last is filled up where a filling is given.
fn batch(value: &Value, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    let [count, filling] = given.bind("batch", ["linecount", "fill_with"])?;
    let count = count_of(count.as_ref(), "batch")?;
    let items = value.iterate(budget)?;
    let mut rows = Vec::new();
    for row in items.items.chunks(count) {
        let mut row = row.to_vec();
        if let Some(filling) = &filling {
            budget.memory((count - row.len()).saturating_mul(size_of::<Value>()))?;
            row.resize(count, filling.clone());
        }
        rows.push(Value::list(row, budget)?);
    }
    Value::generator(rows, budget)
}

/// So many columns of about the same length.
fn slices(value: &Value, given: &Given, budget: &Budget<'_>) -> Outcome<Value> {
    let [count, filling] = given.bind("slice", ["slices", "fill_with"])?;
    let count = count_of(count.as_ref(), "slice")?;
    let items = value.iterate(budget)?;
    budget.memory(count.saturating_mul(size_of::<Value>() + 64))?;
    let (each, longer) = (items.items.len() / count, items.items.len() % count);
    let (mut columns, mut start) = (Vec::with_capacity(count), 0);
    for column in 0..count {
        let length = each + usize::from(column < longer);
        let mut part = items.items[start..start + length].to_vec();
        start += length;
        if let (Some(filling), true) = (&filling, column >= longer) {
            part.push(filling.clone());
        }
        columns.push(Value::list(part, budget)?);
    }
    Value::generator(columns, budget)
}
