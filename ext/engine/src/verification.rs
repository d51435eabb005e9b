//! Proof that a device computes what it should: a few tokens through a model just loaded, its first
//! layer compared with the same layer on the CPU in f32.

use candle_core::{DType, Device, Tensor};

use crate::weights::WeightSource;
use crate::{memory, Error, Result};

/// Long enough for every kernel's inner loop, short enough to cost nothing.
pub const PROBE_TOKENS: usize = 9;

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

    /// The same, and the values must be those of `expected`, which the CPU made of `input` in f32. What
    /// counts is the change of the input: a large residual must not hide it.
    pub fn check_against(&self, expected: &Tensor, input: &Tensor) -> Result<()> {
        self.check_values()?;
        let (found, expected) = (values(self.found)?, values(expected)?);
        let input = values(input)?;
        if found.len() != expected.len() || input.len() != expected.len() {
            return Err(self.fault("a tensor of another shape"));
        }
        let difference = norm(found.iter().zip(&expected).map(|(a, b)| a - b));
        let change = norm(expected.iter().zip(&input).map(|(a, b)| a - b));
        let length = norm(expected.iter().copied());
        let (relative, rounding) = tolerance(self.found.dtype());
        if difference <= relative * change + rounding * length {
            return Ok(());
        }
        Err(self.fault(&format!(
            "values {:.1} % off the CPU's (a norm of {:.4} instead of {length:.4})",
            100.0 * difference / change.max(f64::MIN_POSITIVE),
            norm(found.iter().copied())
        )))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::new(values, &Device::Cpu).unwrap()
    }

    fn verdict(found: &[f32], dtype: DType) -> String {
        let found = tensor(found).to_dtype(dtype).unwrap();
        let evidence = Evidence {
            place: "layer 0",
            found: &found,
        };
        let (expected, input) = (tensor(&[101.0, 102.0, 97.0]), tensor(&[100.0; 3]));
        match evidence.check_against(&expected, &input) {
            Ok(()) => "fine".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_is_right_passes_in_every_dtype() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            assert_eq!(verdict(&[101.0, 102.0, 97.0], dtype), "fine");
        }
    }

    #[test]
    fn every_fault_is_named() {
        for (found, words) in [
            ([f32::NAN, 102.0, 97.0], "NaN"),
            ([f32::INFINITY, 102.0, 97.0], "infinite"),
            ([0.0; 3], "only zeros"),
            // The input unchanged: 3 % off by the norm of the output, 100 % by the change.
            ([100.0; 3], "100.0 % off"),
        ] {
            let message = verdict(&found, DType::F32);
            assert!(
                message.contains(words) && message.contains("layer 0"),
                "{message}"
            );
        }
        assert!(verdict(&[f32::NAN; 3], DType::F16).contains("dtype: :bf16"));
    }
}
