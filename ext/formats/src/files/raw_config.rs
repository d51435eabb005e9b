//! `config.json` and its kind, with getters whose errors name the file and the key.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::files::json;
use crate::{Error, Result};

/// Ranges wide enough for every model there is, and narrow enough that sizes computed from them
/// stay sane.
pub const LAYERS: RangeInclusive<usize> = 1..=4096;
pub const HEADS: RangeInclusive<usize> = 1..=65_536;
pub const WIDTH: RangeInclusive<usize> = 1..=1 << 20;
pub const VOCABULARY: RangeInclusive<usize> = 1..=1 << 24;
pub const POSITIONS: RangeInclusive<usize> = 1..=1 << 30;

/// Integers without a range of their own.
const ANY: RangeInclusive<usize> = 0..=i32::MAX as usize;
const MOST_LABELS: usize = 1 << 20;

/// A key, or several that mean the same: the first one present counts.
pub trait Keys {
    fn names(&self) -> &[&str];
}

impl Keys for &str {
    fn names(&self) -> &[&str] {
        std::slice::from_ref(self)
    }
}

impl<const N: usize> Keys for [&str; N] {
    fn names(&self) -> &[&str] {
        self
    }
}

impl Keys for &[&str] {
    fn names(&self) -> &[&str] {
        self
    }
}

/// A JSON object from a file. `opt_` getters give `None` for an absent or null key, the others an
/// error; a value of the wrong type or out of range is a `CorruptModel` error in both.
#[derive(Clone, Debug)]
pub struct RawConfig {
    file: PathBuf,
    /// Names of the objects around this one, each with a dot: `"text_config."`.
    place: String,
    object: Map<String, Value>,
    /// What the file itself calls keys, where these words are translated.
    called: Vec<(String, String)>,
}

impl RawConfig {
    pub fn read(path: &Path) -> Result<Self> {
        Self::new(path, json::read(path)?)
    }

    /// From text that came from `path`.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        Self::new(path, json::parse(path, text)?)
    }

    /// What `path` says, in other words than its own.
    pub fn new(path: &Path, value: Value) -> Result<Self> {
        match value {
            Value::Object(object) => Ok(Self {
                file: path.to_owned(),
                place: String::new(),
                object,
                called: Vec::new(),
            }),
            other => Err(Error::corrupt(
                path,
                format!("it should hold a JSON object, not {}", kind(&other)),
            )),
        }
    }

    /// Errors name these keys, each given after its translation.
    pub fn called(mut self, names: impl Iterator<Item = (String, String)>) -> Self {
        self.called = names.collect();
        self
    }

    /// A key as the file has it.
    fn shown(&self, key: &str) -> String {
        let called = self.called.iter().find(|(word, _)| word == key);
        match called {
            Some((_, name)) => name.clone(),
            None => format!("{}{key}", self.place),
        }
    }

    /// This object, with what it does not say taken from another: files leave out what the
    /// library that wrote them takes for granted.
    pub fn with_defaults(mut self, defaults: Value) -> Self {
        if let Value::Object(defaults) = defaults {
            for (key, value) in defaults {
                self.object.entry(key).or_insert(value);
            }
        }
        self
    }

    /// This object, with some values in place of its own.
    pub fn with(mut self, values: Value) -> Self {
        if let Value::Object(values) = values {
            self.object.extend(values);
        }
        self
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The value of the first key present and not null.
    pub fn get(&self, keys: impl Keys) -> Option<&Value> {
        self.find(&keys).map(|(_, value)| value)
    }

    pub fn has(&self, keys: impl Keys) -> bool {
        self.find(&keys).is_some()
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.object.keys().map(String::as_str)
    }

    pub fn opt_string(&self, keys: impl Keys) -> Result<Option<&str>> {
        self.typed(&keys, "a string", Value::as_str)
    }

    pub fn string(&self, keys: impl Keys) -> Result<&str> {
        let value = self.opt_string(keys.names())?;
        self.required(&keys, value)
    }

    pub fn opt_bool(&self, keys: impl Keys) -> Result<Option<bool>> {
        self.typed(&keys, "a boolean", Value::as_bool)
    }

    pub fn bool(&self, keys: impl Keys) -> Result<bool> {
        let value = self.opt_bool(keys.names())?;
        self.required(&keys, value)
    }

    pub fn opt_f64(&self, keys: impl Keys) -> Result<Option<f64>> {
        self.typed(&keys, "a number", Value::as_f64)
    }

    pub fn f64(&self, keys: impl Keys) -> Result<f64> {
        let value = self.opt_f64(keys.names())?;
        self.required(&keys, value)
    }

    pub fn opt_usize(&self, keys: impl Keys) -> Result<Option<usize>> {
        self.opt_usize_in(keys, ANY)
    }

    pub fn usize(&self, keys: impl Keys) -> Result<usize> {
        self.usize_in(keys, ANY)
    }

    pub fn opt_usize_in(
        &self,
        keys: impl Keys,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>> {
        let Some((key, value)) = self.find(&keys) else {
            return Ok(None);
        };
        let number = integer(value).ok_or_else(|| self.wrong(key, value, "an integer"))?;
        match usize::try_from(number) {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(self.wrong(
                key,
                value,
                &format!("between {} and {}", range.start(), range.end()),
            )),
        }
    }

    pub fn usize_in(&self, keys: impl Keys, range: RangeInclusive<usize>) -> Result<usize> {
        let value = self.opt_usize_in(keys.names(), range)?;
        self.required(&keys, value)
    }

    /// One integer or a list of them, such as `eos_token_id`.
    pub fn opt_integers(&self, keys: impl Keys) -> Result<Option<Vec<i64>>> {
        self.typed(&keys, "an integer or a list of them", |value| match value {
            Value::Array(values) => values.iter().map(integer).collect(),
            value => integer(value).map(|number| vec![number]),
        })
    }

    pub fn opt_numbers(&self, keys: impl Keys) -> Result<Option<Vec<f64>>> {
        self.typed(&keys, "a list of numbers", |value| {
            value.as_array()?.iter().map(Value::as_f64).collect()
        })
    }

    /// The least and the most of something, where infinity is null or, as transformers writes it, an object.
    pub fn opt_limits(&self, keys: impl Keys) -> Result<Option<(f64, f64)>> {
        let bound = |value: &Value, open: f64| match value {
            Value::Null | Value::Object(_) => Some(open),
            number => number.as_f64(),
        };
        self.typed(&keys, "a list of two numbers", |value| {
            match value.as_array()?.as_slice() {
                [least, most] => Some((
                    bound(least, f64::NEG_INFINITY)?,
                    bound(most, f64::INFINITY)?,
                )),
                _ => None,
            }
        })
    }

    pub fn opt_strings(&self, keys: impl Keys) -> Result<Option<Vec<String>>> {
        self.typed(&keys, "a list of strings", |value| {
            let strings = value.as_array()?.iter();
            strings.map(|s| s.as_str().map(str::to_owned)).collect()
        })
    }

    /// An object inside this one, whose errors name the whole way to it.
    pub fn opt_nested(&self, keys: impl Keys) -> Result<Option<Self>> {
        let Some((key, value)) = self.find(&keys) else {
            return Ok(None);
        };
        let object = value
            .as_object()
            .ok_or_else(|| self.wrong(key, value, "an object"))?;
        Ok(Some(Self {
            file: self.file.clone(),
            place: format!("{}{key}.", self.place),
            object: object.clone(),
            called: Vec::new(),
        }))
    }

    pub fn nested(&self, keys: impl Keys) -> Result<Self> {
        let value = self.opt_nested(keys.names())?;
        self.required(&keys, value)
    }

    /// `architectures`, or none.
    pub fn architectures(&self) -> Result<Vec<String>> {
        Ok(self.opt_strings("architectures")?.unwrap_or_default())
    }

    pub fn model_type(&self) -> Result<Option<&str>> {
        self.opt_string("model_type")
    }

    /// The first of `pad_token_id`, where that is a token.
    pub fn padding_id(&self) -> Result<Option<u32>> {
        let ids = self.opt_integers("pad_token_id")?.unwrap_or_default();
        match ids.first().map(|&id| usize::try_from(id)) {
            Some(Ok(id)) if !VOCABULARY.contains(&(id + 1)) => Err(Error::corrupt(
                &self.file,
                format!("\"pad_token_id\" is {id}, which is beyond any vocabulary"),
            )),
            Some(Ok(id)) => Ok(Some(id as u32)),
            _ => Ok(None),
        }
    }

    /// The labels of a classifier by number, from `id2label`, else from `num_labels`.
    pub fn id2label(&self) -> Result<Option<Vec<String>>> {
        let Some(table) = self.opt_nested("id2label")? else {
            let count = self.opt_usize_in("num_labels", 1..=MOST_LABELS)?;
            let name = |number| format!("LABEL_{number}");
            return Ok(count.map(|count| (0..count).map(name).collect()));
        };
        let mut labels = vec![None; table.object.len()];
        for (key, value) in &table.object {
            let slot = key
                .parse::<usize>()
                .ok()
                .and_then(|number| labels.get_mut(number));
            let Some(slot) = slot else {
                return Err(table.wrong(key, value, "a label whose number is below their count"));
            };
            *slot = Some(match value {
                Value::String(label) => label.clone(),
                Value::Number(number) => number.to_string(),
                other => return Err(table.wrong(key, other, "a string")),
            });
        }
        // As many numbers below the count as the count: each slot is taken, unless "1" and "01"
        // both stand there.
        let labels: Option<Vec<String>> = labels.into_iter().collect();
        labels
            .map(Some)
            .ok_or_else(|| Error::corrupt(&self.file, "\"id2label\" has gaps in its numbers"))
    }

    fn find<'a, 'k>(&'a self, keys: &'k impl Keys) -> Option<(&'k str, &'a Value)> {
        keys.names().iter().find_map(|&key| {
            let value = self.object.get(key).filter(|value| !value.is_null())?;
            Some((key, value))
        })
    }

    fn typed<'a, T>(
        &'a self,
        keys: &impl Keys,
        wanted: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some((key, value)) = self.find(keys) else {
            return Ok(None);
        };
        convert(value)
            .map(Some)
            .ok_or_else(|| self.wrong(key, value, wanted))
    }

    fn required<T>(&self, keys: &impl Keys, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| {
            let own = |key: &&&str| self.called.iter().any(|(word, _)| word == **key);
            let names: Vec<_> = match keys.names().iter().find(own) {
                Some(key) => vec![*key],
                None => keys.names().to_vec(),
            };
            let names = names.iter().map(|key| format!("\"{}\"", self.shown(key)));
            let names: Vec<_> = names.collect();
            Error::corrupt(&self.file, format!("{} is missing", names.join(" or ")))
        })
    }

    fn wrong(&self, key: &str, value: &Value, wanted: &str) -> Error {
        let shown = match value {
            Value::Array(_) | Value::Object(_) => kind(value).to_owned(),
            scalar => scalar.to_string().chars().take(80).collect(),
        };
        let name = self.shown(key);
        Error::corrupt(
            &self.file,
            format!("\"{name}\" is {shown}, and should be {wanted}"),
        )
    }
}

/// Python writes some integers as floats: `4096.0`.
fn integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let float = value.as_f64()?;
        let whole = float.fract() == 0.0 && float.abs() < 9e15;
        whole.then_some(float as i64)
    })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> RawConfig {
        RawConfig::parse(Path::new("config.json"), text).unwrap()
    }

    fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::CorruptModel(_)), "{error}");
        assert!(error.to_string().contains("config.json"), "{error}");
        error.to_string()
    }

    #[test]
    fn aliases_nulls_and_defaults() {
        let config = config(r#"{"n_embd": 8, "hidden_size": null, "eps": 1e-5, "f": 4096.0}"#);
        assert_eq!(config.usize(["hidden_size", "n_embd"]).unwrap(), 8);
        assert_eq!(config.opt_usize("hidden_size").unwrap(), None);
        assert_eq!(config.f64("eps").unwrap(), 1e-5);
        assert_eq!(config.f64("n_embd").unwrap(), 8.0);
        assert_eq!(config.usize("f").unwrap(), 4096);
        let message = message(config.usize(["d_model", "dim"]));
        assert!(
            message.contains("\"d_model\" or \"dim\" is missing"),
            "{message}"
        );
    }

    #[test]
    fn absurd_values_are_refused_with_their_key() {
        let config = config(
            r#"{"hidden_size": 1099511627776, "heads": 0, "layers": 1000000000, "eps": "x",
                "negative": -1, "half": 0.5, "text_config": {"layers": [1]}}"#,
        );
        assert!(message(config.usize_in("hidden_size", WIDTH)).contains("hidden_size"));
        assert!(message(config.usize("hidden_size")).contains("1099511627776"));
        assert!(message(config.usize_in("heads", HEADS)).contains("between 1 and"));
        assert!(message(config.usize_in("layers", LAYERS)).contains("1000000000"));
        assert!(message(config.f64("eps")).contains("a number"));
        assert!(message(config.usize("negative")).contains("-1"));
        assert!(message(config.usize("half")).contains("an integer"));
        let nested = config.nested("text_config").unwrap();
        assert!(message(nested.usize("layers")).contains("text_config.layers"));
        assert!(message(nested.string("model_type")).contains("text_config.model_type"));
    }

    #[test]
    fn labels_come_in_the_order_of_their_numbers() {
        let labels = |text| config(text).id2label();
        let given = labels(r#"{"id2label": {"1": "B-PER", "0": "O", "2": 7}}"#).unwrap();
        assert_eq!(given.unwrap(), ["O", "B-PER", "7"]);
        let counted = labels(r#"{"num_labels": 2}"#).unwrap();
        assert_eq!(counted.unwrap(), ["LABEL_0", "LABEL_1"]);
        assert_eq!(labels("{}").unwrap(), None);
        for text in [
            r#"{"id2label": {"0": "a", "9999999999": "b"}}"#,
            r#"{"id2label": {"1": "a", "01": "b"}}"#,
            r#"{"id2label": {"0": ["a"]}}"#,
            r#"{"num_labels": 1e12}"#,
        ] {
            message(labels(text));
        }
    }

    #[test]
    fn ids_may_be_one_or_many() {
        let config = config(r#"{"a": 2, "b": [1, 2], "c": [1, "x"]}"#);
        assert_eq!(config.opt_integers("a").unwrap().unwrap(), [2]);
        assert_eq!(config.opt_integers("b").unwrap().unwrap(), [1, 2]);
        assert!(message(config.opt_integers("c")).contains("\"c\""));
    }
}
