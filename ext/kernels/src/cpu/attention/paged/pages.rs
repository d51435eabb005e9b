//! Where the pages of one layer lie in memory.

use candle_core::Tensor;
use half::{bf16, f16};

use crate::cpu::attention::sequences::rows;
use crate::cpu::{Element, Isa, RowView};
use crate::paged::{KvShape, KvType, PagedBatch, PAGE};
use crate::rows::row_major;
use crate::{Error, Result};
use base::runtime::memory;

/// Memory is taken for this many pages at a time.
const SLAB: usize = 4;
/// Values are padded to whole vectors of every instruction set.
pub(super) const LANES: usize = 16;
/// The elements of a head that share a scale.
const BLOCK: usize = 32;

/// For each page and head the keys, [width, PAGE], then the values, [PAGE, padded width].
pub struct CpuPages {
    shape: KvShape,
    kind: KvType,
    slabs: Vec<Slab>,
}

enum Slab {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    /// Scales lie as what they scale does, one row for every 32 elements of a head.
    Bytes {
        values: Vec<i8>,
        scales: Vec<f16>,
    },
}

/// A vector of zeros, or what is missing.
fn zeros<T: Clone + Default>(count: usize) -> Result<Vec<T>> {
    memory::ensure_elements(&[count], size_of::<T>(), "the KV cache")?;
    let mut values = Vec::new();
    let reserved = values.try_reserve_exact(count);
    reserved.map_err(|_| Error::OutOfMemory("not enough memory for the KV cache".to_owned()))?;
    values.resize(count, T::default());
    Ok(values)
}

impl CpuPages {
    pub fn new(shape: KvShape, kind: KvType) -> Self {
        Self {
            shape,
            kind,
            slabs: Vec::new(),
        }
    }

    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// The length of a stored value.
    pub fn padded(&self) -> usize {
        self.shape.width.next_multiple_of(LANES)
    }

    pub fn capacity(&self) -> usize {
        self.slabs.len() * SLAB
    }

    pub fn bytes(&self) -> usize {
        let slab = SLAB * self.shape.heads;
        self.slabs.len() * self.kind.bytes(slab * self.block())
    }

    pub fn reserve(&mut self, pages: usize) -> Result<()> {
        let heads = SLAB * self.shape.heads;
        while self.capacity() < pages {
            let count = heads * self.block();
            self.slabs.push(match self.kind {
                KvType::F32 => Slab::F32(zeros(count)?),
                KvType::F16 => Slab::F16(zeros(count)?),
                KvType::Bf16 => Slab::Bf16(zeros(count)?),
                KvType::Q8_0 => Slab::Bytes {
                    values: zeros(count)?,
                    scales: zeros(heads * self.scale_block())?,
                },
            });
        }
        Ok(())
    }

    /// What a head has in a page.
    fn block(&self) -> usize {
        PAGE * (self.shape.width + self.padded())
    }

    fn scale_block(&self) -> usize {
        PAGE * (self.shape.width.div_ceil(BLOCK) + self.padded().div_ceil(BLOCK))
    }

    /// The slab of a page, and which block of it belongs to a head.
    fn place(&self, page: u32, head: usize) -> (usize, usize) {
        let page = page as usize;
        (page / SLAB, page % SLAB * self.shape.heads + head)
    }

    /// How many f32 `keys` and `values` need to widen a page.
    pub fn scratch(&self) -> usize {
        match self.kind {
            KvType::F32 => 0,
            _ => PAGE * self.padded(),
        }
    }

    /// A head's keys in a page, [width, PAGE].
    pub fn keys<'a>(
        &'a self,
        isa: Isa,
        page: u32,
        head: usize,
        scratch: &'a mut [f32],
    ) -> &'a [f32] {
        let (slab, block) = self.place(page, head);
        let (start, length) = (block * self.block(), self.shape.width * PAGE);
        match &self.slabs[slab] {
            Slab::F32(stored) => &stored[start..][..length],
            Slab::F16(stored) => widened(isa, &stored[start..][..length], scratch),
            Slab::Bf16(stored) => widened(isa, &stored[start..][..length], scratch),
            Slab::Bytes { values, scales } => {
                let scales = &scales[block * self.scale_block()..];
                let values = &values[start..][..length];
                let scratch = &mut scratch[..length];
                for (d, (to, from)) in scratch
                    .chunks_mut(PAGE)
                    .zip(values.chunks(PAGE))
                    .enumerate()
                {
                    let scales = &scales[d / BLOCK * PAGE..][..PAGE];
                    for ((to, &value), scale) in to.iter_mut().zip(from).zip(scales) {
                        *to = f32::from(value) * scale.to_f32();
                    }
                }
                scratch
            }
        }
    }

    /// A head's values in a page, [PAGE, padded width].
    pub fn values<'a>(
        &'a self,
        isa: Isa,
        page: u32,
        head: usize,
        scratch: &'a mut [f32],
    ) -> &'a [f32] {
        let (slab, block) = self.place(page, head);
        let (start, length) = (
            block * self.block() + self.shape.width * PAGE,
            self.padded() * PAGE,
        );
        match &self.slabs[slab] {
            Slab::F32(stored) => &stored[start..][..length],
            Slab::F16(stored) => widened(isa, &stored[start..][..length], scratch),
            Slab::Bf16(stored) => widened(isa, &stored[start..][..length], scratch),
            Slab::Bytes { values, scales } => {
                let scales = &scales[block * self.scale_block() + self.key_scales()..];
                let (values, padded) = (&values[start..][..length], self.padded());
                let scratch = &mut scratch[..length];
                for (key, (to, from)) in scratch
                    .chunks_mut(padded)
                    .zip(values.chunks(padded))
                    .enumerate()
                {
                    let scales = &scales[key * padded.div_ceil(BLOCK)..];
                    for (d, (to, &value)) in to.iter_mut().zip(from).enumerate() {
                        *to = f32::from(value) * scales[d / BLOCK].to_f32();
                    }
                }
                scratch
            }
        }
    }

    fn key_scales(&self) -> usize {
        PAGE * self.shape.width.div_ceil(BLOCK)
    }

    pub fn copy(&mut self, from: u32, to: u32) {
        let ((from, first), (to, second)) = (self.place(from, 0), self.place(to, 0));
        let heads = self.shape.heads;
        let (block, scale_block) = (self.block(), self.scale_block());
        fn copy<T: Copy>(source: Option<&[T]>, target: &mut [T], [from, to, count]: [usize; 3]) {
            match source {
                Some(source) => target[to..to + count].copy_from_slice(&source[from..from + count]),
                None => target.copy_within(from..from + count, to),
            }
        }
        let (source, target) = if from == to {
            (None, &mut self.slabs[to])
        } else {
            let (low, high) = self.slabs.split_at_mut(from.max(to));
            if from < to {
                (Some(&low[from]), &mut high[0])
            } else {
                (Some(&high[0]), &mut low[to])
            }
        };
        let at = [first * block, second * block, heads * block];
        match (target, source) {
            (Slab::F32(to), Some(Slab::F32(from))) => copy(Some(from), to, at),
            (Slab::F16(to), Some(Slab::F16(from))) => copy(Some(from), to, at),
            (Slab::Bf16(to), Some(Slab::Bf16(from))) => copy(Some(from), to, at),
            (Slab::F32(to), _) => copy(None, to, at),
            (Slab::F16(to), _) => copy(None, to, at),
            (Slab::Bf16(to), _) => copy(None, to, at),
            (Slab::Bytes { values, scales }, source) => {
                let source = source.and_then(|source| match source {
                    Slab::Bytes { values, scales } => Some((values.as_slice(), scales.as_slice())),
                    _ => None,
                });
                copy(source.map(|(values, _)| values), values, at);
                let at = [
                    first * scale_block,
                    second * scale_block,
                    heads * scale_block,
                ];
                copy(source.map(|(_, scales)| scales), scales, at);
            }
        }
    }

    /// Stores the keys and values of the batch's rows, `[rows, heads, width]` each.
    pub fn store(&mut self, batch: &PagedBatch, key: &Tensor, value: &Tensor) -> Result<()> {
        let shape = (batch.slots.len(), self.shape.heads, self.shape.width);
        if key.dims3()? != shape || value.dims3()? != shape || key.dtype() != value.dtype() {
            return Err(Error::Internal(
                "keys and values that do not fit their pages".into(),
            ));
        }
        let isa = Isa::current()?;
        let (key, value) = (row_major(key)?, row_major(value)?);
        let ((keys, key_layout), (values, value_layout)) =
            (key.storage_and_layout(), value.storage_and_layout());
        macro_rules! run {
            ($T:ty) => {{
                let keys: RowView<'_, $T> = rows(&keys, key_layout)?;
                let values: RowView<'_, $T> = rows(&values, value_layout)?;
                self.store_rows(isa, &batch.slots, keys, values);
                Ok(())
            }};
        }
        match key.dtype() {
            candle_core::DType::F32 => run!(f32),
            candle_core::DType::F16 => run!(f16),
            candle_core::DType::BF16 => run!(bf16),
            other => Err(Error::InvalidInput(format!(
                "attention takes f32, f16 or bf16 tensors, not {}",
                other.as_str()
            ))),
        }
    }

    fn store_rows<T: Element>(
        &mut self,
        isa: Isa,
        slots: &[u32],
        keys: RowView<'_, T>,
        values: RowView<'_, T>,
    ) {
        let width = self.shape.width;
        let (mut key, mut value) = (vec![0.0; width], vec![0.0; width]);
        for (row, &slot) in slots.iter().enumerate() {
            for head in 0..self.shape.heads {
                let from = row * self.shape.heads + head;
                T::widen(isa, keys.row(from), &mut key);
                T::widen(isa, values.row(from), &mut value);
                self.store_token(slot, head, &key, &value);
            }
        }
    }

    fn store_token(&mut self, slot: u32, head: usize, key: &[f32], value: &[f32]) {
        let (page, place) = (slot / PAGE as u32, slot as usize % PAGE);
        let (slab, block) = self.place(page, head);
        let (width, padded) = (self.shape.width, self.padded());
        let first_key = block * self.block() + place;
        let first_value = block * self.block() + width * PAGE + place * padded;
        let (scale_block, key_scales) = (block * self.scale_block(), self.key_scales());
        fn put<T: Copy>(to: &mut [T], step: usize, from: &[f32], narrow: impl Fn(f32) -> T) {
            for (to, &value) in to.iter_mut().step_by(step).zip(from) {
                *to = narrow(value);
            }
        }
        match &mut self.slabs[slab] {
            Slab::F32(stored) => {
                put(&mut stored[first_key..], PAGE, key, |value| value);
                stored[first_value..][..width].copy_from_slice(value);
            }
            Slab::F16(stored) => {
                put(&mut stored[first_key..], PAGE, key, f16::from_f32);
                put(&mut stored[first_value..], 1, value, f16::from_f32);
            }
            Slab::Bf16(stored) => {
                put(&mut stored[first_key..], PAGE, key, bf16::from_f32);
                put(&mut stored[first_value..], 1, value, bf16::from_f32);
            }
            Slab::Bytes { values, scales } => {
                for (number, part) in key.chunks(BLOCK).enumerate() {
                    let scale = scale_of(part);
                    scales[scale_block + number * PAGE + place] = scale;
                    let to = &mut values[first_key + number * BLOCK * PAGE..];
                    put(to, PAGE, part, |value| quantized(value, scale));
                }
                for (number, part) in value.chunks(BLOCK).enumerate() {
                    let scale = scale_of(part);
                    let at = scale_block + key_scales + place * padded.div_ceil(BLOCK) + number;
                    scales[at] = scale;
                    let to = &mut values[first_value + number * BLOCK..];
                    put(to, 1, part, |value| quantized(value, scale));
                }
            }
        }
    }
}

fn widened<'a, T: Element>(isa: Isa, from: &[T], scratch: &'a mut [f32]) -> &'a [f32] {
    let scratch = &mut scratch[..from.len()];
    T::widen(isa, from, scratch);
    scratch
}

/// The largest becomes 127.
fn scale_of(values: &[f32]) -> f16 {
    let largest = values
        .iter()
        .fold(0.0f32, |largest, value| largest.max(value.abs()));
    f16::from_f32(largest / 127.0)
}

fn quantized(value: f32, scale: f16) -> i8 {
    match scale.to_f32() {
        0.0 => 0,
        scale => (value / scale).round() as i8,
    }
}
