//! SPLADE's pooling: how much each token of the vocabulary stands for a text, by the logits of a
//! masked language model.

use candle_core::Tensor;

use crate::{Error, Result};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpladePooling {
    pub sum: Sum,
    /// Whether the logarithm is taken twice.
    pub twice: bool,
}

/// What the weights of a text's tokens become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sum {
    #[default]
    Greatest,
    Total,
}

impl SpladePooling {
    /// By the names that sentence-transformers has for strategy and activation.
    pub fn parse(strategy: &str, activation: &str) -> Result<Self> {
        let sum = match strategy {
            "max" => Sum::Greatest,
            "sum" => Sum::Total,
            other => {
                return Err(Error::UnsupportedModel(format!(
                    "pooling_strategy {other:?} is not one of \"max\" and \"sum\""
                )))
            }
        };
        match activation {
            "relu" => Ok(Self { sum, twice: false }),
            "log1p_relu" => Ok(Self { sum, twice: true }),
            other => Err(Error::UnsupportedModel(format!(
                "activation_function {other:?} is not one of \"relu\" and \"log1p_relu\""
            ))),
        }
    }

    /// Adds the logits of some tokens of a text, f32 [tokens, vocabulary], to `pooled`, which starts
    /// as zeros.
    pub fn add(self, logits: &Tensor, pooled: &mut [f32]) -> Result<()> {
        // The greatest logit has the greatest weight, so a GPU returns one row instead of all.
        let logits = if self.sum == Sum::Greatest && !logits.device().is_cpu() {
            logits.max_keepdim(0)?
        } else {
            logits.clone()
        };
        let values: Vec<f32> = logits.flatten_all()?.to_vec1()?;
        for row in values.chunks_exact(pooled.len().max(1)) {
            match self.sum {
                Sum::Greatest => {
                    for (most, &logit) in pooled.iter_mut().zip(row) {
                        *most = greater(*most, logit);
                    }
                }
                Sum::Total => {
                    for (total, &logit) in pooled.iter_mut().zip(row) {
                        if logit.is_nan() || logit > 0.0 {
                            *total += self.weight(logit);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The weights of a text, once all its tokens were added.
    pub fn finish(self, pooled: &mut [f32]) {
        if self.sum == Sum::Greatest {
            for value in pooled.iter_mut().filter(|value| **value != 0.0) {
                *value = self.weight(*value);
            }
        }
    }

    fn weight(self, logit: f32) -> f32 {
        if self.twice {
            logit.ln_1p().ln_1p()
        } else {
            logit.ln_1p()
        }
    }
}

/// Not `max`, which would drop a NaN.
fn greater(most: f32, logit: f32) -> f32 {
    if logit > most || logit.is_nan() {
        logit
    } else {
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn pool(pooling: SpladePooling, parts: &[&[[f32; 3]]]) -> Vec<f32> {
        let mut pooled = vec![0f32; 3];
        for part in parts {
            let logits =
                Tensor::from_slice(part.as_flattened(), (part.len(), 3), &Device::Cpu).unwrap();
            pooling.add(&logits, &mut pooled).unwrap();
        }
        pooling.finish(&mut pooled);
        pooled
    }

    #[test]
    fn only_positive_logits_count_and_parts_add_up() {
        let parts: [&[[f32; 3]]; 2] = [&[[1.0, -2.0, 0.5]], &[[3.0, -1.0, 0.25]]];
        let max = SpladePooling::parse("max", "relu").unwrap();
        assert_eq!(pool(max, &parts), [3f32.ln_1p(), 0.0, 0.5f32.ln_1p()]);
        let sum = SpladePooling::parse("sum", "log1p_relu").unwrap();
        let twice = |logit: f32| logit.ln_1p().ln_1p();
        let wanted = [twice(1.0) + twice(3.0), 0.0, twice(0.5) + twice(0.25)];
        assert_eq!(pool(sum, &parts), wanted);
    }

    #[test]
    fn what_is_not_a_number_stays_visible() {
        for strategy in ["max", "sum"] {
            let pooling = SpladePooling::parse(strategy, "relu").unwrap();
            let pooled = pool(pooling, &[&[[f32::NAN, 1.0, f32::INFINITY]]]);
            assert!(pooled[0].is_nan() && pooled[1].is_finite() && pooled[2].is_infinite());
        }
        assert!(SpladePooling::parse("mean", "relu").is_err());
        assert!(SpladePooling::parse("max", "gelu").is_err());
    }
}
