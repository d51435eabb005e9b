//! NEON, without and with the instruction for products of bytes.

use std::arch::aarch64::*;
use std::arch::asm;

use super::integers::Integers;
use crate::cpu::simd::Neon;

#[derive(Clone, Copy)]
pub(super) struct NeonDot;

/// What the two flavours have in common.
macro_rules! methods {
    () => {
        type Float = Neon;
        type V = uint8x16_t;
        const ROWS: usize = 4;
        const ROWS_OF_RUNS: usize = 4;
        const WIDE_OFFSET: i32 = 0;

        #[inline(always)]
        unsafe fn splat(value: i32) -> Self::V {
            // SAFETY: every CPU of this architecture has NEON; this touches registers alone.
            unsafe { vreinterpretq_u8_s32(vdupq_n_s32(value)) }
        }
        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self::V {
            // SAFETY: every CPU of this architecture has NEON, and the caller has 16 bytes at `from`.
            unsafe { vld1q_u8(from) }
        }
        #[inline(always)]
        unsafe fn right<const N: i32>(v: Self::V, mask: u8) -> Self::V {
            // SAFETY: every CPU of this architecture has NEON; this touches registers alone.
            unsafe { vandq_u8(vshlq_u8(v, vdupq_n_s8(-N as i8)), vdupq_n_u8(mask)) }
        }
        #[inline(always)]
        unsafe fn left<const N: i32>(v: Self::V, mask: u8) -> Self::V {
            // SAFETY: every CPU of this architecture has NEON; this touches registers alone.
            unsafe { vandq_u8(vshlq_u8(v, vdupq_n_s8(N as i8)), vdupq_n_u8(mask)) }
        }
        #[inline(always)]
        unsafe fn or(a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: every CPU of this architecture has NEON; this touches registers alone.
            unsafe { vorrq_u8(a, b) }
        }
        #[inline(always)]
        unsafe fn add_bits(v: Self::V, bits: *const u8, value: u8) -> Self::V {
            // SAFETY: every CPU of this architecture has NEON, and the caller has 16 bits, two bytes, at `bits`.
            unsafe {
                let select = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
                let bits = vcombine_u8(vld1_dup_u8(bits), vld1_dup_u8(bits.add(1)));
                let set = vtstq_u8(bits, select);
                vorrq_u8(v, vandq_u8(set, vdupq_n_u8(value)))
            }
        }
        #[inline(always)]
        unsafe fn look_up(v: Self::V, table: &[u8; 16]) -> Self::V {
            // SAFETY: every CPU of this architecture has NEON; the table has the 16 bytes that are read.
            unsafe { vqtbl1q_u8(vld1q_u8(table.as_ptr()), v) }
        }
        #[inline(always)]
        unsafe fn dot_wide(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V {
            // SAFETY: what the caller vouches for is what `dot` asks for; the exclusive or touches registers alone.
            unsafe { Self::dot(sums, veorq_u8(codes, vdupq_n_u8(0x80)), x) }
        }
        #[inline(always)]
        unsafe fn to_float(v: Self::V) -> float32x4_t {
            // SAFETY: every CPU of this architecture has NEON; this touches registers alone.
            unsafe { vcvtq_f32_s32(vreinterpretq_s32_u8(v)) }
        }
        #[inline(always)]
        unsafe fn load_halves(from: *const u8) -> float32x4_t {
            // SAFETY: the caller has eight bytes at `from`; the instruction belongs to every CPU of this
            // architecture and touches the two registers it is given.
            unsafe {
                let halves = vld1_u8(from);
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
        #[inline(always)]
        unsafe fn load_bytes(from: *const u8) -> float32x4_t {
            // SAFETY: every CPU of this architecture has NEON, and the caller has four bytes at `from`, unaligned.
            unsafe {
                let four = vreinterpret_s8_u32(vdup_n_u32(from.cast::<u32>().read_unaligned()));
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(four))))
            }
        }
    };
}

/// Four bytes of x, in every lane.
#[inline(always)]
unsafe fn spread(x: *const i8) -> int8x16_t {
    // SAFETY: every CPU of this architecture has NEON, and the caller has four bytes at `x`, unaligned.
    unsafe { vreinterpretq_s8_u32(vdupq_n_u32(x.cast::<u32>().read_unaligned())) }
}

impl Integers for Neon {
    methods!();

    #[inline(always)]
    unsafe fn dot(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V {
        // SAFETY: every CPU of this architecture has NEON, and the caller has four bytes at `x`, as `spread` asks
        // for.
        unsafe {
            // Two products of at most 128 · 127 fit 16 bits.
            let (codes, x) = (vreinterpretq_s8_u8(codes), spread(x));
            let low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
            let high = vmull_s8(vget_high_s8(codes), vget_high_s8(x));
            let pairs = vpaddq_s16(low, high);
            vreinterpretq_u8_s32(vpadalq_s16(vreinterpretq_s32_u8(sums), pairs))
        }
    }
}

impl Integers for NeonDot {
    methods!();

    #[inline(always)]
    unsafe fn dot(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V {
        // SAFETY: the CPU has the dot product, which this level is chosen by, and the caller has four bytes at `x`;
        // the instruction touches the registers it is given.
        unsafe {
            let mut sums = sums;
            asm!(
                "sdot {sums:v}.4s, {codes:v}.16b, {x:v}.16b",
                sums = inout(vreg) sums,
                codes = in(vreg) codes,
                x = in(vreg) spread(x),
                options(pure, nomem, nostack, preserves_flags)
            );
            sums
        }
    }
}
