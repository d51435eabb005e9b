//! A linear layer that owns its weight in the layout its backend likes.

use candle_core::{DType, Device, Storage, Tensor};
use half::{bf16, f16};

use super::elementwise;
use crate::{Error, Result};
use base::quant::{dequantize, QuantizedTensor};
use base::runtime::memory;
use kernels::backend::Stored;
use kernels::blocks::{self, BlockFactor, DeviceBlocks};
use kernels::cpu::isa::Isa;
use kernels::cpu::product::blocks::BlockMatrix;
use kernels::cpu::product::byte_matrix::{self, ByteMatrix};
use kernels::cpu::product::gemm::PackedMatrix;
use kernels::cpu::product::half_matrix::{multiplies_bf16, HalfMatrix};
use kernels::cpu::product::row_matrix::RowMatrix;
use kernels::cpu::product::{multiply_each, GemmEpilogue, WeightMatrix};
use kernels::cpu::Element;
use kernels::matrix::{self, Matrix};
use kernels::{self, Activation};

pub use kernels::Epilogue;

#[derive(Clone, Debug)]
enum Weight {
    /// [in, out], a transposed view of what the file holds.
    Plain(Tensor),
    /// [out, in] on the CPU, as another part of the model holds it, with the bias.
    Shared(Tensor, Option<Vec<f32>>),
    /// f32 on the CPU, laid out for the micro-kernels, with the bias.
    Packed(PackedMatrix, Option<Vec<f32>>),
    /// bf16 or f16 on the CPU, laid out for the micro-kernels, with the bias; takes and gives f32 too.
    Half(HalfMatrix, Option<Vec<f32>>),
    /// Rounded to bytes on the CPU, with the bias; takes and gives f32 and bf16.
    Bytes(ByteMatrix, Option<Vec<f32>>),
    /// Quantized blocks on the CPU, laid out for the kernels, with the bias.
    Blocks(BlockMatrix, Option<Vec<f32>>),
    /// Quantized blocks in a GPU's memory.
    DeviceBlocks(DeviceBlocks),
}

#[derive(Clone, Debug)]
pub struct Linear {
    weight: Weight,
    bias: Option<Tensor>,
    dtype: DType,
    inputs: usize,
    outputs: usize,
}

impl Linear {
    /// `weight` is [out, in], as checkpoints store it; `bias` is [out].
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        let mut layer = Self::plain(weight, bias)?;
        layer.pack()?;
        Ok(layer)
    }

    /// A layer on the CPU whose weight is rounded to bytes, with a scale per output; takes and gives bf16 and f32.
    pub fn bytes(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        let weight = match weight.dtype() {
            DType::BF16 => weight,
            _ => weight.to_dtype(DType::F32)?,
        };
        let mut layer = Self::plain(weight.clone(), bias)?;
        let (inputs, outputs) = (layer.inputs, layer.outputs);
        if inputs > byte_matrix::MOST_INPUTS || weight.elem_count() == 0 {
            layer.pack()?;
            return Ok(layer);
        }
        memory::ensure_elements(&[inputs, outputs], 1, "a linear layer's weight")?;
        let matrix = with_values(&weight.to_dtype(DType::F32)?, |values: &[f32]| {
            ByteMatrix::new(values, inputs, outputs)
        })?;
        layer.weight = Weight::Bytes(matrix, layer.bias_values()?);
        Ok(layer)
    }

    /// What a model with layers on bytes computes the rest in: bf16 where the CPU has tiles, which multiply
    /// it in attention too, and half as much passes through the caches.
    pub fn dtype_beside_bytes() -> Result<DType> {
        Ok(if Isa::current()?.has_tiles() {
            DType::BF16
        } else {
            DType::F32
        })
    }

    /// What passes between layers whose weights are of `dtype`: f32 where the CPU widens them to multiply, since
    /// each layer would else round what the next one widens.
    pub fn dtype_between(device: &Device, dtype: DType) -> Result<DType> {
        let widens = match dtype {
            DType::BF16 => !multiplies_bf16(Isa::current()?),
            DType::F16 => true,
            _ => false,
        };
        Ok(if device.is_cpu() && widens {
            DType::F32
        } else {
            dtype
        })
    }

    /// A layer on a weight that stays in use elsewhere, such as a tied embedding: it is not laid
    /// out anew, which would keep it in memory twice.
    pub fn shared(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        let mut layer = Self::plain(weight.clone(), bias)?;
        let has_kernel = matches!(layer.dtype, DType::F32 | DType::BF16 | DType::F16);
        if weight.device().is_cpu() && has_kernel && weight.elem_count() > 0 {
            layer.weight = Weight::Shared(weight.contiguous()?, layer.bias_values()?);
        }
        Ok(layer)
    }

    fn plain(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        let (outputs, inputs) = weight.dims2()?;
        if let Some(bias) = &bias {
            if bias.dims() != [outputs] {
                return Err(Error::InvalidInput(format!(
                    "a bias of shape {:?} does not fit a linear weight of shape {:?}",
                    bias.dims(),
                    weight.dims()
                )));
            }
        }
        Ok(Self {
            dtype: weight.dtype(),
            weight: Weight::Plain(weight.t()?),
            bias,
            inputs,
            outputs,
        })
    }

    /// Whether a quantized weight may stay as it is on this device, in a model of this type.
    pub fn keeps_blocks(device: &Device, dtype: DType) -> bool {
        Self::rounds_inputs(device, dtype) || DeviceBlocks::computed_by(device, dtype)
    }

    /// Whether inputs are rounded to integers where a quantized weight stays as it is.
    pub fn rounds_inputs(device: &Device, dtype: DType) -> bool {
        device.is_cpu() && dtype == DType::F32
    }

    /// A layer whose weight stays quantized, where `keeps_blocks` allows it.
    pub fn quantized(
        weight: QuantizedTensor,
        bias: Option<Tensor>,
        (device, dtype): (&Device, DType),
    ) -> Result<Self> {
        if !device.is_cpu() {
            return Self::on_blocks(DeviceBlocks::new(&weight, device)?, dtype, bias);
        }
        if !BlockMatrix::takes(weight.kind) {
            let values = dequantize(weight.kind, &weight.bytes)?;
            return Self::new(Tensor::from_vec(values, weight.shape, &Device::Cpu)?, bias);
        }
        let matrix = BlockMatrix::new(Isa::current()?, &weight)?;
        let values = match &bias {
            Some(bias) => Some(bias.to_dtype(DType::F32)?.to_vec1::<f32>()?),
            None => None,
        };
        let outputs = matrix.outputs;
        if values
            .as_ref()
            .is_some_and(|values| values.len() != outputs)
        {
            return Err(Error::InvalidInput(format!(
                "a bias of {} values does not fit a linear layer of {outputs} outputs",
                values.map_or(0, |values| values.len())
            )));
        }
        Ok(Self {
            inputs: matrix.inputs,
            outputs,
            weight: Weight::Blocks(matrix, values),
            bias,
            dtype: DType::F32,
        })
    }

    /// A layer on blocks that are in a GPU's memory; computes in `dtype`.
    pub(super) fn on_blocks(
        matrix: DeviceBlocks,
        dtype: DType,
        bias: Option<Tensor>,
    ) -> Result<Self> {
        let (inputs, outputs) = (matrix.inputs(), matrix.outputs());
        if let Some(bias) = bias.as_ref().filter(|bias| bias.dims() != [outputs]) {
            return Err(Error::InvalidInput(format!(
                "a bias of shape {:?} does not fit a linear layer of {outputs} outputs",
                bias.dims()
            )));
        }
        Ok(Self {
            weight: Weight::DeviceBlocks(matrix),
            bias,
            dtype,
            inputs,
            outputs,
        })
    }

    /// Lays the weight out for the CPU's micro-kernels, where those apply.
    fn pack(&mut self) -> Result<()> {
        let Weight::Plain(weight) = &self.weight else {
            return Ok(());
        };
        if !weight.device().is_cpu() || weight.elem_count() == 0 {
            return Ok(());
        }
        let (inputs, outputs) = (self.inputs, self.outputs);
        let size = self.dtype.size_in_bytes();
        memory::ensure_elements(&[inputs, outputs], size, "a linear layer's weight")?;
        let (weight, bias) = (weight.t()?, self.bias_values()?);
        self.weight = match self.dtype {
            DType::F32 => with_values(&weight, |values| {
                let matrix = PackedMatrix::new(values, inputs, outputs)?;
                Ok(Weight::Packed(matrix, bias))
            })?,
            DType::BF16 => with_values(&weight, |values: &[bf16]| {
                let matrix = HalfMatrix::new(values, inputs, outputs)?;
                Ok(Weight::Half(matrix, bias))
            })?,
            DType::F16 => with_values(&weight, |values: &[f16]| {
                let matrix = HalfMatrix::new(values, inputs, outputs)?;
                Ok(Weight::Half(matrix, bias))
            })?,
            _ => return Ok(()),
        };
        Ok(())
    }

    fn bias_values(&self) -> Result<Option<Vec<f32>>> {
        let values = self
            .bias
            .as_ref()
            .map(|bias| bias.to_dtype(DType::F32)?.to_vec1());
        Ok(values.transpose()?)
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// What holds the weight, unless it is laid out for the CPU.
    pub(super) fn held_weight(&self) -> Option<&Tensor> {
        match &self.weight {
            Weight::Plain(weight) | Weight::Shared(weight, _) => Some(weight),
            Weight::DeviceBlocks(matrix) => Some(matrix.bytes()),
            _ => None,
        }
    }

    /// What the weight is made of, and where it is.
    pub(super) fn stored(&self) -> (Stored, Device) {
        match &self.weight {
            Weight::Plain(weight) => (Stored::Numbers(self.dtype), weight.device().clone()),
            Weight::Shared(..) => (Stored::Shared(self.dtype), Device::Cpu),
            Weight::Packed(matrix, _) if matrix.has_parts() => (Stored::Parts, Device::Cpu),
            Weight::Packed(..) | Weight::Half(..) => (Stored::Numbers(self.dtype), Device::Cpu),
            Weight::Bytes(..) => (Stored::Bytes, Device::Cpu),
            Weight::Blocks(matrix, _) => (Stored::Blocks(matrix.kind()), Device::Cpu),
            Weight::DeviceBlocks(matrix) => {
                let device = matrix.bytes().device().clone();
                (Stored::Blocks(matrix.kind()), device)
            }
        }
    }

    /// Whether the weight is held in quantized blocks.
    pub fn is_quantized(&self) -> bool {
        matches!(self.weight, Weight::Blocks(..) | Weight::DeviceBlocks(_))
    }

    /// x · weightᵀ + bias; `x` is [.., in].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &Epilogue::default())
    }

    /// `forward`, followed by the epilogue.
    pub fn forward_with(&self, x: &Tensor, epilogue: &Epilogue<'_>) -> Result<Tensor> {
        let (shape, rows) = self.output_shape(x)?;
        match &self.weight {
            Weight::Plain(weight) => self.forward_plain(x, weight, shape, rows, epilogue),
            Weight::Shared(weight, bias) => {
                let bias = bias.as_deref();
                match self.dtype {
                    DType::BF16 => self.forward_shared::<bf16>(x, weight, bias, shape, epilogue),
                    DType::F16 => self.forward_shared::<f16>(x, weight, bias, shape, epilogue),
                    _ => self.forward_shared::<f32>(x, weight, bias, shape, epilogue),
                }
            }
            Weight::Packed(weight, bias) => multiply::<f32, _>(weight, x, bias, shape, epilogue),
            Weight::Half(weight, bias) => match (x.dtype(), self.dtype) {
                (DType::F32, _) => multiply::<f32, _>(weight, x, bias, shape, epilogue),
                (_, DType::BF16) => multiply::<bf16, _>(weight, x, bias, shape, epilogue),
                _ => multiply::<f16, _>(weight, x, bias, shape, epilogue),
            },
            Weight::Bytes(weight, bias) => match x.dtype() {
                DType::BF16 => multiply::<bf16, _>(weight, x, bias, shape, epilogue),
                _ => multiply::<f32, _>(weight, x, bias, shape, epilogue),
            },
            Weight::Blocks(weight, bias) => multiply::<f32, _>(weight, x, bias, shape, epilogue),
            Weight::DeviceBlocks(matrix) => self.forward_blocks(x, matrix, shape, rows, epilogue),
        }
    }

    /// The outputs of several layers of one input side by side, where one launch makes them all; `None`
    /// where running each is as good.
    pub(super) fn forward_joined(layers: &[Self], x: &Tensor) -> Result<Option<Tensor>> {
        if let Some(factors) = block_factors(layers) {
            return blocks::multiply_joined(x, &factors);
        }
        let Some(weights) = plain_weights(layers)? else {
            return Ok(None);
        };
        let matrices: Vec<_> = weights.iter().zip(layers).map(matrix_of).collect();
        matrix::multiply_joined(x, &matrices)
    }

    /// activation(gate(x)) · up(x) of two layers, or of one that holds both, gate first; `None` where it
    /// takes more than one launch.
    pub(super) fn forward_gated(
        layers: &[Self],
        x: &Tensor,
        activation: Activation,
    ) -> Result<Option<Tensor>> {
        if let Some(factors) = block_factors(layers) {
            return blocks::multiply_gated(x, &factors, activation);
        }
        let Some(weights) = plain_weights(layers)? else {
            return Ok(None);
        };
        let biases = layers.iter().map(|layer| layer.bias.clone());
        let mut matrices: Vec<(Tensor, Option<Tensor>)> = weights.into_iter().zip(biases).collect();
        if let [(weight, bias)] = &matrices[..] {
            let half = weight.dim(0)? / 2;
            let cut = |tensor: &Tensor, at: usize| tensor.narrow(0, at * half, half);
            let halves = [0, 1].map(|at| -> Result<_> {
                let bias = bias.as_ref().map(|bias| cut(bias, at)).transpose()?;
                Ok((cut(weight, at)?, bias))
            });
            matrices = halves.into_iter().collect::<Result<_>>()?;
        }
        let [gate, up] = &matrices[..] else {
            return Ok(None);
        };
        let matrices = [gate, up].map(|(weight, bias)| Matrix {
            weight,
            bias: bias.as_ref(),
        });
        matrix::multiply_gated(x, &matrices, activation)
    }

    /// `forward` of several layers of one input, together where that saves time.
    pub(super) fn forward_each(layers: &[Self], x: &Tensor) -> Result<Vec<Tensor>> {
        let mut factors = Vec::with_capacity(layers.len());
        for layer in layers {
            if let Weight::Blocks(matrix, bias) = &layer.weight {
                let bias = bias.as_deref();
                let epilogue = GemmEpilogue {
                    bias,
                    ..Default::default()
                };
                factors.push((matrix, epilogue));
            }
        }
        if factors.len() < layers.len() {
            return layers.iter().map(|layer| layer.forward(x)).collect();
        }
        let shapes = layers.iter().map(|layer| layer.output_shape(x));
        let shapes = shapes.collect::<Result<Vec<_>>>()?;
        let rows = shapes.first().map_or(0, |(_, rows)| *rows);
        let isa = Isa::current()?;
        let products = with_values(x, |x| Ok(multiply_each(isa, x, rows, &factors)))?;
        let outputs = products.into_iter().zip(shapes);
        outputs
            .map(|(product, (shape, _))| Ok(Tensor::from_vec(product, shape, x.device())?))
            .collect()
    }

    fn forward_plain(
        &self,
        x: &Tensor,
        weight: &Tensor,
        shape: Vec<usize>,
        rows: usize,
        epilogue: &Epilogue<'_>,
    ) -> Result<Tensor> {
        let x = x.reshape((rows, self.inputs))?;
        let stored = weight.t()?;
        if let Some(out) = matrix::multiply(&x, &matrix_of((&stored, self)), epilogue)? {
            return Ok(out.reshape(shape)?);
        }
        let product = x.matmul(weight)?;
        let product = match &self.bias {
            Some(bias) => elementwise::add(&product, bias)?,
            None => product,
        };
        follow(product.reshape(shape)?, epilogue)
    }

    fn forward_blocks(
        &self,
        x: &Tensor,
        matrix: &DeviceBlocks,
        shape: Vec<usize>,
        rows: usize,
        epilogue: &Epilogue<'_>,
    ) -> Result<Tensor> {
        let x = x.reshape((rows, self.inputs))?;
        let bias = self.bias.as_ref();
        let factor = BlockFactor {
            blocks: matrix,
            bias,
        };
        if let Some(out) = blocks::multiply_with(&x, &factor, epilogue)? {
            return Ok(out.reshape(shape)?);
        }
        if let (None, Some(residual)) = (epilogue.activation, epilogue.residual) {
            let residual = residual.reshape((rows, self.outputs))?;
            return Ok(matrix.multiply(&x, bias, Some(&residual))?.reshape(shape)?);
        }
        let product = matrix.multiply(&x, bias, None)?;
        follow(product.reshape(shape)?, epilogue)
    }

    fn forward_shared<T: Element>(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&[f32]>,
        shape: Vec<usize>,
        epilogue: &Epilogue<'_>,
    ) -> Result<Tensor> {
        with_values(weight, |values: &[T]| {
            let matrix = RowMatrix::new(values, self.inputs, self.outputs);
            forward_on_cpu(x, bias, shape, epilogue, |isa, x, epilogue| {
                matrix.multiply(isa, x, x.len() / self.inputs, epilogue)
            })
        })
    }

    fn output_shape(&self, x: &Tensor) -> Result<(Vec<usize>, usize)> {
        let mut shape = x.dims().to_vec();
        match shape.last_mut() {
            Some(last) if *last == self.inputs => *last = self.outputs,
            _ => {
                return Err(Error::InvalidInput(format!(
                    "a linear layer of {} inputs got a tensor of shape {:?}",
                    self.inputs,
                    x.dims()
                )))
            }
        }
        let rows = shape.iter().rev().skip(1).product();
        Ok((shape, rows))
    }
}

/// The epilogue by launches of its own.
fn follow(product: Tensor, epilogue: &Epilogue<'_>) -> Result<Tensor> {
    let product = match epilogue.activation {
        Some(activation) => kernels::activate(&product, activation)?,
        None => product,
    };
    match epilogue.residual {
        Some(residual) => elementwise::add(&product, residual),
        None => Ok(product),
    }
}

/// The layers' weights, where all lie in blocks on a GPU.
fn block_factors(layers: &[Linear]) -> Option<Vec<BlockFactor<'_>>> {
    let factors = layers.iter().map(|layer| match &layer.weight {
        Weight::DeviceBlocks(blocks) => Some(BlockFactor {
            blocks,
            bias: layer.bias.as_ref(),
        }),
        _ => None,
    });
    factors.collect()
}

/// The layers' weights [out, in], unless some are laid out for the CPU.
fn plain_weights(layers: &[Linear]) -> Result<Option<Vec<Tensor>>> {
    let plain = layers.iter().map(|layer| match &layer.weight {
        Weight::Plain(weight) => Some(weight.t()),
        _ => None,
    });
    Ok(plain
        .collect::<Option<candle_core::Result<_>>>()
        .transpose()?)
}

fn matrix_of<'a>((weight, layer): (&'a Tensor, &'a Linear)) -> Matrix<'a> {
    Matrix {
        weight,
        bias: layer.bias.as_ref(),
    }
}

fn multiply<T: Element, M: WeightMatrix<T>>(
    matrix: &M,
    x: &Tensor,
    bias: &Option<Vec<f32>>,
    shape: Vec<usize>,
    epilogue: &Epilogue<'_>,
) -> Result<Tensor> {
    let rows = x.elem_count() / matrix.inputs().max(1);
    forward_on_cpu(x, bias.as_deref(), shape, epilogue, |isa, x, epilogue| {
        matrix.multiply(isa, x, rows, epilogue)
    })
}

/// `multiply` gets the values of `x` and an epilogue whose residual fits.
fn forward_on_cpu<T: Element>(
    x: &Tensor,
    bias: Option<&[f32]>,
    shape: Vec<usize>,
    epilogue: &Epilogue<'_>,
    multiply: impl Fn(Isa, &[T], &GemmEpilogue<'_, T>) -> Vec<T>,
) -> Result<Tensor> {
    let isa = Isa::current()?;
    let activation = epilogue.activation;
    let product = with_values(x, |x| match epilogue.residual {
        None => Ok(multiply(
            isa,
            x,
            &GemmEpilogue {
                bias,
                activation,
                residual: None,
            },
        )),
        Some(residual) if residual.dims() != shape => Err(Error::InvalidInput(format!(
            "a residual of shape {:?} does not fit a linear layer's output of shape {shape:?}",
            residual.dims()
        ))),
        Some(residual) => with_values(residual, |residual| {
            let residual = Some(residual);
            Ok(multiply(
                isa,
                x,
                &GemmEpilogue {
                    bias,
                    activation,
                    residual,
                },
            ))
        }),
    })?;
    Ok(Tensor::from_vec(product, shape, x.device())?)
}

/// The elements of a tensor on the CPU, copied only where they are not contiguous.
pub(super) fn with_values<T: Element, R>(
    tensor: &Tensor,
    work: impl FnOnce(&[T]) -> Result<R>,
) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(Error::InvalidInput(
            "a linear layer on the CPU got a tensor of another device".into(),
        ));
    };
    let start = layout.start_offset();
    work(&storage.as_slice::<T>()?[start..start + tensor.elem_count()])
}

#[cfg(test)]
mod tests;
