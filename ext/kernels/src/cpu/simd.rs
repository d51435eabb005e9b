//! f32 vectors of four instruction sets behind one trait.
//!
//! Kernels are generic over `Simd`, `#[inline(always)]` all the way down, and instantiated inside
//! functions that enable the features (`dispatched!`). Every method is unsafe for one reason: the
//! CPU must have the instruction set. Pointers need no alignment.

pub mod stored;

use super::math;

/// A vector of f32 and what the kernels do with it.
#[allow(clippy::missing_safety_doc)]
pub trait Simd: Copy {
    type V: Copy;
    const LANES: usize;
    /// Vector registers of the instruction set.
    const REGISTERS: usize;
    /// Whether a row is better begun by what is missing to an aligned address: vectors that
    /// straddle cache lines cost twice.
    const ALIGNS: bool = false;
    /// Whether products take their numbers from a vector's lanes: loads that spread one use the multiply pipes.
    #[cfg(target_arch = "aarch64")]
    const MULTIPLIES_BY_LANES: bool = false;

    /// Asks for what will be read soon; the address may be anything.
    #[inline(always)]
    unsafe fn prefetch(from: *const f32) {
        let _ = from;
    }
    unsafe fn splat(value: f32) -> Self::V;
    unsafe fn load(from: *const f32) -> Self::V;
    unsafe fn store(to: *mut f32, v: Self::V);
    /// The first `count` < LANES elements; the others are 0.
    unsafe fn load_first(from: *const f32, count: usize) -> Self::V;
    unsafe fn store_first(to: *mut f32, v: Self::V, count: usize);
    /// The first `count` < LANES lanes of `v`, the others 0.
    #[inline(always)]
    unsafe fn keep_first(v: Self::V, count: usize) -> Self::V {
        let mut values = [0.0f32; 16];
        // SAFETY: the array has as many numbers as the longest vector; the caller has the instruction set and
        // `count` < LANES.
        unsafe {
            Self::store(values.as_mut_ptr(), v);
            Self::load_first(values.as_ptr(), count)
        }
    }
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// 1 / a for a between 1 and 1000, to about one unit in the last place.
    #[inline(always)]
    unsafe fn reciprocal(a: Self::V) -> Self::V {
        // SAFETY: the caller has the instruction set; this touches registers alone.
        unsafe { Self::div(Self::splat(1.0), a) }
    }
    #[inline(always)]
    unsafe fn sqrt(a: Self::V) -> Self::V {
        let mut values = [0.0f32; MOST_LANES];
        // SAFETY: the array has as many numbers as the longest vector; the caller has the instruction set.
        unsafe {
            Self::store(values.as_mut_ptr(), a);
            for value in values.iter_mut().take(Self::LANES) {
                *value = value.sqrt();
            }
            Self::load(values.as_ptr())
        }
    }
    /// a · b + c, fused where the hardware fuses.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Adds the products of all turns to the sums of R rows and C vectors, asking for what lies ahead, where the
    /// instruction set has a loop of its own for such a tile.
    #[inline(always)]
    unsafe fn add_products<const R: usize, const C: usize>(
        _: &mut [[Self::V; C]; R],
        _: Turns,
        _asks: bool,
    ) -> bool {
        false
    }
    /// The larger; where `a` is NaN the result is `b` or NaN, where `b` is NaN it is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// The smaller, with `max`'s treatment of NaN.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn abs(a: Self::V) -> Self::V;
    /// `yes` where a < b, else `no`; NaN is never less.
    unsafe fn select_less(a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    unsafe fn round(a: Self::V) -> Self::V;
    /// v · 2ⁿ for whole n in -252..=254.
    unsafe fn scale_by_power(v: Self::V, n: Self::V) -> Self::V;
    unsafe fn sum(v: Self::V) -> f32;
    unsafe fn highest(v: Self::V) -> f32;
    /// x · Φ(x).
    #[inline(always)]
    unsafe fn gelu(x: Self::V) -> Self::V {
        // SAFETY: the caller has the instruction set; this touches registers alone.
        unsafe { math::gelu::<Self>(x) }
    }
    /// The same for what is rounded to bf16: at least to 2⁻¹³ where it is above 2⁻¹³ of x.
    #[inline(always)]
    unsafe fn rough_gelu(x: Self::V) -> Self::V {
        // SAFETY: the caller has the instruction set; this touches registers alone.
        unsafe { Self::gelu(x) }
    }

    /// Four neighbouring numbers of LANES rows, `stride` apart: the first of every row, the second, and
    /// so on. Rows beyond the `last` are read as that one.
    #[inline(always)]
    unsafe fn load_columns(from: *const f32, stride: usize, last: usize) -> [Self::V; 4] {
        let mut columns = [[0.0f32; MOST_LANES]; 4];
        for lane in 0..Self::LANES {
            // SAFETY: the caller has rows up to the `last`, `stride` apart, and no later row is read.
            let row = unsafe { from.add(lane.min(last) * stride) };
            for (at, column) in columns.iter_mut().enumerate() {
                // SAFETY: the caller has four numbers in each row, and `at` is below four.
                column[lane] = unsafe { *row.add(at) };
            }
        }
        let [a, b, c, d] = &columns;
        // SAFETY: each array has as many numbers as the longest vector; the caller has the instruction set.
        unsafe {
            [
                Self::load(a.as_ptr()),
                Self::load(b.as_ptr()),
                Self::load(c.as_ptr()),
                Self::load(d.as_ptr()),
            ]
        }
    }

    /// LANES numbers of −128 to 127 as the bytes of the nearest whole ones, even where two are as near, plus 128.
    #[inline(always)]
    unsafe fn store_raised_bytes(to: *mut u8, v: Self::V) {
        let mut values = [0.0f32; MOST_LANES];
        // SAFETY: the caller has the instruction set; the array has as many numbers as the longest vector.
        unsafe {
            let raised = Self::add(Self::round(v), Self::splat(128.0));
            Self::store(values.as_mut_ptr(), raised);
        }
        for (i, &value) in values.iter().enumerate().take(Self::LANES) {
            // SAFETY: the caller has room for LANES bytes at `to`.
            unsafe { *to.add(i) = value as u8 };
        }
    }
    /// LANES numbers of −128 to 127 as the bytes of the nearest whole ones, even where two are as near; what is not a
    /// number may become anything.
    #[inline(always)]
    unsafe fn store_nearest_bytes(to: *mut i8, v: Self::V) {
        let mut values = [0.0f32; MOST_LANES];
        // SAFETY: the caller has the instruction set; the array has as many numbers as the longest vector.
        unsafe { Self::store(values.as_mut_ptr(), Self::round(v)) };
        for (i, &value) in values.iter().enumerate().take(Self::LANES) {
            // SAFETY: the caller has room for LANES bytes at `to`.
            unsafe { *to.add(i) = value as i8 };
        }
    }
    /// LANES whole numbers of −128 to 127, as bytes.
    #[inline(always)]
    unsafe fn store_signed_bytes(to: *mut i8, v: Self::V) {
        let mut values = [0.0f32; MOST_LANES];
        // SAFETY: the caller has the instruction set; the array has as many numbers as the longest vector.
        unsafe { Self::store(values.as_mut_ptr(), v) };
        for (i, value) in values.iter().enumerate().take(Self::LANES) {
            // SAFETY: the caller vouches for the numbers, and for room.
            unsafe { *to.add(i) = value.to_int_unchecked::<i32>() as i8 };
        }
    }
    /// The sums of four vectors, each in some order: for numbers whose sums are exact.
    #[inline(always)]
    unsafe fn sum_each(vectors: [Self::V; 4]) -> [f32; 4] {
        let [a, b, c, d] = vectors;
        // SAFETY: the caller has the instruction set; this touches registers alone.
        unsafe { [Self::sum(a), Self::sum(b), Self::sum(c), Self::sum(d)] }
    }
    /// LANES numbers of bf16.
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self::V {
        // SAFETY: the caller has LANES numbers at `from`, and the instruction set.
        unsafe { load_each::<Self>(from, bf16_to_f32) }
    }
    #[inline(always)]
    unsafe fn store_bf16(to: *mut u16, v: Self::V) {
        // SAFETY: the caller has room for LANES numbers at `to`, and the instruction set.
        unsafe { store_each::<Self>(to, v, f32_to_bf16) }
    }
    /// LANES numbers of f16.
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self::V {
        // SAFETY: the caller has LANES numbers at `from`, and the instruction set.
        unsafe { load_each::<Self>(from, |bits| half::f16::from_bits(bits).to_f32()) }
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, v: Self::V) {
        // SAFETY: the caller has room for LANES numbers at `to`, and the instruction set.
        unsafe { store_each::<Self>(to, v, |value| half::f16::from_f32(value).to_bits()) }
    }
    /// The first and the second numbers of LANES pairs of bf16.
    #[inline(always)]
    unsafe fn bf16_pairs(from: *const u32) -> [Self::V; 2] {
        // SAFETY: the caller has LANES pairs at `from`, and the instruction set.
        unsafe { pairs_each::<Self>(from, bf16_to_f32) }
    }
}

/// What a tile reads: rows of x and a panel [inputs, 32], four inputs a turn.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(
        dead_code,
        reason = "tiles of other processors have no loop of their own"
    )
)]
pub struct Turns {
    pub count: usize,
    pub x: *const f32,
    pub x_stride: usize,
    pub panel: *const f32,
    /// What will be read soon, which may lie anywhere, and how far it goes on with every input.
    pub ahead: *const f32,
    pub ahead_step: usize,
}

/// No vector is longer.
pub const MOST_LANES: usize = 16;

#[inline(always)]
fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// To the nearest, ties to even; a NaN stays one.
#[inline(always)]
pub(super) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    (if value.is_nan() { quiet } else { rounded }) as u16
}

#[inline(always)]
unsafe fn load_each<S: Simd>(from: *const u16, widen: impl Fn(u16) -> f32) -> S::V {
    let mut values = [0.0f32; MOST_LANES];
    for (i, value) in values.iter_mut().enumerate().take(S::LANES) {
        // SAFETY: the caller has LANES numbers at `from`, and `i` is below that.
        *value = widen(unsafe { *from.add(i) });
    }
    // SAFETY: the array has as many numbers as the longest vector; the caller has the instruction set.
    unsafe { S::load(values.as_ptr()) }
}

#[inline(always)]
unsafe fn store_each<S: Simd>(to: *mut u16, v: S::V, narrow: impl Fn(f32) -> u16) {
    let mut values = [0.0f32; MOST_LANES];
    // SAFETY: the array has as many numbers as the longest vector; the caller has the instruction set.
    unsafe { S::store(values.as_mut_ptr(), v) };
    for (i, &value) in values.iter().enumerate().take(S::LANES) {
        // SAFETY: the caller has room for LANES numbers at `to`, and `i` is below that.
        unsafe { *to.add(i) = narrow(value) };
    }
}

#[inline(always)]
unsafe fn pairs_each<S: Simd>(from: *const u32, widen: impl Fn(u16) -> f32) -> [S::V; 2] {
    let (mut low, mut high) = ([0.0f32; MOST_LANES], [0.0f32; MOST_LANES]);
    for (i, (low, high)) in low.iter_mut().zip(&mut high).enumerate().take(S::LANES) {
        // SAFETY: the caller has LANES pairs at `from`, and `i` is below that.
        let pair = unsafe { *from.add(i) };
        *low = widen(pair as u16);
        *high = widen((pair >> 16) as u16);
    }
    // SAFETY: both arrays have as many numbers as the longest vector; the caller has the instruction set.
    unsafe { [S::load(low.as_ptr()), S::load(high.as_ptr())] }
}

/// Plain Rust, which the compiler turns into whatever the target's baseline has.
#[derive(Clone, Copy)]
pub struct Portable;

const PORTABLE: usize = 8;

#[inline(always)]
fn each(a: [f32; PORTABLE], b: [f32; PORTABLE], f: impl Fn(f32, f32) -> f32) -> [f32; PORTABLE] {
    let mut out = a;
    for (o, b) in out.iter_mut().zip(b) {
        *o = f(*o, b);
    }
    out
}

impl Simd for Portable {
    type V = [f32; PORTABLE];
    const LANES: usize = PORTABLE;
    const REGISTERS: usize = 16;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::V {
        [value; PORTABLE]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        // SAFETY: the caller has LANES numbers at `from`, which need no alignment; no instruction set is needed.
        unsafe { from.cast::<Self::V>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::V) {
        // SAFETY: the caller has room for LANES numbers at `to`, unaligned; no instruction set is needed.
        unsafe { to.cast::<Self::V>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self::V {
        let mut v = [0.0; PORTABLE];
        // SAFETY: the caller has `count` < LANES numbers at `from`, which are copied as bytes, since they need no
        // alignment; the array has LANES.
        unsafe {
            std::ptr::copy_nonoverlapping(from.cast::<u8>(), v.as_mut_ptr().cast(), 4 * count)
        };
        v
    }
    #[inline(always)]
    unsafe fn store_first(to: *mut f32, v: Self::V, count: usize) {
        // SAFETY: the vector has LANES numbers, and the caller room for `count` < LANES at `to`.
        unsafe { std::ptr::copy_nonoverlapping(v.as_ptr(), to, count) };
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        each(each(a, b, |a, b| a * b), c, |p, c| p + c)
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn abs(a: Self::V) -> Self::V {
        a.map(f32::abs)
    }
    #[inline(always)]
    unsafe fn select_less(a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        let mut out = no;
        for i in 0..PORTABLE {
            if a[i] < b[i] {
                out[i] = yes[i];
            }
        }
        out
    }
    #[inline(always)]
    unsafe fn round(a: Self::V) -> Self::V {
        // Adding 1.5 · 2²³ leaves no fraction bits; |a| is far below 2²².
        const MAGIC: f32 = 12_582_912.0;
        a.map(|v| (v + MAGIC) - MAGIC)
    }
    #[inline(always)]
    unsafe fn scale_by_power(v: Self::V, n: Self::V) -> Self::V {
        let mut out = v;
        for (o, n) in out.iter_mut().zip(n) {
            // A NaN becomes 0 here and stays in `v`.
            let n = n as i32;
            let half = n >> 1;
            let power = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
            *o = *o * power(half) * power(n - half);
        }
        out
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]))
    }
    #[inline(always)]
    unsafe fn highest(v: Self::V) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod gelu;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod narrow_tile;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod wide_tile;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub use arm::Neon;

#[cfg(target_arch = "aarch64")]
mod arm;
