//! Vectors of bytes and of 32-bit integers for the products, by instruction set.
//!
//! Every method is unsafe for one reason: the CPU must have the instruction set.

use half::f16;

use super::format::{QUAD, SIGNED};
use super::quantize::{FINER, PLANES};
use crate::cpu::simd::{Portable, Simd};

/// `Float::LANES` integers of 32 bits, or four times as many bytes.
#[allow(clippy::missing_safety_doc)]
pub(super) trait Integers: Copy {
    type Float: Simd;
    type V: Copy;
    /// Rows of x that are worked on together.
    const ROWS: usize;
    /// `ROWS` where every 16 inputs have a scale, which takes more registers.
    const ROWS_OF_RUNS: usize;
    /// Panels, at most 4, that are multiplied with one row together, if it is only one: each is read by the
    /// memory's own pace, and their sums don't wait for each other.
    const PANELS: usize = 1;
    /// Whether one row is multiplied with all lanes of a panel together, instead of one vector at a time.
    const ACROSS: bool = false;
    /// What `dot_wide` takes from a code by itself is 128 less this.
    const WIDE_OFFSET: i32;
    /// Whether half a group is multiplied at once, by `dot_half`.
    const BY_HALVES: bool = false;
    /// Whether rows have both planes of eight inputs side by side, as `Level::joins_planes` says.
    const JOINS_PLANES: bool = false;

    unsafe fn splat(value: i32) -> Self::V;
    /// The bytes from `from` on, of any alignment.
    unsafe fn load(from: *const u8) -> Self::V;
    /// Bytes shifted right, then masked.
    unsafe fn right<const N: i32>(v: Self::V, mask: u8) -> Self::V;
    /// Bytes shifted left, then masked.
    unsafe fn left<const N: i32>(v: Self::V, mask: u8) -> Self::V;
    unsafe fn or(a: Self::V, b: Self::V) -> Self::V;
    /// `value` more in the bytes whose bit is set in the mask at `bits`.
    unsafe fn add_bits(v: Self::V, bits: *const u8, value: u8) -> Self::V;
    /// Bytes below 16 replaced by entries of a table.
    unsafe fn look_up(v: Self::V, table: &[u8; 16]) -> Self::V;
    /// Adds, in each lane, the products of its four bytes, which are below 128, with those at `x`,
    /// which are above −128.
    unsafe fn dot(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V;
    /// `dot` with any codes, less 128 − `WIDE_OFFSET` each.
    unsafe fn dot_wide(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V;
    /// Where the sums of the planes begin.
    #[inline(always)]
    unsafe fn begin(sums: [i32; PLANES]) -> [Self::V; PLANES] {
        // No closure: the compiler had left `map` as calls on ARM, which took half of a prompt's instructions.
        // SAFETY: the caller has the instruction set; this touches registers alone.
        unsafe { [Self::splat(sums[0]), Self::splat(sums[1])] }
    }
    /// Adds to the sums of both planes four steps of codes with 16 inputs of a row, as `Rows::half` says where they
    /// are; `WIDE` codes count 128 less. The order is the implementation's own until `by_planes`.
    #[inline(always)]
    unsafe fn dot_half<const WIDE: bool>(
        mut sums: [Self::V; PLANES],
        codes: &[Self::V; 4],
        x: [*const i8; PLANES],
    ) -> [Self::V; PLANES] {
        let mut plane = 0;
        while plane < PLANES {
            let mut step = 0;
            while step < 4 {
                // SAFETY: the caller has the instruction set, and 16 inputs of each plane.
                sums[plane] = unsafe {
                    let x = x[plane].add(4 * step);
                    if WIDE {
                        Self::dot_wide(sums[plane], codes[step], x)
                    } else {
                        Self::dot(sums[plane], codes[step], x)
                    }
                };
                step += 1;
            }
            plane += 1;
        }
        sums
    }
    /// The codes of two steps, which are zipped.
    #[inline(always)]
    unsafe fn unzip(codes: [Self::V; 2]) -> [Self::V; 2] {
        codes
    }
    /// The sums of the planes as one number, in units of the last plane's scale.
    #[inline(always)]
    unsafe fn together(sums: [Self::V; PLANES]) -> <Self::Float as Simd>::V {
        // SAFETY: the caller has the instruction set; this touches registers alone.
        unsafe {
            let sums = Self::by_planes(sums);
            let mut sum = Self::to_float(sums[0]);
            let mut p = 1;
            while p < PLANES {
                let finer = Self::Float::splat(FINER as f32);
                sum = Self::fuse(sum, finer, Self::to_float(sums[p]));
                p += 1;
            }
            sum
        }
    }
    /// The sums of each plane.
    #[inline(always)]
    unsafe fn by_planes(sums: [Self::V; PLANES]) -> [Self::V; PLANES] {
        sums
    }
    unsafe fn to_float(v: Self::V) -> <Self::Float as Simd>::V;
    /// Numbers of 16 bits.
    unsafe fn load_halves(from: *const u8) -> <Self::Float as Simd>::V;
    /// Signed bytes as numbers.
    unsafe fn load_bytes(from: *const u8) -> <Self::Float as Simd>::V;
    /// a · b + c, rounded once on every instruction set.
    #[inline(always)]
    unsafe fn fuse(
        a: <Self::Float as Simd>::V,
        b: <Self::Float as Simd>::V,
        c: <Self::Float as Simd>::V,
    ) -> <Self::Float as Simd>::V {
        // SAFETY: the caller has the instruction set; this touches registers alone.
        unsafe { Self::Float::fma(a, b, c) }
    }
}

const LANES: usize = Portable::LANES;

impl Integers for Portable {
    type Float = Portable;
    type V = [u32; LANES];
    const ROWS: usize = 2;
    const ROWS_OF_RUNS: usize = 2;
    const BY_HALVES: bool = SIGNED;
    const WIDE_OFFSET: i32 = 0;

    #[inline(always)]
    unsafe fn splat(value: i32) -> Self::V {
        [value as u32; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self::V {
        // SAFETY: the caller has four bytes for each of LANES at `from`, unaligned; no instruction set is needed.
        unsafe { from.cast::<[[u8; 4]; LANES]>().read_unaligned() }.map(u32::from_le_bytes)
    }
    #[inline(always)]
    unsafe fn right<const N: i32>(v: Self::V, mask: u8) -> Self::V {
        v.map(|word| word >> N & (u32::from(mask) * 0x0101_0101))
    }
    #[inline(always)]
    unsafe fn left<const N: i32>(v: Self::V, mask: u8) -> Self::V {
        v.map(|word| word << N & (u32::from(mask) * 0x0101_0101))
    }
    #[inline(always)]
    unsafe fn or(a: Self::V, b: Self::V) -> Self::V {
        let mut out = a;
        out.iter_mut().zip(b).for_each(|(a, b)| *a |= b);
        out
    }
    #[inline(always)]
    unsafe fn add_bits(v: Self::V, bits: *const u8, value: u8) -> Self::V {
        // SAFETY: the caller has a bit for each byte of the vector at `bits`: four bytes, unaligned.
        let bits = u32::from_le_bytes(unsafe { bits.cast::<[u8; 4]>().read_unaligned() });
        let mut out = v;
        for (lane, word) in out.iter_mut().enumerate() {
            for byte in 0..4 {
                let bit = bits >> (4 * lane + byte) & 1;
                *word += (bit * u32::from(value)) << (8 * byte);
            }
        }
        out
    }
    #[inline(always)]
    unsafe fn look_up(v: Self::V, table: &[u8; 16]) -> Self::V {
        v.map(|word| {
            let bytes = word.to_le_bytes();
            u32::from_le_bytes(bytes.map(|byte| table[usize::from(byte & 15)]))
        })
    }
    #[inline(always)]
    unsafe fn dot(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V {
        // SAFETY: the caller has four bytes at `x`, unaligned.
        let x = unsafe { x.cast::<[i8; 4]>().read_unaligned() };
        let mut out = sums;
        for (sum, code) in out.iter_mut().zip(codes) {
            for (byte, x) in x.into_iter().enumerate() {
                let product = (code >> (8 * byte) & 0xff) as i32 * i32::from(x);
                *sum = sum.wrapping_add(product as u32);
            }
        }
        out
    }
    #[inline(always)]
    unsafe fn dot_wide(sums: Self::V, codes: Self::V, x: *const i8) -> Self::V {
        // SAFETY: the caller has four bytes at `x`, unaligned.
        let x = unsafe { x.cast::<[i8; 4]>().read_unaligned() };
        let mut out = sums;
        for (sum, code) in out.iter_mut().zip(codes) {
            for (byte, x) in x.into_iter().enumerate() {
                let code = code >> (8 * byte);
                let level = if SIGNED {
                    i32::from(code as i8)
                } else {
                    (code & 0xff) as i32 - 128
                };
                *sum = sum.wrapping_add((level * i32::from(x)) as u32);
            }
        }
        out
    }
    #[inline(always)]
    unsafe fn unzip([mut first, mut second]: [Self::V; 2]) -> [Self::V; 2] {
        for quad in (0..LANES).step_by(QUAD) {
            let (a, b) = (&mut first[quad..], &mut second[quad..]);
            [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]] =
                [a[0], a[2], b[0], b[2], a[1], a[3], b[1], b[3]];
        }
        [first, second]
    }
    #[inline(always)]
    unsafe fn together(sums: [Self::V; PLANES]) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        let [coarse, fine] = sums;
        for ((out, coarse), fine) in out.iter_mut().zip(coarse).zip(fine) {
            let (coarse, fine) = (coarse as i32, fine as i32);
            *out = if SIGNED {
                coarse.wrapping_mul(FINER).wrapping_add(fine) as f32
            } else {
                (coarse as f32).mul_add(FINER as f32, fine as f32)
            };
        }
        out
    }
    #[inline(always)]
    unsafe fn to_float(v: Self::V) -> [f32; LANES] {
        v.map(|word| word as i32 as f32)
    }
    #[inline(always)]
    unsafe fn load_halves(from: *const u8) -> [f32; LANES] {
        // SAFETY: the caller has LANES numbers of 16 bits at `from`, unaligned.
        let halves = unsafe { from.cast::<[[u8; 2]; LANES]>().read_unaligned() };
        halves.map(|bytes| f16::from_le_bytes(bytes).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> [f32; LANES] {
        // SAFETY: the caller has LANES bytes at `from`.
        unsafe { from.cast::<[i8; LANES]>().read_unaligned() }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn fuse(a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        let mut out = c;
        for ((c, a), b) in out.iter_mut().zip(a).zip(b) {
            *c = a.mul_add(b, *c);
        }
        out
    }
}
