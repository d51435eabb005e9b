//! What stands before and after scans, row by row: gates, norms, and how much states keep.

use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::lanes::for_lanes;
use crate::cpu::math;
use crate::cpu::simd::Simd;
use crate::Activation;

/// Multiplies values by a function of gates.
pub fn gate(isa: Isa, values: &mut [f32], gates: &[f32], activation: Activation) {
    assert_eq!(values.len(), gates.len());
    // SAFETY: an `Isa` comes from detection; all accesses are within slices of one length.
    unsafe { gate_on(isa, values, gates, activation) }
}

dispatched! {
    unsafe fn gate_on(values: &mut [f32], gates: &[f32], activation: Activation) = gate_with
}

#[inline(always)]
unsafe fn gate_with<S: Simd>(values: &mut [f32], gates: &[f32], activation: Activation) {
    // SAFETY: the caller has the instruction set, and slices of one length.
    unsafe {
        let (x, from) = (values.as_mut_ptr(), gates.as_ptr());
        for_lanes!(S, values.len(), lanes => {
            let gate = math::activation::<S>(lanes.load::<S>(from), activation);
            lanes.store::<S>(x, S::mul(lanes.load::<S>(x), gate));
        });
    }
}

/// 1 / (1 + e⁻ˣ), times a factor.
pub fn sigmoid(isa: Isa, values: &mut [f32], factor: f32) {
    // SAFETY: an `Isa` comes from detection; all accesses are within the slice.
    unsafe { sigmoid_on(isa, values, factor) }
}

dispatched! {
    unsafe fn sigmoid_on(values: &mut [f32], factor: f32) = sigmoid_with
}

#[inline(always)]
unsafe fn sigmoid_with<S: Simd>(values: &mut [f32], factor: f32) {
    // SAFETY: the caller has the instruction set; all accesses are within the slice.
    unsafe {
        let x = values.as_mut_ptr();
        for_lanes!(S, values.len(), lanes => {
            let y = math::logistic::<S>(lanes.load::<S>(x));
            lanes.store::<S>(x, S::mul(y, S::splat(factor)));
        });
    }
}

/// x / √(mean(x²) + ε) · weight.
pub fn norm(isa: Isa, values: &mut [f32], weights: &[f32], epsilon: f32) {
    assert_eq!(values.len(), weights.len());
    // SAFETY: an `Isa` comes from detection; all accesses are within slices of one length.
    unsafe {
        let mean = squares_on(isa, values) / values.len() as f32;
        let factor = (mean + epsilon).sqrt().recip();
        scale_on(isa, values, Some(weights), factor);
    }
}

/// x / √(Σx² + ε) · factor.
pub fn unit(isa: Isa, values: &mut [f32], epsilon: f32, factor: f32) {
    // SAFETY: an `Isa` comes from detection; all accesses are within the slice.
    unsafe {
        let factor = (squares_on(isa, values) + epsilon).sqrt().recip() * factor;
        scale_on(isa, values, None, factor);
    }
}

dispatched! {
    unsafe fn squares_on(values: &[f32]) -> f32 = squares_with
}

/// In an order that depends on their number alone.
#[inline(always)]
unsafe fn squares_with<S: Simd>(values: &[f32]) -> f32 {
    // SAFETY: the caller has the instruction set; all accesses are within the slice.
    unsafe {
        let mut sum = S::splat(0.0);
        for_lanes!(S, values.len(), lanes => {
            let x = lanes.load::<S>(values.as_ptr());
            sum = S::fma(x, x, sum);
        });
        S::sum(sum)
    }
}

dispatched! {
    unsafe fn scale_on(values: &mut [f32], weights: Option<&[f32]>, factor: f32) = scale_with
}

#[inline(always)]
unsafe fn scale_with<S: Simd>(values: &mut [f32], weights: Option<&[f32]>, factor: f32) {
    // SAFETY: the caller has the instruction set, and as many weights as values, or none.
    unsafe {
        let (x, factor) = (values.as_mut_ptr(), S::splat(factor));
        for_lanes!(S, values.len(), lanes => {
            let mut y = S::mul(lanes.load::<S>(x), factor);
            if let Some(weights) = weights {
                y = S::mul(y, lanes.load::<S>(weights.as_ptr()));
            }
            lanes.store::<S>(x, y);
        });
    }
}

/// How much states keep, given x.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// exp(−rate · ln(1 + eˣ)).
    Softplus,
    /// exp(least · sigmoid(rate · x)).
    Bounded { least: f32 },
}

/// Makes it of each x + bias.
pub fn decays(isa: Isa, values: &mut [f32], biases: &[f32], rates: &[f32], rule: Decay) {
    assert!(values.len() == biases.len() && values.len() == rates.len());
    // SAFETY: an `Isa` comes from detection; all accesses are within slices of one length.
    unsafe { decays_on(isa, values, biases, rates, rule) }
}

dispatched! {
    unsafe fn decays_on(values: &mut [f32], biases: &[f32], rates: &[f32], rule: Decay) = decays_with
}

#[inline(always)]
unsafe fn decays_with<S: Simd>(values: &mut [f32], biases: &[f32], rates: &[f32], rule: Decay) {
    // SAFETY: the caller has the instruction set, and slices of one length.
    unsafe {
        let x = values.as_mut_ptr();
        for_lanes!(S, values.len(), lanes => {
            let given = S::add(lanes.load::<S>(x), lanes.load::<S>(biases.as_ptr()));
            let rate = lanes.load::<S>(rates.as_ptr());
            let exponent = match rule {
                Decay::Softplus => {
                    S::sub(S::splat(0.0), S::mul(rate, math::softplus::<S>(given)))
                }
                Decay::Bounded { least } => {
                    S::mul(S::splat(least), math::logistic::<S>(S::mul(rate, given)))
                }
            };
            lanes.store::<S>(x, math::exp::<S>(exponent));
        });
    }
}

/// What the gates of recurrent units are opened with; all of one length.
#[derive(Clone, Copy, Debug)]
pub struct RglruGates<'a> {
    /// What the convolution gives.
    pub given: &'a [f32],
    /// Of the gates of inputs and of fading.
    pub biases: [&'a [f32]; 2],
    /// How fast channels fade where their gates are open, in powers of e.
    pub rates: &'a [f32],
    /// Of the first token of a sequence, which is taken as it is.
    pub begins: bool,
}

/// Makes of both gates before their sigmoid what is taken of inputs, and what states keep.
pub fn open_rglru(isa: Isa, gates: &RglruGates<'_>, taken: &mut [f32], kept: &mut [f32]) {
    let lengths = [
        gates.given,
        gates.biases[0],
        gates.biases[1],
        gates.rates,
        &*kept,
    ];
    assert!(lengths.iter().all(|slice| slice.len() == taken.len()));
    // SAFETY: an `Isa` comes from detection; all accesses are within slices of one length.
    unsafe { open_rglru_on(isa, gates, taken, kept) }
}

dispatched! {
    unsafe fn open_rglru_on(gates: &RglruGates<'_>, taken: &mut [f32], kept: &mut [f32]) = open_rglru_with
}

#[inline(always)]
unsafe fn open_rglru_with<S: Simd>(gates: &RglruGates<'_>, taken: &mut [f32], kept: &mut [f32]) {
    // SAFETY: the caller has the instruction set, and slices of one length.
    unsafe {
        let (taken_at, kept_at) = (taken.as_mut_ptr(), kept.as_mut_ptr());
        let biases = gates.biases.map(<[f32]>::as_ptr);
        for_lanes!(S, taken.len(), lanes => {
            let input = S::add(lanes.load::<S>(taken_at), lanes.load::<S>(biases[0]));
            let fading = S::add(lanes.load::<S>(kept_at), lanes.load::<S>(biases[1]));
            let rate = lanes.load::<S>(gates.rates.as_ptr());
            let exponent = S::mul(math::logistic::<S>(fading), rate);
            let mut given = lanes.load::<S>(gates.given.as_ptr());
            given = S::mul(given, math::logistic::<S>(input));
            if !gates.begins {
                let zero = S::splat(0.0);
                let lost = math::exp_less_line::<S>(S::add(exponent, exponent), zero);
                given = S::mul(given, S::sqrt(S::sub(zero, lost)));
            }
            lanes.store::<S>(taken_at, given);
            lanes.store::<S>(kept_at, math::exp::<S>(exponent));
        });
    }
}
