//! Row kernels: norms, softmax, activations, rotary positions and pooling, for CPU, Metal and CUDA.
//!
//! Each function takes candle tensors of f32, f16 or bf16 on one device, computes in f32 and rounds
//! once. Rows may be strided as long as the last dimension is contiguous; another layout is copied
//! first. `docs/kernels.md` says which backend runs what.

pub mod reference;

use candle_core::{DType, Tensor};

use crate::{Error, Result};

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeKind {
    /// Element i turns with element i + rotary / 2.
    Half,
    /// Element 2i turns with element 2i + 1.
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
    check_width("layer_norm", x, weight)?;
    let (values, shape) = (to_f64(x)?, x.shape().clone());
    let bias = bias.map(to_f64).transpose()?;
    let out = reference::layer_norm(&values, &to_f64(weight)?, bias.as_deref(), epsilon as f64);
    from_f64(out, shape, x)
}

/// x / √(mean(x²) + ε) · weight over the last dimension.
pub fn rms_norm(x: &Tensor, weight: &Tensor, epsilon: f32) -> Result<Tensor> {
    rms_norm_plus(x, weight, epsilon, 0.0)
}

/// `rms_norm` with 1 + weight, as Gemma stores it in safetensors.
pub fn rms_norm_offset(x: &Tensor, weight: &Tensor, epsilon: f32) -> Result<Tensor> {
    rms_norm_plus(x, weight, epsilon, 1.0)
}

/// x + residual, and its `layer_norm`, in one pass.
pub fn add_layer_norm(
    x: &Tensor,
    residual: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    epsilon: f32,
) -> Result<(Tensor, Tensor)> {
    let sum = (x + residual)?;
    let normed = layer_norm(&sum, weight, bias, epsilon)?;
    Ok((sum, normed))
}

/// x + residual, and its `rms_norm` with `weight_offset` + weight, in one pass.
pub fn add_rms_norm(
    x: &Tensor,
    residual: &Tensor,
    weight: &Tensor,
    epsilon: f32,
    weight_offset: f32,
) -> Result<(Tensor, Tensor)> {
    let sum = (x + residual)?;
    let normed = rms_norm_plus(&sum, weight, epsilon, weight_offset)?;
    Ok((sum, normed))
}

/// Softmax over the last dimension.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    softmax_masked(x, &SoftmaxOptions::default())
}

/// Softmax over the last dimension of what the options keep.
pub fn softmax_masked(x: &Tensor, options: &SoftmaxOptions<'_>) -> Result<Tensor> {
    let width = x.dim(candle_core::D::Minus1)?;
    let spread = |t: &Tensor| -> Result<Vec<f64>> { to_f64(&t.broadcast_as(x.shape())?) };
    let additive = options.additive.map(spread).transpose()?;
    let keep = options.keep.map(spread).transpose()?;
    let lengths = options
        .lengths
        .map(|t| to_f64(&t.broadcast_as(&x.dims()[..x.rank() - 1])?))
        .transpose()?;
    let lowest = lowest_finite(x.dtype());
    let out = reference::softmax(
        &to_f64(x)?,
        width,
        options.scale.unwrap_or(1.0) as f64,
        |row, column| {
            let at = row * width + column;
            let bias = additive.as_ref().map_or(0.0, |a| a[at]);
            let masked = keep.as_ref().is_some_and(|k| k[at] == 0.0)
                || lengths.as_ref().is_some_and(|l| column as f64 >= l[row])
                || bias <= lowest;
            (!masked).then_some(bias)
        },
    );
    from_f64(out, x.shape().clone(), x)
}

pub fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    let values = to_f64(x)?;
    let out = values
        .into_iter()
        .map(|v| reference::activation(v, activation))
        .collect();
    from_f64(out, x.shape().clone(), x)
}

/// The exact GELU, by erf.
pub fn gelu(x: &Tensor) -> Result<Tensor> {
    activate(x, Activation::Gelu)
}

pub fn gelu_tanh(x: &Tensor) -> Result<Tensor> {
    activate(x, Activation::GeluTanh)
}

pub fn quick_gelu(x: &Tensor) -> Result<Tensor> {
    activate(x, Activation::QuickGelu)
}

pub fn silu(x: &Tensor) -> Result<Tensor> {
    activate(x, Activation::Silu)
}

pub fn relu(x: &Tensor) -> Result<Tensor> {
    activate(x, Activation::Relu)
}

/// activation(gate) · up.
pub fn gated(gate: &Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
    Ok((activate(gate, activation)? * up)?)
}

/// `gated` on the two halves of the last dimension, gate first, without copying them apart.
pub fn gated_fused(fused: &Tensor, activation: Activation) -> Result<Tensor> {
    let width = fused.dim(candle_core::D::Minus1)?;
    if width % 2 != 0 {
        return Err(Error::InvalidInput(format!(
            "gated: the last dimension of {:?} must be even, to hold gate and up",
            fused.dims()
        )));
    }
    let last = fused.rank() - 1;
    let gate = fused.narrow(last, 0, width / 2)?;
    let up = fused.narrow(last, width / 2, width / 2)?;
    gated(&gate, &up, activation)
}

/// SwiGLU's product.
pub fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gated(gate, up, Activation::Silu)
}

/// GeGLU's product, with the exact GELU.
pub fn gelu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gated(gate, up, Activation::Gelu)
}

/// Turns the first `rotary` elements of each head by the angle of its token's position; the rest is
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
    let (_, heads, width) = x.dims3()?;
    let out = reference::rope(
        &to_f64(x)?,
        (heads, width),
        (&to_f64(cosines)?, &to_f64(sines)?),
        &positions.to_vec1::<u32>()?,
        kind,
        rotary,
    );
    from_f64(out, x.shape().clone(), x)
}

/// The mean of each sequence's rows: `x` is [tokens, width], sequence i is the rows from
/// `boundaries[i]` to `boundaries[i + 1]`. An empty sequence gives zeros.
pub fn mean_pool(x: &Tensor, boundaries: &[u32]) -> Result<Tensor> {
    let (_, width) = x.dims2()?;
    let out = reference::mean_pool(&to_f64(x)?, width, boundaries);
    from_f64(out, (boundaries.len().saturating_sub(1), width).into(), x)
}

/// Each row divided by its Euclidean length, or by `LEAST_L2_NORM` where that is shorter.
pub fn l2_normalize(x: &Tensor) -> Result<Tensor> {
    let width = x.dim(candle_core::D::Minus1)?;
    let out = reference::l2_normalize(&to_f64(x)?, width, LEAST_L2_NORM as f64);
    from_f64(out, x.shape().clone(), x)
}

fn rms_norm_plus(x: &Tensor, weight: &Tensor, epsilon: f32, offset: f32) -> Result<Tensor> {
    check_width("rms_norm", x, weight)?;
    let out = reference::rms_norm(&to_f64(x)?, &to_f64(weight)?, epsilon as f64, offset as f64);
    from_f64(out, x.shape().clone(), x)
}

/// An additive mask hides an element by this number or anything below.
fn lowest_finite(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => -65504.0,
        DType::BF16 => f64::from(half::bf16::MIN),
        _ => f64::from(f32::MIN),
    }
}

fn check_width(name: &str, x: &Tensor, weight: &Tensor) -> Result<()> {
    if x.rank() == 0 || weight.dims() != &x.dims()[x.rank() - 1..] {
        return Err(Error::InvalidInput(format!(
            "{name}: a weight of shape {:?} does not fit rows of an input of shape {:?}",
            weight.dims(),
            x.dims()
        )));
    }
    Ok(())
}

fn to_f64(x: &Tensor) -> Result<Vec<f64>> {
    Ok(x.flatten_all()?.to_dtype(DType::F64)?.to_vec1()?)
}

fn from_f64(values: Vec<f64>, shape: candle_core::Shape, like: &Tensor) -> Result<Tensor> {
    Ok(Tensor::from_vec(values, shape, like.device())?.to_dtype(like.dtype())?)
}
