//! What stands for a whole picture.

use candle_core::Tensor;

use super::Seen;
use crate::models::modules::Modules;
use crate::nn::{attention, AttentionKind, AttentionOptions, Inventory, Linear, Norm};
use crate::Result;

#[derive(Debug)]
pub enum Pooling {
    /// The first token.
    First,
    /// The mean of the patches, behind a norm where there is one.
    Mean(Option<Norm>),
    /// What a learned query finds (AIMv2).
    Query(Box<Query>),
}

#[derive(Debug)]
pub struct Query {
    /// [1, heads, width of a head]
    query: Tensor,
    key: Linear,
    value: Linear,
    output: Linear,
}

impl Query {
    pub fn load(modules: &Modules<'_>, width: usize, heads: usize) -> Result<Self> {
        let linear = |name: &str| modules.sized_linear(name, width, width);
        let query = modules.shaped("cls_token", &[1, 1, width])?;
        Ok(Self {
            query: query.reshape((1, heads, width / heads))?,
            key: linear("k_proj")?,
            value: linear("v_proj")?,
            output: linear("output_proj")?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (tokens, width) = x.dims2()?;
        let (_, heads, size) = self.query.dims3()?;
        let split = |linear: &Linear| -> Result<Tensor> {
            Ok(linear.forward(x)?.reshape((tokens, heads, size))?)
        };
        let (k, v) = (split(&self.key)?, split(&self.value)?);
        let scale = 1.0 / (size as f32).sqrt();
        let options = AttentionOptions::new(AttentionKind::Bidirectional, scale);
        let keys = [0, tokens as u32];
        let found = attention(&self.query, &k, &v, &[0, 1], &keys, &options)?;
        self.output.forward(&found.reshape((1, width))?)
    }
}

impl Pooling {
    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        match self {
            Self::First | Self::Mean(None) => Ok(()),
            Self::Mean(Some(norm)) => inventory.add_norm(norm),
            Self::Query(query) => {
                inventory.add_tensor(&query.query);
                [&query.key, &query.value, &query.output]
                    .into_iter()
                    .try_for_each(|linear| inventory.add_linear(linear))
            }
        }
    }

    /// [1, width]
    pub fn forward(&self, seen: &Seen) -> Result<Tensor> {
        match self {
            Self::First => Ok(seen.last.narrow(0, 0, 1)?.contiguous()?),
            Self::Mean(norm) => {
                let mean = seen.map(&seen.last)?.mean()?.unsqueeze(0)?.contiguous()?;
                match norm {
                    Some(norm) => norm.forward(&mean),
                    None => Ok(mean),
                }
            }
            Self::Query(query) => query.forward(&seen.last),
        }
    }
}
