//! Multi-head latent attention: what a token leaves to those after it is one latent row, of which every head's
//! keys and values are products.
//!
//! Neither is ever computed. A head's matrix of keys goes over to its queries, which so meet the latents
//! themselves, and its matrix of values to what attention gives. All heads then share one row of keys and values
//! in the cache, and prompts take the same way as single tokens, so that their results are the same bits.

use candle_core::Tensor;

use super::adapter_rows::LayerUpdates;
use super::attention::Projected;
use super::batch::Keys;
use super::config::{DecoderConfig, Latent};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{change_rows, elementwise, HeadMatrices, Inventory, Linear, Norm, Projection};
use crate::{Error, Result};

pub struct LatentProjections {
    config: Latent,
    /// Queries or, with a `query`, what they are made of; then a latent and the rotated part of a key.
    pub input: Projection,
    pub query: Option<(Norm, Linear)>,
    norm: Norm,
    /// `[heads, plain, rank]`
    keys: HeadMatrices,
    /// `[heads, rank, value size]`
    values: HeadMatrices,
}

/// The place of `query`'s matrix among the updates, behind those of `input`.
pub const QUERY_SLOT: usize = 2;

impl LatentProjections {
    pub fn load(
        parameters: &Parameters<'_>,
        index: usize,
        latent: Latent,
        config: &DecoderConfig,
    ) -> Result<Self> {
        let (hidden, heads) = (config.hidden_size, config.head_count);
        let width = heads * latent.query_size();
        let linear =
            |part: Part, inputs, outputs| parameters.linear(part.at(index), inputs, outputs);
        let norm = |part: Part, width| parameters.norm(part.at(index), &[width], latent.norm);
        let (first, query) = match latent.query_rank {
            Some(rank) => (
                linear(Part::QueryDown, hidden, rank)?,
                Some((
                    norm(Part::QueryDownNorm, rank)?,
                    linear(Part::QueryUp, latent.read_width(rank), width)?,
                )),
            ),
            None => (linear(Part::Query, hidden, width)?, None),
        };
        let second = linear(Part::LatentDown, hidden, latent.rank + latent.rotated)?;
        let (keys, values) = head_matrices(parameters, index, &latent, heads)?;
        Ok(Self {
            config: latent,
            input: Projection::split(vec![first, second])?,
            query,
            norm: norm(Part::LatentNorm, latent.rank)?,
            keys: HeadMatrices::new(&keys.contiguous()?)?,
            values: HeadMatrices::new(&values.contiguous()?)?,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_projection(&self.input)?;
        if let Some((norm, linear)) = &self.query {
            inventory.add_norm(norm)?;
            inventory.add_linear(linear)?;
        }
        inventory.add_norm(&self.norm)?;
        inventory.add_head_matrices(&self.keys);
        inventory.add_head_matrices(&self.values);
        Ok(())
    }

    /// Keys are `[tokens, 1, width]`, and the values too. What rotates comes first in queries and keys.
    pub(super) fn project(
        &self,
        x: &Tensor,
        config: &DecoderConfig,
        updates: &LayerUpdates<'_>,
    ) -> Result<Projected> {
        let Latent {
            plain,
            rank,
            rotated,
            value_size,
            gated,
            ..
        } = self.config;
        let parts = self.input.parts(x, &updates.qkv())?;
        let Ok([query, row]) = <[Tensor; 2]>::try_from(parts) else {
            return Err(Error::Internal(
                "latent attention needs two projections".into(),
            ));
        };
        let (query, short) = match &self.query {
            Some((norm, linear)) => {
                let short = norm.forward(&query)?;
                let read = if gated {
                    Tensor::cat(&[&short, &query], 1)?
                } else {
                    short.clone()
                };
                let query = linear.forward_updated(&read, &updates.qkv_at(QUERY_SLOT))?;
                (query, Some(short))
            }
            None => (query, None),
        };
        let tokens = x.dim(0)?;
        let query = query.reshape((tokens, config.head_count, self.config.query_size()))?;
        let gate = if gated {
            Some(
                query
                    .narrow(2, plain + rotated, value_size)?
                    .flatten(1, 2)?,
            )
        } else {
            None
        };
        let own = query.narrow(2, 0, plain)?.contiguous()?;
        let met = self.keys.forward(&own, 0..rank)?;
        let met = change_rows(met, updates.latent_up(), |met, rows, update| {
            let own = own.narrow(0, rows.start, rows.len())?;
            elementwise::add(&met, &update.of_queries(&own)?)
        })?;
        let query = Tensor::cat(&[query.narrow(2, plain, rotated)?, met], 2)?;
        let latent = self.norm.forward(&row.narrow(1, 0, rank)?.contiguous()?)?;
        let key = Tensor::cat(&[row.narrow(1, rank, rotated)?, latent], 1)?;
        let key = key.unsqueeze(1)?;
        Ok(Projected {
            query,
            keys: Keys::Own(key.clone(), key),
            short,
            gate,
        })
    }

    /// What every head's values add up to, `[tokens, heads · value size]`, of what `[tokens, heads, width]` the
    /// rows add up to.
    pub(super) fn values(&self, attended: &Tensor, updates: &LayerUpdates<'_>) -> Result<Tensor> {
        let Latent {
            rank,
            rotated,
            value_size,
            ..
        } = self.config;
        let latents = attended.narrow(2, rotated, rank)?.contiguous()?;
        let values = self.values.forward(&latents, 0..value_size)?;
        let values = change_rows(values, updates.latent_up(), |values, rows, update| {
            let latents = latents.narrow(0, rows.start, rows.len())?;
            elementwise::add(&values, &update.of_latents(&latents)?)
        })?;
        Ok(values.flatten(1, 2)?)
    }

    /// The update B·A of what makes keys and values of latents, A `[rank of the update, rank]` and B
    /// `[heads · (plain + value size), rank of the update]`.
    pub fn update(&self, heads: usize, down: &Tensor, up: &Tensor) -> Result<LatentUpdate> {
        let Latent {
            plain,
            value_size,
            scale,
            ..
        } = self.config;
        let small = down.dim(0)?;
        let up = elementwise::scale(up, scale)?.reshape((heads, plain + value_size, small))?;
        let values = up.narrow(1, plain, value_size)?.transpose(1, 2)?;
        Ok(LatentUpdate {
            keys: HeadMatrices::new(&up.narrow(1, 0, plain)?.contiguous()?)?,
            back: Linear::new(down.t()?.contiguous()?, None)?,
            down: Linear::new(down.clone(), None)?,
            values: HeadMatrices::new(&values.contiguous()?)?,
            small,
            value_size,
        })
    }

    /// The inputs and outputs of what makes keys and values of latents.
    pub fn up_shape(&self, heads: usize) -> (usize, usize) {
        let Latent {
            rank,
            plain,
            value_size,
            ..
        } = self.config;
        (rank, heads * (plain + value_size))
    }
}

/// An adapter's update of what makes keys and values of latents, taken over to queries and to what attention gives
/// as the matrix itself is.
pub struct LatentUpdate {
    /// `[heads, plain, rank of the update]`
    keys: HeadMatrices,
    /// From the rank of the update to that of latents, and the other way.
    back: Linear,
    down: Linear,
    /// `[heads, rank of the update, value size]`
    values: HeadMatrices,
    /// The rank of the update.
    small: usize,
    value_size: usize,
}

impl LatentUpdate {
    /// What queries `[tokens, heads, plain]` meet latents with in addition, `[tokens, heads, rank]`.
    fn of_queries(&self, query: &Tensor) -> Result<Tensor> {
        let (tokens, heads, _) = query.dims3()?;
        let met = self.keys.forward(query, 0..self.small)?;
        let back = self.back.forward(&met.flatten(0, 1)?)?;
        Ok(back.reshape((tokens, heads, self.back.outputs()))?)
    }

    /// What heads' values get in addition, `[tokens, heads, value size]`, of latents `[tokens, heads, rank]`.
    fn of_latents(&self, latents: &Tensor) -> Result<Tensor> {
        let (tokens, heads, _) = latents.dims3()?;
        let short = self.down.forward(&latents.flatten(0, 1)?)?;
        let short = short.reshape((tokens, heads, self.small))?;
        self.values.forward(&short, 0..self.value_size)
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_head_matrices(&self.keys);
        inventory.add_head_matrices(&self.values);
        inventory.add_linear(&self.back)?;
        inventory.add_linear(&self.down)
    }
}

/// `[heads, plain, rank]` for keys and `[heads, rank, value size]` for values, from one matrix or from two.
fn head_matrices(
    parameters: &Parameters<'_>,
    index: usize,
    latent: &Latent,
    heads: usize,
) -> Result<(Tensor, Tensor)> {
    let Latent {
        rank,
        plain,
        value_size,
        scale,
        ..
    } = *latent;
    let (keys, values) = (Part::LatentKeys.at(index), Part::LatentValues.at(index));
    if parameters.has(keys) {
        let keys = parameters.shaped(keys, &[heads, rank, plain])?;
        let values = parameters.shaped(values, &[heads, value_size, rank])?;
        let keys = elementwise::scale(&keys, scale)?.transpose(1, 2)?;
        return Ok((keys, elementwise::scale(&values, scale)?.transpose(1, 2)?));
    }
    let rows = plain + value_size;
    let up = parameters.matrix(Part::LatentUp.at(index), rank, heads * rows)?;
    let up = elementwise::scale(&up, scale)?.reshape((heads, rows, rank))?;
    let values = up.narrow(1, plain, value_size)?.transpose(1, 2)?;
    Ok((up.narrow(1, 0, plain)?, values))
}
