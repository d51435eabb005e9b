//! Products with a matrix for each head, by kernels of the device's own.

use candle_core::Tensor;

use crate::Result;

/// Each head of `x`, [tokens, heads, width], times its matrix of [heads, width, columns]: [tokens, heads,
/// columns]. `None` where the device has no such kernel.
pub fn multiply_heads(x: &Tensor, matrices: &Tensor) -> Result<Option<Tensor>> {
    #[cfg(feature = "metal")]
    if x.device().is_metal() {
        return Ok(super::metal::heads::multiply(x, matrices)?);
    }
    let _ = (x, matrices);
    Ok(None)
}
