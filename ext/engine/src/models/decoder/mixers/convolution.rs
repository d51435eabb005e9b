//! A causal convolution of each channel over the last tokens, whose state is what it read before.

use super::{silu, values};
use crate::models::decoder::states::Scan;
use crate::models::parameters::Parameters;
use crate::models::parts::Place;
use crate::Result;
use kernels::Activation;

/// So many channels are a lane, where they can be divided so.
const BLOCK: usize = 64;

pub struct Convolution {
    channels: usize,
    block: usize,
    /// `[taps, channels]`, the oldest first.
    weights: Vec<f32>,
    /// `[channels]`
    bias: Vec<f32>,
    taps: usize,
    /// Of what it gives.
    activation: Option<Activation>,
}

impl Convolution {
    /// How many numbers a layer keeps.
    pub fn size(channels: usize, taps: usize) -> usize {
        channels * (taps - 1)
    }

    /// Of a weight `[channels, 1, taps]`, with or without a bias.
    pub fn load(
        parameters: &Parameters<'_>,
        place: Place,
        (channels, taps): (usize, usize),
        activation: Option<Activation>,
    ) -> Result<Self> {
        let by_channel = weights(parameters, place, taps)?;
        if by_channel.len() != channels * taps {
            return Err(parameters.misfit(place, &[channels, 1, taps]));
        }
        let bias = match parameters.bias(place)? {
            Some(bias) if bias.dims() == [channels] => values(&bias)?,
            Some(_) => return Err(parameters.misfit(place, &[channels])),
            None => vec![0.0; channels],
        };
        Ok(Self::new(&by_channel, bias, (channels, taps), activation))
    }

    /// The channels of several weights, one after the other.
    pub fn join(
        parameters: &Parameters<'_>,
        places: &[Place],
        (channels, taps): (usize, usize),
        activation: Option<Activation>,
    ) -> Result<Self> {
        let mut by_channel = Vec::new();
        for &place in places {
            let own = weights(parameters, place, taps)?;
            if by_channel.len() + own.len() > channels * taps {
                return Err(parameters.misfit(place, &[channels, 1, taps]));
            }
            by_channel.extend(own);
        }
        match places.last() {
            Some(&last) if by_channel.len() < channels * taps => {
                Err(parameters.misfit(last, &[channels, 1, taps]))
            }
            _ => Ok(Self::new(
                &by_channel,
                vec![0.0; channels],
                (channels, taps),
                activation,
            )),
        }
    }

    fn new(
        by_channel: &[f32],
        bias: Vec<f32>,
        (channels, taps): (usize, usize),
        activation: Option<Activation>,
    ) -> Self {
        let weights = (0..taps).flat_map(|tap| {
            let of_tap = by_channel.iter().skip(tap);
            of_tap.step_by(taps).copied()
        });
        Self {
            channels,
            block: if channels % BLOCK == 0 {
                BLOCK
            } else {
                channels
            },
            weights: weights.collect(),
            bias,
            taps,
            activation,
        }
    }
}

/// `[channels, 1, taps]`, or the same without or with more extents of one.
fn weights(parameters: &Parameters<'_>, place: Place, taps: usize) -> Result<Vec<f32>> {
    let shape = parameters.shape(place)?;
    let long = shape.iter().filter(|&&extent| extent != 1).count();
    if long > 2 || taps > 1 && shape.last() != Some(&taps) {
        return Err(parameters.misfit(place, &[shape.iter().product::<usize>() / taps, 1, taps]));
    }
    values(&parameters.tensor(place)?)
}

impl Scan for Convolution {
    fn inputs(&self) -> usize {
        self.channels
    }

    fn lanes(&self) -> usize {
        self.channels / self.block
    }

    fn lane_outputs(&self) -> usize {
        self.block
    }

    /// The state is `[taps - 1, block]`, the oldest first.
    fn run(&self, lane: usize, state: &mut [f32], inputs: &[f32], outputs: &mut [f32]) {
        let (block, columns) = (self.block, lane * self.block..(lane + 1) * self.block);
        let bias = &self.bias[columns.clone()];
        let weights = |tap: usize| &self.weights[tap * self.channels..][columns.clone()];
        let rows = inputs.chunks_exact(self.channels);
        for (row, out) in rows.zip(outputs.chunks_exact_mut(block)) {
            let row = &row[columns.clone()];
            out.copy_from_slice(bias);
            let past = state.chunks_exact(block).chain([row]);
            for (tap, past) in past.enumerate() {
                for ((out, past), weight) in out.iter_mut().zip(past).zip(weights(tap)) {
                    *out += past * weight;
                }
            }
            match self.activation {
                None => {}
                Some(Activation::Silu) => out.iter_mut().for_each(|x| *x = silu(*x)),
                Some(other) => out
                    .iter_mut()
                    .for_each(|x| *x = kernels::reference::activation(f64::from(*x), other) as f32),
            }
            if self.taps > 1 {
                state.copy_within(block.., 0);
                let last = state.len() - block;
                state[last..].copy_from_slice(row);
            }
        }
    }
}
