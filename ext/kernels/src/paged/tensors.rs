//! Pages in two tensors of a GPU, which attention reads where they lie.

use candle_core::{DType, Device, Tensor};

use super::{slot, KvShape, KvType, PagedBatch, PagedPiece, PAGE};
use crate::attention::{self, AttentionOptions, AttentionShape, Inputs};
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::Rotation;
use crate::{Error, Result};

/// With more runs of rows than this, one scattering write is cheaper than one write for each.
const MOST_RUNS: usize = 4;
/// Pages are added by at least this many.
const STEP: usize = 4;

pub(super) struct TensorPages {
    shape: KvShape,
    /// `[pages · PAGE, heads, width]` each.
    keys: Tensor,
    values: Tensor,
}

/// Where a batch reads and writes, the same in every layer.
pub(super) struct Indices {
    query_boundaries: Vec<u32>,
    key_boundaries: Vec<u32>,
    /// The first slot, where the keys of the only piece lie in a row.
    first: Option<usize>,
    /// The slots of all keys, piece after piece.
    all: Tensor,
    /// Runs of rows that go to neighbouring slots: first row, first slot, how many.
    runs: Vec<(usize, usize, usize)>,
    /// u32 `[rows, 1]`
    slots: Tensor,
    /// Boundaries on the device, where those above are only what they may grow to.
    current: Option<(Tensor, Tensor)>,
}

impl Indices {
    pub fn new(pieces: &[PagedPiece], slots: &[u32], device: &Device) -> Result<Self> {
        let (mut query_boundaries, mut key_boundaries) = (vec![0], vec![0]);
        let mut all: Vec<u32> = Vec::new();
        for piece in pieces {
            all.extend((0..piece.keys).map(|key| slot(&piece.pages, key)));
            query_boundaries.push(piece.rows.end as u32);
            key_boundaries.push(all.len() as u32);
        }
        let neighbours = |slots: &[u32]| slots.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let first = all
            .first()
            .filter(|_| pieces.len() == 1 && neighbours(&all));
        let first = first.map(|&slot| slot as usize);
        let mut runs: Vec<(usize, usize, usize)> = Vec::new();
        for (row, &slot) in slots.iter().enumerate() {
            match runs.last_mut() {
                Some((_, start, count)) if *start + *count == slot as usize => *count += 1,
                _ => runs.push((row, slot as usize, 1)),
            }
        }
        let (keys, rows) = (all.len(), slots.len());
        Ok(Self {
            query_boundaries,
            key_boundaries,
            first,
            all: Tensor::from_vec(all, keys, device)?,
            runs,
            slots: Tensor::from_vec(slots.to_vec(), (rows, 1), device)?,
            current: None,
        })
    }

    /// Of one row for each sequence, of which none has more than `keys` keys; where they lie is in tensors
    /// of the device.
    pub fn growing(rows: usize, keys: usize, at: Places) -> Result<Self> {
        let boundaries = |step: usize| (0..=rows).map(|row| (row * step) as u32).collect();
        Ok(Self {
            query_boundaries: boundaries(1),
            key_boundaries: boundaries(keys),
            first: None,
            all: at.keys,
            runs: Vec::new(),
            slots: at.slots.reshape((rows, 1))?,
            current: Some((at.query_boundaries, at.key_boundaries)),
        })
    }
}

/// Where a batch reads and writes, u32 each, on the device.
#[derive(Clone)]
pub struct Places {
    /// `[rows]`: where each row's key and value go.
    pub slots: Tensor,
    /// `[rows + 1]` each.
    pub query_boundaries: Tensor,
    pub key_boundaries: Tensor,
    /// The slots of all keys, sequence after sequence; `[rows · most keys]`.
    pub keys: Tensor,
}

impl TensorPages {
    pub fn new(shape: KvShape, kind: KvType, device: &Device) -> Result<Self> {
        let dtype = match kind {
            KvType::F32 => DType::F32,
            KvType::F16 => DType::F16,
            KvType::Bf16 => DType::BF16,
            KvType::Q8_0 => {
                return Err(Error::InvalidInput(
                    "kv_dtype q8_0 is for the CPU; use f16 or bf16 on a GPU".into(),
                ))
            }
        };
        let empty = || Tensor::zeros((0, shape.heads, shape.width), dtype, device);
        Ok(Self {
            shape,
            keys: empty()?,
            values: empty()?,
        })
    }

    pub fn capacity(&self) -> usize {
        self.keys.dims()[0] / PAGE
    }

    pub fn addresses(&self) -> Result<[u64; 2]> {
        #[cfg(feature = "cuda")]
        return Ok([
            cuda::device::address(&self.keys)?,
            cuda::device::address(&self.values)?,
        ]);
        #[cfg(not(feature = "cuda"))]
        Err(super::foreign())
    }

    pub fn bytes(&self) -> usize {
        2 * self.keys.elem_count() * self.keys.dtype().size_in_bytes()
    }

    pub fn reserve(&mut self, pages: usize) -> Result<()> {
        let capacity = self.capacity();
        if pages <= capacity {
            return Ok(());
        }
        let wanted = pages.max(capacity + capacity / 2).next_multiple_of(STEP) * PAGE;
        let grown = |old: &Tensor| -> Result<Tensor> {
            let shape = (wanted, self.shape.heads, self.shape.width);
            let fresh = Tensor::zeros(shape, old.dtype(), old.device())?;
            if capacity > 0 {
                fresh.slice_set(old, 0, 0)?;
            }
            Ok(fresh)
        };
        (self.keys, self.values) = (grown(&self.keys)?, grown(&self.values)?);
        Ok(())
    }

    pub fn copy(&mut self, from: u32, to: u32) -> Result<()> {
        for stored in [&self.keys, &self.values] {
            let page = stored.narrow(0, from as usize * PAGE, PAGE)?;
            // candle's own copy would be of all pages.
            let held = page.zeros_like()?;
            held.slice_set(&page, 0, 0)?;
            stored.slice_set(&held, 0, to as usize * PAGE)?;
        }
        Ok(())
    }

    /// The queries, rotated, where one launch rotates and stores.
    pub fn rotate_and_store(
        &mut self,
        indices: &Indices,
        rows: (&Tensor, &Tensor, &Tensor),
        rotation: Option<&Rotation<'_>>,
    ) -> Result<Option<Tensor>> {
        let pages = (&self.keys, &self.values);
        crate::rotate_and_store(rows, rotation, pages, &indices.slots)
    }

    pub fn store(
        &mut self,
        batch: &PagedBatch,
        indices: &Indices,
        key: &Tensor,
        value: &Tensor,
    ) -> Result<()> {
        if indices.current.is_some() {
            return Err(Error::Internal(
                "keys that are not stored by a kernel need their places on the host".into(),
            ));
        }
        for (stored, rows) in [(&self.keys, key), (&self.values, value)] {
            let rows = rows.to_dtype(stored.dtype())?.contiguous()?;
            if indices.runs.len() <= MOST_RUNS {
                for &(row, slot, count) in &indices.runs {
                    stored.slice_set(&rows.narrow(0, row, count)?.contiguous()?, 0, slot)?;
                }
                continue;
            }
            let width = self.shape.heads * self.shape.width;
            let (count, capacity) = (batch.slots.len(), stored.dim(0)?);
            let slots = indices.slots.broadcast_as((count, width))?.contiguous()?;
            let flat = stored.reshape((capacity, width))?;
            flat.scatter_set(&slots, &rows.reshape((count, width))?, 0)?;
        }
        Ok(())
    }

    /// See [`super::PagedLayer::ranks`].
    pub fn ranks(
        &self,
        batch: &PagedBatch,
        indices: &Indices,
        query: &Tensor,
        weights: &Tensor,
    ) -> Result<Vec<Vec<f32>>> {
        let (tokens, heads, width) = query.dims3()?;
        let keys = self.keys.index_select(&indices.all, 0)?;
        let keys = keys.reshape(((), width))?.to_dtype(DType::F32)?;
        let query = query.to_dtype(DType::F32)?.contiguous()?;
        let weights = weights.to_dtype(DType::F32)?.reshape((tokens, 1, heads))?;
        let mut ranks = Vec::with_capacity(tokens);
        for (at, piece) in batch.pieces.iter().enumerate() {
            let (first, count) = (indices.key_boundaries[at] as usize, piece.keys);
            let rows = |all: &Tensor| all.narrow(0, piece.rows.start, piece.rows.len());
            let keys = keys.narrow(0, first, count)?.t()?.contiguous()?;
            let queries = rows(&query)?.reshape((piece.rows.len() * heads, width))?;
            let scores = queries.matmul(&keys)?.relu()?;
            let scores = scores.reshape((piece.rows.len(), heads, count))?;
            let sums = rows(&weights)?.contiguous()?.matmul(&scores)?.squeeze(1)?;
            let sums: Vec<Vec<f32>> = sums.to_vec2()?;
            let before = piece.keys - piece.rows.len();
            ranks.extend(sums.into_iter().enumerate().map(|(row, mut sums)| {
                sums.truncate(before + row + 1);
                sums
            }));
        }
        Ok(ranks)
    }

    pub fn attend(
        &self,
        batch: &PagedBatch,
        indices: &Indices,
        query: &Tensor,
        options: &AttentionOptions<'_>,
    ) -> Result<Tensor> {
        let total = indices.all.dim(0)?;
        let read = |stored: &Tensor| match indices.first {
            Some(first) => stored.narrow(0, first, total),
            None => Ok(stored.clone()),
        };
        let (keys, values) = (read(&self.keys)?, read(&self.values)?);
        let (tokens, heads, width) = query.dims3()?;
        if tokens != batch.slots.len() || width != self.shape.width {
            return Err(Error::Internal(
                "queries that do not fit the pages they read".into(),
            ));
        }
        let inputs = Inputs {
            q: query,
            k: &keys,
            v: &values,
            places: indices.first.is_none().then_some(&indices.all),
            query_boundaries: &indices.query_boundaries,
            key_boundaries: &indices.key_boundaries,
            current_boundaries: indices
                .current
                .as_ref()
                .map(|(queries, keys)| (queries, keys)),
            shape: AttentionShape {
                tokens,
                heads,
                key_heads: self.shape.heads,
                key_tokens: total,
                width,
                value_width: width,
            },
        };
        attention::attend(&inputs, options)
    }
}
