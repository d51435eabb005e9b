//! Norms, softmax, activations, rotary positions and pooling on whole rows: checks and dispatch.

use candle_core::{DType, Tensor, D};

#[cfg(feature = "cuda")]
use crate::cuda;
#[cfg(feature = "metal")]
use crate::metal;
use crate::rows::row_major;
use crate::types::{
    Activation, ClampedGlu, Largest, Pointwise, RopeKind, Rotation, SoftmaxOptions, LEAST_L2_NORM,
};
use crate::{cpu, ops, Error, Result};

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

/// A function of every element.
pub fn pointwise(x: &Tensor, function: Pointwise) -> Result<Tensor> {
    check_float("pointwise", x)?;
    Ok(row_major(x)?.apply_op1_no_bwd(&ops::EachElement(function))?)
}

/// [`ClampedGlu`] of gates and ups.
pub fn clamped_glu(gate: &Tensor, up: &Tensor, glu: ClampedGlu) -> Result<Tensor> {
    check_float("clamped_glu", gate)?;
    check_alike("clamped_glu", gate, up)?;
    Ok(row_major(gate)?.apply_op2_no_bwd(&row_major(up)?, &ops::GatedClamped(glu))?)
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
pub fn rotate_and_store(
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
pub fn gather_sum(terms: &[(&Tensor, &[u32])]) -> Result<Option<Tensor>> {
    #[cfg(feature = "cuda")]
    return Ok(cuda::gather::gather_sum(terms)?);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = terms;
        Ok(None)
    }
}

/// As `gather_sum`, with the rows on the tables' device, u32 each.
pub fn gather_at(terms: &[(&Tensor, &Tensor)]) -> Result<Option<Tensor>> {
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
pub fn largest(x: &Tensor, count: usize) -> Result<Option<Vec<Largest>>> {
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

/// The first of the largest finite numbers in a row.
pub fn largest_of(row: &[f32]) -> Option<u32> {
    cpu::rows::largest::of_row(row)
}

/// ln Σ e^x of a row on the CPU, of which at least one number is finite.
pub fn log_sum_exp(row: &[f32]) -> Result<f32> {
    Ok(cpu::rows::softmax::log_sum_exp(
        cpu::isa::Isa::current()?,
        row,
    ))
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
    let x = if x.layout().has_internal_overlap() {
        x.contiguous()?
    } else {
        row_major(&x)?
    };
    let normed = ops::AddNorm::new(norm).apply(&x, &row_major(residual)?)?;
    Ok((x, normed))
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
