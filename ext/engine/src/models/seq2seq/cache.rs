//! What a decoder keeps between two tokens.

use candle_core::Tensor;

use crate::Result;
use base::runtime::memory;

/// Keys and values of one layer.
#[derive(Clone, Debug)]
pub struct KeyValues {
    pub keys: Tensor,
    pub values: Tensor,
}

/// What the layers' cross-attention reads: the keys and values of the encoder's states,
/// [source tokens, heads, head size], computed once for all texts of a batch.
#[derive(Clone, Debug)]
pub struct Memory {
    pub(super) layers: Vec<KeyValues>,
    pub(super) boundaries: Vec<u32>,
}

/// The keys and values of what was written, [rows, length, heads, head size] for each layer. All rows
/// are of one length.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    pub(super) layers: Vec<KeyValues>,
    pub(super) length: usize,
}

impl KeyValues {
    /// Some rows of the first dimension, in this order.
    fn pick(&self, rows: &Tensor) -> Result<Self> {
        let chosen = |all: &Tensor| -> Result<Tensor> {
            if all.is_contiguous() {
                return Ok(all.index_select(rows, 0)?);
            }
            // Of a memory whose rows lie head by head.
            Ok(all
                .transpose(0, 1)?
                .index_select(rows, 1)?
                .transpose(0, 1)?)
        };
        Ok(Self {
            keys: chosen(&self.keys)?,
            values: chosen(&self.values)?,
        })
    }

    /// One more token for each row.
    pub(super) fn appended(past: Option<&Self>, key: &Tensor, value: &Tensor) -> Result<Self> {
        let extend = |past: Option<&Tensor>, new: &Tensor| -> Result<Tensor> {
            let new = new.contiguous()?.unsqueeze(1)?;
            match past {
                Some(past) => Ok(Tensor::cat(&[past, &new], 1)?),
                None => Ok(new),
            }
        };
        Ok(Self {
            keys: extend(past.map(|past| &past.keys), key)?,
            values: extend(past.map(|past| &past.values), value)?,
        })
    }
}

fn pick(layers: &[KeyValues], rows: &[u32]) -> Result<Vec<KeyValues>> {
    let Some(first) = layers.first() else {
        return Ok(Vec::new());
    };
    let rows = Tensor::new(rows, first.keys.device())?;
    layers.iter().map(|layer| layer.pick(&rows)).collect()
}

impl Memory {
    /// How many texts there are.
    pub fn texts(&self) -> usize {
        self.boundaries.len().saturating_sub(1)
    }

    /// That of some texts.
    pub fn of(&self, texts: &[usize]) -> Result<Self> {
        if texts.iter().copied().eq(0..self.texts()) {
            return Ok(self.clone());
        }
        let mut boundaries = vec![0];
        let mut tokens = Vec::new();
        for &text in texts {
            tokens.extend(self.boundaries[text]..self.boundaries[text + 1]);
            boundaries.push(tokens.len() as u32);
        }
        Ok(Self {
            layers: pick(&self.layers, &tokens)?,
            boundaries,
        })
    }
}

impl Cache {
    /// How many tokens each row has.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The rows of these numbers, in this order; one may come several times.
    pub fn of(&self, rows: &[u32]) -> Result<Self> {
        let count = match self.layers.first() {
            Some(layer) => layer.keys.dim(0)?,
            None => 0,
        };
        if rows.iter().copied().eq(0..count as u32) {
            return Ok(self.clone());
        }
        Ok(Self {
            layers: pick(&self.layers, rows)?,
            length: self.length,
        })
    }

    /// An `OutOfMemory` error unless there is room for twice as much, and for that a second time: a step
    /// and the choice of rows make a new cache beside the old one. Asked when the length has doubled.
    pub(super) fn check_room(&self, rows: usize, width: usize, layers: usize) -> Result<()> {
        if !self.length.is_power_of_two() {
            return Ok(());
        }
        let elements = [rows, 4 * self.length, 2 * width, layers];
        memory::ensure_elements(&elements, 4, "the keys and values of the texts")
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use half::f16;
    use kernels::attention::halves_by_head;

    use super::*;

    #[test]
    fn rows_of_a_text_are_found_in_either_order_of_heads() {
        let values: Vec<f32> = (0..5 * 2 * 4).map(|at| at as f32).collect();
        let x = Tensor::from_vec(values, (5, 2, 4), &Device::Cpu).unwrap();
        let by_head = halves_by_head(&x).unwrap().unwrap();
        let plain = by_head.contiguous().unwrap();
        assert!(!by_head.is_contiguous());
        for texts in [&[1][..], &[1, 0], &[0, 1]] {
            let [found, wanted] = [&by_head, &plain].map(|held| {
                let (keys, values) = (held.clone(), held.clone());
                let memory = Memory {
                    layers: vec![KeyValues { keys, values }],
                    boundaries: vec![0, 2, 5],
                };
                let chosen = memory.of(texts).unwrap();
                let rows = |held: &Tensor| held.flatten_all().unwrap().to_vec1::<f16>().unwrap();
                let layer = &chosen.layers[0];
                (rows(&layer.keys), rows(&layer.values), chosen.boundaries)
            });
            assert_eq!(found, wanted, "{texts:?}");
        }
    }
}
