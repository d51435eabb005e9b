//! Operations that treat every element alike.

use std::cmp::Ordering;
use std::str::FromStr;

use candle_core::{DType, Tensor, WithDType};
use num_traits::Float;

use super::dtype::{for_dtype, promote};
use super::shape::broadcast;
use super::storage::{fill, on_cpu, read, to_dtype};
use crate::{CancelToken, Error, Result};
use base::runtime::device::placed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    Sin,
    Cos,
    Tanh,
    Log,
    Exp,
    Sqr,
    Sqrt,
    Recip,
    Abs,
    Neg,
    Relu,
    Silu,
    Sigmoid,
}

impl FromStr for Unary {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "sin" => Self::Sin,
            "cos" => Self::Cos,
            "tanh" => Self::Tanh,
            "log" => Self::Log,
            "exp" => Self::Exp,
            "sqr" => Self::Sqr,
            "sqrt" => Self::Sqrt,
            "recip" => Self::Recip,
            "abs" => Self::Abs,
            "neg" => Self::Neg,
            "relu" => Self::Relu,
            "silu" => Self::Silu,
            "sigmoid" => Self::Sigmoid,
            other => return Err(unknown(other)),
        })
    }
}

fn unknown(operation: &str) -> Error {
    Error::Internal(format!("there is no tensor operation {operation:?}"))
}

pub fn unary(operation: Unary, tensor: &Tensor, cancel: &CancelToken) -> Result<Tensor> {
    if !tensor.dtype().is_float() {
        return unary_of_integers(operation, tensor, cancel);
    }
    if !on_cpu(tensor) {
        return unary_on_gpu(operation, tensor);
    }
    in_wide_float(tensor, cancel, |tensor| match tensor.dtype() {
        DType::F64 => unary_of_floats::<f64>(operation, tensor, cancel),
        _ => unary_of_floats::<f32>(operation, tensor, cancel),
    })
}

pub fn power(tensor: &Tensor, exponent: f64, cancel: &CancelToken) -> Result<Tensor> {
    require_float(tensor, "powf")?;
    if !on_cpu(tensor) {
        return Ok(tensor.powf(exponent)?);
    }
    in_wide_float(tensor, cancel, |tensor| match tensor.dtype() {
        DType::F64 => map(tensor, cancel, |x: f64| x.powf(exponent)),
        _ => map(tensor, cancel, |x: f32| x.powf(exponent as f32)),
    })
}

pub(super) fn require_float(tensor: &Tensor, operation: &str) -> Result<()> {
    if tensor.dtype().is_float() {
        return Ok(());
    }
    Err(Error::InvalidInput(format!(
        "{operation} is not defined for tensors of {}: convert with to_dtype(:f32)",
        tensor.dtype().as_str()
    )))
}

/// Computes half precision in f32, whose result rounds to the correct half.
pub(super) fn in_wide_float(
    tensor: &Tensor,
    cancel: &CancelToken,
    compute: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    match tensor.dtype() {
        narrow @ (DType::F16 | DType::BF16) => {
            let result = compute(&to_dtype(tensor, DType::F32, cancel)?)?;
            to_dtype(&result, narrow, cancel)
        }
        _ => compute(tensor),
    }
}

fn unary_of_floats<T: WithDType + Float>(
    operation: Unary,
    tensor: &Tensor,
    cancel: &CancelToken,
) -> Result<Tensor> {
    let (zero, one) = (
        <T as num_traits::Zero>::zero(),
        <T as num_traits::One>::one(),
    );
    let sigmoid = move |x: T| one / (one + (-x).exp());
    match operation {
        Unary::Sin => map(tensor, cancel, T::sin),
        Unary::Cos => map(tensor, cancel, T::cos),
        Unary::Tanh => map(tensor, cancel, T::tanh),
        Unary::Log => map(tensor, cancel, T::ln),
        Unary::Exp => map(tensor, cancel, T::exp),
        Unary::Sqr => map(tensor, cancel, |x: T| x * x),
        Unary::Sqrt => map(tensor, cancel, T::sqrt),
        Unary::Recip => map(tensor, cancel, move |x: T| one / x),
        Unary::Abs => map(tensor, cancel, T::abs),
        Unary::Neg => map(tensor, cancel, |x: T| -x),
        // Not `max`, which would turn NaN into 0.
        Unary::Relu => map(tensor, cancel, move |x: T| if x < zero { zero } else { x }),
        Unary::Silu => map(tensor, cancel, move |x: T| x * sigmoid(x)),
        Unary::Sigmoid => map(tensor, cancel, sigmoid),
    }
}

fn unary_on_gpu(operation: Unary, tensor: &Tensor) -> Result<Tensor> {
    Ok(match operation {
        Unary::Sin => tensor.sin()?,
        Unary::Cos => tensor.cos()?,
        Unary::Tanh => tensor.tanh()?,
        Unary::Log => tensor.log()?,
        Unary::Exp => tensor.exp()?,
        Unary::Sqr => tensor.sqr()?,
        Unary::Sqrt => tensor.sqrt()?,
        Unary::Recip => tensor.recip()?,
        Unary::Abs => tensor.abs()?,
        Unary::Neg => tensor.neg()?,
        Unary::Relu => tensor.relu()?,
        Unary::Silu => tensor.silu()?,
        Unary::Sigmoid => candle_nn::ops::sigmoid(tensor)?,
    })
}

/// The few that integers have; the result wraps around as integer arithmetic does.
fn unary_of_integers(operation: Unary, tensor: &Tensor, cancel: &CancelToken) -> Result<Tensor> {
    let unsigned = matches!(tensor.dtype(), DType::U8 | DType::U32);
    let compute: fn(i64) -> i64 = match operation {
        Unary::Abs => i64::wrapping_abs,
        Unary::Neg if !unsigned => i64::wrapping_neg,
        Unary::Sqr => |x| x.wrapping_mul(x),
        Unary::Relu => |x| x.max(0),
        _ => {
            return Err(Error::InvalidInput(format!(
                "{} is not defined for tensors of {}: convert with to_dtype({})",
                format!("{operation:?}").to_lowercase(),
                tensor.dtype().as_str(),
                if operation == Unary::Neg {
                    ":i64"
                } else {
                    ":f32"
                }
            )))
        }
    };
    let device = tensor.device();
    let wide = to_dtype(
        &tensor.to_device(&candle_core::Device::Cpu)?,
        DType::I64,
        cancel,
    )?;
    let result = map(&wide, cancel, compute)?;
    placed(&to_dtype(&result, tensor.dtype(), cancel)?, device)
}

fn map<T: WithDType, U: WithDType>(
    tensor: &Tensor,
    cancel: &CancelToken,
    compute: impl Fn(T) -> U + Sync,
) -> Result<Tensor> {
    let values = read::<T, _>(tensor, cancel, |source| {
        fill(source.len(), cancel, |start, part: &mut [U]| {
            let source = &source[start..start + part.len()];
            for (slot, &value) in part.iter_mut().zip(source) {
                *slot = compute(value);
            }
        })
    })?;
    let result = Tensor::from_vec(values, tensor.shape(), &candle_core::Device::Cpu)?;
    placed(&result, tensor.device())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
}

impl FromStr for Arithmetic {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "add" => Self::Add,
            "sub" => Self::Sub,
            "mul" => Self::Mul,
            "div" => Self::Div,
            other => return Err(unknown(other)),
        })
    }
}

/// Integers wrap around, and divide towards negative infinity as Ruby's do.
trait Number: WithDType {
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
}

macro_rules! floating {
    ($($T:ty),*) => {$(
        impl Number for $T {
            #[inline]
            fn plus(self, other: Self) -> Self { self + other }
            #[inline]
            fn minus(self, other: Self) -> Self { self - other }
            #[inline]
            fn times(self, other: Self) -> Self { self * other }
            #[inline]
            fn over(self, other: Self) -> Self { self / other }
        }
    )*};
}

macro_rules! integral {
    ($($T:ty),*) => {$(
        impl Number for $T {
            #[inline]
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline]
            fn minus(self, other: Self) -> Self { self.wrapping_sub(other) }
            #[inline]
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline]
            #[allow(unused_comparisons, reason = "shared by signed and unsigned types")]
            fn over(self, other: Self) -> Self {
                let quotient = self.wrapping_div(other);
                let inexact = quotient.wrapping_mul(other) != self;
                if inexact && (self < 0) != (other < 0) { quotient.wrapping_sub(1) } else { quotient }
            }
        }
    )*};
}

floating!(half::bf16, half::f16, f32, f64);
integral!(u8, u32, i16, i32, i64);

pub fn arithmetic(
    operation: Arithmetic,
    a: &Tensor,
    b: &Tensor,
    cancel: &CancelToken,
) -> Result<Tensor> {
    let name = format!("{operation:?}").to_lowercase();
    let (a, b, shape) = aligned(a, b, &name, cancel)?;
    if !on_cpu(&a) || !on_cpu(&b) {
        return Ok(match operation {
            Arithmetic::Add => a.broadcast_add(&b)?,
            Arithmetic::Sub => a.broadcast_sub(&b)?,
            Arithmetic::Mul => a.broadcast_mul(&b)?,
            Arithmetic::Div => a.broadcast_div(&b)?,
        });
    }
    for_dtype!(a.dtype(), T => {
        match operation {
            Arithmetic::Add => combine::<T, T>(&a, &b, &shape, cancel, T::plus),
            Arithmetic::Sub => combine::<T, T>(&a, &b, &shape, cancel, T::minus),
            Arithmetic::Mul => combine::<T, T>(&a, &b, &shape, cancel, T::times),
            Arithmetic::Div => {
                refuse_zero::<T>(&b, cancel)?;
                combine::<T, T>(&a, &b, &shape, cancel, T::over)
            }
        }
    })
}

fn refuse_zero<T: WithDType>(divisor: &Tensor, cancel: &CancelToken) -> Result<()> {
    if divisor.dtype().is_float() {
        return Ok(());
    }
    read::<T, _>(divisor, cancel, |all| {
        if all.iter().any(T::is_zero) {
            return Err(Error::InvalidInput(format!(
                "div: a tensor of {} is divided by zero: convert with to_dtype(:f32) to get infinity",
                divisor.dtype().as_str()
            )));
        }
        Ok(())
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl FromStr for Comparison {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "eq" => Self::Eq,
            "ne" => Self::Ne,
            "lt" => Self::Lt,
            "le" => Self::Le,
            "gt" => Self::Gt,
            "ge" => Self::Ge,
            other => return Err(unknown(other)),
        })
    }
}

impl Comparison {
    /// NaN has no order: it only differs.
    fn holds(self, order: Option<Ordering>) -> bool {
        match self {
            Self::Eq => order == Some(Ordering::Equal),
            Self::Ne => order != Some(Ordering::Equal),
            Self::Lt => order == Some(Ordering::Less),
            Self::Le => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Self::Gt => order == Some(Ordering::Greater),
            Self::Ge => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

/// 1 where the comparison holds, else 0, as u8.
pub fn compare(
    comparison: Comparison,
    a: &Tensor,
    b: &Tensor,
    cancel: &CancelToken,
) -> Result<Tensor> {
    let name = format!("{comparison:?}").to_lowercase();
    let (a, b, shape) = aligned(a, b, &name, cancel)?;
    if !on_cpu(&a) || !on_cpu(&b) {
        return Ok(match comparison {
            Comparison::Eq => a.broadcast_eq(&b)?,
            Comparison::Ne => a.broadcast_ne(&b)?,
            Comparison::Lt => a.broadcast_lt(&b)?,
            Comparison::Le => a.broadcast_le(&b)?,
            Comparison::Gt => a.broadcast_gt(&b)?,
            Comparison::Ge => a.broadcast_ge(&b)?,
        });
    }
    for_dtype!(a.dtype(), T => combine::<T, u8>(&a, &b, &shape, cancel, |x, y| {
        u8::from(comparison.holds(x.partial_cmp(&y)))
    }))
}

/// Both in one type, and the shape of the result.
fn aligned(
    a: &Tensor,
    b: &Tensor,
    operation: &str,
    cancel: &CancelToken,
) -> Result<(Tensor, Tensor, Vec<usize>)> {
    let shape = broadcast(a.dims(), b.dims(), operation)?;
    let dtype = promote(a.dtype(), b.dtype());
    let (a, b) = (to_dtype(a, dtype, cancel)?, to_dtype(b, dtype, cancel)?);
    Ok((a, b, shape))
}

fn combine<T: WithDType, U: WithDType>(
    a: &Tensor,
    b: &Tensor,
    shape: &[usize],
    cancel: &CancelToken,
    compute: impl Fn(T, T) -> U + Sync,
) -> Result<Tensor> {
    let count = shape.iter().product();
    let (a, b) = (periodic(a, shape)?, periodic(b, shape)?);
    let values = read::<T, _>(&a, cancel, |a| {
        read::<T, _>(&b, cancel, |b| {
            fill(count, cancel, |start, part: &mut [U]| {
                combine_part(a, b, start, part, &compute);
            })
        })
    })?;
    Ok(Tensor::from_vec(values, shape, &candle_core::Device::Cpu)?)
}

/// A tensor whose elements, repeated, are those of its broadcast to `shape`: itself when it equals
/// the end of `shape`.
fn periodic(tensor: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let leading = tensor.dims().iter().take_while(|&&size| size == 1).count();
    if shape.ends_with(&tensor.dims()[leading..]) {
        return Ok(tensor.clone());
    }
    Ok(tensor.broadcast_as(shape)?)
}

/// Writes `compute(a[i], b[i])` from `start` on, where the shorter operands repeat.
fn combine_part<T: Copy, U>(
    a: &[T],
    b: &[T],
    start: usize,
    part: &mut [U],
    compute: &impl Fn(T, T) -> U,
) {
    let mut done = 0;
    while done < part.len() {
        let (i, j) = ((start + done) % a.len(), (start + done) % b.len());
        let mut run = part.len() - done;
        for (length, index) in [(a.len(), i), (b.len(), j)] {
            if length > 1 {
                run = run.min(length - index);
            }
        }
        let slots = part[done..done + run].iter_mut();
        match (a.len(), b.len()) {
            (1, 1) => slots.for_each(|slot| *slot = compute(a[0], b[0])),
            (1, _) => slots
                .zip(&b[j..j + run])
                .for_each(|(slot, &y)| *slot = compute(a[0], y)),
            (_, 1) => slots
                .zip(&a[i..i + run])
                .for_each(|(slot, &x)| *slot = compute(x, b[0])),
            _ => slots
                .zip(a[i..i + run].iter().zip(&b[j..j + run]))
                .for_each(|(slot, (&x, &y))| *slot = compute(x, y)),
        }
        done += run;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn integers_divide_as_in_ruby() {
        let cancel = CancelToken::new();
        let a = Tensor::new(&[7i64, -7, 7, -7, i64::MIN], &Device::Cpu).unwrap();
        let b = Tensor::new(&[2i64, 2, -2, -2, -1], &Device::Cpu).unwrap();
        let quotient = arithmetic(Arithmetic::Div, &a, &b, &cancel).unwrap();
        assert_eq!(quotient.to_vec1::<i64>().unwrap(), [3, -4, -4, 3, i64::MIN]);
        let zero = Tensor::new(0i64, &Device::Cpu).unwrap();
        assert!(arithmetic(Arithmetic::Div, &a, &zero, &cancel).is_err());
    }

    #[test]
    fn operands_repeat_over_long_results() {
        let cancel = CancelToken::new();
        let rows = 30_000;
        let a = Tensor::arange(0f64, (rows * 3) as f64, &Device::Cpu)
            .unwrap()
            .reshape((rows, 3))
            .unwrap();
        let b = Tensor::new(&[10f64, 20., 30.], &Device::Cpu).unwrap();
        let sum = base::runtime::threads::install(|| arithmetic(Arithmetic::Add, &a, &b, &cancel))
            .unwrap()
            .unwrap();
        let sum = sum.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        for (index, value) in sum.into_iter().enumerate() {
            assert_eq!(value, index as f64 + [10., 20., 30.][index % 3]);
        }
    }
}
