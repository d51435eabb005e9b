//! What a loaded model is made of: the kernels that it runs, on what, and the bytes that its weights
//! take.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use candle_core::{DType, Device, Tensor};

use super::{Embedding, HeadMatrices, Linear, Norm, Pooling, Projection, RowUpdate};
use crate::Result;
use kernels::backend::{self, Stored};
use kernels::winograd::WinogradWeight;

/// Filled by walking over a model's layers; weights that layers share are given once by who walks.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    bytes: usize,
    /// Tensors whose memory is counted: a tied output layer has the token table's.
    counted: HashSet<usize>,
    kernels: BTreeMap<&'static str, BTreeSet<String>>,
}

impl Inventory {
    /// What the weights take as they are held: packed, quantized or plain.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What computes, by kernel: `"linear" => "cpu avx512vnni q4_k, cpu avx512vnni q6_k"`.
    pub fn kernels(&self) -> impl Iterator<Item = (&'static str, String)> + '_ {
        let joined =
            |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(", ");
        self.kernels
            .iter()
            .map(move |(kernel, names)| (*kernel, joined(names)))
    }

    /// What another part of the model is made of.
    pub fn merge(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.counted.extend(other.counted);
        for (kernel, names) in other.kernels {
            self.kernels.entry(kernel).or_default().extend(names);
        }
    }

    pub fn add_linear(&mut self, linear: &Linear) -> Result<()> {
        let (stored, device) = linear.stored();
        self.uses("linear", backend::of_product(&device, stored)?);
        match linear.held_weight() {
            Some(weight) => self.add_tensor(weight),
            None => self.bytes += linear.packed_bytes(),
        }
        if let Some(bias) = linear.bias() {
            self.add_tensor(bias);
        }
        Ok(())
    }

    pub fn add_winograd(&mut self, weight: &WinogradWeight) -> Result<()> {
        self.bytes += weight.bytes();
        self.add_rows("winograd", &Device::Cpu)
    }

    pub fn add_projection(&mut self, projection: &Projection) -> Result<()> {
        let matrices = projection.matrices().iter();
        matrices
            .into_iter()
            .try_for_each(|one| self.add_linear(one))
    }

    pub fn add_row_update(&mut self, update: &RowUpdate) -> Result<()> {
        let RowUpdate::Add(update) = update else {
            return Ok(());
        };
        self.add_linear(&update.down)?;
        self.add_linear(&update.up)
    }

    pub fn add_norm(&mut self, norm: &Norm) -> Result<()> {
        let (kernel, weight, bias) = match norm {
            Norm::Layer { weight, bias, .. } => ("layer_norm", weight, bias.as_ref()),
            Norm::Rms { weight, .. } => ("rms_norm", weight, None),
        };
        self.add_tensor(weight);
        if let Some(bias) = bias {
            self.add_tensor(bias);
        }
        self.add_rows(kernel, weight.device())
    }

    pub fn add_embedding(&mut self, embedding: &Embedding) {
        match embedding {
            Embedding::Dense(table) => self.add_tensor(table),
            Embedding::Blocks(table) => self.bytes += table.bytes.len(),
            Embedding::DeviceBlocks(table, _) => self.add_tensor(table.bytes()),
        }
    }

    pub(crate) fn add_head_matrices(&mut self, matrices: &HeadMatrices) {
        match matrices {
            HeadMatrices::Plain(matrices) => self.add_tensor(matrices),
            HeadMatrices::Panels(panels) => self.bytes += panels.bytes(),
        }
    }

    /// Attention over heads of `width`.
    pub fn add_attention(&mut self, device: &Device, dtype: DType, width: usize) -> Result<()> {
        self.uses("attention", backend::of_attention(device, dtype, width)?);
        Ok(())
    }

    /// Of the poolings some are a choice of rows, which no kernel is needed for.
    pub fn add_pooling(&mut self, pooling: Pooling, device: &Device) -> Result<()> {
        match pooling {
            Pooling::Mean | Pooling::WeightedMean | Pooling::MeanSqrtLength => {
                self.add_rows("pooling", device)
            }
            Pooling::Cls | Pooling::Max | Pooling::Last => Ok(()),
        }
    }

    /// A kernel that works on rows, such as `rope` or `activation`.
    pub fn add_rows(&mut self, kernel: &'static str, device: &Device) -> Result<()> {
        self.uses(kernel, backend::of_rows(device)?);
        Ok(())
    }

    /// A weight that is no part of the others.
    pub fn add_tensor(&mut self, tensor: &Tensor) {
        let (storage, _) = tensor.storage_and_layout();
        let place = std::ptr::from_ref(&*storage) as usize;
        drop(storage);
        if self.counted.insert(place) {
            self.bytes += tensor.elem_count() * tensor.dtype().size_in_bytes();
        }
    }

    /// Weights of these types have no kernels here, and were expanded to `dtype`.
    pub fn add_expanded(&mut self, types: &[&'static str], dtype: DType) {
        for kind in types {
            self.uses("expanded_weights", format!("{kind} as {}", dtype.as_str()));
        }
    }

    /// All of another's, which shares no weights with this one.
    pub fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        for (kernel, names) in &other.kernels {
            let known = self.kernels.entry(kernel).or_default();
            known.extend(names.iter().cloned());
        }
    }

    fn uses(&mut self, kernel: &'static str, name: String) {
        self.kernels.entry(kernel).or_default().insert(name);
    }
}

impl Linear {
    fn packed_bytes(&self) -> usize {
        let elements = self.inputs() * self.outputs();
        match self.stored().0 {
            Stored::Numbers(dtype) | Stored::Shared(dtype) => elements * dtype.size_in_bytes(),
            Stored::Parts => elements * 4,
            Stored::Bytes => elements + self.outputs() * size_of::<f32>(),
            Stored::Blocks(kind) | Stored::WithFp8Rows(kind) => {
                elements / kind.elements() * kind.bytes()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::quant::{BlockType, QuantizedTensor};
    use base::runtime::bytes::Bytes;

    fn tensor(rows: usize, columns: usize) -> Tensor {
        Tensor::zeros((rows, columns), DType::F32, &Device::Cpu).unwrap()
    }

    fn kernels(inventory: &Inventory) -> BTreeMap<&'static str, String> {
        inventory.kernels().collect()
    }

    #[test]
    fn weights_are_counted_as_they_are_held() {
        let count = |linear: &Linear| {
            let mut inventory = Inventory::default();
            inventory.add_linear(linear).unwrap();
            (inventory.bytes(), kernels(&inventory)["linear"].clone())
        };
        let (bytes, name) = count(&Linear::new(tensor(8, 64), None).unwrap());
        assert!(bytes == 4 * 512 && name.starts_with("cpu ") && name.ends_with(" f32"));
        let (bytes, name) = count(&Linear::bytes(tensor(8, 64), None).unwrap());
        assert!(bytes == 512 + 8 * 4 && name.ends_with(" int8"), "{name}");
        let kind = BlockType::Q4_1;
        let blocks = QuantizedTensor {
            kind,
            order: None,
            fp8_rows: false,
            shape: vec![8, 64],
            bytes: Bytes::unpacked(vec![0; 16 * kind.bytes()]),
        };
        let (bytes, name) =
            count(&Linear::quantized(blocks, None, (&Device::Cpu, DType::F32)).unwrap());
        assert!(
            bytes == 16 * kind.bytes() && name.ends_with(" q4_1"),
            "{name}"
        );
    }

    #[test]
    fn a_tied_output_takes_no_memory_of_its_own() {
        let table = Embedding::Dense(tensor(10, 4));
        let mut inventory = Inventory::default();
        inventory.add_embedding(&table);
        inventory
            .add_linear(&table.tied_output(None).unwrap())
            .unwrap();
        assert_eq!(inventory.bytes(), 160);
        inventory.add_embedding(&Embedding::Dense(tensor(10, 4)));
        assert_eq!(inventory.bytes(), 320);
    }

    #[test]
    fn only_kernels_in_use_are_named() {
        let weight = Tensor::ones(4, DType::F32, &Device::Cpu).unwrap();
        let mut inventory = Inventory::default();
        inventory.add_norm(&Norm::rms(weight, 0.0, 1e-5)).unwrap();
        inventory.add_pooling(Pooling::Cls, &Device::Cpu).unwrap();
        assert_eq!(
            kernels(&inventory).keys().collect::<Vec<_>>(),
            [&"rms_norm"]
        );
        inventory.add_pooling(Pooling::Mean, &Device::Cpu).unwrap();
        assert_eq!(kernels(&inventory).len(), 2);
    }
}
