//! Several residual streams: a layer computes on one of them, and what it finds corrects all (AltUp, Gemma 3n).

use candle_core::Tensor;

use super::adapter_rows::LayerUpdates;
use super::config::DecoderConfig;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{elementwise, Inventory, Linear, Norm};
use crate::{Error, Result};
use kernels::Activation;

/// What a mean square is taken for at least.
const LEAST_SQUARE: f32 = 1e-5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneConfig {
    pub count: usize,
    /// The one that layers compute on.
    pub active: usize,
    /// What a layer's own input reads is multiplied by a factor per dimension.
    pub scaled: bool,
}

/// Lead from one stream to the others and back.
pub struct Lanes {
    into: Vec<Linear>,
    out: Vec<Linear>,
}

impl Lanes {
    pub fn load(parameters: &Parameters<'_>, config: &DecoderConfig) -> Result<Option<Self>> {
        let Some(lanes) = config.lanes else {
            return Ok(None);
        };
        let hidden = config.hidden_size;
        let matrices = |part: Part| -> Result<Vec<Linear>> {
            // GGUF keeps all in one tensor.
            if !parameters.names().separates_lanes() {
                return parameters.stacked_linears(part, lanes.count - 1);
            }
            let numbers = 0..lanes.count - 1;
            numbers
                .map(|number| parameters.linear(part.at(0).expert(number), hidden, hidden))
                .collect()
        };
        Ok(Some(Self {
            into: matrices(Part::LaneInto)?,
            out: matrices(Part::LaneOut)?,
        }))
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let mut matrices = self.into.iter().chain(&self.out);
        matrices.try_for_each(|linear| inventory.add_linear(linear))
    }

    /// What can be adapted, with its number.
    pub fn linears(&self) -> impl Iterator<Item = (Part, usize, &Linear)> {
        let numbered = |part: Part| move |(number, linear)| (part, number, linear);
        let into = self.into.iter().enumerate().map(numbered(Part::LaneInto));
        into.chain(self.out.iter().enumerate().map(numbered(Part::LaneOut)))
    }

    /// One stream as several, which are all as large.
    pub(super) fn split(&self, hidden: Tensor, updates: &LayerUpdates<'_>) -> Result<Vec<Tensor>> {
        let others = self.into.iter().enumerate().map(|(number, linear)| {
            let update = updates.numbered(Part::LaneInto, number);
            as_large(&linear.forward_updated(&hidden, &update)?, &hidden)
        });
        let others = others.collect::<Result<Vec<_>>>()?;
        Ok(std::iter::once(hidden).chain(others).collect())
    }

    /// The mean of all, made as large as the first.
    pub(super) fn merge(&self, lanes: &[Tensor], updates: &LayerUpdates<'_>) -> Result<Tensor> {
        let Some((first, others)) = lanes.split_first() else {
            return Err(Error::Internal("a residual stream without lanes".into()));
        };
        let mut sum = first.clone();
        for (number, (linear, lane)) in self.out.iter().zip(others).enumerate() {
            let update = updates.numbered(Part::LaneOut, number);
            let lane = as_large(&linear.forward_updated(lane, &update)?, first)?;
            sum = elementwise::add(&sum, &lane)?;
        }
        elementwise::scale(&sum, 1.0 / lanes.len() as f32)
    }
}

/// Rows with the mean squares of another tensor's.
fn as_large(x: &Tensor, like: &Tensor) -> Result<Tensor> {
    let mean_square =
        |row: &[f32]| row.iter().map(|value| value * value).sum::<f32>() / row.len() as f32;
    elementwise::each_row(x, Some(like), |row, like| {
        let factor = mean_square(like).sqrt() / mean_square(row).max(LEAST_SQUARE).sqrt();
        row.iter_mut().for_each(|value| *value *= factor);
    })
}

/// What a layer knows of the other streams.
pub struct LaneLayer {
    config: LaneConfig,
    router_norm: Norm,
    router: Linear,
    prediction: Linear,
    correction: Linear,
    scale: Option<Tensor>,
    /// A narrow way beside attention (LAuReL).
    narrow: [Linear; 2],
    narrow_norm: Norm,
}

impl LaneLayer {
    pub fn load(
        parameters: &Parameters<'_>,
        index: usize,
        config: &DecoderConfig,
    ) -> Result<Option<Self>> {
        let Some(lanes) = config.lanes else {
            return Ok(None);
        };
        let (hidden, count) = (config.hidden_size, lanes.count);
        let norm = |part: Part| parameters.norm(part.at(index), &[hidden], config.norm);
        let linear = |part: Part, inputs: usize, outputs: usize| {
            parameters.exact_linear(part.at(index), inputs, outputs)
        };
        let rank = parameters.outputs(Part::NarrowDown.at(index))?;
        Ok(Some(Self {
            config: lanes,
            router_norm: norm(Part::LaneRouterNorm)?,
            router: linear(Part::LaneRouter, hidden, count)?,
            prediction: linear(Part::LanePrediction, count, count * count)?,
            correction: linear(Part::LaneCorrection, count, count)?,
            scale: if lanes.scaled {
                Some(parameters.shaped(Part::LaneScale.at(index), &[hidden])?)
            } else {
                None
            },
            narrow: [
                parameters.linear(Part::NarrowDown.at(index), hidden, rank)?,
                parameters.linear(Part::NarrowUp.at(index), rank, hidden)?,
            ],
            narrow_norm: norm(Part::NarrowNorm)?,
        }))
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let own = [&self.router, &self.prediction, &self.correction];
        for linear in own.into_iter().chain(&self.narrow) {
            inventory.add_linear(linear)?;
        }
        if let Some(scale) = &self.scale {
            inventory.add_tensor(scale);
        }
        inventory.add_norm(&self.router_norm)?;
        inventory.add_norm(&self.narrow_norm)
    }

    /// What can be adapted.
    pub fn linears(&self) -> [(Part, &Linear); 5] {
        let [down, up] = &self.narrow;
        [
            (Part::LaneRouter, &self.router),
            (Part::LanePrediction, &self.prediction),
            (Part::LaneCorrection, &self.correction),
            (Part::NarrowDown, down),
            (Part::NarrowUp, up),
        ]
    }

    /// How much the lanes count for each token, `[tokens, lanes]`.
    fn route(&self, x: &Tensor, updates: &LayerUpdates<'_>) -> Result<Tensor> {
        let normalized = self.router_norm.forward(x)?;
        let shrunk = elementwise::scale(&normalized, 1.0 / x.dim(1)? as f32)?;
        let update = updates.part(Part::LaneRouter);
        kernels::activate(
            &self.router.forward_updated(&shrunk, &update)?,
            Activation::Tanh,
        )
    }

    /// The lanes as they would be after the layer, and the one that it computes on.
    pub(super) fn predict(
        &self,
        lanes: &[Tensor],
        updates: &LayerUpdates<'_>,
    ) -> Result<(Vec<Tensor>, Tensor)> {
        let active = lane(lanes, self.config.active)?;
        let routed = self.route(active, updates)?;
        let update = updates.part(Part::LanePrediction);
        let factors = self.prediction.forward_updated(&routed, &update)?;
        let predicted = (0..lanes.len()).map(|to| {
            let mut sum = lanes[to].clone();
            for (from, lane) in lanes.iter().enumerate() {
                let factor = column(&factors, to * lanes.len() + from)?;
                sum = elementwise::add(&sum, &elementwise::multiply(lane, &factor)?)?;
            }
            Ok(sum)
        });
        let predicted = predicted.collect::<Result<Vec<_>>>()?;
        let active = lane(&predicted, self.config.active)?.clone();
        Ok((predicted, active))
    }

    /// The predicted lanes, moved by what the layer found; and what the layer's own input reads.
    pub(super) fn correct(
        &self,
        predicted: &[Tensor],
        found: &Tensor,
        updates: &LayerUpdates<'_>,
    ) -> Result<(Vec<Tensor>, Tensor)> {
        let routed = self.route(found, updates)?;
        let update = updates.part(Part::LaneCorrection);
        let factors = self.correction.forward_updated(&routed, &update)?;
        let factors = elementwise::each(&factors, |factor| factor + 1.0)?;
        let active = elementwise::scale(lane(predicted, self.config.active)?, -1.0)?;
        let difference = elementwise::add(found, &active)?;
        let corrected = predicted.iter().enumerate().map(|(at, lane)| {
            let step = elementwise::multiply(&difference, &column(&factors, at)?)?;
            elementwise::add(lane, &step)
        });
        let corrected = corrected.collect::<Result<Vec<_>>>()?;
        let active = lane(&corrected, self.config.active)?;
        let read = match &self.scale {
            Some(scale) => elementwise::multiply(active, scale)?,
            None => active.clone(),
        };
        Ok((corrected, read))
    }

    /// What stands beside attention on its input.
    pub(super) fn beside(&self, x: &Tensor, updates: &LayerUpdates<'_>) -> Result<Tensor> {
        let [down, up] = &self.narrow;
        let narrow = down.forward_updated(x, &updates.part(Part::NarrowDown))?;
        let narrow = up.forward_updated(&narrow, &updates.part(Part::NarrowUp))?;
        elementwise::add(x, &self.narrow_norm.forward(&narrow)?)
    }
}

fn lane(lanes: &[Tensor], number: usize) -> Result<&Tensor> {
    let lane = lanes.get(number);
    lane.ok_or_else(|| Error::Internal(format!("a residual stream without lane {number}")))
}

/// `[tokens, 1]`
fn column(x: &Tensor, number: usize) -> Result<Tensor> {
    Ok(x.narrow(1, number, 1)?.contiguous()?)
}
