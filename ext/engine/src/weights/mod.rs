//! Tensors by name out of safetensors, GGUF and PyTorch files, memory-mapped.

mod archive;
mod blocks;
mod bytes;
mod element;
mod gguf;
pub mod json;
mod metadata;
mod pickle;
mod renamed;
mod safetensors;
pub mod shard_index;
mod table;
mod torch;

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::model_files::{ModelFiles, WeightFiles};
use crate::{CancelToken, Result};

pub use blocks::{dequantize, BlockType};
pub(crate) use blocks::{split_block, Header, RUN};
pub use bytes::Bytes;
pub use element::Element;
pub use metadata::{Array, Metadata, Value};
pub use renamed::{Renamed, Rule};

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
    /// blocks are expanded (to f32 unless told otherwise). A tensor that is not there is a
    /// `CorruptModel` error that names the nearest ones.
    fn tensor(&self, name: &str, dtype: Option<DType>, device: &Device) -> Result<Tensor>;

    /// The bytes of a dense tensor as they lie in the file; `None` for quantized blocks and for
    /// strided views.
    fn dense(&self, name: &str) -> Result<Option<DenseView>>;

    /// The blocks of a quantized tensor as they lie in the file; `None` for dense tensors.
    fn quantized(&self, name: &str) -> Result<Option<QuantizedTensor>>;

    /// The file that holds the tensor, or the first file when there is no such tensor.
    fn file(&self, name: &str) -> PathBuf;

    /// Every file, in order.
    fn files(&self) -> Vec<PathBuf>;

    /// What the files say besides tensors: GGUF keys, or safetensors' `__metadata__`.
    fn metadata(&self) -> &Metadata;
}

/// A dense tensor in its file: elements in row-major order, little-endian.
#[derive(Clone, Debug)]
pub struct DenseView {
    pub element: Element,
    pub shape: Vec<usize>,
    pub bytes: Bytes,
}

impl DenseView {
    /// The values, without a copy where the file already holds aligned `f32`.
    pub fn to_f32(&self) -> Result<Cow<'_, [f32]>> {
        if self.element == Element::F32 && cfg!(target_endian = "little") {
            // SAFETY: every bit pattern is an `f32`, and `align_to` keeps to aligned whole values.
            let (before, values, after) = unsafe { self.bytes.align_to::<f32>() };
            if before.is_empty() && after.is_empty() {
                return Ok(Cow::Borrowed(values));
            }
        }
        element::to_f32(self.element, &self.bytes).map(Cow::Owned)
    }
}

/// A quantized matrix in its file: whole blocks, row after row.
#[derive(Clone, Debug)]
pub struct QuantizedTensor {
    pub kind: BlockType,
    pub shape: Vec<usize>,
    pub bytes: Bytes,
}

impl QuantizedTensor {
    /// Some rows of a matrix, expanded, one after the other.
    ///
    /// They are looked up in the order of the file, and its pages let go on the way: the system reads
    /// so much along that a text of some length would otherwise bring the whole table into memory.
    pub fn rows(&self, rows: &[usize]) -> Result<Vec<f32>> {
        let width = self.shape.last().copied().unwrap_or(0);
        let mut values = vec![0f32; rows.len() * width];
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_unstable_by_key(|&at| rows[at]);
        let piece = |at: usize| rows[at] * self.row_length() / bytes::READ_ALONG;
        for near in order.chunk_by(|&a, &b| piece(a) == piece(b)) {
            for &at in near {
                let row = blocks::dequantize(self.kind, self.row_bytes(rows[at]))?;
                values[at * width..][..row.len()].copy_from_slice(&row);
            }
            if let (Some(&first), Some(&last)) = (near.first(), near.last()) {
                self.release_rows(rows[first]..rows[last] + 1);
            }
        }
        Ok(values)
    }

    /// The blocks of one row of a matrix; empty when there is no such row.
    pub fn row_bytes(&self, row: usize) -> &[u8] {
        let length = self.row_length();
        self.bytes
            .get(row * length..(row + 1) * length)
            .unwrap_or_default()
    }

    /// Lets go of the memory that reading these rows took; see `Bytes::release`.
    pub fn release_rows(&self, rows: Range<usize>) {
        let length = self.row_length();
        let start = (rows.start * length).min(self.bytes.len());
        let end = (rows.end * length).min(self.bytes.len());
        if let Some(part) = self.bytes.slice(start, end.saturating_sub(start)) {
            part.release();
        }
    }

    fn row_length(&self) -> usize {
        let width = self.shape.last().copied().unwrap_or(0);
        width / self.kind.elements() * self.kind.bytes()
    }

    /// `[n, ..]` as n tensors `[..]` on the same bytes.
    pub fn split_first_dimension(&self) -> Vec<Self> {
        let count = self.shape.first().copied().unwrap_or(0);
        let length = self.bytes.len().checked_div(count).unwrap_or(0);
        (0..count)
            .filter_map(|index| {
                Some(Self {
                    kind: self.kind,
                    shape: self.shape[1..].to_vec(),
                    bytes: self.bytes.slice(index * length, length)?,
                })
            })
            .collect()
    }
}

/// Opens the weight files of a model.
pub fn open(files: &WeightFiles) -> Result<Arc<dyn WeightSource>> {
    let table = match files {
        WeightFiles::Safetensors(paths) => shards(paths, safetensors::read)?,
        WeightFiles::Gguf(path) => shards(&gguf::parts(path)?, gguf::read)?,
        WeightFiles::Pickle(paths) => shards(paths, torch::read)?,
    };
    Ok(Arc::new(table))
}

/// Opens a weight file, whatever its name, a shard index, or the weights in a model's directory.
pub fn open_path(path: &str, cancel: &CancelToken) -> Result<Arc<dyn WeightSource>> {
    let location = Path::new(path);
    if location.is_dir() {
        return open(&ModelFiles::open(path, None, cancel)?.weights(None, cancel)?);
    }
    let files = if path.ends_with(".index.json") {
        let shards = shard_index::read(location)?;
        let paths = shards.iter().map(|shard| location.with_file_name(shard));
        match path.ends_with(".bin.index.json") {
            true => WeightFiles::Pickle(paths.collect()),
            false => WeightFiles::Safetensors(paths.collect()),
        }
    } else {
        let start = Bytes::map(location)?;
        match start.get(..2) {
            Some(b"GG") => WeightFiles::Gguf(location.to_owned()),
            Some(b"PK") => WeightFiles::Pickle(vec![location.to_owned()]),
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
        shard_index::verify(first, &table)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_in_the_order_asked_for() {
        let kind = BlockType::Q8_0;
        let length = 2 * kind.bytes();
        let bytes = Bytes::unpacked((0..5 * length).map(|i| (i * 7 % 61) as u8).collect());
        let shape = vec![5, 2 * kind.elements()];
        let table = QuantizedTensor { kind, shape, bytes };
        let asked = [4, 0, 4, 2];
        let expected: Vec<f32> = asked
            .iter()
            .flat_map(|&row| dequantize(kind, table.row_bytes(row)).unwrap())
            .collect();
        assert_eq!(table.rows(&asked).unwrap(), expected);
        assert!(table.rows(&[]).unwrap().is_empty());
    }
}
