//! What stands before scans, row by row: gates, vectors of length one, and how much states keep.

use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::lanes::for_lanes;
use crate::cpu::math;
use crate::cpu::simd::Simd;

/// x / √(Σx² + ε) · factor.
pub fn unit(isa: Isa, values: &mut [f32], epsilon: f32, factor: f32) {
    // SAFETY: an `Isa` comes from detection; all accesses are within the slice.
    unsafe {
        let factor = (squares_on(isa, values) + epsilon).sqrt().recip() * factor;
        scale_on(isa, values, factor);
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
    unsafe fn scale_on(values: &mut [f32], factor: f32) = scale_with
}

#[inline(always)]
unsafe fn scale_with<S: Simd>(values: &mut [f32], factor: f32) {
    // SAFETY: the caller has the instruction set; all accesses are within the slice.
    unsafe {
        let (x, factor) = (values.as_mut_ptr(), S::splat(factor));
        for_lanes!(S, values.len(), lanes => {
            lanes.store::<S>(x, S::mul(lanes.load::<S>(x), factor));
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
    /// exp(−rate · eˣ).
    Exponential,
}

#[cfg(any(test, feature = "metal", feature = "cuda"))]
#[cfg_attr(
    not(any(feature = "metal", feature = "cuda")),
    allow(dead_code, reason = "what launches on GPUs use")
)]
impl Decay {
    /// As the sources for GPUs count them, and what else they need.
    pub(crate) fn number(self) -> (u32, f32) {
        match self {
            Self::Softplus => (0, 0.0),
            Self::Bounded { least } => (1, least),
            Self::Exponential => (2, 0.0),
        }
    }
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
                Decay::Exponential => {
                    S::sub(S::splat(0.0), S::mul(rate, math::exp::<S>(given)))
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
