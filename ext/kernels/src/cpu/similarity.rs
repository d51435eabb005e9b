//! One vector beside many rows: products of numbers and of bytes, and bits that differ.
//!
//! Rows are bytes as a file holds them, so that a mapped one is read where it lies; numbers in them need no
//! alignment. Products of bytes and counts of bits are plain loops, without closures, which the compiler turns
//! into vectors of each instruction set.

use super::isa::{dispatched, Isa};
use super::simd::Simd;
use crate::{Error, Result};

/// Products that are summed apart: enough to hide how long one takes.
const CHAINS: usize = 4;

/// Bytes of a row elsewhere that are asked for while the row before it is read.
const FETCHED: usize = 512;

/// How many rows of bytes ahead are asked for: they are short, and each lies elsewhere.
const AHEAD: usize = 4;

/// The product of `vector` with each row; both are little-endian f32.
pub fn dots(rows: &[u8], vector: &[u8], out: &mut [f32]) -> Result<()> {
    let isa = Isa::current()?;
    debug_assert_eq!(rows.len(), out.len() * vector.len());
    let count = out.len().min(rows.len() / vector.len().max(1));
    // SAFETY: `count` rows as long as `vector` lie within `rows`, and as many sums within `out`.
    unsafe { dots_on(isa, rows.as_ptr(), vector, &mut out[..count]) };
    Ok(())
}

/// `dots` with rows that lie anywhere.
pub fn scattered_dots(rows: &[&[u8]], vector: &[u8], out: &mut [f32]) -> Result<()> {
    let isa = Isa::current()?;
    if rows.iter().any(|row| row.len() != vector.len()) {
        return Err(Error::Internal("rows are as long as a vector".to_owned()));
    }
    // SAFETY: every row is as long as `vector`.
    unsafe { scattered_dots_on(isa, rows, vector, out) };
    Ok(())
}

/// The product of `vector` with each row of signed bytes; sums must fit an i32.
pub fn byte_dots(rows: &[u8], vector: &[i16], out: &mut [i32]) -> Result<()> {
    let isa = Isa::current()?;
    // SAFETY: the loop reads through slices; an `Isa` comes from detection.
    unsafe { byte_dots_on(isa, rows, vector, out) };
    Ok(())
}

/// `byte_dots` with rows that lie anywhere.
pub fn scattered_byte_dots(rows: &[&[u8]], vector: &[i16], out: &mut [i32]) -> Result<()> {
    let isa = Isa::current()?;
    // SAFETY: the loop reads through slices; an `Isa` comes from detection.
    unsafe { scattered_byte_dots_on(isa, rows, vector, out) };
    Ok(())
}

/// The product of `vector` with each row, all of signed bytes, with rows that lie anywhere; sums must fit an i32.
pub fn scattered_row_dots(rows: &[&[u8]], vector: &[u8], out: &mut [i32]) -> Result<()> {
    let isa = Isa::current()?;
    if rows.iter().any(|row| row.len() != vector.len()) {
        return Err(Error::Internal("rows are as long as a vector".to_owned()));
    }
    // SAFETY: every row is as long as `vector`, and an `Isa` comes from detection.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => row_dots_vnni(rows, vector, out),
            #[cfg(target_arch = "aarch64")]
            Isa::DotProd | Isa::I8mm | Isa::Bf16 => row_dots_of_fours(rows, vector, out),
            _ => scattered_row_dots_on(isa, rows, vector, out),
        }
    }
    Ok(())
}

/// How many bits of `vector` differ from those of each row.
pub fn bit_differences(rows: &[u8], vector: &[u8], out: &mut [i32]) -> Result<()> {
    let isa = Isa::current()?;
    // SAFETY: the loop reads through slices; an `Isa` comes from detection.
    unsafe { bit_differences_on(isa, rows, vector, out) };
    Ok(())
}

/// `bit_differences` with rows that lie anywhere.
pub fn scattered_bit_differences(rows: &[&[u8]], vector: &[u8], out: &mut [i32]) -> Result<()> {
    let isa = Isa::current()?;
    // SAFETY: the loop reads through slices; an `Isa` comes from detection.
    unsafe { scattered_bit_differences_on(isa, rows, vector, out) };
    Ok(())
}

dispatched! {
    /// # Safety
    /// At `rows` there are as many rows as long as `vector` as `out` has places.
    unsafe fn dots_on(rows: *const u8, vector: &[u8], out: &mut [f32]) = dots_with
}

dispatched! {
    /// # Safety
    /// Every row is as long as `vector`.
    unsafe fn scattered_dots_on(rows: &[&[u8]], vector: &[u8], out: &mut [f32]) = scattered_dots_with
}

dispatched! {
    /// # Safety
    /// None beyond the instruction set.
    unsafe fn scattered_byte_dots_on(rows: &[&[u8]], vector: &[i16], out: &mut [i32]) = scattered_byte_dots_with
}

dispatched! {
    /// # Safety
    /// None beyond the instruction set.
    unsafe fn scattered_row_dots_on(rows: &[&[u8]], vector: &[u8], out: &mut [i32]) = scattered_row_dots_with
}

dispatched! {
    /// # Safety
    /// None beyond the instruction set.
    unsafe fn scattered_bit_differences_on(rows: &[&[u8]], vector: &[u8], out: &mut [i32]) = scattered_bit_differences_with
}

dispatched! {
    /// # Safety
    /// None beyond the instruction set.
    unsafe fn byte_dots_on(rows: &[u8], vector: &[i16], out: &mut [i32]) = byte_dots_with
}

dispatched! {
    /// # Safety
    /// None beyond the instruction set.
    unsafe fn bit_differences_on(rows: &[u8], vector: &[u8], out: &mut [i32]) = bit_differences_with
}

#[inline(always)]
unsafe fn dots_with<S: Simd>(rows: *const u8, vector: &[u8], out: &mut [f32]) {
    for (row, sum) in out.iter_mut().enumerate() {
        // SAFETY: the caller vouches for the rows and has the instruction set of `S`; vectors are loaded from any
        // address.
        *sum = unsafe { dot::<S>(rows.add(row * vector.len()), vector) };
    }
}

#[inline(always)]
unsafe fn scattered_dots_with<S: Simd>(rows: &[&[u8]], vector: &[u8], out: &mut [f32]) {
    for (at, (row, sum)) in rows.iter().zip(out).enumerate() {
        // SAFETY: the caller has the instruction set, and asking for a row's lines touches nothing.
        unsafe {
            if let Some(next) = rows.get(at + 1) {
                fetch::<S>(next);
            }
            // SAFETY: the caller vouches for the rows and has the instruction set of `S`; vectors are loaded from any
            // address.
            *sum = dot::<S>(row.as_ptr(), vector);
        }
    }
}

#[inline(always)]
unsafe fn scattered_byte_dots_with<S: Simd>(rows: &[&[u8]], vector: &[i16], out: &mut [i32]) {
    // SAFETY: the caller has the instruction set, and asking for rows' lines touches nothing.
    unsafe { fetch_first::<S>(rows) };
    for (at, (row, sum)) in rows.iter().zip(out).enumerate() {
        // SAFETY: the caller has the instruction set of `S`; a prefetch of a row's lines reads no memory.
        unsafe { fetch_ahead::<S>(rows, at) };
        *sum = byte_dot(row, vector);
    }
}

#[inline(always)]
unsafe fn scattered_row_dots_with<S: Simd>(rows: &[&[u8]], vector: &[u8], out: &mut [i32]) {
    // SAFETY: the caller has the instruction set, and asking for rows' lines touches nothing.
    unsafe { fetch_first::<S>(rows) };
    for (at, (row, sum)) in rows.iter().zip(out).enumerate() {
        // SAFETY: the caller has the instruction set of `S`; a prefetch of a row's lines reads no memory.
        unsafe { fetch_ahead::<S>(rows, at) };
        *sum = signed_dot(row, vector);
    }
}

/// With 128 added to every byte of a row, which makes it an unsigned one, and taken from the sums again.
///
/// # Safety
/// Every row is as long as `vector`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn row_dots_vnni(rows: &[&[u8]], vector: &[u8], out: &mut [i32]) {
    use super::simd::Avx512;
    use std::arch::x86_64::*;

    let added: i32 = vector
        .iter()
        .map(|&value| 128 * i32::from(value as i8))
        .sum();
    let whole = vector.len() / 64 * 64;
    let rest = (1u64 << (vector.len() - whole)) - 1;
    // SAFETY: every load ends within `vector`, and so within a row; masked ones touch what is within alone;
    // AVX512-VNNI is enabled. Asking for rows' lines touches nothing.
    unsafe {
        let flip = _mm512_set1_epi8(-128);
        fetch_first::<Avx512>(rows);
        for (at, (row, sum)) in rows.iter().zip(out).enumerate() {
            fetch_ahead::<Avx512>(rows, at);
            let mut sums = [_mm512_setzero_si512(); 2];
            for (chain, place) in (0..whole).step_by(64).enumerate() {
                let part = _mm512_loadu_si512(row.as_ptr().add(place).cast());
                let other = _mm512_loadu_si512(vector.as_ptr().add(place).cast());
                let part = _mm512_xor_si512(part, flip);
                sums[chain % 2] = _mm512_dpbusd_epi32(sums[chain % 2], part, other);
            }
            if rest != 0 {
                let part = _mm512_maskz_loadu_epi8(rest, row.as_ptr().add(whole).cast());
                let other = _mm512_maskz_loadu_epi8(rest, vector.as_ptr().add(whole).cast());
                let part = _mm512_xor_si512(part, flip);
                sums[0] = _mm512_dpbusd_epi32(sums[0], part, other);
            }
            let total = _mm512_reduce_add_epi32(_mm512_add_epi32(sums[0], sums[1]));
            *sum = total.wrapping_sub(added);
        }
    }
}

/// # Safety
/// Every row is as long as `vector`.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod")]
unsafe fn row_dots_of_fours(rows: &[&[u8]], vector: &[u8], out: &mut [i32]) {
    use std::arch::aarch64::*;
    use std::arch::asm;

    const BYTES: usize = 16;
    let add = |mut sums: int32x4_t, a: *const u8, b: *const u8| {
        // SAFETY: the dot product is enabled, and both have 16 bytes, as is seen to below.
        unsafe {
            asm!(
                "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b",
                sums = inout(vreg) sums,
                a = in(vreg) vld1q_u8(a),
                b = in(vreg) vld1q_u8(b),
                options(pure, nomem, nostack, preserves_flags)
            );
            sums
        }
    };
    let last = |bytes: &[u8]| {
        let mut whole = [0; BYTES];
        let rest = bytes.chunks_exact(BYTES).remainder();
        whole[..rest.len()].copy_from_slice(rest);
        whole
    };
    let last_of_vector = last(vector);
    for (row, sum) in rows.iter().zip(out) {
        let mut sums = [vdupq_n_s32(0); 2];
        let parts = row.chunks_exact(BYTES).zip(vector.chunks_exact(BYTES));
        for (chain, (part, other)) in parts.enumerate() {
            sums[chain % 2] = add(sums[chain % 2], part.as_ptr(), other.as_ptr());
        }
        sums[0] = add(sums[0], last(row).as_ptr(), last_of_vector.as_ptr());
        *sum = vaddvq_s32(vaddq_s32(sums[0], sums[1]));
    }
}

#[inline(always)]
unsafe fn scattered_bit_differences_with<S: Simd>(rows: &[&[u8]], vector: &[u8], out: &mut [i32]) {
    let (words, rest) = vector.split_at(vector.len() / 8 * 8);
    for (at, (row, sum)) in rows.iter().zip(out).enumerate() {
        if let Some(next) = rows.get(at + 1) {
            // SAFETY: the caller has the instruction set, and asking for a row's lines touches nothing.
            unsafe { fetch::<S>(next) };
        }
        *sum = bit_difference(row, words, rest);
    }
}

/// Asks for the rows that are read before any that `fetch_ahead` asks for.
#[inline(always)]
unsafe fn fetch_first<S: Simd>(rows: &[&[u8]]) {
    for row in rows.iter().take(AHEAD) {
        // SAFETY: the caller has the instruction set of `S`; `row` is a living slice, and a prefetch reads no
        // memory.
        unsafe { fetch::<S>(row) };
    }
}

#[inline(always)]
unsafe fn fetch_ahead<S: Simd>(rows: &[&[u8]], at: usize) {
    if let Some(row) = rows.get(at + AHEAD) {
        // SAFETY: the caller has the instruction set of `S`; `row` is a living slice, and a prefetch reads no
        // memory.
        unsafe { fetch::<S>(row) };
    }
}

/// Asks for the lines of a row, of which the processor foresees the later ones.
#[inline(always)]
unsafe fn fetch<S: Simd>(row: &[u8]) {
    let mut at = 0;
    while at < row.len().min(FETCHED) {
        // SAFETY: the caller has the instruction set; a prefetch may be given any address.
        unsafe { S::prefetch(row.as_ptr().wrapping_add(at).cast()) };
        at += 64;
    }
}

/// The product of two rows of numbers, as long as `vector`.
#[inline(always)]
unsafe fn dot<S: Simd>(row: *const u8, vector: &[u8]) -> f32 {
    let (row, other) = (row.cast::<f32>(), vector.as_ptr().cast::<f32>());
    let width = vector.len() / 4;
    // SAFETY: the caller has as many bytes at `row` as `vector` has, and the instruction set; every load ends at
    // `width` numbers and needs no alignment.
    unsafe {
        let mut sums = [S::splat(0.0); CHAINS];
        let mut at = 0;
        while at + CHAINS * S::LANES <= width {
            let mut chain = 0;
            while chain < CHAINS {
                let place = at + chain * S::LANES;
                let (a, b) = (S::load(row.add(place)), S::load(other.add(place)));
                sums[chain] = S::fma(a, b, sums[chain]);
                chain += 1;
            }
            at += CHAINS * S::LANES;
        }
        while at + S::LANES <= width {
            sums[0] = S::fma(S::load(row.add(at)), S::load(other.add(at)), sums[0]);
            at += S::LANES;
        }
        if at < width {
            let left = width - at;
            let part = S::load_first(row.add(at), left);
            sums[1] = S::fma(part, S::load_first(other.add(at), left), sums[1]);
        }
        S::sum(S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3])))
    }
}

#[inline(always)]
unsafe fn byte_dots_with<S: Simd>(rows: &[u8], vector: &[i16], out: &mut [i32]) {
    for (row, sum) in rows.chunks_exact(vector.len()).zip(out) {
        *sum = byte_dot(row, vector);
    }
}

#[inline(always)]
fn byte_dot(row: &[u8], vector: &[i16]) -> i32 {
    let mut total = 0;
    for (&a, &b) in row.iter().zip(vector) {
        total += i32::from(a as i8) * i32::from(b);
    }
    total
}

#[inline(always)]
fn signed_dot(row: &[u8], vector: &[u8]) -> i32 {
    let mut total = 0;
    for (&a, &b) in row.iter().zip(vector) {
        total += i32::from(a as i8) * i32::from(b as i8);
    }
    total
}

#[inline(always)]
unsafe fn bit_differences_with<S: Simd>(rows: &[u8], vector: &[u8], out: &mut [i32]) {
    let (words, rest) = vector.split_at(vector.len() / 8 * 8);
    for (row, sum) in rows.chunks_exact(vector.len()).zip(out) {
        *sum = bit_difference(row, words, rest);
    }
}

#[inline(always)]
fn bit_difference(row: &[u8], words: &[u8], rest: &[u8]) -> i32 {
    let (row_words, row_rest) = row.split_at(words.len().min(row.len()));
    let mut count = (word(row_rest) ^ word(rest)).count_ones();
    for (a, b) in row_words.chunks_exact(8).zip(words.chunks_exact(8)) {
        count += (word(a) ^ word(b)).count_ones();
    }
    count as i32
}

/// Up to eight bytes; those that are missing are 0.
#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let bytes = &bytes[..bytes.len().min(8)];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(count: usize, seed: u32) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..count).map(|_| next()).collect()
    }

    /// Every instruction set of this machine, on widths with and without a rest, at odd addresses.
    #[test]
    fn every_instruction_set_agrees_with_plain_sums() {
        for width in [1, 3, 8, 17, 64, 100, 384] {
            let count = 5;
            let numbers: Vec<f32> = noise(width * count + width, 7)
                .iter()
                .map(|&byte| f32::from(byte) / 64.0 - 2.0)
                .collect();
            let (vector, rows) = numbers.split_at(width);
            let mut bytes = vec![0];
            bytes.extend(rows.iter().flat_map(|number| number.to_le_bytes()));
            let packed = noise(width * count, 9);
            let steps: Vec<i16> = (0..width).map(|i| (i as i16 * 37) % 501 - 250).collect();
            for &isa in Isa::available() {
                isa.force(|| {
                    let mut sums = vec![0.0; count];
                    let vector_bytes: Vec<u8> = vector
                        .iter()
                        .flat_map(|number| number.to_le_bytes())
                        .collect();
                    dots(&bytes[1..], &vector_bytes, &mut sums).unwrap();
                    let scattered: Vec<&[u8]> = bytes[1..].chunks(4 * width).rev().collect();
                    let mut again = vec![0.0; count];
                    scattered_dots(&scattered, &vector_bytes, &mut again).unwrap();
                    again.reverse();
                    assert_eq!(sums, again);
                    assert!(scattered_dots(&[&bytes[2..]], &vector_bytes, &mut again).is_err());
                    for (row, sum) in rows.chunks(width).zip(&sums) {
                        let want: f64 = row
                            .iter()
                            .zip(vector)
                            .map(|(a, b)| f64::from(*a) * f64::from(*b))
                            .sum();
                        assert!((f64::from(*sum) - want).abs() < 1e-3, "{}", isa.name());
                    }
                    let mut found = vec![0; count];
                    byte_dots(&packed, &steps, &mut found).unwrap();
                    let mut differing = vec![0; count];
                    bit_differences(&packed, &packed[..width], &mut differing).unwrap();
                    let scattered: Vec<&[u8]> = packed.chunks(width).rev().collect();
                    let (mut dots, mut bits) = (vec![0; count], vec![0; count]);
                    scattered_byte_dots(&scattered, &steps, &mut dots).unwrap();
                    scattered_bit_differences(&scattered, &packed[..width], &mut bits).unwrap();
                    dots.reverse();
                    bits.reverse();
                    assert_eq!((&dots, &bits), (&found, &differing));
                    scattered_row_dots(&scattered, &packed[..width], &mut dots).unwrap();
                    for (row, dot) in scattered.iter().zip(&dots) {
                        let pairs = row.iter().zip(&packed);
                        let products =
                            pairs.map(|(&a, &b)| i32::from(a as i8) * i32::from(b as i8));
                        assert_eq!(*dot, products.sum::<i32>(), "{}", isa.name());
                    }
                    assert!(scattered_row_dots(&[&packed[1..]], &packed, &mut dots).is_err());
                    for (place, row) in packed.chunks(width).enumerate() {
                        let want: i32 = row
                            .iter()
                            .zip(&steps)
                            .map(|(&a, &b)| i32::from(a as i8) * i32::from(b))
                            .sum();
                        assert_eq!(found[place], want);
                        let want: u32 = row
                            .iter()
                            .zip(&packed)
                            .map(|(a, b)| (a ^ b).count_ones())
                            .sum();
                        assert_eq!(differing[place], want as i32);
                    }
                });
            }
        }
    }
}
