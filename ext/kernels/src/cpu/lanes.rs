//! Walking over a row in vectors.
//!
//! What runs per vector is a function that is always inlined, never a closure: a closure that the
//! compiler leaves out of line is compiled without the instruction set, and every intrinsic in it
//! becomes a call.

use super::simd::stored::Vectors;
use super::simd::Simd;

/// Lanes from element `at` on: all of a vector, or the first `count`.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    pub at: usize,
    /// 0 stands for all.
    pub count: usize,
}

impl Lanes {
    #[inline(always)]
    pub unsafe fn load<S: Simd>(self, row: *const f32) -> S::V {
        // SAFETY: the caller has the instruction set, and a row of f32 that these lanes lie within: all of a
        // vector, or the first `count`.
        unsafe {
            match self.count {
                0 => S::load(row.add(self.at)),
                count => S::load_first(row.add(self.at), count),
            }
        }
    }

    #[inline(always)]
    pub unsafe fn load_stored<S: Simd, N: Vectors<S>>(self, row: *const N::Number) -> S::V {
        // SAFETY: the caller has the instruction set, and a row of the stored type that these lanes lie within.
        unsafe {
            match self.count {
                0 => N::load(row.add(self.at)),
                count => N::load_first(row.add(self.at), count),
            }
        }
    }

    #[inline(always)]
    pub unsafe fn store_stored<S: Simd, N: Vectors<S>>(self, row: *mut N::Number, v: S::V) {
        // SAFETY: the caller has the instruction set, and a row of the stored type, for writing, that these lanes
        // lie within.
        unsafe {
            match self.count {
                0 => N::store(row.add(self.at), v),
                count => N::store_first(row.add(self.at), v, count),
            }
        }
    }

    #[inline(always)]
    pub unsafe fn store<S: Simd>(self, row: *mut f32, v: S::V) {
        // SAFETY: the caller has the instruction set, and a row of f32, for writing, that these lanes lie within.
        unsafe {
            match self.count {
                0 => S::store(row.add(self.at), v),
                count => S::store_first(row.add(self.at), v, count),
            }
        }
    }
}

/// Runs the body for each vector of a row, the last one short.
macro_rules! for_lanes {
    ($S:ident, $width:expr, $lanes:ident => $body:block) => {{
        let width = $width;
        let mut at = 0;
        while at + $S::LANES <= width {
            let $lanes = $crate::cpu::lanes::Lanes { at, count: 0 };
            $body
            at += $S::LANES;
        }
        if at < width {
            let $lanes = $crate::cpu::lanes::Lanes { at, count: width - at };
            $body
        }
    }};
}
pub(super) use for_lanes;

/// A row computed vector by vector.
pub(super) trait RowValue<S: Simd>: Copy {
    /// # Safety
    /// The lanes lie within the rows that the value reads.
    unsafe fn at(self, lanes: Lanes) -> S::V;
}

/// A row as it lies in memory.
impl<S: Simd> RowValue<S> for *const f32 {
    #[inline(always)]
    unsafe fn at(self, lanes: Lanes) -> S::V {
        // SAFETY: the caller vouches that the lanes lie within the row, and has the instruction set.
        unsafe { lanes.load::<S>(self) }
    }
}

/// Something gathered from a row, less a shift.
pub(super) trait RowFold<S: Simd> {
    type State: Copy;

    unsafe fn start() -> Self::State;
    unsafe fn fold(state: Self::State, v: S::V) -> Self::State;
    unsafe fn join(a: Self::State, b: Self::State) -> Self::State;
}

/// How many elements of a row come before the first aligned vector.
#[inline(always)]
fn head<S: Simd>(row: *const f32, width: usize) -> usize {
    if !S::ALIGNS {
        return 0;
    }
    let past = row as usize / size_of::<f32>() % S::LANES;
    ((S::LANES - past) % S::LANES).min(width)
}

/// Sums of more elements are taken in parts: a running sum would lose the digits of what is added to it.
const PART: usize = 1024;

/// Folds a row, less the shift, in an order that does not depend on where it lies: the same row gives the
/// same bits. Each vector of the row is asked for once.
#[inline(always)]
pub(super) unsafe fn fold_row<S: Simd, F: RowFold<S>>(
    row: impl RowValue<S>,
    width: usize,
    shift: f32,
) -> F::State {
    // SAFETY: the lanes given to `row` lie within `width`, which the caller vouches the row has; the caller has the
    // instruction set.
    unsafe {
        let shift = S::splat(shift);
        let mut all = F::start();
        let mut at = 0;
        while at + S::LANES <= width {
            let end = width.min(at + PART);
            let mut states = [F::start(); 4];
            while at + 4 * S::LANES <= end {
                let mut lane = 0;
                while lane < 4 {
                    let v = row.at(Lanes { at, count: 0 });
                    states[lane] = F::fold(states[lane], S::sub(v, shift));
                    at += S::LANES;
                    lane += 1;
                }
            }
            while at + S::LANES <= end {
                let v = row.at(Lanes { at, count: 0 });
                states[0] = F::fold(states[0], S::sub(v, shift));
                at += S::LANES;
            }
            let [a, b, c, d] = states;
            all = F::join(all, F::join(F::join(a, b), F::join(c, d)));
        }
        if at < width {
            let count = width - at;
            let v = S::sub(row.at(Lanes { at, count }), shift);
            all = F::fold(all, S::keep_first(v, count));
        }
        all
    }
}

/// Writes a row, aligned where that pays.
#[inline(always)]
pub(super) unsafe fn write_row<S: Simd, R: RowValue<S>>(out: *mut f32, width: usize, row: R) {
    // SAFETY: `out` and `row` have `width` numbers, as the caller vouches, and all lanes lie within; the caller has
    // the instruction set. Aligning changes where vectors begin, not what is written.
    unsafe {
        let mut at = head::<S>(out, width);
        if at > 0 {
            let lanes = Lanes { at: 0, count: at };
            S::store_first(out, row.at(lanes), at);
        }
        while at + S::LANES <= width {
            S::store(out.add(at), row.at(Lanes { at, count: 0 }));
            at += S::LANES;
        }
        if at < width {
            let count = width - at;
            S::store_first(out.add(at), row.at(Lanes { at, count }), count);
        }
    }
}
