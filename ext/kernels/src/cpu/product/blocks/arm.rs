//! NEON, without and with the instructions for products of bytes.

use std::arch::aarch64::*;

use super::integers::Integers;
use super::quantize::PLANES;
use crate::cpu::product::arm::{by_rows, by_twos, Bytes, Dots, Matrices, Words};
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
            // SAFETY: `x` has the four bytes that `dot` reads, as the caller vouches, who has its instruction; the
            // exclusive or, of NEON, touches registers alone.
            unsafe { Self::dot(sums, veorq_u8(codes, vdupq_n_u8(0x80)), x) }
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
    methods!(4);

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

/// Codes, of which wide ones have an offset of 128, as signed bytes.
#[inline(always)]
unsafe fn signed<const WIDE: bool>(codes: &[uint8x16_t; 4]) -> [uint8x16_t; 4] {
    if !WIDE {
        return *codes;
    }
    // SAFETY: every CPU of this architecture has NEON; this touches registers alone.
    codes.map(|codes| unsafe { veorq_u8(codes, vdupq_n_u8(0x80)) })
}

impl Integers for NeonDot {
    methods!(6);
    const BY_HALVES: bool = true;

    #[inline(always)]
    unsafe fn dot(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V {
        // SAFETY: the CPU has the dot product, which this level is chosen by, and the caller has four bytes at `x`.
        unsafe {
            let [sums, codes, x] = [sums, codes, vreinterpretq_u8_s8(spread(x))]
                .map(|bytes| vreinterpretq_u32_u8(bytes));
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
            let [a, b, c, d] = signed::<WIDE>(codes).map(|codes| vreinterpretq_u32_u8(codes));
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
    methods!(6);
    const BY_HALVES: bool = true;
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
            let [first, second] = sums.map(|sum| vdup_n_s32(sum));
            [vreinterpretq_u8_s32(vcombine_s32(first, second)); PLANES]
        }
    }

    #[inline(always)]
    unsafe fn by_planes(sums: [Self::V; PLANES]) -> [Self::V; PLANES] {
        // SAFETY: every CPU of this architecture has NEON; this touches registers alone.
        unsafe {
            by_rows(sums.map(|sums| vreinterpretq_u32_u8(sums)))
                .map(|sums| vreinterpretq_u8_u32(sums))
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
            let [a, b, c, d] = signed::<WIDE>(codes).map(|codes| vreinterpretq_u32_u8(codes));
            let [mut low, mut high] = sums.map(|sums| vreinterpretq_u32_u8(sums));
            for (x, columns) in x.into_iter().zip([by_twos(a, b), by_twos(c, d)]) {
                let x = vld1q_u32(x.cast());
                low = Bytes::add(low, x, columns[0]);
                high = Bytes::add(high, x, columns[1]);
            }
            [low, high].map(|sums| vreinterpretq_u8_u32(sums))
        }
    }
}
