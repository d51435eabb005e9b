//! Vectors of the types that numbers are stored in.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256bh, __m512, _mm512_cvtneps_pbh};

use half::f16;

#[cfg(target_arch = "x86_64")]
use super::Avx512;
use super::{bf16_to_f32, Simd, MOST_LANES};

/// Vectors of one stored type.
#[allow(clippy::missing_safety_doc)]
pub trait Vectors<S: Simd> {
    type Number: Copy + Default;
    /// Whether the numbers have so few digits that a function may be computed to 2⁻¹³.
    const ROUGH: bool;

    unsafe fn load(from: *const Self::Number) -> S::V;
    unsafe fn store(to: *mut Self::Number, v: S::V);
    /// How far from 0 the farthest number is; not finite if any number is not.
    unsafe fn farthest(from: *const Self::Number, count: usize) -> f32;

    /// The first `count` < LANES numbers; the others are 0.
    #[inline(always)]
    unsafe fn load_first(from: *const Self::Number, count: usize) -> S::V {
        let mut numbers = [Self::Number::default(); MOST_LANES];
        // SAFETY: the caller has `count` < LANES numbers at `from`, and the instruction set; the array has as many
        // numbers as the longest vector.
        unsafe {
            std::ptr::copy_nonoverlapping(from, numbers.as_mut_ptr(), count);
            Self::load(numbers.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store_first(to: *mut Self::Number, v: S::V, count: usize) {
        let mut numbers = [Self::Number::default(); MOST_LANES];
        // SAFETY: the array has as many numbers as the longest vector, and the caller room for `count` < LANES at
        // `to`, and the instruction set.
        unsafe {
            Self::store(numbers.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(numbers.as_ptr(), to, count);
        }
    }
}

pub struct F32;
pub struct F16;
pub struct Bf16;

macro_rules! vectors {
    ($name:ident, $number:ty, $load:ident, $store:ident, $bits:ty, $widen:expr, $rough:literal) => {
        impl<S: Simd> Vectors<S> for $name {
            type Number = $number;
            const ROUGH: bool = $rough;

            #[inline(always)]
            unsafe fn load(from: *const $number) -> S::V {
                // SAFETY: the caller has LANES numbers at `from`, and the instruction set.
                unsafe { S::$load(from) }
            }
            #[inline(always)]
            unsafe fn store(to: *mut $number, v: S::V) {
                // SAFETY: the caller has room for LANES numbers at `to`, and the instruction set.
                unsafe { S::$store(to, v) }
            }
            #[inline(always)]
            unsafe fn farthest(from: *const $number, count: usize) -> f32 {
                // Without their sign, numbers are in the order of their bits, infinity and NaN last.
                let mut most = 0;
                for at in 0..count {
                    // SAFETY: the caller has `count` numbers at `from`; their bits are an integer of the same size.
                    let bits = unsafe { *from.cast::<$bits>().add(at) };
                    most = most.max(bits & (<$bits>::MAX >> 1));
                }
                $widen(most)
            }
        }
    };
}
vectors!(F32, f32, load, store, u32, f32::from_bits, false);
vectors!(F16, u16, load_f16, store_f16, u16, f16_to_f32, false);
vectors!(Bf16, u16, load_bf16, store_bf16, u16, bf16_to_f32, true);

/// bf16 as the CPU's own instruction rounds to it: what is too small for all of its digits becomes 0.
#[cfg(target_arch = "x86_64")]
pub struct NativeBf16;

#[cfg(target_arch = "x86_64")]
impl Vectors<Avx512> for NativeBf16 {
    type Number = u16;
    const ROUGH: bool = true;

    #[inline(always)]
    unsafe fn load(from: *const u16) -> __m512 {
        // SAFETY: the caller has 16 numbers at `from`, and AVX-512.
        unsafe { <Bf16 as Vectors<Avx512>>::load(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u16, v: __m512) {
        // SAFETY: the caller has AVX512-BF16, and room for 16 numbers at `to`, which need no alignment.
        unsafe { to.cast::<__m256bh>().write_unaligned(_mm512_cvtneps_pbh(v)) }
    }
    #[inline(always)]
    unsafe fn farthest(from: *const u16, count: usize) -> f32 {
        // SAFETY: the caller has `count` numbers at `from`.
        unsafe { <Bf16 as Vectors<Avx512>>::farthest(from, count) }
    }
}

fn f16_to_f32(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

/// Runs the body with `$N` the vectors of a stored type.
macro_rules! for_stored {
    ($stored:expr, $N:ident => $body:expr) => {{
        use $crate::cpu::simd::stored;
        match $stored {
            $crate::cpu::Stored::F32 => {
                type $N = stored::F32;
                $body
            }
            $crate::cpu::Stored::F16 => {
                type $N = stored::F16;
                $body
            }
            $crate::cpu::Stored::Bf16 => {
                type $N = stored::Bf16;
                $body
            }
        }
    }};
}
pub(crate) use for_stored;
