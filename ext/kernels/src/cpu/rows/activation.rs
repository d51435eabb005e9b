//! Activations, alone or as the gate of a product.

use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::lanes::for_lanes;
use crate::cpu::math;
use crate::cpu::simd::Simd;
use crate::cpu::{build, for_each_range, read, with_scratch, write, Element, RowView};
use crate::Activation;

/// How many elements of a contiguous tensor are one row.
pub(super) const BLOCK: usize = 1024;

/// An activation takes as long as copying about this many elements.
const COST: usize = 4;

/// Runs `$body` with `$a` a constant, so that no loop decides for each vector.
macro_rules! for_constant {
    ($activation:expr, $a:ident => $body:block) => {
        match $activation {
            Activation::Gelu => {
                const $a: Activation = Activation::Gelu;
                $body
            }
            Activation::GeluTanh => {
                const $a: Activation = Activation::GeluTanh;
                $body
            }
            Activation::QuickGelu => {
                const $a: Activation = Activation::QuickGelu;
                $body
            }
            Activation::Silu => {
                const $a: Activation = Activation::Silu;
                $body
            }
            Activation::Relu => {
                const $a: Activation = Activation::Relu;
                $body
            }
            Activation::Tanh => {
                const $a: Activation = Activation::Tanh;
                $body
            }
            Activation::Sigmoid => {
                const $a: Activation = Activation::Sigmoid;
                $body
            }
            Activation::ReluSquared => {
                const $a: Activation = Activation::ReluSquared;
                $body
            }
            Activation::Relu6 => {
                const $a: Activation = Activation::Relu6;
                $body
            }
            Activation::Identity => {
                const $a: Activation = Activation::Identity;
                $body
            }
        }
    };
}
pub(crate) use for_constant;

/// out = activation(x), or activation(x) · up where `up` is not null.
#[inline(always)]
unsafe fn activate_row_with<S: Simd>(
    x: *const f32,
    up: *const f32,
    out: *mut f32,
    width: usize,
    activation: Activation,
) {
    // SAFETY: `x`, `out` and, unless null, `up` have `width` numbers, as the caller vouches, and all lanes lie
    // within; the caller has the instruction set.
    unsafe {
        for_constant!(activation, A => {
            if up.is_null() {
                for_lanes!(S, width, lanes => {
                    lanes.store::<S>(out, math::activation::<S>(lanes.load::<S>(x), A));
                });
            } else {
                for_lanes!(S, width, lanes => {
                    let gate = math::activation::<S>(lanes.load::<S>(x), A);
                    lanes.store::<S>(out, S::mul(gate, lanes.load::<S>(up)));
                });
            }
        });
    }
}

dispatched! {
    pub unsafe fn activate_row(
        x: *const f32, up: *const f32, out: *mut f32, width: usize, activation: Activation,
    ) = activate_row_with
}

pub fn activate<T: Element>(isa: Isa, x: &mut RowView<'_, T>, activation: Activation) -> Vec<T> {
    if let Some(rows) = x.rows.rewidth(BLOCK) {
        x.rows = rows;
    }
    gated(isa, x, None, activation)
}

pub fn gated<T: Element>(
    isa: Isa,
    gate: &RowView<'_, T>,
    up: Option<&RowView<'_, T>>,
    activation: Activation,
) -> Vec<T> {
    let width = gate.rows.width;
    // SAFETY: rows of both have the width, and the instruction set is the machine's.
    combined(isa, gate, up, |x, up, to| unsafe {
        activate_row(isa, x, up, to, width, activation);
    })
}

/// What `compute` makes of each row of `gate` and, if there is one, of `up`, which is null otherwise: it writes a row of
/// f32 where its third argument points to.
pub(super) fn combined<T: Element>(
    isa: Isa,
    gate: &RowView<'_, T>,
    up: Option<&RowView<'_, T>>,
    compute: impl Fn(*const f32, *const f32, *mut f32) + Sync,
) -> Vec<T> {
    let (rows, width) = (gate.rows.count, gate.rows.width);
    // SAFETY: every row of the output is written once.
    unsafe {
        build(rows * width, |out| {
            for_each_range(rows, COST * width, |range| {
                with_scratch(3 * width, |scratch| {
                    let (first, rest) = scratch.split_at_mut(width);
                    let (second, to) = rest.split_at_mut(width);
                    for row in range {
                        let x = read(isa, gate.row(row), first).as_ptr();
                        let up = match up {
                            Some(up) => read(isa, up.row(row), second).as_ptr(),
                            None => std::ptr::null(),
                        };
                        write(isa, out.at(row * width), to, |to| compute(x, up, to));
                    }
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;

    fn gelu(isa: Isa, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        // SAFETY: both have the width, and the instruction set is one of this machine's.
        unsafe {
            activate_row(
                isa,
                x.as_ptr(),
                std::ptr::null(),
                out.as_mut_ptr(),
                x.len(),
                Activation::Gelu,
            );
        }
        out
    }

    #[test]
    fn gelu_has_its_digits_everywhere_and_ignores_its_neighbours() {
        let x: Vec<f32> = (0..20_000).map(|i| -9.0 + i as f32 * 0.9e-3).collect();
        let odd = [f32::NAN, f32::NEG_INFINITY, -1e30, f32::INFINITY, -6.25];
        for isa in Isa::of_numbers() {
            let has_pieces = isa.for_numbers() == "avx512";
            let allowed = |x: f32| match (has_pieces && x >= -6.25, x >= -4.0) {
                (true, true) => 3e-7,
                (true, false) => 3e-6,
                (false, true) => 1.5e-6,
                (false, false) => 2e-5,
            };
            let plain = gelu(isa, &x);
            for (&x, &got) in x.iter().zip(&plain) {
                let want = reference::activation(f64::from(x), Activation::Gelu);
                let apart = (f64::from(got) - want).abs();
                assert!(
                    apart <= allowed(x) * want.abs(),
                    "{} at {x}: {got}",
                    isa.name()
                );
            }
            for other in odd {
                let mut x = x.clone();
                x.iter_mut().step_by(16).for_each(|x| *x = other);
                for (i, (got, plain)) in gelu(isa, &x).iter().zip(&plain).enumerate() {
                    assert!(i % 16 == 0 || got == plain, "{} beside {other}", isa.name());
                }
            }
            let ends = gelu(isa, &odd);
            assert!(ends[0].is_nan() && ends[2] == 0.0 && ends[3] == f32::INFINITY);
        }
    }
}
