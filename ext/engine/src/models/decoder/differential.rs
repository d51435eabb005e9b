//! Differential attention: one half of the heads is subtracted from the other (DiffLlama).
//!
//! A head attends twice with the same scores, to the values of two heads, of which the results stand side by side.
//! Attention itself has these as twice as many heads.

use candle_core::{DType, Tensor};

use super::config::DecoderConfig;
use crate::models::config::{NormConfig, NormKind};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{elementwise, Norm};
use crate::Result;

pub struct Differential {
    /// How much the second half counts.
    lambda: f32,
    /// Factor on the normalized difference.
    scale: f32,
    /// Over the two results of a head, without weights.
    norm: Norm,
}

impl Differential {
    pub fn load(parameters: &Parameters<'_>, index: usize, config: &DecoderConfig) -> Result<Self> {
        let size = config.head_size;
        let product = |query: Part, key: Part| -> Result<f32> {
            let read = |part: Part| -> Result<Vec<f32>> {
                let values = parameters.shaped(part.at(index), &[size])?;
                Ok(values.to_dtype(DType::F32)?.to_vec1()?)
            };
            let pairs = read(query)?.into_iter().zip(read(key)?);
            Ok(pairs.map(|(query, key)| query * key).sum())
        };
        let first = product(Part::FirstLambdaQuery, Part::FirstLambdaKey)?;
        let second = product(Part::SecondLambdaQuery, Part::SecondLambdaKey)?;
        let initial = (0.8 - 0.6 * (-0.3 * index as f64).exp()) as f32;
        let plain = NormConfig::new(NormKind::Rms, config.norm.epsilon).plain();
        Ok(Self {
            lambda: first.exp() - second.exp() + initial,
            scale: 1.0 - initial,
            norm: parameters.norm(Part::QueryNorm.at(index), &[2 * size], plain)?,
        })
    }

    /// Queries, keys and values of twice as many heads.
    pub fn spread(
        &self,
        (query, key, value): (Tensor, Tensor, Tensor),
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let half = value.dim(1)? / 2;
        let (first, second) = (value.narrow(1, 0, half)?, value.narrow(1, half, half)?);
        Ok((
            Tensor::cat(&[&query, &query], 1)?,
            Tensor::cat(&[&key, &key], 1)?,
            Tensor::cat(&[&first, &first, &second, &second], 1)?,
        ))
    }

    /// The difference, `[tokens, width]`, of what `[tokens, heads, head size]` attention gives.
    pub fn combine(&self, attended: &Tensor) -> Result<Tensor> {
        let (tokens, heads, size) = attended.dims3()?;
        let quarter = |at: usize| attended.narrow(1, at * (heads / 4), heads / 4);
        let pair = |at: usize| Tensor::cat(&[quarter(at)?, quarter(at + 2)?], 2);
        let subtracted = elementwise::scale(&pair(1)?, -self.lambda)?;
        let difference = elementwise::add(&pair(0)?, &subtracted)?;
        let normalized = self.norm.forward(&difference)?;
        let width = heads / 2 * size;
        elementwise::scale(&normalized.reshape((tokens, width))?, self.scale)
    }
}
