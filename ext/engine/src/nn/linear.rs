//! A linear layer that owns its weight in the layout its backend likes.

use candle_core::{DType, Device, Tensor};

use super::elementwise;
use crate::{Error, Result};
use base::quant::{LinedTensor, QuantizedTensor};
use kernels::backend::Stored;
use kernels::blocks::{self, BlockFactor, DeviceBlocks};
use kernels::experts::{ExpertMatrices, ExpertMatrix};
use kernels::matrix::{self, Matrix};
use kernels::packed_weight::{self, PackedWeight};
use kernels::{self, Activation, Windows};

pub use kernels::Epilogue;

#[derive(Clone, Debug)]
enum Weight {
    /// [in, out], a transposed view of what the file holds.
    Plain(Tensor),
    /// On the CPU, with the bias.
    Packed(PackedWeight),
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

    /// A layer that the CPU computes with vectors alone: what a ReLU leaves of a row is far from evenly large, and tiles
    /// multiply such rows no faster.
    pub fn by_vectors(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        let mut layer = Self::plain(weight.clone(), bias)?;
        match PackedWeight::for_vectors(&weight, layer.bias.as_ref())? {
            Some(packed) => layer.weight = Weight::Packed(packed),
            None => layer.pack()?,
        }
        Ok(layer)
    }

    /// A layer on the CPU whose weight is rounded to bytes, with a scale per output; takes and gives bf16 and f32.
    pub fn bytes(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        let weight = match weight.dtype() {
            DType::BF16 => weight,
            _ => weight.to_dtype(DType::F32)?,
        };
        let mut layer = Self::plain(weight.clone(), bias)?;
        match PackedWeight::bytes(&weight, layer.bias.as_ref())? {
            Some(packed) => layer.weight = Weight::Packed(packed),
            None => layer.pack()?,
        }
        Ok(layer)
    }

    /// A layer on the CPU for few rows at a time, which waits for its weight: f32 held in 16 bits. `None` unless these
    /// are the same numbers, as in checkpoints that were trained or published in 16 bits.
    pub fn compact(weight: &Tensor, bias: Option<&Tensor>) -> Result<Option<Self>> {
        let Some(halves) = packed_weight::exact_halves(weight)? else {
            return Ok(None);
        };
        let mut layer = Self::plain(weight.clone(), bias.cloned())?;
        let packed = PackedWeight::new(&halves, bias)?;
        Ok(packed.map(|packed| {
            layer.weight = Weight::Packed(packed);
            layer
        }))
    }

    /// What a model with layers on bytes computes the rest in.
    pub fn dtype_beside_bytes() -> Result<DType> {
        packed_weight::dtype_beside_bytes()
    }

    /// What passes between layers whose weights are of `dtype`.
    pub fn dtype_between(device: &Device, dtype: DType) -> Result<DType> {
        packed_weight::dtype_between(device, dtype)
    }

    /// A layer on a weight that stays in use elsewhere, such as a tied embedding: it is not laid
    /// out again, which would keep it in memory twice.
    pub fn shared(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        let mut layer = Self::plain(weight.clone(), bias)?;
        if let Some(shared) = PackedWeight::shared(&weight, layer.bias.as_ref())? {
            layer.weight = Weight::Packed(shared);
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
        let Some(packed) = PackedWeight::blocks(&weight, bias.as_ref())? else {
            let values = weight.dequantize()?;
            return Self::new(Tensor::from_vec(values, weight.shape, &Device::Cpu)?, bias);
        };
        Ok(Self {
            inputs: packed.inputs(),
            outputs: packed.outputs(),
            weight: Weight::Packed(packed),
            bias,
            dtype: DType::F32,
        })
    }

    /// Whether a weight whose scales belong to columns may stay as it is on this device, in a model of this type.
    pub fn keeps_lines(device: &Device, dtype: DType) -> bool {
        device.is_cpu() && dtype == DType::F32
    }

    /// Whether it has the numbers of rows that the kernels take.
    pub fn takes_lines(weight: &LinedTensor) -> bool {
        PackedWeight::takes_lines(weight)
    }

    /// A layer whose weight stays quantized, where `keeps_lines` and `takes_lines` allow it.
    pub fn lined(weight: &LinedTensor, bias: Option<Tensor>) -> Result<Self> {
        let packed = PackedWeight::lined(weight, bias.as_ref())?;
        Ok(Self {
            inputs: packed.inputs(),
            outputs: packed.outputs(),
            weight: Weight::Packed(packed),
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
        let (inputs, outputs) = (matrix.columns(), matrix.outputs());
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
        if let Some(packed) = PackedWeight::new(&weight.t()?, self.bias.as_ref())? {
            self.weight = Weight::Packed(packed);
        }
        Ok(())
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
            Weight::Plain(weight) => Some(weight),
            Weight::Packed(packed) => packed.held(),
            Weight::DeviceBlocks(matrix) => Some(matrix.bytes()),
        }
    }

    /// What the weight is made of, and where it is.
    pub(super) fn stored(&self) -> (Stored, Device) {
        match &self.weight {
            Weight::Plain(weight) => (Stored::Numbers(self.dtype), weight.device().clone()),
            Weight::Packed(packed) => (packed.stored(), Device::Cpu),
            Weight::DeviceBlocks(matrix) => {
                let device = matrix.bytes().device().clone();
                let stored = if matrix.rounds_rows() {
                    Stored::WithFp8Rows(matrix.kind())
                } else {
                    Stored::Blocks(matrix.kind())
                };
                (stored, device)
            }
        }
    }

    /// Whether the weight is held in quantized blocks.
    pub fn is_quantized(&self) -> bool {
        match &self.weight {
            Weight::Packed(packed) => packed.is_quantized(),
            weight => matches!(weight, Weight::DeviceBlocks(_)),
        }
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
            Weight::Packed(packed) => packed.multiply(x, shape, epilogue),
            Weight::DeviceBlocks(matrix) => self.forward_blocks(x, matrix, shape, rows, epilogue),
        }
    }

    /// activation(forward) of all windows of a map, [places, channels]; `None` where they have to be laid out before.
    pub(super) fn forward_windows(
        &self,
        x: &Tensor,
        windows: &Windows,
        activation: Option<Activation>,
    ) -> Result<Option<Tensor>> {
        match &self.weight {
            Weight::Packed(packed) => packed.multiply_windows(x, windows, activation),
            _ => Ok(None),
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

    /// Where the weight is.
    pub fn device(&self) -> Device {
        self.stored().1
    }

    /// The matrices of experts that read the same rows, of each as many, with outputs of these widths; `None` where the
    /// device has no kernel for them.
    pub fn of_experts<'a>(
        experts: impl Iterator<Item = &'a [Self]>,
        widths: &[usize],
        device: &Device,
    ) -> Result<Option<ExpertMatrices>> {
        let mut plain = Vec::new();
        let experts: Vec<&[Self]> = experts.collect();
        for layers in &experts {
            plain.push(plain_weights(layers)?);
        }
        let matrices = experts.iter().zip(&plain).map(|(layers, plain)| {
            let blocks = block_factors(layers);
            // Each order of columns asks for inputs of its own.
            let plain_order =
                |all: &Vec<BlockFactor<'_>>| !all.iter().any(|one| one.blocks.is_ordered());
            let blocks = blocks
                .filter(plain_order)
                .map(|all| all.into_iter().map(ExpertMatrix::Blocks).collect());
            blocks.or_else(|| {
                let pairs = plain.as_ref()?.iter().zip(*layers);
                let matrices = pairs.map(|pair| ExpertMatrix::Numbers(matrix_of(pair)));
                Some(matrices.collect())
            })
        });
        match matrices.collect::<Option<Vec<Vec<_>>>>() {
            Some(matrices) => ExpertMatrices::new(&matrices, widths, device),
            None => Ok(None),
        }
    }

    /// `forward` of several layers of one input, together where that saves time.
    pub(super) fn forward_each(layers: &[Self], x: &Tensor) -> Result<Vec<Tensor>> {
        let packed = layers.iter().map(|layer| match &layer.weight {
            Weight::Packed(packed) => Some(packed),
            _ => None,
        });
        if let Some(packed) = packed.collect::<Option<Vec<_>>>() {
            let shapes = layers.iter().map(|layer| layer.output_shape(x));
            let (shapes, rows): (Vec<_>, Vec<_>) =
                shapes.collect::<Result<Vec<_>>>()?.into_iter().unzip();
            let rows = rows.first().copied().unwrap_or_default();
            let products = PackedWeight::multiply_each(packed.into_iter(), x, rows, shapes)?;
            if let Some(products) = products {
                return Ok(products);
            }
        }
        layers.iter().map(|layer| layer.forward(x)).collect()
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

#[cfg(test)]
mod tests;
