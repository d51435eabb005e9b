//! Channels that know nothing of each other: Mamba, the real-gated linear recurrent unit, and RWKV.

use super::ScanRows;
use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::lanes::for_lanes;
use crate::cpu::math;
use crate::cpu::simd::Simd;

/// Channels of Mamba, each of whose numbers decays by itself, and where their inputs lie in a row.
#[derive(Clone, Copy, Debug)]
pub struct SelectiveLane<'a> {
    pub channels: usize,
    /// How many numbers each keeps.
    pub kept: usize,
    /// Of what is scanned, of time steps before their softplus, and of input and output of the state.
    pub x: usize,
    pub time: usize,
    pub into: usize,
    pub from: usize,
    /// How fast states decay, negative, `[kept, channels]`.
    pub rates: &'a [f32],
    /// How much of what is scanned passes by, `[channels]`.
    pub skips: &'a [f32],
}

/// The state is `[kept, channels]`, `outputs` `[rows, channels]`.
pub fn selective(
    isa: Isa,
    lane: &SelectiveLane<'_>,
    rows: ScanRows<'_>,
    state: &mut [f32],
    outputs: &mut [f32],
) {
    let (channels, kept) = (lane.channels, lane.kept);
    assert_eq!(state.len(), kept * channels);
    assert_eq!(lane.rates.len(), kept * channels);
    assert_eq!(lane.skips.len(), channels);
    let read = [
        (lane.x, channels),
        (lane.time, channels),
        (lane.into, kept),
        (lane.from, kept),
    ];
    rows.check(&read, outputs.len(), channels);
    // SAFETY: an `Isa` comes from detection; all that is read and written lies within the slices, as checked above.
    unsafe { selective_on(isa, lane, rows, state, outputs) }
}

dispatched! {
    unsafe fn selective_on(
        lane: &SelectiveLane<'_>,
        rows: ScanRows<'_>,
        state: &mut [f32],
        outputs: &mut [f32],
    ) = selective_with
}

#[inline(always)]
unsafe fn selective_with<S: Simd>(
    lane: &SelectiveLane<'_>,
    rows: ScanRows<'_>,
    state: &mut [f32],
    outputs: &mut [f32],
) {
    let channels = lane.channels;
    let (state, rates) = (state.as_mut_ptr(), lane.rates.as_ptr());
    for token in 0..rows.count() {
        // SAFETY: the caller has the instruction set, and checked that rows, state, rates and outputs have what is used.
        unsafe {
            let row = rows.inputs.as_ptr().add(token * rows.width);
            let out = outputs.as_mut_ptr().add(token * channels);
            for_lanes!(S, channels, lanes => {
                let x = lanes.load::<S>(row.add(lane.x));
                let step = math::softplus::<S>(lanes.load::<S>(row.add(lane.time)));
                let taken = S::mul(step, x);
                let mut sum = S::mul(lanes.load::<S>(lane.skips.as_ptr()), x);
                for number in 0..lane.kept {
                    let at = number * channels;
                    let kept = math::exp::<S>(S::mul(step, lanes.load::<S>(rates.add(at))));
                    let taken = S::mul(taken, S::splat(*row.add(lane.into + number)));
                    let next = S::fma(lanes.load::<S>(state.add(at)), kept, taken);
                    lanes.store::<S>(state.add(at), next);
                    sum = S::fma(next, S::splat(*row.add(lane.from + number)), sum);
                }
                lanes.store::<S>(out, sum);
            });
        }
    }
}

/// Channels of recurrent units, and where it stands what is added to their states, and what these are multiplied by
/// before.
#[derive(Clone, Copy, Debug)]
pub struct RglruLane {
    pub channels: usize,
    pub taken: usize,
    pub kept: usize,
}

/// The state is `[channels]`, `outputs` `[rows, channels]`.
pub fn rglru(
    isa: Isa,
    lane: &RglruLane,
    rows: ScanRows<'_>,
    state: &mut [f32],
    outputs: &mut [f32],
) {
    assert_eq!(state.len(), lane.channels);
    let read = [(lane.taken, lane.channels), (lane.kept, lane.channels)];
    rows.check(&read, outputs.len(), lane.channels);
    // SAFETY: an `Isa` comes from detection; all that is read and written lies within the slices, as checked above.
    unsafe { rglru_on(isa, lane, rows, state, outputs) }
}

dispatched! {
    unsafe fn rglru_on(
        lane: &RglruLane,
        rows: ScanRows<'_>,
        state: &mut [f32],
        outputs: &mut [f32],
    ) = rglru_with
}

#[inline(always)]
unsafe fn rglru_with<S: Simd>(
    lane: &RglruLane,
    rows: ScanRows<'_>,
    state: &mut [f32],
    outputs: &mut [f32],
) {
    let state = state.as_mut_ptr();
    for token in 0..rows.count() {
        // SAFETY: the caller has the instruction set, and checked that rows, state and outputs have what is used.
        unsafe {
            let row = rows.inputs.as_ptr().add(token * rows.width);
            let out = outputs.as_mut_ptr().add(token * lane.channels);
            for_lanes!(S, lane.channels, lanes => {
                let kept = lanes.load::<S>(row.add(lane.kept));
                let taken = lanes.load::<S>(row.add(lane.taken));
                let next = S::fma(kept, lanes.load::<S>(state), taken);
                lanes.store::<S>(state, next);
                lanes.store::<S>(out, next);
            });
        }
    }
}

/// Channels of RWKV 4, and where their keys and values stand.
#[derive(Clone, Copy, Debug)]
pub struct RwkvLane<'a> {
    pub channels: usize,
    pub key: usize,
    pub value: usize,
    /// What a token's own exponent is larger by, and what exponents change by with every token, `[channels]`.
    pub bonus: &'a [f32],
    pub fading: &'a [f32],
}

/// The state is `[3, channels]`: sums of values and of weights, both divided by e to the power of the third number.
/// `outputs` is `[rows, channels]`.
pub fn rwkv(
    isa: Isa,
    lane: &RwkvLane<'_>,
    rows: ScanRows<'_>,
    state: &mut [f32],
    outputs: &mut [f32],
) {
    let channels = lane.channels;
    assert_eq!(state.len(), 3 * channels);
    assert!(lane.bonus.len() == channels && lane.fading.len() == channels);
    let read = [(lane.key, channels), (lane.value, channels)];
    rows.check(&read, outputs.len(), channels);
    // SAFETY: an `Isa` comes from detection; all that is read and written lies within the slices, as checked above.
    unsafe { rwkv_on(isa, lane, rows, state, outputs) }
}

dispatched! {
    unsafe fn rwkv_on(
        lane: &RwkvLane<'_>,
        rows: ScanRows<'_>,
        state: &mut [f32],
        outputs: &mut [f32],
    ) = rwkv_with
}

#[inline(always)]
unsafe fn rwkv_with<S: Simd>(
    lane: &RwkvLane<'_>,
    rows: ScanRows<'_>,
    state: &mut [f32],
    outputs: &mut [f32],
) {
    let channels = lane.channels;
    let state = state.as_mut_ptr();
    for token in 0..rows.count() {
        // SAFETY: the caller has the instruction set, and checked that rows, state and outputs have what is used.
        unsafe {
            let (totals, weights) = (state, state.add(channels));
            let exponents = state.add(2 * channels);
            let row = rows.inputs.as_ptr().add(token * rows.width);
            let out = outputs.as_mut_ptr().add(token * channels);
            for_lanes!(S, channels, lanes => {
                let key = lanes.load::<S>(row.add(lane.key));
                let value = lanes.load::<S>(row.add(lane.value));
                let (total, weight) = (lanes.load::<S>(totals), lanes.load::<S>(weights));
                // A sequence begins without weights, and a state with zeros.
                let exponent = S::select_less(
                    S::splat(0.0),
                    weight,
                    lanes.load::<S>(exponents),
                    S::splat(f32::MIN),
                );
                let now = S::add(key, lanes.load::<S>(lane.bonus.as_ptr()));
                let (past, now, _) = portions::<S>(exponent, now);
                let read = S::fma(past, total, S::mul(now, value));
                lanes.store::<S>(out, S::div(read, S::fma(past, weight, now)));
                let faded = S::add(exponent, lanes.load::<S>(lane.fading.as_ptr()));
                let (past, now, most) = portions::<S>(faded, key);
                lanes.store::<S>(totals, S::fma(past, total, S::mul(now, value)));
                lanes.store::<S>(weights, S::fma(past, weight, now));
                lanes.store::<S>(exponents, most);
            });
        }
    }
}

/// e to the power of each, divided by the larger of them, and the exponent of that.
#[inline(always)]
unsafe fn portions<S: Simd>(a: S::V, b: S::V) -> (S::V, S::V, S::V) {
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe {
        let most = S::max(a, b);
        let portion = [S::sub(a, most), S::sub(b, most)];
        (math::exp::<S>(portion[0]), math::exp::<S>(portion[1]), most)
    }
}
