//! What follows the sums of a product: bias, activation, residual, and rounding to what is stored.

use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::math;
use crate::cpu::product::driver::Sums;
#[cfg(target_arch = "x86_64")]
use crate::cpu::product::half_matrix::multiplies_bf16;
use crate::cpu::rows::activation::for_constant;
#[cfg(target_arch = "x86_64")]
use crate::cpu::simd::stored::NativeBf16;
use crate::cpu::simd::stored::{for_stored, Vectors};
#[cfg(target_arch = "x86_64")]
use crate::cpu::simd::Avx512;
use crate::cpu::simd::Simd;
use crate::cpu::Stored;
use crate::Activation;

/// What follows the product, in this order.
#[derive(Clone, Copy)]
pub struct GemmEpilogue<'a, T = f32> {
    /// [outputs].
    pub bias: Option<&'a [f32]>,
    pub activation: Option<Activation>,
    /// [rows, outputs].
    pub residual: Option<&'a [T]>,
}

impl<T> Default for GemmEpilogue<'_, T> {
    fn default() -> Self {
        Self {
            bias: None,
            activation: None,
            residual: None,
        }
    }
}

impl<T> GemmEpilogue<'_, T> {
    /// Panics unless it fits a product of [rows, outputs].
    pub(super) fn check(&self, rows: usize, outputs: usize) {
        assert!(self.bias.is_none_or(|bias| bias.len() == outputs));
        assert!(self.residual.is_none_or(|r| r.len() == rows * outputs));
    }
}

/// The epilogue of some rows and columns of a product.
#[derive(Clone, Copy)]
pub(super) struct Finish {
    /// Rows of whole vectors; may be `out` itself.
    pub sums: Sums,
    pub rows: usize,
    pub columns: usize,
    /// May be null.
    pub bias: *const f32,
    pub activation: Option<Activation>,
    /// May be null; rows of `stride` numbers, like `out`.
    pub residual: *const u8,
    pub out: *mut u8,
    pub stride: usize,
    pub stored: Stored,
}

impl Finish {
    /// # Safety
    /// Every pointer that is not null has the rows and columns.
    pub unsafe fn run(self, isa: Isa) {
        let follows = !self.bias.is_null() || self.activation.is_some() || !self.residual.is_null();
        if follows || !self.is_in_place() {
            #[cfg(target_arch = "x86_64")]
            if self.stored == Stored::Bf16 && multiplies_bf16(isa) {
                // SAFETY: the caller vouches for the pointers; an `Isa` that multiplies bf16 comes from detection, so
                // the CPU has AVX512-BF16.
                return unsafe { finish_natively(self) };
            }
            // SAFETY: the caller vouches for the pointers.
            unsafe { finish(isa, self) };
        }
    }

    #[inline(always)]
    fn is_in_place(&self) -> bool {
        self.sums.start.cast() == self.out
    }
}

#[inline(always)]
unsafe fn finish_with<S: Simd>(finish: Finish) {
    // SAFETY: the caller vouches that every pointer has the rows and columns of what is stored, and has the
    // instruction set.
    unsafe { for_stored!(finish.stored, N => finish_rows::<S, N>(finish)) }
}

dispatched! {
    unsafe fn finish(finish: Finish) = finish_with
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn finish_natively(finish: Finish) {
    // SAFETY: the caller vouches for the pointers; AVX-512 with AVX512-BF16 is enabled.
    unsafe { finish_rows::<Avx512, NativeBf16>(finish) }
}

#[inline(always)]
unsafe fn finish_rows<S: Simd, N: Vectors<S>>(finish: Finish) {
    // SAFETY: the caller vouches for the pointers, and has the instruction set.
    unsafe {
        match finish.activation {
            None => store_rows::<S, N>(finish, Activation::Identity),
            Some(activation) => for_constant!(activation, A => {
                store_rows::<S, N>(finish, A);
            }),
        }
    }
}

#[inline(always)]
unsafe fn store_rows<S: Simd, N: Vectors<S>>(finish: Finish, activation: Activation) {
    // SAFETY: `row` is one of those that the caller vouches the sums, the residual unless null, and the output
    // have, `stride` apart; the caller has the instruction set.
    unsafe {
        for row in 0..finish.rows {
            let at = row * finish.stride;
            let line = Line {
                sums: finish.sums.row(row),
                bias: finish.bias,
                residual: if finish.residual.is_null() {
                    std::ptr::null()
                } else {
                    finish.residual.cast::<N::Number>().add(at)
                },
                out: finish.out.cast::<N::Number>().add(at),
            };
            line.store::<S, N>(finish.columns, activation);
        }
    }
}

/// One row of a product.
#[derive(Clone, Copy)]
struct Line<T> {
    sums: *const f32,
    /// May be null, and so may the residual.
    bias: *const f32,
    residual: *const T,
    out: *mut T,
}

impl<T: Copy + Default> Line<T> {
    /// Everything that follows the sums, in one pass, rounded to what is stored.
    #[inline(always)]
    unsafe fn store<S: Simd, N: Vectors<S, Number = T>>(
        self,
        columns: usize,
        activation: Activation,
    ) {
        let Self {
            sums,
            bias,
            residual,
            out,
        } = self;
        // SAFETY: all have `columns` numbers, as the caller vouches; the sums go on to a whole vector, and the
        // others are read and written up to the last column. The caller has the instruction set.
        unsafe {
            let mut i = 0;
            while i + S::LANES <= columns {
                let mut v = S::load(sums.add(i));
                if !bias.is_null() {
                    v = S::add(v, S::load(bias.add(i)));
                }
                v = math::stored_activation::<S, N>(v, activation);
                if !residual.is_null() {
                    v = S::add(v, N::load(residual.add(i)));
                }
                N::store(out.add(i), v);
                i += S::LANES;
            }
            let rest = columns - i;
            if rest > 0 {
                // The padding of a short panel lies within the row of sums.
                let mut v = S::load(sums.add(i));
                if !bias.is_null() {
                    v = S::add(v, S::load_first(bias.add(i), rest));
                }
                v = math::stored_activation::<S, N>(v, activation);
                if !residual.is_null() {
                    v = S::add(v, N::load_first(residual.add(i), rest));
                }
                N::store_first(out.add(i), v, rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;

    /// GELU of sums without anything else, as bf16.
    fn gelu(isa: Isa, sums: &mut [f32]) -> Vec<f32> {
        let mut out = vec![0u16; sums.len()];
        let finish = Finish {
            sums: Sums {
                start: sums.as_mut_ptr(),
                stride: sums.len(),
            },
            rows: 1,
            columns: sums.len(),
            bias: std::ptr::null(),
            activation: Some(Activation::Gelu),
            residual: std::ptr::null(),
            out: out.as_mut_ptr().cast(),
            stride: sums.len(),
            stored: Stored::Bf16,
        };
        // SAFETY: both have the columns, whole vectors of them.
        unsafe { finish.run(isa) };
        out.into_iter()
            .map(|bits| half::bf16::from_bits(bits).to_f32())
            .collect()
    }

    #[test]
    fn gelu_rounded_to_bf16_has_its_digits_and_ignores_its_neighbours() {
        let count = if cfg!(miri) { 320 } else { 20_480 };
        let x: Vec<f32> = (0..count)
            .map(|i| -9.0 + i as f32 * 18.0 / count as f32)
            .collect();
        let odd = [f32::NAN, f32::NEG_INFINITY, -1e30, f32::INFINITY, -6.25];
        for &isa in Isa::available() {
            let plain = gelu(isa, &mut x.clone());
            for (&x, &got) in x.iter().zip(&plain) {
                let want = reference::activation(f64::from(x), Activation::Gelu);
                // Half the distance of two neighbours, and what the function itself may be off.
                let own = if x > -4.0 {
                    2f64.powi(-13)
                } else {
                    2f64.powi(-10)
                };
                let allowed = (2f64.powi(-8) + own) * want.abs();
                let apart = (f64::from(got) - want).abs();
                assert!(apart <= allowed, "{} at {x}: {got}", isa.name());
            }
            for other in odd {
                let mut x = x.clone();
                x.iter_mut().step_by(16).for_each(|x| *x = other);
                let found = gelu(isa, &mut x);
                for (i, (got, plain)) in found.iter().zip(&plain).enumerate() {
                    assert!(i % 16 == 0 || got == plain, "{} beside {other}", isa.name());
                }
            }
            let mut ends = odd.to_vec();
            ends.resize(16, 0.0);
            let ends = gelu(isa, &mut ends);
            assert!(ends[0].is_nan() && ends[2] == 0.0 && ends[3] == f32::INFINITY);
        }
    }
}
