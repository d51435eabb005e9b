//! NEON, without and with the instructions for products of bytes.

use std::arch::aarch64::*;

use super::integers::Integers;
use super::quantize::{FINER, PLANES};
use crate::cpu::product::arm::{by_rows, Bytes, Dots, Matrices, Words};
use crate::cpu::simd::{Neon, Simd};

#[derive(Clone, Copy)]
pub(super) struct NeonDot;
#[derive(Clone, Copy)]
pub(super) struct NeonMatrices;

/// What the flavours have in common.
macro_rules! methods {
    ($rows:literal) => {
        type Float = Neon;
        type V = uint8x16_t;
        const ROWS: usize = $rows;
        const ROWS_OF_RUNS: usize = $rows;
        const BY_HALVES: bool = true;
        const ACROSS: bool = true;
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
            unsafe {
                let shifted = match N {
                    2 => vshrq_n_u8::<2>(v),
                    4 => vshrq_n_u8::<4>(v),
                    6 => vshrq_n_u8::<6>(v),
                    _ => v,
                };
                vandq_u8(shifted, vdupq_n_u8(mask))
            }
        }
        #[inline(always)]
        unsafe fn left<const N: i32>(v: Self::V, mask: u8) -> Self::V {
            // SAFETY: every CPU of this architecture has NEON; this touches registers alone.
            unsafe {
                let shifted = match N {
                    2 => vshlq_n_u8::<2>(v),
                    4 => vshlq_n_u8::<4>(v),
                    _ => v,
                };
                vandq_u8(shifted, vdupq_n_u8(mask))
            }
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
            // SAFETY: `x` has the four bytes that `dot` reads, as the caller vouches, who has its instruction.
            unsafe { Self::dot(sums, codes, x) }
        }
        #[inline(always)]
        unsafe fn unzip([first, second]: [Self::V; 2]) -> [Self::V; 2] {
            // SAFETY: every CPU of this architecture has NEON; this touches registers alone.
            unsafe {
                let first = vreinterpretq_u32_u8(first);
                let second = vreinterpretq_u32_u8(second);
                [
                    vreinterpretq_u8_u32(vuzp1q_u32(first, second)),
                    vreinterpretq_u8_u32(vuzp2q_u32(first, second)),
                ]
            }
        }
        #[inline(always)]
        unsafe fn together(sums: [Self::V; PLANES]) -> float32x4_t {
            // SAFETY: every CPU of this architecture has NEON; this touches registers alone.
            unsafe {
                let [coarse, fine] = Self::by_planes(sums);
                let (coarse, fine) = (vreinterpretq_s32_u8(coarse), vreinterpretq_s32_u8(fine));
                vcvtq_f32_s32(vmlaq_s32(fine, coarse, vdupq_n_s32(FINER)))
            }
        }
        #[inline(always)]
        unsafe fn to_float(v: Self::V) -> float32x4_t {
            // SAFETY: every CPU of this architecture has NEON; this touches registers alone.
            unsafe { vcvtq_f32_s32(vreinterpretq_s32_u8(v)) }
        }
        #[inline(always)]
        unsafe fn load_halves(from: *const u8) -> float32x4_t {
            // SAFETY: every CPU of this architecture has NEON, and the caller has eight bytes at `from`, of which loads
            // need no alignment.
            unsafe { Neon::load_f16(from.cast()) }
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
    methods!(6);

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

/// Without closures, which the compiler may leave as calls.
#[inline(always)]
unsafe fn words([a, b, c, d]: [uint8x16_t; 4]) -> [uint32x4_t; 4] {
    // SAFETY: every CPU of this architecture has NEON; this touches registers alone.
    unsafe {
        [
            vreinterpretq_u32_u8(a),
            vreinterpretq_u32_u8(b),
            vreinterpretq_u32_u8(c),
            vreinterpretq_u32_u8(d),
        ]
    }
}

impl Integers for NeonDot {
    methods!(8);

    #[inline(always)]
    unsafe fn dot(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V {
        // SAFETY: the CPU has the dot product, which this level is chosen by, and the caller has four bytes at `x`.
        unsafe {
            let (sums, codes) = (vreinterpretq_u32_u8(sums), vreinterpretq_u32_u8(codes));
            let x = vreinterpretq_u32_s8(spread(x));
            vreinterpretq_u8_u32(Dots::add::<0>(sums, codes, x))
        }
    }

    #[inline(always)]
    unsafe fn dot_half<const WIDE: bool>(
        sums: [Self::V; PLANES],
        codes: &[Self::V; 4],
        x: [*const i8; PLANES],
    ) -> [Self::V; PLANES] {
        // SAFETY: the CPU has the dot product, and the caller has 16 bytes of each plane.
        unsafe {
            let [a, b, c, d] = words(*codes);
            let mut sums = sums;
            let mut plane = 0;
            while plane < PLANES {
                let x = vld1q_u32(x[plane].cast());
                let sum = Dots::add::<0>(vreinterpretq_u32_u8(sums[plane]), a, x);
                let sum = Dots::add::<1>(sum, b, x);
                let sum = Dots::add::<2>(sum, c, x);
                sums[plane] = vreinterpretq_u8_u32(Dots::add::<3>(sum, d, x));
                plane += 1;
            }
            sums
        }
    }
}

/// The two planes of a row are the two rows of a small matrix, and its sums those of two outputs with both.
impl Integers for NeonMatrices {
    methods!(8);
    const JOINS_PLANES: bool = true;

    #[inline(always)]
    unsafe fn dot(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V {
        // SAFETY: a CPU with small matrices has the dot product; the caller vouches for the rest.
        unsafe { NeonDot::dot(sums, codes, x) }
    }

    #[inline(always)]
    unsafe fn begin(sums: [i32; PLANES]) -> [Self::V; PLANES] {
        // SAFETY: every CPU of this architecture has NEON; this touches registers alone.
        unsafe {
            let both = vcombine_s32(vdup_n_s32(sums[0]), vdup_n_s32(sums[1]));
            [vreinterpretq_u8_s32(both); PLANES]
        }
    }

    #[inline(always)]
    unsafe fn by_planes(sums: [Self::V; PLANES]) -> [Self::V; PLANES] {
        // SAFETY: every CPU of this architecture has NEON; this touches registers alone.
        unsafe {
            let [first, second] = sums;
            let [first, second] =
                by_rows([vreinterpretq_u32_u8(first), vreinterpretq_u32_u8(second)]);
            [vreinterpretq_u8_u32(first), vreinterpretq_u8_u32(second)]
        }
    }

    #[inline(always)]
    unsafe fn dot_half<const WIDE: bool>(
        sums: [Self::V; PLANES],
        codes: &[Self::V; 4],
        x: [*const i8; PLANES],
    ) -> [Self::V; PLANES] {
        // SAFETY: the CPU has products of small matrices, which this level is chosen by, and the caller has the 16
        // bytes of eight inputs in both planes, twice.
        unsafe {
            let [a, b, c, d] = words(*codes);
            let (low, high) = (vreinterpretq_u32_u8(sums[0]), vreinterpretq_u32_u8(sums[1]));
            let eight = vld1q_u32(x[0].cast());
            let (low, high) = (Bytes::add(low, eight, a), Bytes::add(high, eight, b));
            let eight = vld1q_u32(x[1].cast());
            let (low, high) = (Bytes::add(low, eight, c), Bytes::add(high, eight, d));
            [vreinterpretq_u8_u32(low), vreinterpretq_u8_u32(high)]
        }
    }
}
