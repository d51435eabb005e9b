//! MXFP4 and NVFP4: small floats under a scale of eight bits.

use base::quant::RUN;

use crate::weights::coded::fp4_scale;
use crate::weights::mxfp4::{half_scale, ELEMENTS, LEVELS};

/// The largest number of e4m3.
const LARGEST: f32 = 448.0;

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, value| value.abs().max(most))
}

/// The code whose level is nearest, the first of several.
fn code(value: f32, half: f32) -> u8 {
    let off = |code: usize| (f32::from(LEVELS[code]) * half - value).abs();
    let nearer = |best: usize, code| if off(code) < off(best) { code } else { best };
    (1..LEVELS.len()).fold(0, nearer) as u8
}

/// The first half of the codes in low nibbles.
fn put(bytes: &mut [u8], values: &[f32], half: f32) {
    let (low, high) = values.split_at(values.len() / 2);
    for (byte, (&low, &high)) in bytes.iter_mut().zip(low.iter().zip(high)) {
        *byte = code(low, half) | code(high, half) << 4;
    }
}

pub fn mxfp4(values: &[f32], block: &mut [u8]) {
    let most = largest(values);
    // The largest level is 6, in the same power of two as 4.
    block[0] = if most > 0.0 {
        (most.log2().floor() - 2.0 + 127.0) as u8
    } else {
        0
    };
    let half = half_scale(block[0]);
    put(&mut block[1..][..ELEMENTS / 2], values, half);
}

pub fn nvfp4(values: &[f32], block: &mut [u8]) {
    let (scales, codes) = block.split_at_mut(4);
    let runs = values
        .chunks_exact(RUN)
        .zip(codes.chunks_exact_mut(RUN / 2));
    for (scale, (values, codes)) in scales.iter_mut().zip(runs) {
        *scale = positive_e4m3(largest(values) / 6.0);
        put(codes, values, fp4_scale(*scale));
    }
}

/// A number from 0 on in e4m3; the bit after the mantissa rounds up.
fn positive_e4m3(number: f32) -> u8 {
    let number = number.min(LARGEST);
    let bits = number.to_bits();
    let exponent = (bits >> 23) as i32 - 127 + 7;
    if exponent <= 0 {
        return ((number * 512.0 + 0.5) as u8).min(7);
    }
    if exponent >= 15 {
        return 0x7e;
    }
    // A mantissa that is rounded up to the next power carries into the exponent.
    let rounded = ((exponent as u32) << 3 | (bits >> 20 & 7)) + (bits >> 19 & 1);
    if rounded >= 15 << 3 {
        0x7e
    } else {
        rounded as u8
    }
}
