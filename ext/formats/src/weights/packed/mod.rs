//! Safetensors checkpoints whose weights another library quantized: `quantization_config` says by which method, and
//! the parts of a weight (codes, scales, zero points) are read as the one tensor that the architecture has.
//!
//! A weight stays quantized where a block type has the same numbers; else it is expanded when it is read.

mod bitsandbytes;
mod blocks;
mod compressed;
mod floats;
mod gptq;
mod grouped;
mod hqq;
mod mlx;
mod parts;
mod scheme;
mod torchao;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Tensor};

use super::{Element, Metadata, TensorInfo, WeightSource};
use crate::files::raw_config::RawConfig;
use crate::Result;
use base::quant::{LinedTensor, QuantizedTensor};
use base::runtime::bytes::Bytes;
use base::runtime::device::placed;
use base::runtime::memory;
use grouped::Grouped;
use parts::Parts;
use scheme::{Method, Scheme};

/// A weight that is made of parts.
struct Packed {
    /// As the architecture has it.
    shape: Vec<usize>,
    /// What the format is called.
    format: &'static str,
    /// Whether the last two dimensions of the file are the other way round.
    transposed: bool,
    /// Whether rows are rounded to floats of eight bits where it is multiplied.
    fp8_rows: bool,
    unpack: Unpack,
}

type Unpack = Box<dyn Fn(&Parts<'_>) -> Result<Grouped> + Send + Sync>;

/// A weight as it was found, and the parts that it is made of.
struct Found {
    name: String,
    parts: Vec<String>,
    packed: Packed,
}

/// What tells whether a tensor is the first part of a weight.
type Finder = fn(&Parts<'_>, &Scheme, &str) -> Result<Option<Found>>;

/// The weights of a checkpoint as its architecture names them. Without a `quantization_config` these are the files'.
pub fn unpacked(
    source: Arc<dyn WeightSource>,
    config: &RawConfig,
) -> Result<Arc<dyn WeightSource>> {
    let Some(scheme) = Scheme::read(config)? else {
        return Ok(source);
    };
    let parts = Parts(source.as_ref());
    let names = source.names();
    scheme.check_exceptions(&names)?;
    let find: Finder = match scheme.method {
        Method::Fp8 => floats::find_fp8,
        Method::Mxfp4 => floats::find_experts,
        Method::Gptq => gptq::find,
        Method::Awq => gptq::find_awq,
        Method::CompressedTensors => compressed::find,
        Method::ModelOpt => compressed::find_model_opt,
        Method::BitsAndBytes => bitsandbytes::find,
        Method::Hqq => hqq::find,
        Method::TorchAo => torchao::find,
        Method::Mlx => mlx::find,
    };
    let (mut weights, mut hidden) = (BTreeMap::new(), BTreeSet::new());
    let mut all_parts = BTreeMap::new();
    for name in &names {
        if let Some(found) = find(&parts, &scheme, name)? {
            let own = std::iter::once(&found.name).chain(&found.parts);
            let own: BTreeSet<String> = own.cloned().collect();
            let infos = own.iter().filter_map(|part| source.info(part));
            let bytes = infos.map(|info| info.bytes).sum();
            all_parts.insert(found.name.clone(), own);
            weights.insert(found.name, (found.packed, bytes));
            hidden.extend(found.parts);
        }
    }
    Ok(Arc::new(Unpacked {
        source,
        weights,
        parts: all_parts,
        hidden,
        expanded: Mutex::default(),
    }))
}

struct Unpacked {
    source: Arc<dyn WeightSource>,
    /// With the bytes of all parts.
    weights: BTreeMap<String, (Packed, usize)>,
    /// Their parts, by the names of the weights.
    parts: BTreeMap<String, BTreeSet<String>>,
    /// Parts of weights, which nothing else asks for.
    hidden: BTreeSet<String>,
    expanded: Mutex<BTreeSet<&'static str>>,
}

impl Unpacked {
    fn unpack(&self, name: &str, packed: &Packed) -> Result<Grouped> {
        // A byte for the code and four for the number of each element.
        memory::ensure_elements(&packed.shape, 5, format!("tensor {name:?}"))?;
        (packed.unpack)(&Parts(self.source.as_ref()))
    }
}

impl Packed {
    /// The shape of what is unpacked.
    fn file_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if self.transposed {
            let last = shape.len();
            shape.swap(last - 2, last - 1);
        }
        shape
    }
}

impl WeightSource for Unpacked {
    fn names(&self) -> Vec<String> {
        let dense = self.source.names().into_iter();
        let dense = dense.filter(|name| !self.hidden.contains(name));
        let all: BTreeSet<String> = dense.chain(self.weights.keys().cloned()).collect();
        all.into_iter().collect()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        let Some((packed, bytes)) = self.weights.get(name) else {
            return self
                .source
                .info(name)
                .filter(|_| !self.hidden.contains(name));
        };
        Some(TensorInfo {
            shape: packed.shape.clone(),
            dtype_name: packed.format,
            bytes: *bytes,
        })
    }

    fn tensor(&self, name: &str, dtype: Option<DType>, device: &Device) -> Result<Tensor> {
        let Some((packed, _)) = self.weights.get(name) else {
            return self.source.tensor(name, dtype, device);
        };
        if let Ok(mut expanded) = self.expanded.lock() {
            expanded.insert(packed.format);
        }
        let values = self.unpack(name, packed)?.dequantize()?;
        let tensor = Tensor::from_vec(values, packed.file_shape(), &Device::Cpu)?;
        let tensor = tensor.to_dtype(dtype.unwrap_or(DType::F32))?;
        let tensor = if packed.transposed {
            tensor
                .transpose(packed.shape.len() - 2, packed.shape.len() - 1)?
                .contiguous()?
        } else {
            tensor
        };
        placed(&tensor, device)
    }

    /// The blocks of a transposed weight are rows of outputs, not of inputs as its shape says.
    fn quantized(&self, name: &str) -> Result<Option<QuantizedTensor>> {
        let Some((packed, _)) = self.weights.get(name) else {
            return self.source.quantized(name);
        };
        let blocks = self.unpack(name, packed)?.blocks()?;
        Ok(blocks.map(|blocks| blocks.tensor(packed)))
    }

    fn lined(&self, name: &str) -> Result<Option<LinedTensor>> {
        match self.weights.get(name) {
            Some((packed, _)) if packed.format != hqq::FORMAT => Ok(None),
            Some((packed, _)) => Ok(self.unpack(name, packed)?.lined()),
            None => self.source.lined(name),
        }
    }

    fn turned(&self, name: &str) -> bool {
        match self.weights.get(name) {
            Some((packed, _)) => packed.transposed,
            None => self.source.turned(name),
        }
    }

    fn release(&self, name: &str) {
        match self.parts.get(name) {
            Some(parts) => parts.iter().for_each(|part| self.source.release(part)),
            None => self.source.release(name),
        }
    }

    fn expanded(&self) -> Vec<&'static str> {
        let expanded = self.expanded.lock();
        expanded.map_or_else(|_| Vec::new(), |formats| formats.iter().copied().collect())
    }

    fn raw(&self, name: &str) -> Option<(Element, Bytes)> {
        self.source.raw(name)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.source.file(name)
    }

    fn files(&self) -> Vec<PathBuf> {
        self.source.files()
    }

    fn metadata(&self) -> &Metadata {
        self.source.metadata()
    }
}
