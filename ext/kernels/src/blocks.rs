//! Matrices of quantized blocks in a GPU's memory, as they lie in their file.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::fp8::{self, Scaling};
use super::{Activation, Epilogue};
use crate::{Error, Result};
use base::quant::{BlockType, QuantizedTensor};
use base::runtime::device::placed;

/// [outputs, inputs], row after row of whole blocks.
#[derive(Clone, Debug)]
pub struct DeviceBlocks {
    kind: BlockType,
    /// With the inputs that blocks have beyond the matrix's.
    shape: [usize; 2],
    /// Of the matrix.
    columns: usize,
    /// u8 [bytes].
    bytes: Tensor,
    /// The inputs that the matrix's columns stand for, where these are in another order.
    order: Option<Order>,
    /// How it is scaled, if it is multiplied with rows of FP8 where a GPU can do so.
    scaling: Option<Scaling>,
}

/// Of columns, u32 [inputs] on the device.
#[derive(Clone, Debug)]
struct Order {
    columns: Arc<[u32]>,
    /// Zeros that follow the columns up to a whole block.
    padding: usize,
    /// On CUDA with a number beyond the columns for each zero.
    placed: Tensor,
}

impl Order {
    fn new(columns: Arc<[u32]>, [inputs, whole]: [usize; 2], device: &Device) -> Result<Self> {
        check_order(&columns, inputs)?;
        let padding = whole.saturating_sub(inputs);
        let mut placed = columns.to_vec();
        if device.is_cuda() {
            placed.resize(whole, u32::MAX);
        }
        Ok(Self {
            placed: Tensor::new(&placed[..], device)?,
            padding,
            columns,
        })
    }

    fn is(&self, other: Option<&Self>) -> bool {
        other.is_some_and(|other| {
            let same = Arc::ptr_eq(&self.columns, &other.columns) || self.columns == other.columns;
            same && self.padding == other.padding
        })
    }
}

/// Refuses what does not have each of so many columns once.
pub(crate) fn check_order(order: &[u32], columns: usize) -> Result<()> {
    let mut found = vec![false; columns];
    let mut whole = order.len() == columns;
    for &column in order {
        match found.get_mut(column as usize) {
            Some(found) => *found = true,
            None => whole = false,
        }
    }
    if whole && found.into_iter().all(|found| found) {
        return Ok(());
    }
    Err(Error::InvalidInput(format!(
        "the order of a matrix's columns does not have each of {columns} once"
    )))
}

impl DeviceBlocks {
    /// Whether a device has kernels that compute on blocks, for a model of this type.
    pub fn computed_by(device: &Device, dtype: DType) -> bool {
        let has_kernels = (cfg!(feature = "metal") && device.is_metal())
            || (cfg!(feature = "cuda") && device.is_cuda());
        has_kernels && matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Copies the blocks, and lets go of the file's pages.
    pub fn new(blocks: &QuantizedTensor, device: &Device) -> Result<Self> {
        let [outputs, inputs] = blocks.shape[..] else {
            return Err(Error::InvalidInput(format!(
                "blocks on a device are a matrix, not a tensor of shape {:?}",
                blocks.shape
            )));
        };
        // Rows of groups may end within one.
        let whole = if blocks.kind.is_grouped() {
            inputs.checked_next_multiple_of(blocks.kind.elements())
        } else {
            Some(inputs)
        };
        let whole = whole.unwrap_or(usize::MAX);
        let row = (whole / blocks.kind.elements()).checked_mul(blocks.kind.bytes());
        let length = row.and_then(|row| outputs.checked_mul(row));
        let held = length.and_then(|length| blocks.bytes.get(..length));
        let (Some(held), 0) = (held, whole % blocks.kind.elements()) else {
            return Err(Error::InvalidInput(format!(
                "{} bytes of {} do not hold a matrix of shape {:?}",
                blocks.bytes.len(),
                blocks.kind.name(),
                blocks.shape
            )));
        };
        let scales_first = device.is_cuda() && fp8::has_scales_first(blocks.kind, inputs);
        let bytes = if held.is_empty() {
            placed(&Tensor::zeros(0, DType::U8, &Device::Cpu)?, device)?
        } else if scales_first {
            Tensor::from_slice(&fp8::with_scales_first(held), held.len(), device)?
        } else {
            Tensor::from_slice(held, held.len(), device)?
        };
        let scaling = if scales_first {
            fp8::scaling(blocks)
        } else {
            None
        };
        blocks.release_rows(0..outputs);
        let usual = || (whole > inputs).then(|| (0..inputs as u32).collect());
        let order = blocks.order.clone().or_else(usual);
        let order = order.map(|columns| Order::new(columns, [inputs, whole], device));
        Ok(Self {
            kind: blocks.kind,
            shape: [outputs, whole],
            columns: inputs,
            bytes,
            order: order.transpose()?,
            scaling,
        })
    }

    pub fn kind(&self) -> BlockType {
        self.kind
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn outputs(&self) -> usize {
        self.shape[0]
    }

    /// Of all blocks of a row: kernels get as many.
    pub fn inputs(&self) -> usize {
        self.shape[1]
    }

    /// Of the matrix.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The blocks, u8.
    pub fn bytes(&self) -> &Tensor {
        &self.bytes
    }

    /// How it is scaled, if it is multiplied with rows of FP8 where a GPU can do so.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "for CUDA"))]
    pub(crate) fn fp8_scaling(&self) -> Option<Scaling> {
        self.scaling
    }

    /// Whether many rows are rounded to FP8 where they are multiplied with it.
    pub fn rounds_rows(&self) -> bool {
        #[cfg(feature = "cuda")]
        if let (Some(_), Ok(device)) = (self.scaling, self.bytes.device().as_cuda_device()) {
            return super::cuda::fp8::multiplies(device).unwrap_or(false);
        }
        false
    }

    /// How many inputs of a row share a scale where so many rows are rounded to FP8; `None` where they are not.
    pub fn rounded_width(&self, rows: usize, dtype: DType) -> Option<usize> {
        let scaling = self.scaling.filter(|_| self.rounds_rows())?;
        let rounds = rows >= fp8::LEAST_ROWS && dtype != DType::F32;
        rounds.then(|| scaling.width(self.inputs()))
    }

    /// Whether its columns are in another order than the inputs, or fewer than its blocks have.
    pub fn is_ordered(&self) -> bool {
        self.order.is_some()
    }

    /// x · matrixᵀ + bias + residual; `x` is [rows, inputs], `residual` [rows, outputs].
    pub fn multiply(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (rows, _) = x.dims2()?;
        if rows * self.outputs() * self.inputs() == 0 {
            return Ok(Tensor::zeros(
                (rows, self.outputs()),
                x.dtype(),
                x.device(),
            )?);
        }
        let factor = BlockFactor { blocks: self, bias };
        #[cfg(feature = "metal")]
        if x.device().is_metal() {
            let epilogue = Epilogue {
                residual,
                ..Epilogue::default()
            };
            return match multiply_with(x, &factor, &epilogue)? {
                Some(product) => Ok(product),
                None => Err(self.without_kernels()),
            };
        }
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            if let Some(x) = ordered(x, &[factor])? {
                return super::cuda::blocks::multiply(self, &x, bias, residual);
            }
        }
        let _ = (factor, residual);
        Err(self.without_kernels())
    }

    /// Some of its outputs, on the same memory.
    pub fn part(&self, first: usize, outputs: usize) -> Result<Self> {
        let row = self.inputs() / self.kind.elements() * self.kind.bytes();
        Ok(Self {
            kind: self.kind,
            shape: [outputs, self.inputs()],
            columns: self.columns,
            bytes: self.bytes.narrow(0, first * row, outputs * row)?,
            order: self.order.clone(),
            scaling: self.scaling.filter(|scaling| {
                *scaling == Scaling::Outputs || first.is_multiple_of(fp8::SQUARE_OUTPUTS)
            }),
        })
    }

    /// Some rows, which must be within the matrix: [rows, inputs], in the order of its columns.
    pub fn rows(&self, rows: &[u32], dtype: DType) -> Result<Tensor> {
        let device = self.bytes.device();
        if rows.is_empty() || self.inputs() == 0 {
            return Ok(Tensor::zeros((rows.len(), self.columns), dtype, device)?);
        }
        #[cfg(feature = "metal")]
        if device.is_metal() {
            return self.own_columns(super::metal::blocks::rows(self, rows, dtype)?);
        }
        match self.rows_at(&Tensor::new(rows, device)?, dtype)? {
            Some(rows) => Ok(rows),
            None => Err(self.without_kernels()),
        }
    }

    /// As `rows`, with their numbers on the device, u32 [rows]; `None` where there is no kernel for it.
    pub fn rows_at(&self, rows: &Tensor, dtype: DType) -> Result<Option<Tensor>> {
        #[cfg(feature = "cuda")]
        if self.bytes.device().is_cuda() {
            let rows = super::cuda::blocks::expand(self, Some(rows), dtype)?;
            return self.own_columns(rows).map(Some);
        }
        let _ = (rows, dtype);
        Ok(None)
    }

    /// Expanded rows without what blocks have beyond the matrix.
    #[cfg_attr(
        not(any(feature = "cuda", feature = "metal")),
        allow(dead_code, reason = "for GPUs")
    )]
    fn own_columns(&self, rows: Tensor) -> Result<Tensor> {
        if self.columns == self.inputs() {
            return Ok(rows);
        }
        Ok(rows.narrow(1, 0, self.columns)?.contiguous()?)
    }

    fn without_kernels(&self) -> Error {
        Error::Internal(format!(
            "there are no kernels for {} blocks on this device",
            self.kind.name()
        ))
    }
}

/// A matrix and its bias [outputs].
#[derive(Clone, Copy)]
#[cfg_attr(
    not(any(feature = "cuda", feature = "metal")),
    allow(dead_code, reason = "for GPUs")
)]
pub struct BlockFactor<'a> {
    pub blocks: &'a DeviceBlocks,
    pub bias: Option<&'a Tensor>,
}

impl BlockFactor<'_> {
    /// Gate and up of a matrix that holds both, gate first, and their biases.
    #[cfg(any(feature = "cuda", feature = "metal"))]
    pub fn halves(&self) -> Result<([DeviceBlocks; 2], [Option<Tensor>; 2])> {
        let half = self.blocks.outputs() / 2;
        let parts = [self.blocks.part(0, half)?, self.blocks.part(half, half)?];
        let bias = |at: usize| self.bias.map(|bias| bias.narrow(0, at, half));
        Ok((parts, [bias(0).transpose()?, bias(half).transpose()?]))
    }
}

/// Rows, [rows, inputs], with their elements in the order of the matrices' columns, and zeros up to a whole block; `None`
/// where matrices have several orders.
fn ordered(x: &Tensor, factors: &[BlockFactor<'_>]) -> Result<Option<Tensor>> {
    let mut orders = factors.iter().map(|factor| factor.blocks.order.as_ref());
    let Some(order) = orders.next().flatten() else {
        return Ok(orders.all(|order| order.is_none()).then(|| x.clone()));
    };
    if x.rank() != 2 || !orders.all(|other| order.is(other)) {
        return Ok(None);
    }
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return Ok(Some(super::cuda::order::columns(x, &order.placed)?));
    }
    let x = x.contiguous()?.index_select(&order.placed, 1)?;
    Ok(Some(match order.padding {
        0 => x,
        padding => x.pad_with_zeros(1, 0, padding)?,
    }))
}

/// x · matrixᵀ + bias and what follows; `None` where it takes more than one launch beside that of the order. `x` is
/// [rows, inputs].
pub fn multiply_with(
    x: &Tensor,
    factor: &BlockFactor<'_>,
    epilogue: &Epilogue<'_>,
) -> Result<Option<Tensor>> {
    #[cfg(feature = "metal")]
    if x.device().is_metal() {
        let Some(x) = ordered(x, &[*factor])? else {
            return Ok(None);
        };
        return Ok(super::metal::product::multiply(
            &x,
            (*factor).into(),
            epilogue,
        )?);
    }
    let _ = (x, factor, epilogue);
    Ok(None)
}

/// The products with several matrices side by side; `None` where it takes more than one launch.
pub fn multiply_joined(x: &Tensor, factors: &[BlockFactor<'_>]) -> Result<Option<Tensor>> {
    let Some(x) = &ordered(x, factors)? else {
        return Ok(None);
    };
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() && x.rank() == 2 {
        use super::cuda::{blocks, product::Outcome};
        let none = Activation::Identity;
        let product = blocks::product(&x.contiguous()?, factors, Outcome::Joined, none, None);
        return Ok(product?);
    }
    #[cfg(feature = "metal")]
    if x.device().is_metal() && x.rank() == 2 {
        use super::metal::product::{product, Factor, Outcome};
        let factors: Vec<Factor<'_>> = factors.iter().map(|&factor| factor.into()).collect();
        let outcome = Outcome::Joined(Activation::Identity);
        return Ok(product(x, &factors, outcome, None)?);
    }
    let _ = (x, factors);
    Ok(None)
}

/// activation(x · gateᵀ) · (x · upᵀ) of two matrices, or of one that holds both, gate first; `None` where it
/// takes more than one launch.
pub fn multiply_gated(
    x: &Tensor,
    factors: &[BlockFactor<'_>],
    activation: Activation,
) -> Result<Option<Tensor>> {
    let Some(x) = &ordered(x, factors)? else {
        return Ok(None);
    };
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() && x.rank() == 2 {
        return super::cuda::blocks::multiply_gated(x, factors, activation);
    }
    #[cfg(feature = "metal")]
    if x.device().is_metal() && x.rank() == 2 {
        use super::metal::product::{product, Outcome};
        let outcome = Outcome::Gated(activation);
        if let &[gate, up] = factors {
            return Ok(product(x, &[gate.into(), up.into()], outcome, None)?);
        }
        if let [both] = factors {
            let (halves, biases) = both.halves()?;
            let factor = |at: usize| BlockFactor {
                blocks: &halves[at],
                bias: biases[at].as_ref(),
            };
            return Ok(product(
                x,
                &[factor(0).into(), factor(1).into()],
                outcome,
                None,
            )?);
        }
    }
    let _ = (x, factors, activation);
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::quant::GroupForm;
    use base::runtime::bytes::Bytes;

    #[test]
    fn the_cpu_has_other_kernels_for_blocks() {
        assert!(!DeviceBlocks::computed_by(&Device::Cpu, DType::F32));
    }

    #[test]
    fn levels_and_numbers_are_those_of_the_gpus_sources() {
        let metal = include_str!("metal/blocks.metal");
        let cuda = concat!(
            include_str!("cuda/block_runs.cuh"),
            include_str!("cuda/groups.cuh")
        );
        let table = |source: &str, start: &str| -> Vec<f32> {
            let from = source.find(start).expect(start) + start.len();
            let numbers = source[from..].split(['{', '}']).nth(1).unwrap();
            let numbers = numbers.replace('\\', "");
            let numbers = numbers.split(',').map(str::trim);
            numbers
                .map(|number| number.trim_end_matches('f').parse().unwrap())
                .collect()
        };
        for kind in [
            BlockType::Nf4,
            BlockType::Fp4,
            BlockType::NvFp4,
            BlockType::Iq2,
        ] {
            let name = match kind {
                BlockType::NvFp4 => "E2M1",
                other => &other.name().to_uppercase(),
            };
            let levels = &GroupForm::of(kind).unwrap().levels()[..16];
            let of_metal = table(metal, &format!("constant float {name}_LEVELS[16] = "));
            assert_eq!(of_metal, levels);
            let of_cuda = table(cuda, &format!("#define {name}_LEVELS "));
            assert_eq!(of_cuda, levels);
        }
        for (number, kind) in BlockType::every().enumerate() {
            let line = format!("#define {} {number}\n", kind.name().to_uppercase());
            assert!(cuda.contains(&line), "{line}");
        }
    }

    #[test]
    fn an_order_of_columns_has_each_of_them() {
        let blocks = |order: &[u32]| QuantizedTensor {
            kind: BlockType::Nf4,
            shape: vec![1, 64],
            bytes: Bytes::unpacked(vec![0; 36]),
            order: Some(order.into()),
            fp8_rows: false,
        };
        let turned: Vec<u32> = (0..64).rev().collect();
        let held = DeviceBlocks::new(&blocks(&turned), &Device::Cpu).unwrap();
        assert!(held.is_ordered() && held.part(0, 1).unwrap().is_ordered());
        let x = Tensor::arange(0f32, 128.0, &Device::Cpu).unwrap();
        let x = x.reshape((2, 64)).unwrap();
        let factor = BlockFactor {
            blocks: &held,
            bias: None,
        };
        let rows = ordered(&x, &[factor, factor]).unwrap().unwrap();
        let rows: Vec<Vec<f32>> = rows.to_vec2().unwrap();
        assert_eq!((rows[0][0], rows[1][0], rows[1][63]), (63.0, 127.0, 64.0));
        // Another order takes a launch of its own.
        let mut other = turned.clone();
        other.swap(0, 1);
        let other = DeviceBlocks::new(&blocks(&other), &Device::Cpu).unwrap();
        let other = BlockFactor {
            blocks: &other,
            bias: None,
        };
        assert!(ordered(&x, &[factor, other]).unwrap().is_none());
        for wrong in [&turned[1..], &[0; 64], &[64; 64]] {
            assert!(DeviceBlocks::new(&blocks(wrong), &Device::Cpu).is_err());
        }
    }

    #[test]
    fn rows_may_end_within_a_group() {
        let blocks = QuantizedTensor {
            kind: BlockType::Int8,
            shape: vec![2, 100],
            bytes: Bytes::unpacked(vec![0; 4 * 72]),
            order: None,
            fp8_rows: false,
        };
        let held = DeviceBlocks::new(&blocks, &Device::Cpu).unwrap();
        assert_eq!((held.inputs(), held.columns()), (128, 100));
        assert_eq!(held.part(1, 1).unwrap().columns(), 100);
        let x = Tensor::ones((3, 100), DType::F32, &Device::Cpu).unwrap();
        let factor = BlockFactor {
            blocks: &held,
            bias: None,
        };
        let rows = ordered(&x, &[factor]).unwrap().unwrap();
        let rows: Vec<Vec<f32>> = rows.to_vec2().unwrap();
        assert!(rows.iter().all(|row| row.len() == 128));
        assert!(rows.iter().all(|row| row.iter().sum::<f32>() == 100.0));
        let short = QuantizedTensor {
            bytes: Bytes::unpacked(vec![0; 4 * 72 - 1]),
            ..blocks
        };
        assert!(DeviceBlocks::new(&short, &Device::Cpu).is_err());
    }

    #[test]
    fn blocks_that_do_not_make_a_matrix_are_refused() {
        let blocks = |shape: &[usize], length: usize| QuantizedTensor {
            kind: BlockType::Q4_0,
            shape: shape.to_vec(),
            bytes: Bytes::unpacked(vec![0; length]),
            order: None,
            fp8_rows: false,
        };
        let held = DeviceBlocks::new(&blocks(&[2, 64], 72), &Device::Cpu).unwrap();
        assert_eq!((held.outputs(), held.inputs()), (2, 64));
        assert_eq!(held.bytes().elem_count(), 72);
        for (shape, length) in [
            (&[2, 64][..], 71),
            (&[2, 48], 72),
            (&[64], 72),
            (&[usize::MAX, 64], 72),
        ] {
            assert!(DeviceBlocks::new(&blocks(shape, length), &Device::Cpu).is_err());
        }
    }
}
