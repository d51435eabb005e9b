//! Columns of several tensors side by side, in one type.

use candle_core::{DType, Tensor};

use crate::Result;

/// Parts `[tokens, width]` beside each other, `[tokens, widths]` of this type and contiguous. The parts may be columns of
/// wider tensors, and of other types of floating point.
pub fn join_columns(parts: &[&Tensor], dtype: DType) -> Result<Tensor> {
    if let [part] = parts {
        if part.dtype() == dtype && part.is_contiguous() {
            return Ok((*part).clone());
        }
    }
    #[cfg(feature = "cuda")]
    if parts.iter().all(|part| part.device().is_cuda()) && !parts.is_empty() {
        return Ok(crate::cuda::columns::join_columns(parts, dtype)?);
    }
    let parts = parts.iter().map(|part| part.to_dtype(dtype)?.contiguous());
    let parts = parts.collect::<candle_core::Result<Vec<_>>>()?;
    match &parts[..] {
        [part] => Ok(part.clone()),
        parts => Ok(Tensor::cat(parts, 1)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn columns_of_other_tensors_lie_side_by_side() {
        let x = Tensor::arange(0f32, 12.0, &Device::Cpu).unwrap();
        let x = x.reshape((3, 4)).unwrap();
        let last = x.narrow(1, 2, 2).unwrap();
        let half = x.narrow(1, 0, 1).unwrap().to_dtype(DType::BF16).unwrap();
        let joined = join_columns(&[&last, &half], DType::F32).unwrap();
        assert_eq!(
            joined.to_vec2::<f32>().unwrap(),
            [[2.0, 3.0, 0.0], [6.0, 7.0, 4.0], [10.0, 11.0, 8.0]]
        );
        let alone = join_columns(&[&last], DType::F32).unwrap();
        assert!(alone.is_contiguous());
        assert_eq!(
            alone.to_vec2::<f32>().unwrap(),
            [[2.0, 3.0], [6.0, 7.0], [10.0, 11.0]]
        );
        let same = join_columns(&[&x], DType::F32).unwrap();
        assert_eq!(same.id(), x.id());
    }
}
