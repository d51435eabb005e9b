//! Gates of which only the largest pass (Gemma 3n).

use candle_core::Tensor;

use crate::nn::elementwise;
use crate::{Error, Result};
use kernels::Activation;

/// Of each row of gates the part passes that exceeds the mean by so many standard deviations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparseGate {
    pub activation: Activation,
    pub deviations: f32,
}

impl SparseGate {
    /// Lets about 1 − `portion` of the gates pass, were they normally distributed.
    pub fn new(activation: Activation, portion: f32) -> Self {
        Self {
            activation,
            deviations: quantile(f64::from(portion)) as f32,
        }
    }

    pub fn forward(&self, parts: &[Tensor]) -> Result<Tensor> {
        let [gate, up] = parts else {
            return Err(Error::Internal("a gated activation needs two parts".into()));
        };
        let gate = elementwise::each_row(gate, None, |row, _| {
            let mean =
                |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / row.len() as f64;
            let center = mean(&mut row.iter().map(|&value| f64::from(value)));
            let spread = mean(&mut row.iter().map(|&value| (f64::from(value) - center).powi(2)));
            let least = (center + spread.sqrt() * f64::from(self.deviations)) as f32;
            row.iter_mut()
                .for_each(|value| *value = (*value - least).max(0.0));
        })?;
        kernels::gated(&gate, up, self.activation)
    }
}

/// The portion of gates that so many standard deviations close.
pub fn portion(deviations: f32) -> f32 {
    if deviations < -8.0 {
        return 0.0;
    }
    below(f64::from(deviations).min(8.0)) as f32
}

/// Below which a standard normal variable lies with this probability.
fn quantile(probability: f64) -> f64 {
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..64 {
        let middle = (low + high) / 2.0;
        if below(middle) < probability {
            low = middle
        } else {
            high = middle
        }
    }
    (low + high) / 2.0
}

/// The probability that a standard normal variable is below `x`, by the series x + x³/3 + x⁵/(3·5) + ….
fn below(x: f64) -> f64 {
    let (mut term, mut sum, mut odd) = (x, x, 1.0);
    while term.abs() > 1e-17 * sum.abs() {
        odd += 2.0;
        term *= x * x / odd;
        sum += term;
    }
    let density = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
    0.5 + density * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_normal_distribution() {
        for (probability, expected) in [(0.5, 0.0), (0.95, 1.6448536), (0.8, 0.8416212)] {
            assert!((quantile(probability) - expected).abs() < 1e-6);
        }
        assert!((quantile(0.1) + quantile(0.9)).abs() < 1e-9);
    }
}
