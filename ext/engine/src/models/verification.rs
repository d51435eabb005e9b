//! Proof that a device computes what it should: a few tokens through a model just loaded, its first
//! layer compared with the same layer on the CPU in f32.

use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};

use crate::nn::Linear;
use crate::{Error, Result};
use base::quant::QuantizedTensor;
use base::runtime::memory;
use formats::weights::{Metadata, TensorInfo, WeightSource};

/// Long enough for every kernel's inner loop, short enough to cost nothing.
pub const PROBE_TOKENS: usize = 9;

/// How much farther off than the CPU in the same type a device may be where both round.
const ALIKE: f64 = 1.5;

/// What a tensor computed by a device is.
pub struct Evidence<'a> {
    /// Completes "wrong values in".
    pub place: &'a str,
    pub found: &'a Tensor,
}

impl Evidence<'_> {
    /// A `Device` error unless every value is a number and some are not 0.
    pub fn check_values(&self) -> Result<()> {
        let values = values(self.found)?;
        if values.iter().any(|value| value.is_nan()) {
            return Err(self.fault("NaN"));
        }
        if values.iter().any(|value| value.is_infinite()) {
            return Err(self.fault("infinite values"));
        }
        if values.iter().all(|&value| value == 0.0) {
            return Err(self.fault("only zeros"));
        }
        Ok(())
    }

    /// `check_values`, and a `Device` error unless the values are those of `expected`, which the CPU
    /// made of `input` in f32 from `source`. What counts is the change of the input: a large residual
    /// must not hide it.
    pub fn check_against(
        &self,
        expected: &Tensor,
        input: &Tensor,
        source: &dyn WeightSource,
    ) -> Result<()> {
        self.check_values()?;
        let (found, expected) = (values(self.found)?, values(expected)?);
        let input = values(input)?;
        if found.len() != expected.len() || input.len() != expected.len() {
            return Err(self.fault("a tensor of another shape"));
        }
        let difference = norm(found.iter().zip(&expected).map(|(a, b)| a - b));
        let change = norm(expected.iter().zip(&input).map(|(a, b)| a - b));
        let length = norm(expected.iter().copied());
        if difference <= self.allowed(change, length, source) {
            return Ok(());
        }
        Err(self.fault(&format!(
            "values {:.1} % off the CPU's (a norm of {:.4} instead of {length:.4})",
            100.0 * difference / change.max(f64::MIN_POSITIVE),
            norm(found.iter().copied())
        )))
    }

    /// Whether all but a quarter of the rows are as close to those of `expected` as `check_against` wants the whole, and
    /// the others numbers.
    pub fn most_rows_agree(
        &self,
        expected: &Tensor,
        input: &Tensor,
        source: &dyn WeightSource,
    ) -> Result<bool> {
        let width = expected.dims().last().copied().unwrap_or(1).max(1);
        let [found, expected, input] = [self.found, expected, input].map(values);
        let (found, expected, input) = (found?, expected?, input?);
        let rows = found.chunks(width).zip(expected.chunks(width));
        let wrong = rows
            .zip(input.chunks(width))
            .filter(|((found, expected), input)| {
                let apart =
                    |one: &[f32], other: &[f32]| norm(one.iter().zip(other).map(|(a, b)| a - b));
                let change = apart(expected, input);
                let length = norm(expected.iter().copied());
                apart(found, expected) > self.allowed(change, length, source)
            });
        let wrong = wrong.count();
        let complete = found.len() == expected.len() && found.iter().all(|value| value.is_finite());
        Ok(complete && wrong <= expected.len() / width / 4)
    }

    /// How far values may be off that change their input so much and are so long.
    fn allowed(&self, change: f64, length: f64, source: &dyn WeightSource) -> f64 {
        let (relative, rounding) = tolerance(if self.computes_on_blocks(source) {
            DType::BF16
        } else {
            self.found.dtype()
        });
        relative * change + rounding * length
    }

    /// Whether the values are about as close to `expected` as `other` ones, of the same type.
    pub fn is_as_close_as(&self, other: &Tensor, expected: &Tensor) -> Result<bool> {
        let expected = values(expected)?;
        let off = |one: &Tensor| -> Result<f64> {
            let pairs = values(one)?.into_iter().zip(&expected);
            Ok(norm(pairs.map(|(a, b)| a - b)))
        };
        Ok(self.check_values().is_ok() && off(self.found)? <= ALIKE * off(other)?)
    }

    /// Quantized blocks are multiplied with activations that are rounded too.
    fn computes_on_blocks(&self, source: &dyn WeightSource) -> bool {
        Linear::rounds_inputs(self.found.device(), self.found.dtype())
            && source
                .names()
                .iter()
                .any(|name| matches!(source.quantized(name), Ok(Some(_))))
    }

    fn fault(&self, what: &str) -> Error {
        let device = crate::Device::of(self.found.device());
        let dtype = self.found.dtype().as_str();
        let smaller = match self.found.dtype() {
            DType::F16 => "dtype: :bf16 or dtype: :f32",
            DType::F32 => "another dtype:",
            _ => "dtype: :f32",
        };
        Error::Device(format!(
            "the self-check failed: {device} gives {what} in {} of this model in {dtype}. Try {smaller}, \
             or run it on the CPU (device: \"cpu\"); verify: false loads it regardless",
            self.place
        ))
    }
}

/// How far a layer may be off: relative to its change of the input, and to its output.
fn tolerance(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F32 | DType::F64 => (2e-3, 1e-5),
        DType::F16 => (2e-2, 2e-3),
        _ => (6e-2, 1.6e-2),
    }
}

fn values(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor
        .to_device(&Device::Cpu)?
        .to_dtype(DType::F32)?
        .flatten_all()?
        .to_vec1()?)
}

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values
        .map(|value| f64::from(value) * f64::from(value))
        .sum::<f64>()
        .sqrt()
}

/// A source whose quantized tensors are expanded, so that the reference computes in f32 throughout.
pub struct Expanded<'a>(pub &'a dyn WeightSource);

impl WeightSource for Expanded<'_> {
    fn names(&self) -> Vec<String> {
        self.0.names()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.0.info(name)
    }

    fn tensor(&self, name: &str, dtype: Option<DType>, device: &Device) -> Result<Tensor> {
        self.0.tensor(name, dtype, device)
    }

    fn quantized(&self, _name: &str) -> Result<Option<QuantizedTensor>> {
        Ok(None)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    fn files(&self) -> Vec<PathBuf> {
        self.0.files()
    }

    fn metadata(&self) -> &Metadata {
        self.0.metadata()
    }
}

/// Ids spread over a vocabulary.
pub fn probe(vocabulary: usize, length: usize) -> Vec<u32> {
    (0..length)
        .map(|index| ((index * 7919 + 101) % vocabulary.max(1)) as u32)
        .collect()
}

/// Whether a layer of `source` fits into memory once more, as f32 and laid out for the CPU.
pub fn has_room_for_layer(source: &dyn WeightSource, layers: usize) -> bool {
    let names = source.names();
    let elements: usize = names
        .iter()
        .filter_map(|name| source.info(name))
        .map(|info| info.shape.iter().product::<usize>())
        .sum();
    memory::ensure_available(elements / layers.max(1) * 8, "the self-check").is_ok()
}
