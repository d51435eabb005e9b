//! Tensors by name out of safetensors, GGUF, PyTorch's and whisper.cpp's files, memory-mapped.

mod archive;
mod coded;
mod coding;
mod element;
mod encoding;
pub(crate) mod ggml;
mod gguf;
mod grids;
mod metadata;
mod mxfp4;
mod packed;
mod pickle;
mod prefixed;
mod safetensors;
mod table;
mod torch;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::files::model_files::{ModelFiles, WeightFiles};
use crate::files::raw_config::RawConfig;
use crate::files::shard_index;
use crate::files::weight_files::GGML_MAGIC;
use crate::{CancelToken, Result};
use base::quant::{LinedTensor, QuantizedTensor};
use base::runtime::bytes::Bytes;

pub use element::Element;
pub use encoding::{blocks, encoded, Arrangement};
pub use metadata::{Array, Metadata, Value};
pub use packed::unpacked;
pub use prefixed::Prefixed;

/// What is known of a tensor before it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Outermost dimension first, whatever the file's own order is.
    pub shape: Vec<usize>,
    pub dtype_name: &'static str,
    /// Its size in the file.
    pub bytes: usize,
}

/// Tensors by name, whatever file format they come from.
pub trait WeightSource: Send + Sync {
    /// All names, sorted.
    fn names(&self) -> Vec<String>;

    fn info(&self, name: &str) -> Option<TensorInfo>;

    fn has(&self, name: &str) -> bool {
        self.info(name).is_some()
    }

    /// The tensor on `device`, in `dtype` or else in the type nearest to the file's; quantized
    /// blocks are dequantized (to f32 unless told otherwise). A tensor that is not there is a
    /// `CorruptModel` error that names the nearest ones.
    fn tensor(&self, name: &str, dtype: Option<DType>, device: &Device) -> Result<Tensor>;

    /// The blocks of a quantized tensor as they lie in the file; `None` for dense tensors.
    fn quantized(&self, name: &str) -> Result<Option<QuantizedTensor>>;

    /// The codes of a matrix whose scales belong to columns, which `quantized` has no blocks for; `None` for others.
    fn lined(&self, _name: &str) -> Result<Option<LinedTensor>> {
        Ok(None)
    }

    /// Whether blocks have the last two dimensions the other way round than the tensor.
    fn turned(&self, _name: &str) -> bool {
        false
    }

    /// The bytes of a dense tensor as they lie in the file, little-endian.
    fn raw(&self, _name: &str) -> Option<(Element, Bytes)> {
        None
    }

    /// Lets go of the memory that reading a tensor took, where it only mirrors a file.
    fn release(&self, _name: &str) {}

    /// The types of quantized weights that were expanded when they were read.
    fn expanded(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// The file that holds the tensor, or the first file when there is no such tensor.
    fn file(&self, name: &str) -> PathBuf;

    /// Every file, in order.
    fn files(&self) -> Vec<PathBuf>;

    /// What the files say besides tensors: GGUF keys, or safetensors' `__metadata__`.
    fn metadata(&self) -> &Metadata;
}

/// Opens the weight files of a model.
pub fn open(files: &WeightFiles) -> Result<Arc<dyn WeightSource>> {
    let table = match files {
        WeightFiles::Safetensors(paths) => shards(paths, safetensors::read)?,
        WeightFiles::Gguf(path) => shards(&gguf::parts(path)?, gguf::read)?,
        WeightFiles::Pickle(paths) => shards(paths, torch::read)?,
        WeightFiles::Ggml(path) => ggml::read(path)?,
    };
    Ok(Arc::new(table))
}

/// Opens a weight file, whatever its name, a shard index, or the weights in a model's directory.
pub fn open_path(path: &str, cancel: &CancelToken) -> Result<Arc<dyn WeightSource>> {
    let location = Path::new(path);
    if location.is_dir() {
        let files = ModelFiles::open(path, None, cancel)?;
        let weights = files.weights(None, cancel)?;
        let source = open(&weights)?;
        return match (weights, files.file("config.json", cancel)?) {
            (WeightFiles::Gguf(_), _) | (_, None) => Ok(source),
            (_, Some(config)) => unpacked(source, &RawConfig::read(&config)?),
        };
    }
    let files = if path.ends_with(".index.json") {
        let shards = shard_index::read(location)?;
        let paths = shards.iter().map(|shard| location.with_file_name(shard));
        if path.ends_with(".bin.index.json") {
            WeightFiles::Pickle(paths.collect())
        } else {
            WeightFiles::Safetensors(paths.collect())
        }
    } else {
        let start = Bytes::map(location)?;
        match start.get(..2) {
            Some(b"GG") => WeightFiles::Gguf(location.to_owned()),
            Some(b"PK") => WeightFiles::Pickle(vec![location.to_owned()]),
            _ if start.starts_with(GGML_MAGIC) => WeightFiles::Ggml(location.to_owned()),
            _ => match location
                .extension()
                .and_then(|extension| extension.to_str())
            {
                Some("gguf") => WeightFiles::Gguf(location.to_owned()),
                Some("bin" | "pt" | "pth") => WeightFiles::Pickle(vec![location.to_owned()]),
                _ => WeightFiles::Safetensors(vec![location.to_owned()]),
            },
        }
    };
    open(&files)
}

fn shards(paths: &[PathBuf], read: fn(&Path) -> Result<table::Table>) -> Result<table::Table> {
    let mut table = table::Table::default();
    for path in paths {
        table.absorb(read(path)?)?;
    }
    if let [first, _, ..] = paths {
        shard_index::verify(first, |name| table.has(name).then(|| table.file(name)))?;
    }
    Ok(table)
}

/// The number of elements of a shape. `None` when it is absurd, also where a zero hides that:
/// strides are products of the other extents.
fn element_count(shape: &[usize]) -> Option<usize> {
    let product = shape.iter().try_fold(1usize, |product, &extent| {
        product.checked_mul(extent.max(1))
    })?;
    let absurd = product > isize::MAX as usize / 8;
    match (absurd, shape.contains(&0)) {
        (true, _) => None,
        (false, true) => Some(0),
        (false, false) => Some(product),
    }
}
