//! What a weight file says besides its tensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::gguf::Cursor;
use crate::{Error, Result};
use base::runtime::bytes::Bytes;

/// A value of a GGUF key, widened to the largest type of its kind.
#[derive(Clone, Debug)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// An array that stays in its file until it is asked for; vocabularies are large.
#[derive(Clone, Debug)]
pub struct Array {
    /// GGUF's number for the type of the elements.
    pub(super) kind: u32,
    pub(super) length: usize,
    /// The elements, checked to be whole.
    pub(super) bytes: Bytes,
    /// Whether lengths are 32 bits wide, as in version 1.
    pub(super) narrow: bool,
}

impl Array {
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The elements one after the other; strings that are not UTF-8 are repaired.
    pub fn values(&self) -> impl Iterator<Item = Value> + '_ {
        let mut cursor = Cursor::new(&self.bytes, self.narrow);
        (0..self.length).map_while(move |_| cursor.value(self.kind).ok())
    }
}

impl Value {
    fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Unsigned(value) => i64::try_from(*value).ok(),
            Self::Signed(value) => Some(*value),
            _ => None,
        }
    }

    fn as_f32(&self) -> Option<f32> {
        match self {
            Self::Float(value) => Some(*value as f32),
            Self::Unsigned(value) => Some(*value as f32),
            Self::Signed(value) => Some(*value as f32),
            _ => None,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) | Self::Signed(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a boolean",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
        }
    }
}

/// Values by key, with errors that name the file and the key. The `opt_` getters give `None` for
/// an absent key, the others an error; a value of the wrong type is an error in both.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    file: PathBuf,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    pub fn new(file: &Path, values: BTreeMap<String, Value>) -> Self {
        Self {
            file: file.to_owned(),
            values,
        }
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.values.iter()
    }

    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>> {
        self.typed(key, "a 32-bit unsigned integer", |value| {
            value.as_i64().and_then(|value| u32::try_from(value).ok())
        })
    }

    pub fn u32(&self, key: &str) -> Result<u32> {
        self.required(key, self.opt_u32(key)?)
    }

    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "a number", Value::as_f32)
    }

    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a boolean", |value| match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        })
    }

    pub fn opt_str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |value| match value {
            Value::String(value) => Some(value.as_str()),
            _ => None,
        })
    }

    pub fn str(&self, key: &str) -> Result<&str> {
        self.required(key, self.opt_str(key)?)
    }

    pub fn opt_array(&self, key: &str) -> Result<Option<&Array>> {
        self.typed(key, "an array", |value| match value {
            Value::Array(array) => Some(array),
            _ => None,
        })
    }

    /// All strings of an array, such as a vocabulary, as they lie in the file.
    pub fn opt_strings(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some(array) = self.opt_array(key)? else {
            return Ok(None);
        };
        array
            .strings()
            .map(Some)
            .map_err(|reason| Error::corrupt(&self.file, format!("key {key:?} {reason}")))
    }

    /// The strings of an array whatever their bytes are, such as those of tokens.
    pub fn opt_byte_strings(&self, key: &str) -> Result<Option<Vec<&[u8]>>> {
        let Some(array) = self.opt_array(key)? else {
            return Ok(None);
        };
        let found = array.byte_strings();
        found
            .map(Some)
            .map_err(|reason| Error::corrupt(&self.file, format!("key {key:?} {reason}")))
    }

    pub fn opt_f32s(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.elements(key, "numbers", Value::as_f32)
    }

    pub fn opt_i64s(&self, key: &str) -> Result<Option<Vec<i64>>> {
        self.elements(key, "integers", Value::as_i64)
    }

    pub fn opt_bools(&self, key: &str) -> Result<Option<Vec<bool>>> {
        self.elements(key, "booleans", |value| match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        })
    }

    fn elements<T>(
        &self,
        key: &str,
        wanted: &str,
        convert: fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let Some(array) = self.opt_array(key)? else {
            return Ok(None);
        };
        let elements: Option<Vec<T>> = array.values().map(|value| convert(&value)).collect();
        elements.map(Some).ok_or_else(|| {
            self.wrong(
                key,
                format_args!("an array of something other than {wanted}"),
            )
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.values.get(key) else {
            return Ok(None);
        };
        convert(value).map(Some).ok_or_else(|| {
            let kind = value.kind();
            self.wrong(key, format_args!("{kind} out of place, not {wanted}"))
        })
    }

    fn wrong(&self, key: &str, what: std::fmt::Arguments<'_>) -> Error {
        Error::corrupt(&self.file, format!("key {key:?} is {what}"))
    }

    fn required<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| Error::corrupt(&self.file, format!("key {key:?} is missing")))
    }
}

impl Array {
    fn strings(&self) -> std::result::Result<Vec<&str>, String> {
        let strings = self.byte_strings()?.into_iter().enumerate();
        let text = |(index, bytes)| {
            std::str::from_utf8(bytes)
                .map_err(|_| format!("holds a string that is not UTF-8, at index {index}"))
        };
        strings.map(text).collect()
    }

    fn byte_strings(&self) -> std::result::Result<Vec<&[u8]>, String> {
        if self.kind != super::gguf::STRING {
            return Err("is not an array of strings".to_owned());
        }
        let mut cursor = Cursor::new(&self.bytes, self.narrow);
        // The length was checked against the bytes: at least four stand behind every string.
        let mut strings = Vec::with_capacity(self.length);
        for _ in 0..self.length {
            strings.push(cursor.string()?);
        }
        Ok(strings)
    }
}
