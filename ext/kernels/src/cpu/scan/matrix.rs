//! Heads whose state is a matrix from keys to values: the delta rule, linear attention, and the heads of Mamba-2, whose
//! keys are the inputs of a state and whose queries are its outputs.
//!
//! The columns of values are independent of each other, so that a lane is a few of them: its part of the state then
//! stays in the first cache while it reads a prompt.

use super::ScanRows;
use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::lanes::Lanes;
use crate::cpu::math;
use crate::cpu::simd::Simd;

/// So many tokens pass one group of columns before the next; a whole number of vectors.
const TOKENS: usize = 16;

/// Columns of a head, and where their inputs lie in a row.
#[derive(Clone, Copy, Debug)]
pub struct MatrixLane {
    pub keys: usize,
    pub columns: usize,
    pub query: usize,
    pub key: usize,
    /// Of the lane's first column.
    pub value: usize,
    pub rule: MatrixRule,
}

#[derive(Clone, Copy, Debug)]
pub enum MatrixRule {
    /// States keep so much from one token to the next, and values are written as they are.
    Plain { kept: f32 },
    /// A token's time step, which stands at `time`, says how much of its value is written and how much states keep.
    Steps {
        time: usize,
        /// Added to what stands there, before its softplus, which is at least and at most so long.
        bias: f32,
        bounds: (f32, f32),
        /// How fast states decay, negative.
        rate: f32,
        /// How much of a value passes by.
        skip: f32,
    },
    /// What is written is how much a value differs from what its key finds. States are multiplied by one factor or by
    /// one for each element of a key, at `fading`; how much is written stands at `written`.
    Delta {
        fading: usize,
        factors: usize,
        written: usize,
    },
    /// Each row of a state fades by its own factor, at `kept`, and is read before the token writes to it (RWKV 6).
    Earlier { kept: usize },
    /// Rows fade alike; of what the key at `searched` finds, as much as `rates` says is taken away (RWKV 7).
    Replace {
        kept: usize,
        searched: usize,
        rates: usize,
    },
}

impl MatrixRule {
    /// What it reads of a row beside queries, keys and values: first columns, and how many.
    pub(crate) fn columns(self, keys: usize) -> [(usize, usize); 3] {
        match self {
            Self::Plain { .. } => [(0, 0); 3],
            Self::Steps { time, .. } => [(time, 1), (0, 0), (0, 0)],
            Self::Delta {
                fading,
                factors,
                written,
            } => [(fading, factors), (written, 1), (0, 0)],
            Self::Earlier { kept } => [(kept, keys), (0, 0), (0, 0)],
            Self::Replace {
                kept,
                searched,
                rates,
            } => [(kept, keys), (searched, keys), (rates, keys)],
        }
    }
}

/// The state is `[keys, columns]`, `outputs` `[rows, columns]`.
pub fn matrix(
    isa: Isa,
    lane: &MatrixLane,
    rows: ScanRows<'_>,
    state: &mut [f32],
    outputs: &mut [f32],
) {
    assert_eq!(state.len(), lane.keys * lane.columns);
    if let MatrixRule::Delta { factors, .. } = lane.rule {
        assert!(factors == 1 || factors == lane.keys);
    }
    let own = [
        (lane.query, lane.keys),
        (lane.key, lane.keys),
        (lane.value, lane.columns),
    ];
    let read = [own, lane.rule.columns(lane.keys)].concat();
    rows.check(&read, outputs.len(), lane.columns);
    // SAFETY: an `Isa` comes from detection; all that is read and written lies within the slices, as checked above.
    unsafe { matrix_on(isa, lane, rows, state, outputs) }
}

dispatched! {
    unsafe fn matrix_on(
        lane: &MatrixLane,
        rows: ScanRows<'_>,
        state: &mut [f32],
        outputs: &mut [f32],
    ) = matrix_with
}

/// What a rule does beside writing and reading.
const PLAIN: u8 = 0;
const ONE_FACTOR: u8 = 1;
const FACTOR_EACH: u8 = 2;
const EARLIER: u8 = 3;
const REPLACE: u8 = 4;

/// Some tokens of a lane.
struct Block<'a> {
    lane: &'a MatrixLane,
    inputs: *const f32,
    width: usize,
    tokens: usize,
    /// For each token how much its state keeps, and how much is written.
    kept: [f32; TOKENS],
    taken: [f32; TOKENS],
    skip: Option<f32>,
    /// Where it stands by how much rows of the state fade, what is searched for, and how much of that is taken away.
    fading: usize,
    searched: usize,
    rates: usize,
    state: *mut f32,
    outputs: *mut f32,
}

#[inline(always)]
unsafe fn matrix_with<S: Simd>(
    lane: &MatrixLane,
    rows: ScanRows<'_>,
    state: &mut [f32],
    outputs: &mut [f32],
) {
    let (count, mut first) = (rows.count(), 0);
    while first < count {
        let tokens = (count - first).min(TOKENS);
        // SAFETY: the caller has the instruction set, and checked that rows, state and outputs hold what is used.
        unsafe {
            let mut block = Block {
                lane,
                inputs: rows.inputs.as_ptr().add(first * rows.width),
                width: rows.width,
                tokens,
                kept: [0.0; TOKENS],
                taken: [1.0; TOKENS],
                skip: None,
                fading: 0,
                searched: lane.key,
                rates: 0,
                state: state.as_mut_ptr(),
                outputs: outputs.as_mut_ptr().add(first * lane.columns),
            };
            match lane.rule {
                MatrixRule::Plain { kept } => {
                    block.kept = [kept; TOKENS];
                    columns::<S, PLAIN>(&block);
                }
                MatrixRule::Steps { skip, .. } => {
                    block.skip = Some(skip);
                    time_steps::<S>(&mut block);
                    columns::<S, PLAIN>(&block);
                }
                MatrixRule::Delta {
                    fading,
                    factors,
                    written,
                } => {
                    block.fading = fading;
                    for token in 0..tokens {
                        let row = block.inputs.add(token * block.width);
                        block.kept[token] = *row.add(fading);
                        block.taken[token] = *row.add(written);
                    }
                    if factors == 1 {
                        columns::<S, ONE_FACTOR>(&block);
                    } else {
                        columns::<S, FACTOR_EACH>(&block);
                    }
                }
                MatrixRule::Earlier { kept } => {
                    block.fading = kept;
                    columns::<S, EARLIER>(&block);
                }
                MatrixRule::Replace {
                    kept,
                    searched,
                    rates,
                } => {
                    (block.fading, block.searched, block.rates) = (kept, searched, rates);
                    columns::<S, REPLACE>(&block);
                }
            }
        }
        first += tokens;
    }
}

/// How long each token's step is, and how much states keep in it.
#[inline(always)]
unsafe fn time_steps<S: Simd>(block: &mut Block<'_>) {
    let MatrixRule::Steps {
        time,
        bias,
        bounds,
        rate,
        ..
    } = block.lane.rule
    else {
        return;
    };
    for token in 0..block.tokens {
        // SAFETY: the caller checked that rows have this column.
        block.taken[token] = unsafe { *block.inputs.add(token * block.width + time) };
    }
    let mut at = 0;
    while at < TOKENS {
        // SAFETY: the caller has the instruction set; both arrays are a whole number of vectors long.
        unsafe {
            let given = S::load(block.taken.as_ptr().add(at));
            let step = math::softplus::<S>(S::add(given, S::splat(bias)));
            // In this order a NaN stays one.
            let step = S::max(S::splat(bounds.0), step);
            let step = S::min(S::splat(bounds.1), step);
            let kept = math::exp::<S>(S::mul(step, S::splat(rate)));
            S::store(block.taken.as_mut_ptr().add(at), step);
            S::store(block.kept.as_mut_ptr().add(at), kept);
        }
        at += S::LANES;
    }
}

#[inline(always)]
unsafe fn columns<S: Simd, const RULE: u8>(block: &Block<'_>) {
    let (count, mut at) = (block.lane.columns, 0);
    // SAFETY: the caller has the instruction set, and groups lie within the lane's columns.
    unsafe {
        while at + 4 * S::LANES <= count {
            group::<S, 4, RULE>(block, at, 0);
            at += 4 * S::LANES;
        }
        if at + 2 * S::LANES <= count {
            group::<S, 2, RULE>(block, at, 0);
            at += 2 * S::LANES;
        }
        if at + S::LANES <= count {
            group::<S, 1, RULE>(block, at, 0);
            at += S::LANES;
        }
        if at < count {
            group::<S, 1, RULE>(block, at, count - at);
        }
    }
}

/// `N` vectors of columns from `at` on through all tokens; of a single one only the first `short` numbers, or all where
/// that is 0.
#[inline(always)]
unsafe fn group<S: Simd, const N: usize, const RULE: u8>(
    block: &Block<'_>,
    at: usize,
    short: usize,
) {
    let (lane, keys) = (block.lane, block.lane.keys);
    // SAFETY: the caller has the instruction set, and checked that rows have the columns that are read, and that state
    // and outputs have those of the lane.
    unsafe {
        let zero = [S::splat(0.0); N];
        let state = block.state.add(at);
        for token in 0..block.tokens {
            let row = block.inputs.add(token * block.width);
            let (query, key) = (row.add(lane.query), row.add(lane.key));
            let (factors, searched) = (row.add(block.fading), row.add(block.searched));
            let kept = S::splat(block.kept[token]);
            let taken = S::splat(block.taken[token]);
            let value = load::<S, N>(row.add(lane.value + at), short);
            let (mut change, mut replaced) = (value, zero);
            if matches!(RULE, ONE_FACTOR | FACTOR_EACH | REPLACE) {
                // Two sums each, since one would wait for itself.
                let mut found = [zero; 2];
                let mut number = 0;
                while number < keys {
                    for (odd, found) in found.iter_mut().enumerate() {
                        let number = number + odd;
                        if number < keys {
                            let factor = *factors.add(if RULE == FACTOR_EACH { number } else { 0 });
                            let state = state.add(number * lane.columns);
                            let key = *searched.add(number);
                            find::<S, N, RULE>(state, short, factor, key, found);
                        }
                    }
                    number += 2;
                }
                for n in 0..N {
                    let mut found = S::add(found[0][n], found[1][n]);
                    if RULE == ONE_FACTOR {
                        found = S::mul(found, kept);
                    }
                    if RULE == REPLACE {
                        replaced[n] = S::sub(zero[n], found);
                    } else {
                        change[n] = S::sub(change[n], found);
                    }
                }
            }
            for change in &mut change {
                *change = S::mul(*change, taken);
            }
            let mut sums = [zero; 2];
            let mut number = 0;
            while number < keys {
                for (odd, sums) in sums.iter_mut().enumerate() {
                    let number = number + odd;
                    if number < keys {
                        let kept = if matches!(RULE, FACTOR_EACH | EARLIER | REPLACE) {
                            S::splat(*factors.add(number))
                        } else {
                            kept
                        };
                        let state = state.add(number * lane.columns);
                        if RULE == REPLACE {
                            let rate = *row.add(block.rates + number);
                            let part = S::splat(*searched.add(number) * rate);
                            fade_and_add::<S, N>(state, short, kept, (part, &replaced));
                        }
                        let kept = if RULE == REPLACE { S::splat(1.0) } else { kept };
                        let pair = (*key.add(number), *query.add(number));
                        update::<S, N, RULE>(state, short, kept, pair, &change, sums);
                    }
                }
                number += 2;
            }
            let out = block.outputs.add(token * lane.columns + at);
            for n in 0..N {
                let mut sum = S::add(sums[0][n], sums[1][n]);
                if let Some(skip) = block.skip {
                    sum = S::fma(S::splat(skip), value[n], sum);
                }
                lanes::<S>(n, short).store::<S>(out, sum);
            }
        }
    }
}

#[inline(always)]
fn lanes<S: Simd>(n: usize, short: usize) -> Lanes {
    Lanes {
        at: n * S::LANES,
        count: short,
    }
}

#[inline(always)]
unsafe fn load<S: Simd, const N: usize>(from: *const f32, short: usize) -> [S::V; N] {
    // SAFETY: the caller has the instruction set, and as many numbers as are read.
    unsafe {
        let mut loaded = [S::splat(0.0); N];
        for (n, loaded) in loaded.iter_mut().enumerate() {
            *loaded = lanes::<S>(n, short).load::<S>(from);
        }
        loaded
    }
}

/// Adds what a key's element finds in its row of the state.
#[inline(always)]
unsafe fn find<S: Simd, const N: usize, const RULE: u8>(
    state: *const f32,
    short: usize,
    factor: f32,
    key: f32,
    found: &mut [S::V; N],
) {
    // SAFETY: the caller has the instruction set, and the row of the state.
    unsafe {
        for (n, found) in found.iter_mut().enumerate() {
            let mut element = lanes::<S>(n, short).load::<S>(state);
            if RULE == FACTOR_EACH {
                element = S::mul(element, S::splat(factor));
            }
            *found = S::fma(element, S::splat(key), *found);
        }
    }
}

/// Lets a row of the state fade, and adds a part of something to it.
#[inline(always)]
unsafe fn fade_and_add<S: Simd, const N: usize>(
    state: *mut f32,
    short: usize,
    kept: S::V,
    (part, added): (S::V, &[S::V; N]),
) {
    // SAFETY: the caller has the instruction set, and the row of the state, for writing.
    unsafe {
        for (n, added) in added.iter().enumerate() {
            let lanes = lanes::<S>(n, short);
            let element = S::mul(lanes.load::<S>(state), kept);
            lanes.store::<S>(state, S::fma(part, *added, element));
        }
    }
}

/// Lets a row of the state fade, writes to it and adds what the query reads of it, or has read before.
#[inline(always)]
unsafe fn update<S: Simd, const N: usize, const RULE: u8>(
    state: *mut f32,
    short: usize,
    kept: S::V,
    (key, query): (f32, f32),
    change: &[S::V; N],
    sums: &mut [S::V; N],
) {
    // SAFETY: the caller has the instruction set, and the row of the state, for writing.
    unsafe {
        for (n, sum) in sums.iter_mut().enumerate() {
            let lanes = lanes::<S>(n, short);
            let before = lanes.load::<S>(state);
            let element = S::fma(S::splat(key), change[n], S::mul(before, kept));
            lanes.store::<S>(state, element);
            let read = if RULE == EARLIER { before } else { element };
            *sum = S::fma(read, S::splat(query), *sum);
        }
    }
}
