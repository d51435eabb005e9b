//! JSON schemas made ready for the grammar compiler.
//!
//! What a schema leaves open is decided here in favour of what people mean, always towards fewer
//! texts, so that every text that comes out is valid by the schema as given: an object with
//! `properties` has no others unless the schema says so, and a schema without `type` has the type
//! that its keywords speak of. A keyword that could not be enforced is an error.

use serde_json::{json, Map, Value};

use super::divisors;
use crate::{Error, Result};

const MOST_BYTES: usize = 1 << 20;
const MOST_SCHEMAS: usize = 20_000;
/// Longer strings and arrays than any model writes; the compiler unrolls counts.
const LARGEST_COUNT: u64 = 100_000;

/// Larger integers are not told apart by the compiler, which counts in floats.
const LARGEST_NUMBER: f64 = 9_007_199_254_740_992.0;

/// What may stand between the tokens of generated JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhiteSpace {
    /// One space after `:` and `,`, and none elsewhere, so that no model fills its budget with it.
    #[default]
    Compact,
    /// A few blanks or a line break between any two tokens.
    Flexible,
}

impl WhiteSpace {
    /// The compiler's options.
    fn options(self) -> Value {
        match self {
            Self::Compact => json!({
                "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "
            }),
            Self::Flexible => json!({ "whitespace_pattern": WHITE_SPACE }),
        }
    }
}

/// Some blanks on a line, or one line break with its indentation: a model that writes nothing but
/// white space must come to an end.
const WHITE_SPACE: &str = r"[ \t]{1,4}|\r?\n[ \t]{0,32}";

const ONE_SCHEMA: [&str; 3] = ["additionalProperties", "additionalItems", "items"];
const SCHEMA_LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
const SCHEMA_MAPS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
const COUNTS: [&str; 6] = [
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
];
const BOUNDS: [&str; 4] = ["exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"];
const VALUES: [&str; 8] = [
    "$ref",
    "const",
    "enum",
    "format",
    "multipleOf",
    "pattern",
    "required",
    "type",
];
/// Keywords that say nothing about what is valid.
const ANNOTATIONS: [&str; 14] = [
    "$anchor",
    "$comment",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "deprecated",
    "description",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
];
const IN_PLACE: [&str; 4] = ["$ref", "allOf", "anyOf", "oneOf"];

const TYPED: [(&str, &[&str]); 4] = [
    (
        "object",
        &[
            "properties",
            "patternProperties",
            "additionalProperties",
            "required",
            "minProperties",
            "maxProperties",
        ],
    ),
    (
        "array",
        &[
            "items",
            "prefixItems",
            "additionalItems",
            "minItems",
            "maxItems",
        ],
    ),
    ("string", &["minLength", "maxLength", "pattern", "format"]),
    (
        "number",
        &[
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
        ],
    ),
];

/// The schema in `text`, checked and completed, with the compiler's options in it.
pub fn prepare(text: &str, white_space: WhiteSpace) -> Result<Value> {
    if text.len() > MOST_BYTES {
        return Err(invalid(format!(
            "the schema has {} bytes; at most {MOST_BYTES} are taken",
            text.len()
        )));
    }
    let schema: Value = serde_json::from_str(text)
        .map_err(|error| invalid(format!("the schema is not valid JSON: {error}")))?;
    let mut preparation = Preparation {
        shared_are_open: refers_in_place(&schema, false),
        count: 0,
    };
    let mut prepared = preparation.schema(&schema, "#", false)?;
    divisors::check(&schema)?;
    match &mut prepared {
        Value::Object(map) => {
            map.insert("x-guidance".to_owned(), white_space.options());
        }
        Value::Bool(true) => {
            prepared = json!({ "x-guidance": white_space.options() });
        }
        _ => {}
    }
    Ok(prepared)
}

struct Preparation {
    /// Whether a `$ref` adds to what stands beside it, so that its target can't be closed.
    shared_are_open: bool,
    count: usize,
}

impl Preparation {
    /// `open` is set where another schema has a say about the same object.
    fn schema(&mut self, schema: &Value, path: &str, open: bool) -> Result<Value> {
        self.count += 1;
        if self.count > MOST_SCHEMAS {
            return Err(invalid(format!(
                "the schema has more than {MOST_SCHEMAS} parts"
            )));
        }
        let map = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(map) => map,
            other => {
                return Err(invalid(format!(
                    "the schema at {path} must be an object, true or false, not {}",
                    shortened(other)
                )))
            }
        };
        let mut prepared = Map::new();
        for (keyword, value) in map {
            let path = format!("{path}/{keyword}");
            if let Some(value) = self.keyword(map, keyword, value, &path, open)? {
                prepared.insert(keyword.clone(), value);
            }
        }
        if let Some(name) = implied_type(map) {
            prepared.insert("type".to_owned(), name.into());
        }
        if !open {
            ensure_required_are_known(map, path)?;
        }
        if !open && is_closed(map) {
            prepared.insert("additionalProperties".to_owned(), false.into());
        }
        Ok(Value::Object(prepared))
    }

    /// The prepared value of one keyword, `None` where it says nothing.
    fn keyword(
        &mut self,
        map: &Map<String, Value>,
        keyword: &str,
        value: &Value,
        path: &str,
        open: bool,
    ) -> Result<Option<Value>> {
        if ONE_SCHEMA.contains(&keyword) && !value.is_array() {
            return self.schema(value, path, open).map(Some);
        }
        if SCHEMA_LISTS.contains(&keyword) || keyword == "items" {
            let open = open || keyword == "allOf" || (IN_PLACE.contains(&keyword) && shares(map));
            return self.list(value, path, open).map(Some);
        }
        if SCHEMA_MAPS.contains(&keyword) {
            let shared = matches!(keyword, "$defs" | "definitions") && self.shared_are_open;
            return self.map(value, path, open || shared).map(Some);
        }
        if COUNTS.contains(&keyword) {
            return match value.as_u64().filter(|&count| count <= LARGEST_COUNT) {
                Some(_) => Ok(Some(value.clone())),
                None => Err(invalid(format!(
                    "the schema's {path} must be an integer from 0 to {LARGEST_COUNT}, not {}",
                    shortened(value)
                ))),
            };
        }
        if BOUNDS.contains(&keyword) {
            return bound(keyword, value, path).map(Some);
        }
        if keyword == "multipleOf" && !value.as_f64().is_some_and(divisors::is_divisor) {
            return Err(invalid(format!(
                "the schema's {path} must be a number above 0 whose digits are at most {}, not {}",
                divisors::LARGEST,
                shortened(value)
            )));
        }
        if keyword == "$ref" && !value.as_str().is_some_and(|at| at.starts_with('#')) {
            return Err(invalid(format!(
                "the schema's {path} must point into the schema itself, like \"#/$defs/name\", not {}",
                shortened(value)
            )));
        }
        if matches!(keyword, "const" | "enum") && has_far_number(value) {
            return Err(invalid(format!(
                "the schema's {path} has a number that is not between -{LARGEST_NUMBER} and {LARGEST_NUMBER}"
            )));
        }
        if VALUES.contains(&keyword) {
            return Ok(Some(value.clone()));
        }
        if ANNOTATIONS.contains(&keyword)
            || keyword.starts_with("x-")
            || (keyword == "uniqueItems" && value == &Value::Bool(false))
        {
            return Ok(None);
        }
        Err(invalid(format!(
            "the schema's keyword {path} is not supported, since it could not be enforced; remove it, and check \
             the result yourself"
        )))
    }

    fn list(&mut self, value: &Value, path: &str, open: bool) -> Result<Value> {
        let Value::Array(list) = value else {
            return Err(invalid(format!(
                "the schema's {path} must be an array of schemas, not {}",
                shortened(value)
            )));
        };
        let prepared: Result<Vec<Value>> = list
            .iter()
            .enumerate()
            .map(|(index, schema)| self.schema(schema, &format!("{path}/{index}"), open))
            .collect();
        prepared.map(Value::Array)
    }

    fn map(&mut self, value: &Value, path: &str, open: bool) -> Result<Value> {
        let Value::Object(map) = value else {
            return Err(invalid(format!(
                "the schema's {path} must be an object whose values are schemas, not {}",
                shortened(value)
            )));
        };
        let prepared: Result<Map<String, Value>> = map
            .iter()
            .map(|(name, schema)| {
                let prepared = self.schema(schema, &format!("{path}/{name}"), open)?;
                Ok((name.clone(), prepared))
            })
            .collect();
        prepared.map(Value::Object)
    }
}

/// Whether a schema says more about its object than one of its in-place parts does.
fn shares(map: &Map<String, Value>) -> bool {
    let in_place = IN_PLACE.iter().filter(|&&key| map.contains_key(key));
    in_place.count() > 1 || TYPED[0].1.iter().any(|&key| map.contains_key(key))
}

/// Whether an object has the properties it lists and no others.
fn is_closed(map: &Map<String, Value>) -> bool {
    if !map.get("properties").is_some_and(Value::is_object) {
        return false;
    }
    let mut says_otherwise =
        IN_PLACE
            .iter()
            .chain(&["additionalProperties", "patternProperties", "minProperties"]);
    !says_otherwise.any(|&key| map.contains_key(key))
}

/// That an object requires nothing but what it lists, unless its schema lets others in.
fn ensure_required_are_known(map: &Map<String, Value>, path: &str) -> Result<()> {
    let listed = map.get("properties").and_then(Value::as_object);
    let required = map.get("required").and_then(Value::as_array);
    let (Some(listed), Some(required)) = (listed, required) else {
        return Ok(());
    };
    let lets_in = IN_PLACE.iter().chain(&["patternProperties"]);
    let others = map.get("additionalProperties");
    if others.is_some_and(|others| others != &Value::Bool(false))
        || lets_in.clone().any(|&key| map.contains_key(key))
    {
        return Ok(());
    }
    let unknown = required
        .iter()
        .filter_map(Value::as_str)
        .find(|&name| !listed.contains_key(name));
    match unknown {
        None => Ok(()),
        Some(name) => Err(invalid(format!(
            "the schema's {path}/required names {name:?}, which {path}/properties does not list: list it there, or \
             allow other properties with additionalProperties"
        ))),
    }
}

/// The one type whose keywords a schema without `type` has.
fn implied_type(map: &Map<String, Value>) -> Option<&'static str> {
    if ["type", "const", "enum"]
        .iter()
        .chain(&IN_PLACE)
        .any(|&key| map.contains_key(key))
    {
        return None;
    }
    let mut spoken_of = TYPED
        .iter()
        .filter(|(_, keys)| keys.iter().any(|&key| map.contains_key(key)));
    match (spoken_of.next(), spoken_of.next()) {
        (Some((name, _)), None) => Some(name),
        _ => None,
    }
}

/// Whether some `$ref` stands in an `allOf` or beside other keywords.
fn refers_in_place(schema: &Value, within_all: bool) -> bool {
    match schema {
        Value::Object(map) => {
            let beside = map
                .keys()
                .any(|key| key != "$ref" && !ANNOTATIONS.contains(&key.as_str()));
            (map.contains_key("$ref") && (within_all || beside))
                || map
                    .iter()
                    .any(|(key, value)| refers_in_place(value, within_all || key == "allOf"))
        }
        Value::Array(list) => list.iter().any(|value| refers_in_place(value, within_all)),
        _ => false,
    }
}

/// The compiler follows the smallest integer without end.
fn has_far_number(value: &Value) -> bool {
    match value {
        Value::Number(number) => !number.as_f64().is_some_and(|n| n.abs() <= LARGEST_NUMBER),
        Value::Array(list) => list.iter().any(has_far_number),
        Value::Object(map) => map.values().any(has_far_number),
        _ => false,
    }
}

/// A limit of numbers. One that is farther than floats count well is drawn nearer, if that only
/// forbids more.
fn bound(keyword: &str, value: &Value, path: &str) -> Result<Value> {
    let upper = matches!(keyword, "maximum" | "exclusiveMaximum");
    match value {
        // The fourth draft's way: the limit beside it is meant.
        Value::Bool(_) if keyword.starts_with("exclusive") => Ok(value.clone()),
        Value::Number(number) => {
            let limit = number.as_f64().unwrap_or(f64::NAN);
            let far = limit.abs() > LARGEST_NUMBER;
            if limit.is_finite() && !far {
                return Ok(value.clone());
            }
            if far && upper == (limit > 0.0) {
                return Ok(json!(LARGEST_NUMBER.copysign(limit) as i64));
            }
            Err(invalid(format!(
                "the schema's {path} must be between -{LARGEST_NUMBER} and {LARGEST_NUMBER}, not {}",
                shortened(value)
            )))
        }
        other => Err(invalid(format!(
            "the schema's {path} must be a number, not {}",
            shortened(other)
        ))),
    }
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn invalid(message: String) -> Error {
    Error::InvalidInput(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(schema: Value) -> Value {
        let mut prepared = prepare(&schema.to_string(), WhiteSpace::Compact).unwrap();
        prepared.as_object_mut().unwrap().remove("x-guidance");
        prepared
    }

    fn error(schema: Value) -> String {
        match prepare(&schema.to_string(), WhiteSpace::Compact) {
            Err(Error::InvalidInput(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn objects_have_no_other_properties_unless_the_schema_says_so() {
        let nested = json!({ "properties": { "a": { "properties": { "b": {} } } } });
        let closed = prepared(nested);
        assert_eq!(closed["additionalProperties"], json!(false));
        assert_eq!(
            closed["properties"]["a"]["additionalProperties"],
            json!(false)
        );
        for open in [
            json!({ "properties": {}, "additionalProperties": { "type": "string" } }),
            json!({ "properties": {}, "patternProperties": { "^x": {} } }),
            json!({ "properties": {}, "minProperties": 1 }),
            json!({ "properties": {}, "anyOf": [{ "properties": { "a": {} } }] }),
            json!({ "type": "object" }),
        ] {
            assert_ne!(
                prepared(open.clone())["additionalProperties"],
                json!(false),
                "{open}"
            );
        }
    }

    #[test]
    fn a_required_name_that_is_not_listed_is_an_error() {
        let user =
            json!({ "type": "object", "properties": { "name": {} }, "required": ["name", "age"] });
        for closed in [
            user.clone(),
            json!({ "properties": {}, "required": ["age"], "additionalProperties": false }),
            json!({ "properties": {}, "required": ["age"], "minProperties": 1 }),
            json!({ "items": user }),
        ] {
            let message = error(closed);
            assert!(message.contains("names \"age\", which #"), "{message}");
        }
        let nested = error(json!({ "properties": { "a": user } }));
        assert!(nested.contains("#/properties/a/required"), "{nested}");
        for open in [
            json!({ "required": ["age"] }),
            json!({ "properties": {}, "required": ["age"], "additionalProperties": true }),
            json!({ "properties": {}, "required": ["age"], "patternProperties": { "^a": {} } }),
            json!({ "properties": {}, "required": ["age"], "anyOf": [{ "properties": { "age": {} } }] }),
            json!({ "allOf": [{ "properties": {}, "required": ["age"] }, { "properties": { "age": {} } }] }),
        ] {
            assert_ne!(
                prepared(open.clone())["additionalProperties"],
                json!(false),
                "{open}"
            );
        }
    }

    #[test]
    fn parts_of_one_object_stay_open() {
        let both = prepared(
            json!({ "allOf": [{ "properties": { "a": {} } }, { "$ref": "#/$defs/b" }],
                                    "$defs": { "b": { "properties": { "b": {} } } } }),
        );
        assert!(both["allOf"][0].get("additionalProperties").is_none());
        assert!(both["$defs"]["b"].get("additionalProperties").is_none());
        let either = prepared(json!({ "anyOf": [{ "properties": { "a": {} } }] }));
        assert_eq!(either["anyOf"][0]["additionalProperties"], json!(false));
        let plain = prepared(json!({ "properties": { "b": { "$ref": "#/$defs/b" } },
                                     "$defs": { "b": { "properties": { "b": {} } } } }));
        assert_eq!(plain["$defs"]["b"]["additionalProperties"], json!(false));
    }

    #[test]
    fn the_type_follows_from_the_keywords() {
        for (schema, name) in [
            (json!({ "properties": {} }), json!("object")),
            (json!({ "items": {} }), json!("array")),
            (json!({ "pattern": "a" }), json!("string")),
            (json!({ "minimum": 1 }), json!("number")),
            (json!({ "minimum": 1, "pattern": "a" }), Value::Null),
            (json!({ "enum": [1], "minimum": 1 }), Value::Null),
        ] {
            assert_eq!(prepared(schema.clone())["type"], name, "{schema}");
        }
    }

    #[test]
    fn what_can_not_be_enforced_is_named() {
        let unique = json!({ "properties": { "tags": { "type": "array", "uniqueItems": true } } });
        assert!(error(unique).contains("#/properties/tags/uniqueItems"));
        assert!(error(json!({ "not": {} })).contains("#/not"));
        assert!(error(json!({ "$ref": "other.json" })).contains("other.json"));
        assert!(error(json!({ "maxItems": 1e9 })).contains("#/maxItems"));
        assert!(error(json!({ "minimum": 1e300 })).contains("#/minimum"));
        assert!(error(json!({ "maximum": "1" })).contains("#/maximum"));
        assert!(error(json!({ "enum": ["x", { "a": [i64::MIN] }] })).contains("#/enum"));
        assert!(error(json!({ "const": u64::MAX })).contains("#/const"));
        for wrong in [
            json!(-3),
            json!(0),
            json!("2"),
            json!(1e300),
            json!(2_147_483_648_u64),
            json!(1_234.567_8),
        ] {
            let message = error(json!({ "type": "integer", "multipleOf": wrong }));
            assert!(
                message.contains("#/multipleOf must be a number above 0"),
                "{message}"
            );
        }
        assert_eq!(
            prepared(json!({ "maximum": i64::MAX }))["maximum"],
            json!(1i64 << 53)
        );
        assert!(error(json!({ "anyOf": {} })).contains("#/anyOf"));
        assert!(error(json!({ "properties": [1] })).contains("#/properties"));
        assert!(error(json!([1])).contains("must be an object"));
        assert!(matches!(
            prepare("{", WhiteSpace::Compact),
            Err(Error::InvalidInput(_))
        ));
    }

    #[test]
    fn annotations_and_property_names_are_no_keywords() {
        let schema = prepared(
            json!({ "title": "t", "deprecated": true, "properties": { "title": { "type": "string" },
                            "not": { "default": 1 } } }),
        );
        assert!(schema.get("title").is_none() && schema.get("deprecated").is_none());
        assert_eq!(schema["properties"]["title"]["type"], "string");
        assert!(schema["properties"].get("not").is_some());
    }
}
