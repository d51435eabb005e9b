//! Element types: promotion, ranges, and scalars that adapt to a tensor.

use candle_core::{DType, Device, Tensor};

use crate::{Error, Result};

/// Runs `$body` with `$T` standing for the Rust type of `$dtype`.
macro_rules! for_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::U8 => {
                type $T = u8;
                $body
            }
            candle_core::DType::U32 => {
                type $T = u32;
                $body
            }
            candle_core::DType::I16 => {
                type $T = i16;
                $body
            }
            candle_core::DType::I32 => {
                type $T = i32;
                $body
            }
            candle_core::DType::I64 => {
                type $T = i64;
                $body
            }
            candle_core::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            candle_core::DType::F16 => {
                type $T = half::f16;
                $body
            }
            candle_core::DType::F32 => {
                type $T = f32;
                $body
            }
            candle_core::DType::F64 => {
                type $T = f64;
                $body
            }
            other => Err($crate::tensor::dtype::unsupported(other)),
        }
    };
}
pub(crate) use for_dtype;

pub fn unsupported(dtype: DType) -> Error {
    Error::InvalidInput(format!(
        "tensors of {} can't be computed with: convert with to_dtype(:f32)",
        dtype.as_str()
    ))
}

/// The type that holds what both can hold: floats win over integers, the wider over the narrower,
/// and two different ones of equal width meet in the next wider.
pub fn promote(a: DType, b: DType) -> DType {
    if a == b {
        return a;
    }
    match (a.is_float(), b.is_float()) {
        (true, false) => a,
        (false, true) => b,
        (true, true) if a == DType::F64 || b == DType::F64 => DType::F64,
        (true, true) => DType::F32,
        (false, false) => match (integer_range(a), integer_range(b)) {
            (a_range, b_range) if covers(a_range, b_range) => a,
            (a_range, b_range) if covers(b_range, a_range) => b,
            _ => DType::I64,
        },
    }
}

fn covers(outer: (i64, i64), inner: (i64, i64)) -> bool {
    outer.0 <= inner.0 && outer.1 >= inner.1
}

fn integer_range(dtype: DType) -> (i64, i64) {
    match dtype {
        DType::U8 => (0, i64::from(u8::MAX)),
        DType::U32 => (0, i64::from(u32::MAX)),
        DType::I16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        _ => (i64::MIN, i64::MAX),
    }
}

/// `value`, unless it does not fit `dtype`; `place` says where it stands.
pub fn fitting(value: i64, dtype: DType, place: impl FnOnce() -> String) -> Result<i64> {
    let (least, most) = integer_range(dtype);
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(Error::InvalidInput(format!(
        "{value}{} does not fit {}, which holds {least} to {most}",
        place(),
        dtype.as_str()
    )))
}

/// A number that takes part in an operation without widening the tensor's type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    Integer(i64),
    Float(f64),
}

impl Scalar {
    /// The type in which a tensor of `dtype` and this number are combined.
    pub fn dtype_beside(self, dtype: DType) -> DType {
        match self {
            _ if dtype.is_float() => dtype,
            Self::Integer(_) => dtype,
            Self::Float(_) => DType::F32,
        }
    }

    /// The type in which they are compared: never one that loses digits of either.
    pub fn dtype_compared_with(self, dtype: DType) -> DType {
        match self {
            _ if dtype.is_float() => dtype,
            Self::Integer(_) => DType::I64,
            Self::Float(_) => DType::F64,
        }
    }

    /// A tensor of rank 0.
    pub fn to_tensor(self, dtype: DType, device: &Device) -> Result<Tensor> {
        let tensor = match self {
            Self::Integer(value) if dtype.is_int() => {
                Tensor::new(fitting(value, dtype, String::new)?, &Device::Cpu)?
            }
            Self::Integer(value) => Tensor::new(value as f64, &Device::Cpu)?,
            Self::Float(value) => Tensor::new(value, &Device::Cpu)?,
        };
        Ok(tensor.to_dtype(dtype)?.to_device(device)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotion_loses_nothing_of_either() {
        for (a, b, wanted) in [
            (DType::U8, DType::I64, DType::I64),
            (DType::U8, DType::I16, DType::I16),
            (DType::U32, DType::I32, DType::I64),
            (DType::I64, DType::F16, DType::F16),
            (DType::BF16, DType::F16, DType::F32),
            (DType::F32, DType::F64, DType::F64),
            (DType::F16, DType::F32, DType::F32),
        ] {
            assert_eq!(promote(a, b), wanted);
            assert_eq!(promote(b, a), wanted);
        }
    }

    #[test]
    fn scalars_adapt_to_the_tensor() {
        assert_eq!(Scalar::Float(1.5).dtype_beside(DType::F16), DType::F16);
        assert_eq!(Scalar::Float(1.5).dtype_beside(DType::U8), DType::F32);
        assert_eq!(Scalar::Integer(1).dtype_beside(DType::U8), DType::U8);
        let error = Scalar::Integer(300).to_tensor(DType::U8, &Device::Cpu);
        assert!(error.unwrap_err().to_string().contains("does not fit u8"));
    }
}
