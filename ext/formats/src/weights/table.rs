//! The tensors of one or more opened files; every format's reader fills one.

use std::collections::btree_map::{BTreeMap, Entry as Slot};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use candle_core::{DType, Device, Tensor};

use super::coded::Coded;
use super::{element, Element, Metadata, TensorInfo, WeightSource};
use crate::{Error, Result};
use base::quant::{self, BlockType, QuantizedTensor};
use base::runtime::bytes::Bytes;
use base::runtime::device::placed;
use base::runtime::memory;

#[derive(Debug, Default)]
pub(super) struct Table {
    files: Vec<PathBuf>,
    entries: BTreeMap<String, Entry>,
    metadata: Metadata,
    /// Coded types that were expanded.
    expanded: Mutex<BTreeSet<&'static str>>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub shape: Vec<usize>,
    pub data: Data,
    /// Index into the table's files; readers of one file say 0.
    pub file: usize,
}

/// Where and how the elements lie. The readers have checked that all of them are inside.
#[derive(Debug)]
pub(super) enum Data {
    Dense(Element, Bytes),
    /// A view whose neighbours are not adjacent; strides count elements.
    Strided(Element, Bytes, Vec<usize>),
    Quantized(BlockType, Bytes),
    /// Blocks that are read as another type's, or expanded, and what their matrices are multiplied by, if anything.
    Coded(Coded, Bytes, Vec<f32>),
}

/// How many near names a message lists.
const NEAR_NAMES: usize = 3;

impl Table {
    pub fn new(file: &Path, metadata: Metadata) -> Self {
        Self {
            files: vec![file.to_owned()],
            entries: BTreeMap::new(),
            metadata,
            expanded: Mutex::default(),
        }
    }

    pub fn insert(&mut self, name: String, entry: Entry) -> Result<()> {
        match self.entries.entry(name) {
            Slot::Vacant(slot) => {
                slot.insert(entry);
                Ok(())
            }
            Slot::Occupied(slot) => {
                let path = |index: usize| self.files.get(index).cloned().unwrap_or_default();
                let (old, new) = (path(slot.get().file), path(entry.file));
                let reason = if old == new {
                    format!("tensor {:?} is defined twice", slot.key())
                } else {
                    let other = old.display();
                    format!("tensor {:?} is also defined in {other}", slot.key())
                };
                Err(Error::corrupt(&new, reason))
            }
        }
    }

    /// Adds another file's tensors; a name that both have is an error.
    pub fn absorb(&mut self, other: Self) -> Result<()> {
        let offset = self.files.len();
        self.files.extend(other.files);
        if offset == 0 {
            self.metadata = other.metadata;
        }
        for (name, mut entry) in other.entries {
            entry.file += offset;
            self.insert(name, entry)?;
        }
        Ok(())
    }

    /// Notes the scales that stand beside weights of NVFP4, one for each matrix.
    pub fn scale_coded(&mut self) -> Result<()> {
        let coded = |entry: &Entry| matches!(entry.data, Data::Coded(Coded::Nvfp4, ..));
        let weights = self.entries.iter().filter(|(_, entry)| coded(entry));
        let weights: Vec<String> = weights.map(|(name, _)| name.clone()).collect();
        for name in weights {
            let Some(scale) = name
                .strip_suffix(".weight")
                .map(|part| format!("{part}.scale"))
            else {
                continue;
            };
            if !self.entries.contains_key(&scale) {
                continue;
            }
            let factors = self.tensor(&scale, Some(DType::F32), &Device::Cpu)?;
            let factors: Vec<f32> = factors.flatten_all()?.to_vec1()?;
            let Some(entry) = self.entries.get_mut(&name) else {
                continue;
            };
            let matrices = match entry.shape[..] {
                [matrices, _, _] => matrices,
                _ => 1,
            };
            if factors.len() != matrices && factors.len() != 1 {
                let reason = format!(
                    "tensor {scale:?} has {} scales for {matrices} matrices",
                    factors.len()
                );
                return Err(Error::corrupt(&self.file(&scale), reason));
            }
            if let Data::Coded(_, _, beside) = &mut entry.data {
                *beside = factors;
            }
        }
        Ok(())
    }

    fn entry(&self, name: &str) -> Result<&Entry> {
        self.entries.get(name).ok_or_else(|| self.missing(name))
    }

    /// The entry of a tensor whose file was not shortened since it was opened.
    fn whole(&self, name: &str) -> Result<&Entry> {
        let entry = self.entry(name)?;
        let (Data::Dense(_, bytes)
        | Data::Strided(_, bytes, _)
        | Data::Quantized(_, bytes)
        | Data::Coded(_, bytes, _)) = &entry.data;
        if bytes.is_whole() {
            return Ok(entry);
        }
        Err(Error::corrupt(
            &self.file(name),
            "it was shortened while it was open: put the whole file back and load it again",
        ))
    }

    fn missing(&self, name: &str) -> Error {
        let file = self.file(name);
        let near = near_names(name, self.entries.keys());
        let hint = if near.is_empty() {
            "it holds no tensors at all".to_owned()
        } else {
            format!("the nearest names are {}", near.join(", "))
        };
        let others = match self.files.len() {
            0 | 1 => String::new(),
            count => format!(" and the {} files beside it", count - 1),
        };
        Error::CorruptModel(format!(
            "tensor {name:?} is missing from {}{others}; {hint}. The files are incomplete, \
             or belong to another architecture than the configuration says",
            file.display()
        ))
    }
}

impl WeightSource for Table {
    fn names(&self) -> Vec<String> {
        self.entries.keys().cloned().collect()
    }

    fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        let entry = self.entries.get(name)?;
        let (dtype_name, bytes) = match &entry.data {
            Data::Dense(element, bytes) => (element.name(), bytes.len()),
            Data::Strided(element, ..) => {
                let count: usize = entry.shape.iter().product();
                (element.name(), count * element.size())
            }
            Data::Quantized(kind, bytes) => (kind.name(), bytes.len()),
            Data::Coded(kind, bytes, _) => (kind.name(), bytes.len()),
        };
        Some(TensorInfo {
            shape: entry.shape.clone(),
            dtype_name,
            bytes,
        })
    }

    fn tensor(&self, name: &str, dtype: Option<DType>, device: &Device) -> Result<Tensor> {
        let Entry { shape, data, .. } = self.whole(name)?;
        let tensor = match data {
            Data::Dense(element, bytes) => element::tensor(*element, bytes, shape, dtype)?,
            Data::Strided(element, bytes, strides) => {
                let bytes = gather(bytes, element.size(), shape, strides)?;
                element::tensor(*element, &bytes, shape, dtype)?
            }
            Data::Quantized(kind, bytes) => {
                memory::ensure_elements(shape, 4, format!("tensor {name:?}"))?;
                let values = quant::dequantize(*kind, bytes)?;
                let tensor = Tensor::from_vec(values, shape.as_slice(), &Device::Cpu)?;
                tensor.to_dtype(dtype.unwrap_or(DType::F32))?
            }
            Data::Coded(kind, bytes, factors) => {
                if let Ok(mut expanded) = self.expanded.lock() {
                    expanded.insert(kind.name());
                }
                memory::ensure_elements(shape, 4, format!("tensor {name:?}"))?;
                let mut values = kind.dequantize(bytes)?;
                let matrix = values.len().checked_div(factors.len()).unwrap_or(0).max(1);
                for (values, factor) in values.chunks_mut(matrix).zip(factors) {
                    values.iter_mut().for_each(|value| *value *= factor);
                }
                let tensor = Tensor::from_vec(values, shape.as_slice(), &Device::Cpu)?;
                tensor.to_dtype(dtype.unwrap_or(DType::F32))?
            }
        };
        placed(&tensor, device)
    }

    fn quantized(&self, name: &str) -> Result<Option<QuantizedTensor>> {
        let entry = self.whole(name)?;
        Ok(match &entry.data {
            Data::Quantized(kind, bytes) => Some(QuantizedTensor {
                kind: *kind,
                shape: entry.shape.clone(),
                bytes: bytes.clone(),
                order: None,
                fp8_rows: false,
            }),
            Data::Coded(kind, bytes, factors) if factors.is_empty() => {
                let row = entry.shape.last().copied().unwrap_or(0);
                let blocks = kind.blocks(bytes)?;
                // A row must be whole blocks of the other type too.
                let blocks = blocks.filter(|(kind, _)| row.is_multiple_of(kind.elements()));
                blocks.map(|(kind, bytes)| QuantizedTensor {
                    kind,
                    shape: entry.shape.clone(),
                    bytes: Bytes::unpacked(bytes),
                    order: None,
                    fp8_rows: false,
                })
            }
            Data::Coded(..) => None,
            Data::Dense(..) | Data::Strided(..) => None,
        })
    }

    fn release(&self, name: &str) {
        match self.entries.get(name).map(|entry| &entry.data) {
            Some(
                Data::Dense(_, bytes)
                | Data::Strided(_, bytes, _)
                | Data::Quantized(_, bytes)
                | Data::Coded(_, bytes, _),
            ) => bytes.release(),
            None => {}
        }
    }

    fn expanded(&self) -> Vec<&'static str> {
        let expanded = self.expanded.lock();
        expanded.map_or_else(|_| Vec::new(), |types| types.iter().copied().collect())
    }

    fn raw(&self, name: &str) -> Option<(Element, Bytes)> {
        match &self.whole(name).ok()?.data {
            Data::Dense(element, bytes) => Some((*element, bytes.clone())),
            _ => None,
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        let index = self.entries.get(name).map_or(0, |entry| entry.file);
        self.files.get(index).cloned().unwrap_or_default()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.files.clone()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// The elements of a strided view in row-major order.
fn gather(bytes: &[u8], size: usize, shape: &[usize], strides: &[usize]) -> Result<Vec<u8>> {
    memory::ensure_elements(shape, size, "a tensor of the model")?;
    let count: usize = shape.iter().product();
    let mut gathered = Vec::with_capacity(count * size);
    let mut index = vec![0; shape.len()];
    for _ in 0..count {
        let start: usize = index.iter().zip(strides).map(|(i, s)| i * s * size).sum();
        gathered.extend_from_slice(bytes.get(start..start + size).unwrap_or_default());
        for (position, &extent) in index.iter_mut().zip(shape).rev() {
            *position += 1;
            if *position < extent {
                break;
            }
            *position = 0;
        }
    }
    Ok(gathered)
}

/// Names that share the most of their beginning and end with `wanted`.
pub(super) fn near_names<'a>(
    wanted: &str,
    names: impl Iterator<Item = &'a String>,
) -> Vec<&'a str> {
    let common = |a: &mut dyn Iterator<Item = (u8, u8)>| a.take_while(|(x, y)| x == y).count();
    let mut scored: Vec<_> = names
        .map(|name| {
            let start = common(&mut name.bytes().zip(wanted.bytes()));
            let end = common(&mut name.bytes().rev().zip(wanted.bytes().rev()));
            let unlike = name.len().abs_diff(wanted.len());
            (start + end, std::cmp::Reverse(unlike), name.as_str())
        })
        .collect();
    scored.sort_by(|a, b| b.cmp(a));
    scored.truncate(NEAR_NAMES);
    scored.into_iter().map(|(_, _, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strided_views_are_gathered_in_row_major_order() {
        // A transposed view of [[0, 1, 2], [3, 4, 5]].
        let gathered = gather(&[0, 1, 2, 3, 4, 5], 1, &[3, 2], &[1, 3]).unwrap();
        assert_eq!(gathered, [0, 3, 1, 4, 2, 5]);
        assert_eq!(gather(&[7], 1, &[], &[]).unwrap(), [7]);
        assert!(gather(&[7], 1, &[2, 0], &[1, 1]).unwrap().is_empty());
    }

    #[test]
    fn near_names_share_both_ends() {
        let names = [
            "encoder.layer.0.query.weight",
            "encoder.layer.0.query.bias",
            "pooler",
        ]
        .map(str::to_owned);
        let near = near_names("bert.encoder.layer.0.query.weight", names.iter());
        assert_eq!(near[0], "encoder.layer.0.query.weight");
    }
}
