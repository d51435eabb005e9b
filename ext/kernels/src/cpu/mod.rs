//! The kernels on the CPU: rows spread over the pool, each by a kernel for the instruction set.

pub(crate) mod attention;
pub mod depthwise;
pub mod isa;
mod lanes;
pub mod maps;
mod math;
pub mod product;
pub(crate) mod rows;
pub mod scan;
pub(crate) mod simd;
pub mod similarity;
pub mod windows;

use std::cell::Cell;
use std::ops::Range;

use candle_core::{CpuStorage, Layout, WithDType};
use half::{bf16, f16};
use rayon::prelude::*;

use super::rows::Rows;
use base::runtime::threads;
pub use isa::Isa;
use lanes::for_lanes;
use simd::stored::for_stored;
use simd::Simd;

/// Work below this many elements is not worth waking a second thread.
const SMALL: usize = 16 * 1024;
/// Less than this is not even worth handing to one that is awake.
const LEAST: usize = 4 * 1024;
/// With this much, four parts for a thread are so large that the last one would be waited for.
const LARGE: usize = 1 << 22;

/// The types of `Element`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    F32,
    F16,
    Bf16,
}

/// A number type of tensors: kernels see f32, whatever is stored.
pub trait Element: WithDType {
    const IS_F32: bool;
    /// How kernels that store vectors by themselves find it.
    const STORED: Stored;

    fn widen(isa: Isa, from: &[Self], to: &mut [f32]);

    /// # Safety
    /// `to` is valid for writes of `from.len()` elements.
    unsafe fn narrow(isa: Isa, from: &[f32], to: *mut Self);
}

impl Element for f32 {
    const IS_F32: bool = true;
    const STORED: Stored = Stored::F32;

    fn widen(_: Isa, from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    unsafe fn narrow(_: Isa, from: &[f32], to: *mut f32) {
        // SAFETY: `to` is valid for writes of `from.len()` elements, as the caller promises, and so can't overlap
        // the borrowed `from`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }
}

impl Element for f16 {
    const IS_F32: bool = false;
    const STORED: Stored = Stored::F16;

    fn widen(isa: Isa, from: &[f16], to: &mut [f32]) {
        assert_eq!(from.len(), to.len());
        // SAFETY: `from` and `to` are slices of equal lengths, which was asserted; f16 is a transparent u16;
        // `isa` was detected.
        unsafe {
            widen_halves(
                isa,
                (from.as_ptr().cast(), Stored::F16),
                to.as_mut_ptr(),
                from.len(),
            )
        }
    }

    unsafe fn narrow(isa: Isa, from: &[f32], to: *mut f16) {
        // SAFETY: f16 is a transparent u16, and the caller vouches for `to`.
        unsafe { narrow_to_halves(isa, from.as_ptr(), (to.cast(), Stored::F16), from.len()) }
    }
}

impl Element for bf16 {
    const IS_F32: bool = false;
    const STORED: Stored = Stored::Bf16;

    fn widen(isa: Isa, from: &[bf16], to: &mut [f32]) {
        assert_eq!(from.len(), to.len());
        // SAFETY: `from` and `to` are slices of equal lengths, which was asserted; bf16 is a transparent u16;
        // `isa` was detected.
        unsafe {
            widen_halves(
                isa,
                (from.as_ptr().cast(), Stored::Bf16),
                to.as_mut_ptr(),
                from.len(),
            )
        }
    }

    unsafe fn narrow(isa: Isa, from: &[f32], to: *mut bf16) {
        // SAFETY: bf16 is a transparent u16, and the caller vouches for `to`.
        unsafe { narrow_to_halves(isa, from.as_ptr(), (to.cast(), Stored::Bf16), from.len()) }
    }
}

#[inline(always)]
unsafe fn widen_halves_with<S: Simd>(
    (from, stored): (*const u8, Stored),
    to: *mut f32,
    count: usize,
) {
    // SAFETY: the caller has `count` numbers of the type that `stored` says at `from`, room for as many at `to`, and
    // the instruction set; lanes lie within them.
    unsafe {
        for_stored!(stored, N => {
            for_lanes!(S, count, lanes => {
                lanes.store::<S>(to, lanes.load_stored::<S, N>(from.cast()));
            });
        });
    }
}

#[inline(always)]
unsafe fn narrow_to_halves_with<S: Simd>(
    from: *const f32,
    (to, stored): (*mut u8, Stored),
    count: usize,
) {
    // SAFETY: the caller has `count` numbers at `from`, room for as many of the type that `stored` says at `to`, and
    // the instruction set; lanes lie within them.
    unsafe {
        for_stored!(stored, N => {
            for_lanes!(S, count, lanes => {
                lanes.store_stored::<S, N>(to.cast(), lanes.load::<S>(from));
            });
        });
    }
}

isa::dispatched! {
    unsafe fn widen_halves(from: (*const u8, Stored), to: *mut f32, count: usize) = widen_halves_with
}
isa::dispatched! {
    unsafe fn narrow_to_halves(from: *const f32, to: (*mut u8, Stored), count: usize) = narrow_to_halves_with
}

pub fn rows_of(layout: &Layout) -> candle_core::Result<Rows> {
    match Rows::of(layout) {
        Some(rows) => Ok(rows),
        None => candle_core::bail!(
            "a kernel needs a contiguous last dimension, not strides {:?}",
            layout.stride()
        ),
    }
}

/// A tensor's storage with where its rows are.
pub struct RowView<'a, T> {
    data: &'a [T],
    pub rows: Rows,
}

impl<'a, T: WithDType> RowView<'a, T> {
    pub fn new(storage: &'a CpuStorage, layout: &Layout) -> candle_core::Result<Self> {
        Ok(Self {
            data: storage.as_slice::<T>()?,
            rows: rows_of(layout)?,
        })
    }

    /// Where the storage begins, in which every row lies.
    pub fn as_ptr(&self) -> *const T {
        assert!(self.rows.end() <= self.data.len());
        self.data.as_ptr()
    }

    pub fn row(&self, row: usize) -> &'a [T] {
        let start = self.rows.at(row);
        &self.data[start..start + self.rows.width]
    }
}

/// Room for one row in f32 and more; kept by its thread.
pub fn with_scratch<R>(length: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    thread_local! {
        static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    }
    let mut scratch = SCRATCH.take();
    if scratch.len() < length {
        scratch.resize(length, 0.0);
    }
    let result = work(&mut scratch[..length]);
    SCRATCH.set(scratch);
    result
}

/// A row as f32: itself, or widened into `scratch`.
pub fn read<'a, T: Element>(isa: Isa, row: &'a [T], scratch: &'a mut [f32]) -> &'a [f32] {
    if T::IS_F32 {
        // SAFETY: T is f32, since `IS_F32` holds for f32 alone: the slice keeps its address, length and lifetime.
        return unsafe { std::slice::from_raw_parts(row.as_ptr().cast(), row.len()) };
    }
    let scratch = &mut scratch[..row.len()];
    T::widen(isa, row, scratch);
    scratch
}

/// Lets `compute` write `width` f32 and stores them at `to`.
///
/// # Safety
/// `to` is valid for writes of `width` elements, and `compute` writes all it is given.
pub unsafe fn write<T: Element>(
    isa: Isa,
    to: *mut T,
    scratch: &mut [f32],
    compute: impl FnOnce(*mut f32),
) {
    if T::IS_F32 {
        compute(to.cast());
    } else {
        compute(scratch.as_mut_ptr());
        // SAFETY: `to` is valid for writes of `scratch.len()` elements, as the caller promises, and `scratch` is
        // full; `isa` was detected.
        unsafe { T::narrow(isa, scratch, to) };
    }
}

/// A pointer that tasks share; each writes its own part.
pub struct Output<T>(*mut T);

// A pointer is copied whatever it points to, which a derived copy would ask to be copied, too.
impl<T> Clone for Output<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Output<T> {}

// SAFETY: tasks write disjoint ranges, and T may be sent to them.
unsafe impl<T: Send> Send for Output<T> {}
// SAFETY: as for `Send`: tasks write disjoint ranges, and T may be sent to them.
unsafe impl<T: Send> Sync for Output<T> {}

impl<T> Output<T> {
    /// # Safety
    /// `offset` lies within the buffer.
    pub unsafe fn at(self, offset: usize) -> *mut T {
        // SAFETY: `offset` lies within the buffer behind this pointer, as the caller promises.
        unsafe { self.0.add(offset) }
    }
}

/// A vector of `length` elements that `fill` writes in full.
///
/// # Safety
/// `fill` writes every element.
pub unsafe fn build<T>(length: usize, fill: impl FnOnce(Output<T>)) -> Vec<T> {
    let mut out = Vec::<T>::with_capacity(length);
    fill(Output(out.as_mut_ptr()));
    // SAFETY: the capacity is there, and `fill` wrote it all.
    unsafe { out.set_len(length) };
    out
}

/// Runs `work` on ranges that cover 0..count, over the pool where there is enough to do.
pub fn for_each_range(count: usize, cost: usize, work: impl Fn(Range<usize>) + Sync) {
    let total = count.saturating_mul(cost.max(1));
    if count == 0 {
    } else if total < LEAST || threads::is_alone() || threads::count() == 1 {
        work(0..count);
    } else {
        spread(count, total, &work);
    }
}

/// Runs `work`, which costs `total`, on ranges that cover 0..count. Compiled once for all kinds of work: rayon's part
/// took a third of this crate's code.
fn spread(count: usize, total: usize, work: &(dyn Fn(Range<usize>) + Sync)) {
    let large = (total / LARGE).clamp(4, 16);
    let range = |parts: Range<usize>, of: usize| count * parts.start / of..count * parts.end / of;
    let handed = (total / LEAST + 1)
        .min(2 * large * threads::count())
        .min(count);
    if threads::hand_out(handed, &|parts| work(range(parts, handed))) {
        return;
    }
    let over_the_pool = || {
        let parts = (total / SMALL + 1).min(large * threads::count()).min(count);
        let each = (0..parts).into_par_iter().with_max_len(1);
        each.for_each(|part| work(range(part..part + 1, parts)));
    };
    if total < 2 * SMALL {
        work(0..count);
    } else if threads::is_worker() {
        over_the_pool();
    } else if threads::install(over_the_pool).is_err() {
        work(0..count);
    }
}

/// A function of every item, over the pool where there is enough to do; each costs as much as copying `cost` numbers.
pub fn for_each_item<T: Send>(items: &mut [T], cost: usize, work: impl Fn(&mut T) + Sync) {
    let (count, all) = (items.len(), Output(items.as_mut_ptr()));
    for_each_range(count, cost, |range| {
        for at in range {
            // SAFETY: ranges are disjoint and within the items, which are borrowed until all are done.
            work(unsafe { &mut *all.at(at) });
        }
    });
}

/// A function of every row of `width` numbers, over the pool where there is enough to do; each number costs as much as
/// copying `cost`.
pub fn for_each_row(
    values: &mut [f32],
    width: usize,
    cost: usize,
    work: impl Fn(usize, &mut [f32]) + Sync,
) {
    assert!(width > 0);
    let (rows, all) = (values.len() / width, Output(values.as_mut_ptr()));
    for_each_range(rows, width * cost, |range| {
        for row in range {
            // SAFETY: ranges are disjoint and within the rows, and `values` is borrowed until all are done.
            work(row, unsafe {
                std::slice::from_raw_parts_mut(all.at(row * width), width)
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_rounds_to_bf16_alike() {
        let odd = [
            0x7f80_0001,
            0x7fff_ffff,
            0xffff_8000,
            0x7f7f_ffff,
            0x8000,
            1,
        ];
        let halves = (0..=u16::MAX)
            .flat_map(|high| [0u32, 0x7fff, 0x8000, 0x8001].map(|low| u32::from(high) << 16 | low));
        let numbers: Vec<f32> = odd.into_iter().chain(halves).map(f32::from_bits).collect();
        let want: Vec<u16> = numbers.iter().map(|&x| simd::f32_to_bf16(x)).collect();
        for &isa in Isa::available() {
            let mut got = vec![0u16; numbers.len()];
            // SAFETY: `numbers` and `got` have as many elements; `isa` is one of those that the CPU has.
            unsafe { bf16::narrow(isa, &numbers, got.as_mut_ptr().cast()) };
            assert!(got == want, "{}", isa.name());
        }
    }

    #[test]
    fn every_instruction_set_converts_f16_alike() {
        let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let wide: Vec<f32> = halves.iter().map(|half| half.to_f32()).collect();
        let between = wide.iter().flat_map(|x| [x * 1.0004, x * 0.9997, x * 3.0]);
        let numbers: Vec<f32> = wide.iter().copied().chain(between).collect();
        let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        for &isa in Isa::available() {
            // A row of any length, since the last vector is a short one.
            for length in [halves.len(), 37] {
                let mut got = vec![0.0; length];
                f16::widen(isa, &halves[..length], &mut got);
                assert!(
                    got.iter().zip(&wide).all(|(&a, &b)| same(a, b)),
                    "{}",
                    isa.name()
                );
            }
            let mut got = vec![f16::ZERO; numbers.len()];
            // SAFETY: `numbers` and `got` have as many elements; `isa` is one of those that the CPU has.
            unsafe { f16::narrow(isa, &numbers, got.as_mut_ptr()) };
            for (&got, &number) in got.iter().zip(&numbers) {
                let want = f16::from_f32(number);
                assert!(same(got.to_f32(), want.to_f32()), "{} {number}", isa.name());
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod test_numbers {
    /// Numbers in -1..1 that a seed repeats.
    pub fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .take(count)
        .collect()
    }
}
