//! Kernels for CPU, Metal and CUDA: norms, softmax, activations, rotary positions and pooling by rows,
//! attention, and products with matrices.
//!
//! Each function takes candle tensors of f32, f16 or bf16 on one device, computes in f32 and rounds
//! once. Rows may be strided as long as the last dimension is contiguous; another layout is copied
//! first. `docs/kernels.md` says which backend runs what.

pub mod attention;
pub(crate) mod backend;
pub mod blocks;
pub mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod heads;
pub(crate) mod matrix;
#[cfg(any(test, feature = "metal"))]
mod metal;
mod ops;
pub mod paged;
pub(crate) mod recording;
pub mod reference;
pub(crate) mod rows;
pub mod selftest;

use candle_core::{DType, Tensor, D};

use crate::{Error, Result};
use rows::row_major;

pub use cpu::isa::Isa;
pub use matrix::Epilogue;
#[cfg(all(feature = "metal", feature = "selftest"))]
pub use metal::tuning;

/// The smallest norm that `l2_normalize` divides by.
pub const LEAST_L2_NORM: f32 = 1e-12;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// The exact GELU, by erf.
    Gelu,
    /// `gelu_new`, `gelu_pytorch_tanh`.
    GeluTanh,
    /// x · sigmoid(1.702 x), CLIP's.
    QuickGelu,
    Silu,
    Relu,
    Tanh,
    Sigmoid,
    Identity,
}

impl Activation {
    /// As the sources for GPUs count them, in this order.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The function that a model's config means.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "gelu" | "gelu_python" => Some(Self::Gelu),
            "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_accurate" => {
                Some(Self::GeluTanh)
            }
            "quick_gelu" => Some(Self::QuickGelu),
            "silu" | "swish" | "swiglu" => Some(Self::Silu),
            "relu" => Some(Self::Relu),
            "tanh" => Some(Self::Tanh),
            "sigmoid" => Some(Self::Sigmoid),
            "identity" | "linear" => Some(Self::Identity),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeKind {
    /// Element i rotates with element i + rotary / 2.
    Half,
    /// Element 2i rotates with element 2i + 1.
    Interleaved,
}

/// What a softmax leaves out or adds. A masked element is no part of any sum and comes out as 0,
/// whatever the input holds there; a row that keeps nothing is all 0.
#[derive(Clone, Copy, Default)]
pub struct SoftmaxOptions<'a> {
    /// Multiplies the input; 1 when not given.
    pub scale: Option<f32>,
    /// Added to the scaled input, broadcast to its shape. The lowest finite number of the input's
    /// type, or anything below, masks the element.
    pub additive: Option<&'a Tensor>,
    /// u8, broadcast to the input's shape: 0 masks the element.
    pub keep: Option<&'a Tensor>,
    /// u32, broadcast to the input's shape without its last dimension: how many leading elements of
    /// a row count.
    pub lengths: Option<&'a Tensor>,
}

/// (x − mean) / √(variance + ε) · weight + bias over the last dimension.
pub fn layer_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    epsilon: f32,
) -> Result<Tensor> {
    norm(x, ops::Norm::new("layer_norm", x, weight, bias, epsilon)?)
}

/// x / √(mean(x²) + ε) · weight over the last dimension.
pub fn rms_norm(x: &Tensor, weight: &Tensor, epsilon: f32) -> Result<Tensor> {
    norm(x, ops::Norm::rms("rms_norm", x, weight, epsilon, 0.0)?)
}

/// `rms_norm` with `weight_offset` + weight: 1 for Gemma's safetensors.
pub fn rms_norm_offset(
    x: &Tensor,
    weight: &Tensor,
    epsilon: f32,
    weight_offset: f32,
) -> Result<Tensor> {
    let op = ops::Norm::rms("rms_norm_offset", x, weight, epsilon, weight_offset)?;
    norm(x, op)
}

/// x + residual, and its `layer_norm`, in one pass.
///
/// The sum is written over `x`, which therefore shares its memory with no tensor that is still needed:
/// memory is what such a pass waits for, and a fresh tensor for the sum would be more of it.
pub fn add_layer_norm(
    x: Tensor,
    residual: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    epsilon: f32,
) -> Result<(Tensor, Tensor)> {
    let norm = ops::Norm::new("add_layer_norm", &x, weight, bias, epsilon)?;
    add_norm("add_layer_norm", x, residual, norm)
}

/// x + residual, and its `rms_norm` with `weight_offset` + weight, in one pass; the sum is written over
/// `x` as `add_layer_norm`'s is.
pub fn add_rms_norm(
    x: Tensor,
    residual: &Tensor,
    weight: &Tensor,
    epsilon: f32,
    weight_offset: f32,
) -> Result<(Tensor, Tensor)> {
    let norm = ops::Norm::rms("add_rms_norm", &x, weight, epsilon, weight_offset)?;
    add_norm("add_rms_norm", x, residual, norm)
}

/// Softmax over the last dimension.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    softmax_masked(x, &SoftmaxOptions::default())
}

/// Softmax over the last dimension of what the options keep.
pub fn softmax_masked(x: &Tensor, options: &SoftmaxOptions<'_>) -> Result<Tensor> {
    check_float("softmax", x)?;
    let leading = &x.dims()[..x.rank().saturating_sub(1)];
    let spread = |mask: &Tensor, dtype: DType| -> Result<Tensor> {
        row_major(&mask.to_dtype(dtype)?.broadcast_as(x.shape())?)
    };
    let op = ops::Softmax {
        scale: options.scale.unwrap_or(1.0),
        additive: options.additive.map(|m| spread(m, x.dtype())).transpose()?,
        keep: options.keep.map(|m| spread(m, DType::U8)).transpose()?,
        lengths: options
            .lengths
            .map(|lengths| -> Result<Tensor> {
                let lengths = lengths.to_dtype(DType::U32)?.broadcast_as(leading)?;
                row_major(&lengths.unsqueeze(D::Minus1)?)
            })
            .transpose()?,
    };
    Ok(row_major(x)?.apply_op1_no_bwd(&op)?)
}

pub fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    check_float("activate", x)?;
    Ok(row_major(x)?.apply_op1_no_bwd(&ops::Activate(activation))?)
}

/// activation(gate) · up.
pub fn gated(gate: &Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
    check_float("gated", gate)?;
    check_alike("gated", gate, up)?;
    Ok(row_major(gate)?.apply_op2_no_bwd(&row_major(up)?, &ops::Gated(activation))?)
}

/// `gated` on the two halves of the last dimension, gate first, without copying them apart.
pub fn gated_fused(fused: &Tensor, activation: Activation) -> Result<Tensor> {
    let width = fused.dim(D::Minus1)?;
    if width % 2 != 0 {
        return Err(Error::InvalidInput(format!(
            "gated: the last dimension of {:?} must be even, to hold gate and up",
            fused.dims()
        )));
    }
    let gate = fused.narrow(D::Minus1, 0, width / 2)?;
    let up = fused.narrow(D::Minus1, width / 2, width / 2)?;
    gated(&gate, &up, activation)
}

/// Rotates the first `rotary` elements of each head by the angle of its token's position; the rest is
/// copied. `x` is [tokens, heads, width], the tables are f32 [positions, rotary / 2] and `positions`
/// is u32 [tokens].
pub fn rope(
    x: &Tensor,
    cosines: &Tensor,
    sines: &Tensor,
    positions: &Tensor,
    kind: RopeKind,
    rotary: usize,
) -> Result<Tensor> {
    check_float("rope", x)?;
    let (tokens, _, width) = x.dims3()?;
    let (_, pairs) = cosines.dims2()?;
    let fits = rotary == 2 * pairs
        && rotary <= width
        && sines.dims() == cosines.dims()
        && positions.dims() == [tokens];
    if !fits {
        return Err(Error::InvalidInput(format!(
            "rope: tables of shape {:?} and {:?} and positions of shape {:?} do not rotate {rotary} \
             elements of an input of shape {:?}",
            cosines.dims(),
            sines.dims(),
            positions.dims(),
            x.dims()
        )));
    }
    let table = |t: &Tensor| -> Result<Tensor> { Ok(t.to_dtype(DType::F32)?.contiguous()?) };
    let op = ops::Rope {
        cosines: table(cosines)?,
        sines: table(sines)?,
        positions: positions.to_dtype(DType::U32)?.contiguous()?,
        kind,
    };
    Ok(row_major(x)?.apply_op1_no_bwd(&op)?)
}

/// What `rope` rotates by.
#[derive(Clone, Copy)]
pub struct Rotation<'a> {
    /// f32 [positions, rotary / 2]
    pub cosines: &'a Tensor,
    pub sines: &'a Tensor,
    /// u32 [tokens]: the row of the tables for each.
    pub rows: &'a Tensor,
    pub kind: RopeKind,
    pub rotary: usize,
}

impl Rotation<'_> {
    /// `x` is [tokens, heads, width].
    pub fn rotate(&self, x: &Tensor) -> Result<Tensor> {
        rope(
            x,
            self.cosines,
            self.sines,
            self.rows,
            self.kind,
            self.rotary,
        )
    }
}

/// Queries [tokens, heads, width], rotated; keys, rotated too, and values [tokens, key heads, width] replace the rows of
/// `pages`, [slots, key heads, width] each, that `slots`, u32 [tokens, 1], names, which must be within the pages. `None`
/// where it takes more than one launch.
pub(crate) fn rotate_and_store(
    rows: (&Tensor, &Tensor, &Tensor),
    rotation: Option<&Rotation<'_>>,
    pages: (&Tensor, &Tensor),
    slots: &Tensor,
) -> Result<Option<Tensor>> {
    #[cfg(feature = "metal")]
    if slots.device().is_metal() {
        return Ok(metal::store::rotate_and_store(
            rows, rotation, pages, slots,
        )?);
    }
    #[cfg(feature = "cuda")]
    if slots.device().is_cuda() {
        return Ok(cuda::store::rotate_and_store(rows, rotation, pages, slots)?);
    }
    let _ = (rows, rotation, pages, slots);
    Ok(None)
}

/// Σ table[rows[i]] for each i, in one launch; rows must be inside their tables. `None` where the device
/// has no kernel for it.
pub(crate) fn gather_sum(terms: &[(&Tensor, &[u32])]) -> Result<Option<Tensor>> {
    #[cfg(feature = "cuda")]
    return Ok(cuda::gather::gather_sum(terms)?);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = terms;
        Ok(None)
    }
}

/// As `gather_sum`, with the rows on the tables' device, u32 each.
pub(crate) fn gather_at(terms: &[(&Tensor, &Tensor)]) -> Result<Option<Tensor>> {
    #[cfg(feature = "cuda")]
    return Ok(cuda::gather::gather_at(terms)?);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = terms;
        Ok(None)
    }
}

/// The `count` largest finite numbers in each row of f32 [rows, width] and their places, in the order of places;
/// of equal numbers the first. They are found where they lie; `None` where the device has no kernel for it: of
/// more than one there is one on Metal only.
pub(crate) fn largest(x: &Tensor, count: usize) -> Result<Option<Vec<Largest>>> {
    #[cfg(feature = "metal")]
    if x.device().is_metal() {
        return Ok(metal::largest::largest(x, count)?);
    }
    if count != 1 {
        return Ok(None);
    }
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return Ok(cuda::largest::largest(x)?);
    }
    Ok(cpu::rows::largest::largest(x)?)
}

/// Places and numbers of a row.
pub(crate) type Largest = Vec<(u32, f32)>;

/// The first of the largest finite numbers in a row.
pub(crate) fn largest_of(row: &[f32]) -> Option<u32> {
    cpu::rows::largest::of_row(row)
}

/// The mean of each sequence's rows: `x` is [tokens, width], sequence i is the rows from
/// `boundaries[i]` to `boundaries[i + 1]`. An empty sequence gives zeros.
pub fn mean_pool(x: &Tensor, boundaries: &[u32]) -> Result<Tensor> {
    check_float("mean_pool", x)?;
    let (tokens, _) = x.dims2()?;
    let rising = boundaries.windows(2).all(|pair| pair[0] <= pair[1]);
    match boundaries.last() {
        Some(&last) if rising && last as usize <= tokens => {}
        _ => {
            return Err(Error::InvalidInput(format!(
                "mean_pool: boundaries must rise and end within the {tokens} tokens"
            )))
        }
    }
    let boundaries = boundaries.to_vec();
    Ok(row_major(x)?.apply_op1_no_bwd(&ops::MeanPool { boundaries })?)
}

/// Each row divided by its Euclidean length, or by `LEAST_L2_NORM` where that is shorter.
pub fn l2_normalize(x: &Tensor) -> Result<Tensor> {
    check_float("l2_normalize", x)?;
    let least = LEAST_L2_NORM;
    Ok(row_major(x)?.apply_op1_no_bwd(&ops::L2Normalize { least })?)
}

impl ops::Norm {
    fn new(
        name: &str,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        epsilon: f32,
    ) -> Result<Self> {
        check_width(name, x, weight)?;
        if let Some(bias) = bias {
            check_width(name, x, bias)?;
        }
        Ok(Self {
            centered: true,
            weight: weight.clone(),
            bias: bias.cloned(),
            epsilon,
            weight_offset: 0.0,
        })
    }

    fn rms(name: &str, x: &Tensor, weight: &Tensor, epsilon: f32, offset: f32) -> Result<Self> {
        let norm = Self::new(name, x, weight, None, epsilon)?;
        Ok(Self {
            centered: false,
            weight_offset: offset,
            ..norm
        })
    }
}

fn norm(x: &Tensor, norm: ops::Norm) -> Result<Tensor> {
    Ok(row_major(x)?.apply_op1_no_bwd(&norm)?)
}

fn add_norm(name: &str, x: Tensor, residual: &Tensor, norm: ops::Norm) -> Result<(Tensor, Tensor)> {
    check_alike(name, &x, residual)?;
    let x = match x.layout().has_internal_overlap() {
        true => x.contiguous()?,
        false => row_major(&x)?,
    };
    let normed = ops::AddNorm::new(norm).apply(&x, &row_major(residual)?)?;
    Ok((x, normed))
}

/// An additive mask hides an element by this number or anything below.
fn lowest_finite(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => half::f16::MIN.to_f32(),
        DType::BF16 => half::bf16::MIN.to_f32(),
        _ => f32::MIN,
    }
}

fn check_float(name: &str, x: &Tensor) -> Result<()> {
    match x.dtype() {
        DType::F32 | DType::F16 | DType::BF16 => Ok(()),
        other => Err(Error::InvalidInput(format!(
            "{name} takes f32, f16 or bf16 tensors, not {}",
            other.as_str()
        ))),
    }
}

fn check_width(name: &str, x: &Tensor, weight: &Tensor) -> Result<()> {
    check_float(name, x)?;
    if x.rank() == 0 || weight.dims() != &x.dims()[x.rank() - 1..] {
        return Err(Error::InvalidInput(format!(
            "{name}: a weight or bias of shape {:?} does not fit the rows of an input of shape {:?}",
            weight.dims(),
            x.dims()
        )));
    }
    Ok(())
}

fn check_alike(name: &str, a: &Tensor, b: &Tensor) -> Result<()> {
    if a.dims() == b.dims() && a.dtype() == b.dtype() {
        return Ok(());
    }
    Err(Error::InvalidInput(format!(
        "{name}: the inputs differ, {:?} {} and {:?} {}",
        a.dims(),
        a.dtype().as_str(),
        b.dims(),
        b.dtype().as_str()
    )))
}
