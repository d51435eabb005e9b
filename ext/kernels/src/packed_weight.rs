//! A weight matrix on the CPU in the layout that its micro-kernels like, with its bias. What the numbers are and which
//! kernels multiply them is known here alone.

use std::sync::Arc;

use candle_core::{DType, Device, Storage, Tensor};
use half::{bf16, f16};

use crate::backend::Stored;
use crate::blocks::check_order;
use crate::cpu::isa::Isa;
use crate::cpu::product::blocks::BlockMatrix;
use crate::cpu::product::byte_matrix::{self, ByteMatrix};
use crate::cpu::product::gemm::{multiply_windows, PackedMatrix};
use crate::cpu::product::grouped::{GroupedMatrix, LinedMatrix};
use crate::cpu::product::half_matrix::{multiplies_bf16, HalfMatrix};
use crate::cpu::product::row_matrix::RowMatrix;
use crate::cpu::product::{multiply_each, GemmEpilogue, WeightMatrix};
use crate::cpu::windows::Windows;
use crate::cpu::Element;
use crate::{Activation, Epilogue, Error, Result};
use base::quant::{LinedTensor, QuantizedTensor};
use base::runtime::memory;

#[derive(Clone, Debug)]
pub struct PackedWeight {
    layout: Layout,
    bias: Option<Vec<f32>>,
    inputs: usize,
    outputs: usize,
    dtype: DType,
    /// The inputs in the order of a quantized matrix, where that is another.
    order: Option<Arc<[u32]>>,
}

#[derive(Clone, Debug)]
enum Layout {
    F32(PackedMatrix),
    /// bf16 or f16; takes and gives f32 too.
    Half(HalfMatrix),
    /// Rounded to bytes; takes and gives f32 and bf16.
    Bytes(ByteMatrix),
    Blocks(BlockMatrix),
    Grouped(GroupedMatrix),
    /// Of scales that belong to columns.
    Lined(LinedMatrix),
    /// [out, in], as another part of the model holds it.
    Shared(Tensor),
}

impl PackedWeight {
    /// Lays out a weight, [out, in]; `None` for one that is empty, on another device or of a type without kernels.
    pub fn new(weight: &Tensor, bias: Option<&Tensor>) -> Result<Option<Self>> {
        if !has_kernel(weight) {
            return Ok(None);
        }
        let (outputs, inputs) = weight.dims2()?;
        let size = weight.dtype().size_in_bytes();
        memory::ensure_elements(&[inputs, outputs], size, "a linear layer's weight")?;
        let layout = match weight.dtype() {
            DType::BF16 => with_values(weight, |values: &[bf16]| {
                Ok(Layout::Half(HalfMatrix::new(values, inputs, outputs)?))
            })?,
            DType::F16 => with_values(weight, |values: &[f16]| {
                Ok(Layout::Half(HalfMatrix::new(values, inputs, outputs)?))
            })?,
            _ => with_values(weight, |values| {
                Ok(Layout::F32(PackedMatrix::new(values, inputs, outputs)?))
            })?,
        };
        Self::with_bias(layout, bias, (inputs, outputs), weight.dtype()).map(Some)
    }

    /// `new` for vectors, of f32; `None` for all else.
    pub fn for_vectors(weight: &Tensor, bias: Option<&Tensor>) -> Result<Option<Self>> {
        if !has_kernel(weight) || weight.dtype() != DType::F32 {
            return Ok(None);
        }
        let (outputs, inputs) = weight.dims2()?;
        memory::ensure_elements(
            &[inputs, outputs],
            size_of::<f32>(),
            "a convolution's weight",
        )?;
        let matrix = with_values(weight, |values| {
            PackedMatrix::for_vectors(values, inputs, outputs)
        })?;
        Self::with_bias(Layout::F32(matrix), bias, (inputs, outputs), DType::F32).map(Some)
    }

    /// Rounds a weight to bytes with a scale per output; `None` where `new` has to serve: it is empty, or has more
    /// inputs than sums of bytes can take.
    pub fn bytes(weight: &Tensor, bias: Option<&Tensor>) -> Result<Option<Self>> {
        let (outputs, inputs) = weight.dims2()?;
        if inputs > byte_matrix::MOST_INPUTS || weight.elem_count() == 0 {
            return Ok(None);
        }
        memory::ensure_elements(&[inputs, outputs], 1, "a linear layer's weight")?;
        let matrix = with_values(&weight.to_dtype(DType::F32)?, |values: &[f32]| {
            ByteMatrix::new(values, inputs, outputs)
        })?;
        let layout = Layout::Bytes(matrix);
        Self::with_bias(layout, bias, (inputs, outputs), weight.dtype()).map(Some)
    }

    /// Keeps blocks as they are; `None` for a type of blocks without kernels.
    pub fn blocks(weight: &QuantizedTensor, bias: Option<&Tensor>) -> Result<Option<Self>> {
        let (layout, shape) = if let Some(matrix) = GroupedMatrix::new(weight)? {
            let shape = (matrix.inputs, matrix.outputs);
            (Layout::Grouped(matrix), shape)
        } else if BlockMatrix::takes(weight.kind) {
            let matrix = BlockMatrix::new(Isa::current()?, weight)?;
            let shape = (matrix.inputs, matrix.outputs);
            (Layout::Blocks(matrix), shape)
        } else {
            return Ok(None);
        };
        let order = &weight.order;
        if let Some(order) = order {
            check_order(order, shape.0)?;
        }
        let packed = Self::with_bias(layout, bias, shape, DType::F32)?;
        Ok(Some(Self {
            order: order.clone(),
            ..packed
        }))
    }

    /// Whether `lined` has kernels for it.
    pub fn takes_lines(weight: &LinedTensor) -> bool {
        LinedMatrix::takes(weight)
    }

    /// Keeps codes whose scales belong to columns.
    pub fn lined(weight: &LinedTensor, bias: Option<&Tensor>) -> Result<Self> {
        let matrix = LinedMatrix::new(weight)?;
        let shape = (matrix.inputs, matrix.outputs);
        Self::with_bias(Layout::Lined(matrix), bias, shape, DType::F32)
    }

    /// A weight, [out, in], that stays in use elsewhere and is read where it lies; `None` as for `new`.
    pub fn shared(weight: &Tensor, bias: Option<&Tensor>) -> Result<Option<Self>> {
        if !has_kernel(weight) {
            return Ok(None);
        }
        let (outputs, inputs) = weight.dims2()?;
        let layout = Layout::Shared(weight.contiguous()?);
        Self::with_bias(layout, bias, (inputs, outputs), weight.dtype()).map(Some)
    }

    fn with_bias(
        layout: Layout,
        bias: Option<&Tensor>,
        (inputs, outputs): (usize, usize),
        dtype: DType,
    ) -> Result<Self> {
        let values = bias.map(|bias| bias.to_dtype(DType::F32)?.to_vec1::<f32>());
        let bias = values.transpose()?;
        if let Some(bias) = bias.as_ref().filter(|bias| bias.len() != outputs) {
            return Err(Error::InvalidInput(format!(
                "a bias of {} values does not fit a linear layer of {outputs} outputs",
                bias.len()
            )));
        }
        Ok(Self {
            layout,
            bias,
            inputs,
            outputs,
            dtype,
            order: None,
        })
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The tensor that another part of the model holds.
    pub fn held(&self) -> Option<&Tensor> {
        match &self.layout {
            Layout::Shared(weight) => Some(weight),
            _ => None,
        }
    }

    pub fn is_quantized(&self) -> bool {
        matches!(
            self.layout,
            Layout::Blocks(_) | Layout::Grouped(_) | Layout::Lined(_)
        )
    }

    pub fn stored(&self) -> Stored {
        match &self.layout {
            Layout::F32(matrix) if matrix.has_parts() => Stored::Parts,
            Layout::F32(_) | Layout::Half(_) => Stored::Numbers(self.dtype),
            Layout::Bytes(_) => Stored::Bytes,
            Layout::Blocks(matrix) => Stored::Blocks(matrix.kind()),
            Layout::Grouped(matrix) => Stored::Blocks(matrix.kind()),
            Layout::Lined(matrix) => Stored::Blocks(matrix.kind()),
            Layout::Shared(_) => Stored::Shared(self.dtype),
        }
    }

    /// x · weightᵀ + bias, followed by the epilogue; `shape` is the result's.
    pub fn multiply(
        &self,
        x: &Tensor,
        shape: Vec<usize>,
        epilogue: &Epilogue<'_>,
    ) -> Result<Tensor> {
        let ordered = self.in_order(x)?;
        let x = ordered.as_ref().unwrap_or(x);
        match (&self.layout, x.dtype(), self.dtype) {
            (Layout::F32(matrix), ..) => self.product::<f32, _>(matrix, x, shape, epilogue),
            (Layout::Half(matrix), DType::F32, _) => {
                self.product::<f32, _>(matrix, x, shape, epilogue)
            }
            (Layout::Half(matrix), _, DType::BF16) => {
                self.product::<bf16, _>(matrix, x, shape, epilogue)
            }
            (Layout::Half(matrix), ..) => self.product::<f16, _>(matrix, x, shape, epilogue),
            (Layout::Bytes(matrix), DType::BF16, _) => {
                self.product::<bf16, _>(matrix, x, shape, epilogue)
            }
            (Layout::Bytes(matrix), ..) => self.product::<f32, _>(matrix, x, shape, epilogue),
            (Layout::Blocks(matrix), ..) => self.product::<f32, _>(matrix, x, shape, epilogue),
            (Layout::Grouped(matrix), ..) => self.product::<f32, _>(matrix, x, shape, epilogue),
            (Layout::Lined(matrix), ..) => {
                let rows = x.elem_count() / self.inputs.max(1);
                self.on_values(x, shape, epilogue, |isa, x, epilogue| {
                    matrix.multiply_in_order(isa, x, rows, epilogue)
                })
            }
            (Layout::Shared(held), _, DType::BF16) => {
                self.product_with::<bf16>(held, x, shape, epilogue)
            }
            (Layout::Shared(held), _, DType::F16) => {
                self.product_with::<f16>(held, x, shape, epilogue)
            }
            (Layout::Shared(held), ..) => self.product_with::<f32>(held, x, shape, epilogue),
        }
    }

    /// activation(windows · weightᵀ + bias) for all windows of a map, [places, channels]; `None` where they have to be
    /// laid out before: few windows, and numbers other than f32.
    pub fn multiply_windows(
        &self,
        x: &Tensor,
        windows: &Windows,
        activation: Option<Activation>,
    ) -> Result<Option<Tensor>> {
        let Layout::F32(matrix) = &self.layout else {
            return Ok(None);
        };
        let channels = windows.channels(x)?;
        if channels * windows.kernel * windows.kernel != self.inputs {
            return Err(Error::Internal("windows that do not fit a weight".into()));
        }
        let isa = Isa::current()?;
        let epilogue = GemmEpilogue {
            bias: self.bias.as_deref(),
            activation,
            residual: None,
        };
        let found = with_values(x, |x| {
            Ok(multiply_windows(isa, matrix, (x, windows), &epilogue))
        })?;
        let shape = (windows.down * windows.across, self.outputs);
        let found = found.map(|values| Tensor::from_vec(values, shape, x.device()));
        Ok(found.transpose()?)
    }

    /// The products of one input with several weights, of these shapes, in one pass over the input; `None` unless all
    /// are quantized alike, with their inputs in the usual order.
    pub fn multiply_each<'a>(
        weights: impl Iterator<Item = &'a Self>,
        x: &Tensor,
        rows: usize,
        shapes: Vec<Vec<usize>>,
    ) -> Result<Option<Vec<Tensor>>> {
        let weights: Vec<&Self> = weights.collect();
        if weights.iter().any(|weight| weight.order.is_some()) {
            return Ok(None);
        }
        let blocks = weights.iter().copied().map(|weight| match &weight.layout {
            Layout::Blocks(matrix) => Some((matrix, weight.only_bias())),
            _ => None,
        });
        if let Some(factors) = blocks.collect::<Option<Vec<_>>>() {
            return products_of(&factors, x, rows, shapes).map(Some);
        }
        let groups = weights.iter().copied().map(|weight| match &weight.layout {
            Layout::Grouped(matrix) => Some((matrix, weight.only_bias())),
            _ => None,
        });
        match groups.collect::<Option<Vec<_>>>() {
            Some(factors) => products_of(&factors, x, rows, shapes).map(Some),
            None => Ok(None),
        }
    }

    fn only_bias(&self) -> GemmEpilogue<'_, f32> {
        GemmEpilogue {
            bias: self.bias.as_deref(),
            ..Default::default()
        }
    }

    /// Rows whose elements are in the order of the matrix; `None` where theirs is that already.
    fn in_order(&self, x: &Tensor) -> Result<Option<Tensor>> {
        let Some(order) = &self.order else {
            return Ok(None);
        };
        let ordered = with_values(x, |x: &[f32]| {
            let rows = x.chunks_exact(self.inputs.max(1));
            let values = rows.flat_map(|row| order.iter().map(move |&column| row[column as usize]));
            Ok(values.collect::<Vec<f32>>())
        })?;
        Ok(Some(Tensor::from_vec(ordered, x.dims(), x.device())?))
    }

    fn product<T: Element, M: WeightMatrix<T>>(
        &self,
        matrix: &M,
        x: &Tensor,
        shape: Vec<usize>,
        epilogue: &Epilogue<'_>,
    ) -> Result<Tensor> {
        let rows = x.elem_count() / self.inputs.max(1);
        self.on_values(x, shape, epilogue, |isa, x, epilogue| {
            matrix.multiply(isa, x, rows, epilogue)
        })
    }

    fn product_with<T: Element>(
        &self,
        held: &Tensor,
        x: &Tensor,
        shape: Vec<usize>,
        epilogue: &Epilogue<'_>,
    ) -> Result<Tensor> {
        with_values(held, |values: &[T]| {
            let matrix = RowMatrix::new(values, self.inputs, self.outputs);
            self.on_values(x, shape, epilogue, |isa, x, epilogue| {
                matrix.multiply(isa, x, x.len() / self.inputs, epilogue)
            })
        })
    }

    /// `multiply` gets the values of `x` and an epilogue whose residual fits.
    fn on_values<T: Element>(
        &self,
        x: &Tensor,
        shape: Vec<usize>,
        epilogue: &Epilogue<'_>,
        multiply: impl Fn(Isa, &[T], &GemmEpilogue<'_, T>) -> Vec<T>,
    ) -> Result<Tensor> {
        let isa = Isa::current()?;
        let (bias, activation) = (self.bias.as_deref(), epilogue.activation);
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
}

/// The products of one input with several matrices.
fn products_of<M: WeightMatrix<f32>>(
    factors: &[(&M, GemmEpilogue<'_, f32>)],
    x: &Tensor,
    rows: usize,
    shapes: Vec<Vec<usize>>,
) -> Result<Vec<Tensor>> {
    let isa = Isa::current()?;
    let products = with_values(x, |x| Ok(multiply_each(isa, x, rows, factors)))?;
    let outputs = products.into_iter().zip(shapes);
    outputs
        .map(|(product, shape)| Ok(Tensor::from_vec(product, shape, x.device())?))
        .collect()
}

/// The numbers of a matrix of f32 on the CPU in 16 bits; `None` where some of them would change.
pub fn exact_halves(weight: &Tensor) -> Result<Option<Tensor>> {
    if weight.dtype() != DType::F32 || !has_kernel(weight) {
        return Ok(None);
    }
    let kind = with_values(weight, |values: &[f32]| {
        let all = |round: fn(f32) -> f32| {
            let mut values = values.iter();
            values.all(|&value| round(value).to_bits() == value.to_bits())
        };
        Ok(if all(|value| f16::from_f32(value).to_f32()) {
            Some(DType::F16)
        } else if all(|value| bf16::from_f32(value).to_f32()) {
            Some(DType::BF16)
        } else {
            None
        })
    })?;
    Ok(kind.map(|kind| weight.to_dtype(kind)).transpose()?)
}

fn has_kernel(weight: &Tensor) -> bool {
    let has_kernel = matches!(weight.dtype(), DType::F32 | DType::BF16 | DType::F16);
    weight.device().is_cpu() && has_kernel && weight.elem_count() > 0
}

/// What a model with weights of bytes computes the rest in: bf16 where the CPU has tiles, which multiply it in
/// attention too, and half as much passes through the caches.
pub fn dtype_beside_bytes() -> Result<DType> {
    Ok(if Isa::current()?.has_tiles() {
        DType::BF16
    } else {
        DType::F32
    })
}

/// What passes between layers whose weights are of `dtype`: f32 where the CPU widens them to multiply, since each
/// layer would else round what the next one widens.
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

/// The elements of a tensor on the CPU, copied only where they are not contiguous.
pub fn with_values<T: Element, R>(
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
