//! A causal convolution of each channel over the last tokens.

use super::ScanRows;
use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::lanes::for_lanes;
use crate::cpu::math;
use crate::cpu::simd::Simd;
use crate::Activation;

/// Neighbouring channels, and where they begin in a row.
#[derive(Clone, Copy, Debug)]
pub struct ConvolutionLane<'a> {
    pub channels: usize,
    pub first: usize,
    /// `[taps, channels]`, the oldest first.
    pub weights: &'a [f32],
    /// `[channels]`
    pub bias: &'a [f32],
    /// Of what it gives.
    pub activation: Activation,
}

impl ConvolutionLane<'_> {
    fn taps(&self) -> usize {
        self.weights.len() / self.channels
    }
}

/// The state is what it read before, `[taps - 1, channels]`, the oldest first; `outputs` is `[rows, channels]`.
pub fn convolution(
    isa: Isa,
    lane: &ConvolutionLane<'_>,
    rows: ScanRows<'_>,
    state: &mut [f32],
    outputs: &mut [f32],
) {
    let channels = lane.channels;
    assert_eq!(lane.weights.len(), state.len() + channels);
    assert_eq!(lane.bias.len(), channels);
    assert_eq!(state.len() % channels, 0);
    rows.check(&[(lane.first, channels)], outputs.len(), channels);
    // SAFETY: an `Isa` comes from detection; all that is read and written lies within the slices, as checked above.
    unsafe { convolution_on(isa, lane, rows, state, outputs) }
    let (count, before) = (rows.count(), lane.taps() - 1);
    let new = count.min(before);
    state.copy_within(new * channels.., 0);
    let last = state.chunks_exact_mut(channels).skip(before - new);
    for (state, row) in last.zip(count - new..count) {
        state.copy_from_slice(&rows.inputs[row * rows.width + lane.first..][..channels]);
    }
}

dispatched! {
    unsafe fn convolution_on(
        lane: &ConvolutionLane<'_>,
        rows: ScanRows<'_>,
        state: &[f32],
        outputs: &mut [f32],
    ) = convolution_with
}

#[inline(always)]
unsafe fn convolution_with<S: Simd>(
    lane: &ConvolutionLane<'_>,
    rows: ScanRows<'_>,
    state: &[f32],
    outputs: &mut [f32],
) {
    let (channels, taps) = (lane.channels, lane.taps());
    let (state, weights) = (state.as_ptr(), lane.weights.as_ptr());
    let inputs = rows.inputs.as_ptr();
    for token in 0..rows.count() {
        // SAFETY: the caller has the instruction set, and checked that rows, state, weights and outputs have what is
        // used: the first taps of the first tokens read the state, all others a row up to the token's own.
        unsafe {
            let out = outputs.as_mut_ptr().add(token * channels);
            for_lanes!(S, channels, lanes => {
                let mut sum = lanes.load::<S>(lane.bias.as_ptr());
                for tap in 0..taps {
                    let read = token + tap;
                    let from = if read < taps - 1 {
                        state.add(read * channels)
                    } else {
                        inputs.add((read - (taps - 1)) * rows.width + lane.first)
                    };
                    let weight = lanes.load::<S>(weights.add(tap * channels));
                    sum = S::fma(lanes.load::<S>(from), weight, sum);
                }
                lanes.store::<S>(out, math::activation::<S>(sum, lane.activation));
            });
        }
    }
}
