//! The tensors of a model inside another, under their own names.

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::{Element, Metadata, TensorInfo, WeightSource};
use crate::Result;
use base::quant::{LinedTensor, QuantizedTensor};
use base::runtime::bytes::Bytes;

/// What begins with `prefix`, without it.
pub struct Prefixed {
    source: Arc<dyn WeightSource>,
    prefix: String,
}

impl Prefixed {
    pub fn new(source: Arc<dyn WeightSource>, prefix: &str) -> Self {
        Self {
            source,
            prefix: prefix.to_owned(),
        }
    }

    fn whole(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl WeightSource for Prefixed {
    fn names(&self) -> Vec<String> {
        let names = self.source.names().into_iter();
        names
            .filter_map(|name| name.strip_prefix(&self.prefix).map(str::to_owned))
            .collect()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.source.info(&self.whole(name))
    }

    fn tensor(&self, name: &str, dtype: Option<DType>, device: &Device) -> Result<Tensor> {
        self.source.tensor(&self.whole(name), dtype, device)
    }

    fn quantized(&self, name: &str) -> Result<Option<QuantizedTensor>> {
        self.source.quantized(&self.whole(name))
    }

    fn lined(&self, name: &str) -> Result<Option<LinedTensor>> {
        self.source.lined(&self.whole(name))
    }

    fn turned(&self, name: &str) -> bool {
        self.source.turned(&self.whole(name))
    }

    fn raw(&self, name: &str) -> Option<(Element, Bytes)> {
        self.source.raw(&self.whole(name))
    }

    fn release(&self, name: &str) {
        self.source.release(&self.whole(name));
    }

    fn expanded(&self) -> Vec<&'static str> {
        self.source.expanded()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.source.file(&self.whole(name))
    }

    fn files(&self) -> Vec<PathBuf> {
        self.source.files()
    }

    fn metadata(&self) -> &Metadata {
        self.source.metadata()
    }
}
