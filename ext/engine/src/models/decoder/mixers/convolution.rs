//! A causal convolution of each channel over the last tokens, whose state is what it read before.

use super::values;
use crate::models::decoder::states::Scan;
use crate::models::parameters::Parameters;
use crate::models::parts::Place;
use crate::Result;
use kernels::cpu::scan::{self, ConvolutionLane, ScanRows};
use kernels::cpu::Isa;
use kernels::Activation;

/// So many channels are a lane, where they can be divided so.
const BLOCK: usize = 64;

pub struct Convolution {
    channels: usize,
    block: usize,
    /// `[blocks, taps, block]`, the oldest tap first.
    weights: Vec<f32>,
    /// `[channels]`
    bias: Vec<f32>,
    taps: usize,
    /// Of what it gives.
    activation: Activation,
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
        let block = if channels % BLOCK == 0 {
            BLOCK
        } else {
            channels
        };
        let blocks = by_channel.chunks_exact(block * taps);
        let weights = blocks.flat_map(|block| {
            let of_tap = move |tap: usize| block.iter().skip(tap).step_by(taps).copied();
            (0..taps).flat_map(of_tap)
        });
        Self {
            channels,
            block,
            weights: weights.collect(),
            bias,
            taps,
            activation: activation.unwrap_or(Activation::Identity),
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
    fn run(&self, isa: Isa, lane: usize, state: &mut [f32], inputs: &[f32], outputs: &mut [f32]) {
        let size = self.block * self.taps;
        let block = ConvolutionLane {
            channels: self.block,
            first: lane * self.block,
            weights: &self.weights[lane * size..][..size],
            bias: &self.bias[lane * self.block..][..self.block],
            activation: self.activation,
        };
        let width = self.channels;
        scan::convolution(isa, &block, ScanRows { inputs, width }, state, outputs);
    }
}
