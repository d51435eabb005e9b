//! Elementary functions on vectors, to about one unit in the last place of f32.

use super::simd::stored::Vectors;
use super::simd::Simd;
use crate::Activation;

/// coefficients[0] + coefficients[1] · x + …
#[inline(always)]
unsafe fn polynomial<S: Simd, const N: usize>(x: S::V, coefficients: [f32; N]) -> S::V {
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe {
        let mut y = S::splat(coefficients[N - 1]);
        let mut i = N - 1;
        while i > 0 {
            i -= 1;
            y = S::fma(y, x, S::splat(coefficients[i]));
        }
        y
    }
}

/// eˣ: x = n · ln 2 + r, |r| ≤ ln 2 / 2, and a polynomial for eʳ.
#[inline(always)]
pub(super) unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe {
        // Below the least subnormal and above the largest float; a NaN in x passes both.
        let x = S::max(S::splat(-105.0), S::min(S::splat(89.0), x));
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        let r = S::fma(n, S::splat(-0.693_359_4), x);
        let r = S::fma(n, S::splat(2.121_944_4e-4), r);
        let tail = polynomial::<S, 5>(
            r,
            [
                0.5,
                0.166_665_76,
                0.041_666_552,
                0.008_363_233,
                0.001_392_625,
            ],
        );
        let y = S::add(S::fma(S::mul(r, r), tail, r), S::splat(1.0));
        S::scale_by_power(y, n)
    }
}

/// 2ˣ for x up to 127, to 2⁻¹³: enough for what is rounded to bf16.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn rough_power_of_two<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe {
        // A NaN in x passes.
        let x = S::max(S::splat(-150.0), x);
        let n = S::round(x);
        let y = polynomial::<S, 4>(
            S::sub(x, n),
            [0.999_928_06, 0.693_260_97, 0.242_611_13, 0.055_171_67],
        );
        S::scale_by_power(y, n)
    }
}

/// eˣ − 1 − y, without the 1 near 0, where it would cancel.
#[inline(always)]
pub(super) unsafe fn exp_less_line<S: Simd>(x: S::V, y: S::V) -> S::V {
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe {
        let tail = polynomial::<S, 5>(
            x,
            [
                0.5,
                0.166_665_76,
                0.041_666_552,
                0.008_363_233,
                0.001_392_625,
            ],
        );
        let near = S::fma(S::mul(x, x), tail, S::sub(x, y));
        let far = S::sub(S::sub(exp::<S>(x), S::splat(1.0)), y);
        S::select_less(S::abs(x), S::splat(0.34), near, far)
    }
}

/// 1 / (1 + e⁻ˣ).
#[inline(always)]
pub(super) unsafe fn logistic<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe {
        let one = S::splat(1.0);
        S::div(one, S::add(one, exp::<S>(S::sub(S::splat(0.0), x))))
    }
}

/// ln(1 + eˣ) = max(x, 0) + ln(1 + t) with t = e⁻|ˣ|, and that is 2 · artanh(t / (2 + t)), whose series ends early up to 1/3.
#[inline(always)]
pub(super) unsafe fn softplus<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe {
        let zero = S::splat(0.0);
        let t = exp::<S>(S::sub(zero, S::abs(x)));
        let z = S::div(t, S::add(S::splat(2.0), t));
        let series = polynomial::<S, 8>(
            S::mul(z, z),
            [
                2.0,
                2.0 / 3.0,
                2.0 / 5.0,
                2.0 / 7.0,
                2.0 / 9.0,
                2.0 / 11.0,
                2.0 / 13.0,
                2.0 / 15.0,
            ],
        );
        // In this order a NaN stays one.
        S::fma(z, series, S::max(zero, x))
    }
}

/// Half of erfc(|x| / √2), exact in the far tail, too, where 1 + erf would cancel.
#[inline(always)]
unsafe fn upper_tail<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe {
        let z = S::mul(S::abs(x), S::splat(std::f32::consts::FRAC_1_SQRT_2));
        let z = S::min(S::splat(10.5), z);
        let square = S::mul(z, z);
        let t = S::reciprocal(S::fma(z, S::splat(0.5), S::splat(1.0)));
        // e^(z²) · erfc(z) / t as a polynomial in t = 1 / (1 + z / 2), relative error below 5e-8.
        let scaled = polynomial::<S, 9>(
            t,
            [
                0.282_086_04,
                0.282_381_95,
                0.243_055_61,
                0.202_876_75,
                -0.027_073_052,
                0.278_714_78,
                -0.487_764_5,
                0.284_847,
                -0.059_124_596,
            ],
        );
        let half_exponential = S::mul(S::splat(0.5), exp::<S>(S::sub(S::splat(0.0), square)));
        S::mul(S::mul(half_exponential, t), scaled)
    }
}

/// x · Φ(x), wherever x lies.
#[inline(always)]
pub(super) unsafe fn gelu<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe {
        let tail = upper_tail::<S>(x);
        let probability = S::select_less(x, S::splat(0.0), tail, S::sub(S::splat(1.0), tail));
        S::mul(x, probability)
    }
}

/// 0.5 · (1 + tanh u) is the logistic function of 2u, which does not cancel.
#[inline(always)]
unsafe fn gelu_tanh<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe {
        let cube = S::mul(S::mul(x, x), x);
        let u = S::fma(S::splat(0.044_715), cube, x);
        let twice = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::SQRT_2;
        S::mul(x, logistic::<S>(S::mul(S::splat(twice), u)))
    }
}

/// An odd polynomial near 0, where 1 − 2 / (e²ˣ + 1) would cancel.
#[inline(always)]
pub(super) unsafe fn tanh<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe {
        let square = S::mul(x, x);
        let near = polynomial::<S, 6>(
            square,
            [
                -0.333_333_34,
                0.133_333_1,
                -0.053_960_856,
                0.021_782_245,
                -0.008_388_771,
                0.002_344_928_4,
            ],
        );
        let near = S::fma(S::mul(near, square), x, x);
        let one = S::splat(1.0);
        let growth = exp::<S>(S::add(x, x));
        let far = S::sub(one, S::div(S::splat(2.0), S::add(growth, one)));
        S::select_less(S::abs(x), S::splat(0.6), near, far)
    }
}

#[inline(always)]
pub(super) unsafe fn activation<S: Simd>(x: S::V, activation: Activation) -> S::V {
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe {
        let zero = S::splat(0.0);
        match activation {
            Activation::Gelu => S::gelu(x),
            Activation::GeluTanh => gelu_tanh::<S>(x),
            Activation::QuickGelu => S::mul(x, logistic::<S>(S::mul(S::splat(1.702), x))),
            Activation::Silu => S::mul(x, logistic::<S>(x)),
            Activation::Relu => S::select_less(x, zero, zero, x),
            Activation::ReluSquared => {
                let positive = S::select_less(x, zero, zero, x);
                S::mul(positive, positive)
            }
            Activation::Relu6 => {
                let six = S::splat(6.0);
                S::select_less(six, x, six, S::select_less(x, zero, zero, x))
            }
            Activation::Tanh => tanh::<S>(x),
            Activation::Sigmoid => logistic::<S>(x),
            Activation::Identity => x,
        }
    }
}

/// The same, as exact as what it is stored in.
#[inline(always)]
pub(super) unsafe fn stored_activation<S: Simd, N: Vectors<S>>(
    x: S::V,
    function: Activation,
) -> S::V {
    // SAFETY: the caller has the instruction set; this touches registers alone.
    unsafe {
        match function {
            Activation::Gelu if N::ROUGH => S::rough_gelu(x),
            _ => activation::<S>(x, function),
        }
    }
}
