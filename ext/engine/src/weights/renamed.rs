//! Another checkpoint's names as the ones a model asks for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::table::near_names;
use super::{DenseView, Metadata, QuantizedTensor, TensorInfo, WeightSource};
use crate::{Error, Result};

/// One line of a renaming table. Lines apply in order, each to the result of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule<'a> {
    /// Removes a beginning, from names that have it.
    StripPrefix(&'a str),
    /// Puts a beginning before every name.
    AddPrefix(&'a str),
    /// Replaces an ending: `(".gamma", ".weight")`.
    Suffix(&'a str, &'a str),
    /// Replaces a part wherever it stands: `("blk.", "model.layers.")`.
    Part(&'a str, &'a str),
    /// Replaces a whole name.
    Whole(&'a str, &'a str),
}

impl Rule<'_> {
    fn apply(&self, name: String) -> String {
        match *self {
            Self::StripPrefix(prefix) => match name.strip_prefix(prefix) {
                Some(rest) => rest.to_owned(),
                None => name,
            },
            Self::AddPrefix(prefix) => format!("{prefix}{name}"),
            Self::Suffix(from, to) => match name.strip_suffix(from) {
                Some(start) => format!("{start}{to}"),
                None => name,
            },
            Self::Part(from, to) => name.replace(from, to),
            Self::Whole(from, to) if name == from => to.to_owned(),
            Self::Whole(..) => name,
        }
    }
}

/// A source under other names; errors speak of the file's own.
pub struct Renamed {
    inner: Arc<dyn WeightSource>,
    /// From the new name to the one in the file.
    stored: BTreeMap<String, String>,
}

impl Renamed {
    pub fn new(inner: Arc<dyn WeightSource>, rules: &[Rule<'_>]) -> Result<Self> {
        let mut stored = BTreeMap::new();
        for old in inner.names() {
            let new = rules
                .iter()
                .fold(old.clone(), |name, rule| rule.apply(name));
            if let Some(other) = stored.insert(new.clone(), old.clone()) {
                return Err(Error::corrupt(
                    &inner.file(&old),
                    format!("tensors {other:?} and {old:?} both stand for {new:?}"),
                ));
            }
        }
        Ok(Self { inner, stored })
    }

    fn stored(&self, name: &str) -> Result<&str> {
        self.stored.get(name).map(String::as_str).ok_or_else(|| {
            let near: Vec<String> = near_names(name, self.stored.keys())
                .into_iter()
                .filter_map(|near| self.stored.get(near).cloned())
                .collect();
            Error::CorruptModel(format!(
                "tensor {name:?} is missing from {}; the nearest names there are {}. The files are \
                 incomplete, or belong to another architecture than the configuration says",
                self.inner.file(name).display(),
                near.join(", ")
            ))
        })
    }
}

impl WeightSource for Renamed {
    fn names(&self) -> Vec<String> {
        self.stored.keys().cloned().collect()
    }

    fn has(&self, name: &str) -> bool {
        self.stored.contains_key(name)
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.inner.info(self.stored.get(name)?)
    }

    fn tensor(&self, name: &str, dtype: Option<DType>, device: &Device) -> Result<Tensor> {
        self.inner.tensor(self.stored(name)?, dtype, device)
    }

    fn dense(&self, name: &str) -> Result<Option<DenseView>> {
        self.inner.dense(self.stored(name)?)
    }

    fn quantized(&self, name: &str) -> Result<Option<QuantizedTensor>> {
        self.inner.quantized(self.stored(name)?)
    }

    fn file(&self, name: &str) -> PathBuf {
        let stored = self.stored.get(name).map_or(name, String::as_str);
        self.inner.file(stored)
    }

    fn files(&self) -> Vec<PathBuf> {
        self.inner.files()
    }

    fn metadata(&self) -> &Metadata {
        self.inner.metadata()
    }
}
