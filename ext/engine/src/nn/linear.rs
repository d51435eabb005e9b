//! A linear layer that owns its weight in the layout its backend likes.

#[cfg(feature = "cuda")]
mod cuda;

use candle_core::{DType, Device, Storage, Tensor};
use half::{bf16, f16};

use super::elementwise;
use crate::kernels::cpu::isa::Isa;
use crate::kernels::cpu::product::blocks::{self, BlockMatrix};
use crate::kernels::cpu::product::byte_matrix::{self, ByteMatrix};
use crate::kernels::cpu::product::gemm::{GemmEpilogue, PackedMatrix};
use crate::kernels::cpu::product::half_matrix::HalfMatrix;
use crate::kernels::cpu::Element;
use crate::kernels::{self, Activation};
use crate::quant::{dequantize, QuantizedTensor};
use crate::{runtime::memory, Error, Result};

/// What follows the product, in this order: bias (the layer's own), activation, residual.
#[derive(Clone, Copy, Default)]
pub struct Epilogue<'a> {
    pub activation: Option<Activation>,
    /// Added last; shaped like the output.
    pub residual: Option<&'a Tensor>,
}

#[derive(Clone, Debug)]
enum Weight {
    /// [in, out], a transposed view of what the file holds.
    Plain(Tensor),
    /// f32 on the CPU, laid out for the micro-kernels, with the bias.
    Packed(PackedMatrix, Option<Vec<f32>>),
    /// The same of bf16 or f16.
    Half(HalfMatrix, Option<Vec<f32>>),
    /// Rounded to bytes on the CPU; takes and gives f32.
    Bytes(ByteMatrix, Option<Vec<f32>>),
    /// Quantized blocks on the CPU, laid out for the kernels, with the bias.
    Blocks(BlockMatrix, Option<Vec<f32>>),
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
        let mut layer = Self::shared(weight, bias)?;
        layer.pack()?;
        Ok(layer)
    }

    /// A layer on the CPU whose weight is rounded to bytes, with a scale per output; computes on f32.
    pub fn bytes(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        let mut layer = Self::shared(weight.to_dtype(DType::F32)?, bias)?;
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

    /// The same on a weight that stays in use elsewhere, such as a tied embedding: it is not laid
    /// out anew, which would keep it in memory twice.
    pub fn shared(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
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

    /// A layer on the CPU whose weight stays quantized.
    pub fn quantized(weight: QuantizedTensor, bias: Option<Tensor>) -> Result<Self> {
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

    /// x · weightᵀ + bias; `x` is [.., in].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &Epilogue::default())
    }

    /// `forward`, followed by the epilogue.
    pub fn forward_with(&self, x: &Tensor, epilogue: &Epilogue<'_>) -> Result<Tensor> {
        let (shape, rows) = self.output_shape(x)?;
        match &self.weight {
            Weight::Plain(weight) => self.forward_plain(x, weight, shape, rows, epilogue),
            Weight::Packed(weight, bias) => {
                forward_on_cpu(x, bias.as_deref(), shape, epilogue, |isa, x, epilogue| {
                    weight.multiply(isa, x, rows, epilogue)
                })
            }
            Weight::Half(weight, bias) if self.dtype == DType::BF16 => {
                forward_on_cpu::<bf16>(x, bias.as_deref(), shape, epilogue, |isa, x, epilogue| {
                    weight.multiply(isa, x, rows, epilogue)
                })
            }
            Weight::Half(weight, bias) => {
                forward_on_cpu::<f16>(x, bias.as_deref(), shape, epilogue, |isa, x, epilogue| {
                    weight.multiply(isa, x, rows, epilogue)
                })
            }
            Weight::Bytes(weight, bias) => {
                forward_on_cpu(x, bias.as_deref(), shape, epilogue, |isa, x, epilogue| {
                    weight.multiply(isa, x, rows, epilogue)
                })
            }
            Weight::Blocks(weight, bias) => {
                forward_on_cpu(x, bias.as_deref(), shape, epilogue, |isa, x, epilogue| {
                    blocks::multiply(isa, x, rows, &[(weight, *epilogue)]).remove(0)
                })
            }
        }
    }

    /// The outputs of several layers of one input side by side, where one launch makes them all; `None`
    /// where running each is as good.
    pub fn forward_joined(layers: &[&Linear], x: &Tensor) -> Result<Option<Tensor>> {
        #[cfg(feature = "cuda")]
        if let (true, [tokens, _]) = (x.device().is_cuda(), x.dims()) {
            if layers
                .iter()
                .all(|layer| layer.inputs * tokens == x.elem_count())
            {
                return cuda::joined(layers, x);
            }
        }
        let _ = (layers, x);
        Ok(None)
    }

    /// activation(gate(x)) · up(x).
    pub fn forward_gated(
        gate: &Linear,
        up: &Linear,
        x: &Tensor,
        activation: Activation,
    ) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() && x.rank() == 2 && gate.inputs == x.dim(1)? {
            if let Some(out) = cuda::gated(gate, up, x, activation)? {
                return Ok(out);
            }
        }
        let [gate, up] = Self::forward_each([gate, up], x)?;
        kernels::gated(&gate, &up, activation)
    }

    /// The same of a layer that holds gate and up, gate first.
    pub fn forward_gated_fused(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() && x.rank() == 2 && self.inputs == x.dim(1)? {
            if let Some(out) = cuda::gated_fused(self, x, activation)? {
                return Ok(out);
            }
        }
        kernels::gated_fused(&self.forward(x)?, activation)
    }

    /// Several layers of one input: `forward` of each, together where that saves time.
    pub fn forward_each<const N: usize>(layers: [&Self; N], x: &Tensor) -> Result<[Tensor; N]> {
        let mut factors = Vec::with_capacity(N);
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
        let mut outputs = Vec::with_capacity(N);
        if factors.len() == N {
            let shapes = layers.map(|layer| layer.output_shape(x));
            let shapes = shapes.into_iter().collect::<Result<Vec<_>>>()?;
            let rows = shapes.first().map_or(0, |(_, rows)| *rows);
            let isa = Isa::current()?;
            let products = with_values(x, |x| Ok(blocks::multiply(isa, x, rows, &factors)))?;
            for (product, (shape, _)) in products.into_iter().zip(shapes) {
                outputs.push(Tensor::from_vec(product, shape, x.device())?);
            }
        } else {
            for layer in layers {
                outputs.push(layer.forward(x)?);
            }
        }
        <[Tensor; N]>::try_from(outputs)
            .map_err(|_| Error::Internal("a layer without an output".into()))
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
        #[cfg(feature = "cuda")]
        if let Some(out) = cuda::forward(self, &x, epilogue)? {
            return Ok(out.reshape(shape)?);
        }
        let product = x.matmul(weight)?;
        let product = match &self.bias {
            Some(bias) => elementwise::add(&product, bias)?,
            None => product,
        };
        let product = product.reshape(shape)?;
        let product = match epilogue.activation {
            Some(activation) => kernels::activate(&product, activation)?,
            None => product,
        };
        match epilogue.residual {
            Some(residual) => elementwise::add(&product, residual),
            None => Ok(product),
        }
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
fn with_values<T: Element, R>(tensor: &Tensor, work: impl FnOnce(&[T]) -> Result<R>) -> Result<R> {
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
