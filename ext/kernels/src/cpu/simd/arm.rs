//! NEON.

use super::Simd;
use std::arch::aarch64::*;

#[derive(Clone, Copy)]
pub struct Neon;

impl Neon {
    #[inline(always)]
    unsafe fn power(n: int32x4_t) -> float32x4_t {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; this touches registers alone.
        unsafe { vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127)))) }
    }
}

impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;
    const REGISTERS: usize = 32;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::V {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; this touches registers alone.
        unsafe { vdupq_n_f32(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        // SAFETY: the CPU has NEON, as every CPU of this architecture, and the caller has four numbers at `from`,
        // which need no alignment.
        unsafe { vld1q_f32(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::V) {
        // SAFETY: the CPU has NEON, as every CPU of this architecture, and the caller has room for four numbers at
        // `to`, unaligned.
        unsafe { vst1q_f32(to, v) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self::V {
        let mut v = [0.0f32; 4];
        // SAFETY: the caller has `count` < 4 numbers at `from`, which are copied as bytes, since they need no
        // alignment; the array has four. Every CPU of this architecture has NEON.
        unsafe {
            std::ptr::copy_nonoverlapping(from.cast::<u8>(), v.as_mut_ptr().cast(), 4 * count);
            vld1q_f32(v.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_first(to: *mut f32, v: Self::V, count: usize) {
        let mut values = [0.0f32; 4];
        // SAFETY: the array has room for a vector, and the caller for `count` < 4 numbers at `to`; every CPU of
        // this architecture has NEON.
        unsafe {
            vst1q_f32(values.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(values.as_ptr(), to, count);
        }
    }
    #[inline(always)]
    unsafe fn load_columns(from: *const f32, stride: usize, last: usize) -> [Self::V; 4] {
        // SAFETY: the caller has four numbers in each row up to the `last`, and no later row is read; every CPU of
        // this architecture has NEON.
        unsafe {
            let (a, b) = (vld1q_f32(from), vld1q_f32(from.add(last.min(1) * stride)));
            let c = vld1q_f32(from.add(last.min(2) * stride));
            let d = vld1q_f32(from.add(last.min(3) * stride));
            let (low, high) = (vzip1q_f32(a, b), vzip2q_f32(a, b));
            let (lower, higher) = (vzip1q_f32(c, d), vzip2q_f32(c, d));
            [
                vcombine_f32(vget_low_f32(low), vget_low_f32(lower)),
                vcombine_f32(vget_high_f32(low), vget_high_f32(lower)),
                vcombine_f32(vget_low_f32(high), vget_low_f32(higher)),
                vcombine_f32(vget_high_f32(high), vget_high_f32(higher)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; this touches registers alone.
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; this touches registers alone.
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; this touches registers alone.
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; this touches registers alone.
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; this touches registers alone.
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; this touches registers alone.
        unsafe { vmaxq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; this touches registers alone.
        unsafe { vminq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: Self::V) -> Self::V {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; this touches registers alone.
        unsafe { vabsq_f32(a) }
    }
    #[inline(always)]
    unsafe fn select_less(a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; this touches registers alone.
        unsafe { vbslq_f32(vcltq_f32(a, b), yes, no) }
    }
    #[inline(always)]
    unsafe fn round(a: Self::V) -> Self::V {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; this touches registers alone.
        unsafe { vrndnq_f32(a) }
    }
    #[inline(always)]
    unsafe fn scale_by_power(v: Self::V, n: Self::V) -> Self::V {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; this touches registers alone.
        unsafe {
            let n = vcvtq_s32_f32(n);
            let half = vshrq_n_s32::<1>(n);
            let rest = vsubq_s32(n, half);
            vmulq_f32(vmulq_f32(v, Self::power(half)), Self::power(rest))
        }
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; this touches registers alone.
        unsafe { vaddvq_f32(v) }
    }
    #[inline(always)]
    unsafe fn highest(v: Self::V) -> f32 {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; this touches registers alone.
        unsafe { vmaxvq_f32(v) }
    }
}
