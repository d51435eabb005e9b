//! NEON.

use super::Simd;
use std::arch::aarch64::*;
use std::arch::asm;

#[derive(Clone, Copy)]
pub struct Neon;

impl Neon {
    #[inline(always)]
    unsafe fn power(n: int32x4_t) -> float32x4_t {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; this touches registers alone.
        unsafe { vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127)))) }
    }

    /// Four numbers of f16 as f32.
    #[inline(always)]
    unsafe fn widen_f16(halves: uint16x4_t) -> float32x4_t {
        // SAFETY: the instruction belongs to every CPU of this architecture and touches the registers it is given.
        unsafe {
            let widened: float32x4_t;
            asm!(
                "fcvtl {to:v}.4s, {from:v}.4h",
                to = lateout(vreg) widened,
                from = in(vreg) halves,
                options(pure, nomem, nostack, preserves_flags)
            );
            widened
        }
    }
}

impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;
    const REGISTERS: usize = 32;
    const MULTIPLIES_BY_LANES: bool = true;

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
    #[inline(always)]
    unsafe fn sqrt(a: Self::V) -> Self::V {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; this touches registers alone.
        unsafe { vsqrtq_f32(a) }
    }
    #[inline(always)]
    unsafe fn sum_each([a, b, c, d]: [Self::V; 4]) -> [f32; 4] {
        // SAFETY: the CPU has NEON, as every CPU of this architecture; a vector has four numbers, as the array.
        unsafe {
            let mut sums = [0.0; 4];
            vst1q_f32(
                sums.as_mut_ptr(),
                vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)),
            );
            sums
        }
    }
    #[inline(always)]
    unsafe fn store_nearest_bytes(to: *mut i8, v: Self::V) {
        // SAFETY: the CPU has NEON, as every CPU of this architecture, and the caller has room for four bytes at `to`,
        // unaligned.
        unsafe {
            let whole = vqmovn_s32(vcvtnq_s32_f32(v));
            let bytes = vqmovn_s16(vcombine_s16(whole, whole));
            let four = vget_lane_u32::<0>(vreinterpret_u32_s8(bytes));
            to.cast::<u32>().write_unaligned(four);
        }
    }
    #[inline(always)]
    unsafe fn store_signed_bytes(to: *mut i8, v: Self::V) {
        // SAFETY: the caller has room for the bytes at `to`; every CPU of this architecture has NEON. Whole numbers
        // are their own nearest.
        unsafe { Self::store_nearest_bytes(to, v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self::V {
        // SAFETY: the CPU has NEON, as every CPU of this architecture, and the caller has four numbers at `from`.
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from))) }
    }
    #[inline(always)]
    unsafe fn store_bf16(to: *mut u16, v: Self::V) {
        // SAFETY: the CPU has NEON, as every CPU of this architecture, and the caller has room for four numbers at
        // `to`.
        unsafe {
            let bits = vreinterpretq_u32_f32(v);
            let last = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), last);
            let quiet = vorrq_u32(bits, vdupq_n_u32(0x40_0000));
            let number = vceqq_f32(v, v);
            vst1_u16(to, vshrn_n_u32::<16>(vbslq_u32(number, rounded, quiet)));
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self::V {
        // SAFETY: the CPU has NEON, as every CPU of this architecture, and the caller has four numbers at `from`.
        unsafe { Self::widen_f16(vld1_u16(from)) }
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, v: Self::V) {
        // SAFETY: the instruction belongs to every CPU of this architecture and touches the registers it is given; the
        // caller has room for four numbers at `to`.
        unsafe {
            let halves: uint16x4_t;
            asm!(
                "fcvtn {to:v}.4h, {from:v}.4s",
                to = lateout(vreg) halves,
                from = in(vreg) v,
                options(pure, nomem, nostack, preserves_flags)
            );
            vst1_u16(to, halves);
        }
    }
    #[inline(always)]
    unsafe fn bf16_pairs(from: *const u32) -> [Self::V; 2] {
        // SAFETY: the CPU has NEON, as every CPU of this architecture, and the caller has four pairs at `from`.
        unsafe {
            let pairs = vld1q_u32(from);
            let second = vandq_u32(pairs, vdupq_n_u32(0xffff_0000));
            [
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs)),
                vreinterpretq_f32_u32(second),
            ]
        }
    }
}
