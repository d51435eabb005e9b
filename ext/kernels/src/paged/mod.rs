//! Keys and values in pages of a fixed number of tokens, which sequences share: where a token's go, and
//! attention over those of a sequence, wherever its pages lie.

mod tensors;

use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use super::attention::AttentionOptions;
use super::cpu::attention::paged::CpuPages;
use super::Rotation;
use crate::{Error, Result};
pub use tensors::Places;
use tensors::{Indices, TensorPages};

/// The tokens of a page.
pub const PAGE: usize = 64;

/// What keys and values are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    F32,
    F16,
    Bf16,
    /// Bytes, with a scale for every 32 elements of a head.
    Q8_0,
}

impl KvType {
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "bf16" => Ok(Self::Bf16),
            "q8_0" => Ok(Self::Q8_0),
            other => Err(Error::InvalidInput(format!(
                "kv_dtype must be f32, f16, bf16 or q8_0, not {other}"
            ))),
        }
    }

    /// As a model computes.
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::F16 => Self::F16,
            DType::BF16 => Self::Bf16,
            _ => Self::F32,
        }
    }

    /// What `count` elements take.
    pub fn bytes(self, count: usize) -> usize {
        match self {
            Self::F32 => 4 * count,
            Self::F16 | Self::Bf16 => 2 * count,
            Self::Q8_0 => count + count.div_ceil(32) * 2,
        }
    }
}

/// The shape of what one token stores in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    pub heads: usize,
    /// Of a key and of a value.
    pub width: usize,
}

/// A run of tokens of one sequence: its rows in the batch, the pages of its sequence, and how many keys
/// that has with these rows. The rows are its last ones.
#[derive(Clone, Debug)]
pub struct PagedPiece {
    pub rows: Range<usize>,
    pub pages: Vec<u32>,
    pub keys: usize,
}

/// The pieces of one forward.
pub struct PagedBatch {
    pub pieces: Vec<PagedPiece>,
    /// Where each row's key and value go: page · PAGE + place in the page.
    pub slots: Vec<u32>,
    indices: Option<Indices>,
}

impl PagedBatch {
    pub fn new(pieces: Vec<PagedPiece>, device: &Device) -> Result<Self> {
        let mut slots = Vec::new();
        for piece in &pieces {
            let first = piece.keys.checked_sub(piece.rows.len());
            let sound = piece.keys <= piece.pages.len() * PAGE && piece.rows.start == slots.len();
            let (Some(first), true) = (first, sound) else {
                return Err(Error::Internal(
                    "a batch of pages that do not fit its rows".into(),
                ));
            };
            slots.extend((first..piece.keys).map(|key| slot(&piece.pages, key)));
        }
        let indices = if device.is_cpu() {
            None
        } else {
            Some(Indices::new(&pieces, &slots, device)?)
        };
        Ok(Self {
            pieces,
            slots,
            indices,
        })
    }
}

impl PagedBatch {
    /// One row for each sequence, of which none has more than `keys` keys. Where they lie is read from the
    /// device when it is computed.
    pub fn growing(rows: usize, keys: usize, at: Places) -> Result<Self> {
        Ok(Self {
            pieces: Vec::new(),
            slots: vec![0; rows],
            indices: Some(Indices::growing(rows, keys, at)?),
        })
    }
}

fn foreign() -> Error {
    Error::Internal("a batch that was made for another device".into())
}

/// Where a key lies: page · PAGE + place in the page.
pub fn slot(pages: &[u32], key: usize) -> u32 {
    pages[key / PAGE] * PAGE as u32 + (key % PAGE) as u32
}

/// The keys and values of one layer, page after page.
pub struct PagedLayer(Pages);

enum Pages {
    Cpu(CpuPages),
    Tensors(TensorPages),
}

impl PagedLayer {
    pub fn new(shape: KvShape, kind: KvType, device: &Device) -> Result<Self> {
        Ok(Self(if device.is_cpu() {
            Pages::Cpu(CpuPages::new(shape, kind))
        } else {
            Pages::Tensors(TensorPages::new(shape, kind, device)?)
        }))
    }

    /// How many pages there is memory for.
    pub fn capacity(&self) -> usize {
        match &self.0 {
            Pages::Cpu(pages) => pages.capacity(),
            Pages::Tensors(pages) => pages.capacity(),
        }
    }

    /// Reserves memory for at least `pages` pages.
    pub fn reserve(&mut self, pages: usize) -> Result<()> {
        match &mut self.0 {
            Pages::Cpu(stored) => stored.reserve(pages),
            Pages::Tensors(stored) => stored.reserve(pages),
        }
    }

    /// Of keys and of values, on a GPU that records.
    pub fn addresses(&self) -> Result<[u64; 2]> {
        match &self.0 {
            Pages::Cpu(_) => Err(foreign()),
            Pages::Tensors(pages) => pages.addresses(),
        }
    }

    pub fn bytes(&self) -> usize {
        match &self.0 {
            Pages::Cpu(pages) => pages.bytes(),
            Pages::Tensors(pages) => pages.bytes(),
        }
    }

    /// Copies a page.
    pub fn copy(&mut self, from: u32, to: u32) -> Result<()> {
        match &mut self.0 {
            Pages::Cpu(pages) => {
                pages.copy(from, to);
                Ok(())
            }
            Pages::Tensors(pages) => pages.copy(from, to),
        }
    }

    /// Stores the keys, rotated, and the values of the batch's rows, `[rows, key heads, width]` each; returns the
    /// queries, `[rows, heads, width]`, rotated as well.
    pub fn store(
        &mut self,
        batch: &PagedBatch,
        (query, key, value): (&Tensor, &Tensor, &Tensor),
        rotation: Option<&Rotation<'_>>,
    ) -> Result<Tensor> {
        if let (Pages::Tensors(pages), Some(indices)) = (&mut self.0, &batch.indices) {
            let rows = (query, key, value);
            if let Some(query) = pages.rotate_and_store(indices, rows, rotation)? {
                return Ok(query);
            }
        }
        let (query, key) = match rotation {
            Some(rotation) => (rotation.rotate(query)?, rotation.rotate(key)?),
            None => (query.clone(), key.clone()),
        };
        match (&mut self.0, &batch.indices) {
            (Pages::Cpu(pages), _) => pages.store(batch, &key, value)?,
            (Pages::Tensors(pages), Some(indices)) => pages.store(batch, indices, &key, value)?,
            (Pages::Tensors(_), None) => return Err(foreign()),
        }
        Ok(query)
    }

    /// For every row of the batch, Σ over its heads of weight · max(0, query · key), for each key up to its own, of
    /// pages with one head; `query` is `[rows, heads, width]`, `weights` are `[rows, heads]`.
    pub fn ranks(
        &self,
        batch: &PagedBatch,
        query: &Tensor,
        weights: &Tensor,
    ) -> Result<Vec<Vec<f32>>> {
        match (&self.0, &batch.indices) {
            (Pages::Cpu(pages), _) => pages.ranks(batch, query, weights),
            (Pages::Tensors(pages), Some(indices)) => pages.ranks(batch, indices, query, weights),
            (Pages::Tensors(_), None) => Err(foreign()),
        }
    }

    /// Lets queries, `[rows, heads, width]`, attend to all that their sequences have, whose keys and
    /// values were stored before.
    pub fn read(
        &self,
        batch: &PagedBatch,
        query: &Tensor,
        options: &AttentionOptions<'_>,
    ) -> Result<Tensor> {
        match (&self.0, &batch.indices) {
            (Pages::Cpu(pages), _) => pages.attend(batch, query, options),
            (Pages::Tensors(pages), Some(indices)) => pages.attend(batch, indices, query, options),
            (Pages::Tensors(_), None) => Err(foreign()),
        }
    }
}
