//! Whether AVX512-BF16 multiplies faster than AVX-512 multiplies f32, which differs between processors that have both.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::pairs;
use crate::cpu::isa::Isa;
use crate::cpu::product::driver::Sums;
use crate::cpu::product::gemm::{self, multiply_cached_panel};
use crate::cpu::product::panels::PANEL;

/// Whole tiles; with a panel they stay in the first-level cache.
const ROWS: usize = 12;
const INPUTS: usize = 64;
/// Products of a round: a few microseconds.
const PRODUCTS: usize = 8;
/// Any of them may be disturbed; the shortest counts.
const ROUNDS: usize = 24;

/// Takes about a tenth of a millisecond. Pairs are twice as fast as f32 or slower than it; what lies between counts as
/// slower, so that every process finds the same.
///
/// # Safety
/// The CPU has AVX-512 and AVX512-BF16.
pub unsafe fn pairs_are_faster() -> bool {
    let (rows, panel) = ([1.0f32; ROWS * INPUTS], [1.0f32; INPUTS * PANEL]);
    let mut sums = [0.0f32; ROWS * PANEL];
    let to = Sums {
        start: sums.as_mut_ptr(),
        stride: PANEL,
    };
    let singles = gemm::Operands {
        x: rows.as_ptr(),
        x_stride: INPUTS,
        panel: panel.as_ptr(),
        inputs: INPUTS,
    };
    // The same memory, half of it, as pairs.
    let pairs = pairs::Operands {
        x: rows.as_ptr().cast(),
        panel: panel.as_ptr().cast(),
        pairs: INPUTS / 2,
    };
    let (mut of_singles, mut of_pairs) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        of_singles = shortest_of(of_singles, || {
            // SAFETY: x has the rows, the panel the inputs and the sums room for both; the caller vouches for the CPU.
            unsafe { multiply_cached_panel(Isa::Avx512, black_box(singles), ROWS, to) }
        });
        of_pairs = shortest_of(of_pairs, || {
            // SAFETY: as above, with half of the memory; the caller vouches for AVX512-BF16.
            unsafe { pairs::multiply(black_box(pairs), ROWS, to) }
        });
    }
    of_pairs * 4 < of_singles * 3
}

fn shortest_of(known: Duration, work: impl Fn()) -> Duration {
    let start = Instant::now();
    for _ in 0..PRODUCTS {
        work();
    }
    known.min(start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(miri))]
    fn the_choice_is_the_same_every_time() {
        if !Isa::available().contains(&Isa::Avx512Bf16) {
            return;
        }
        // SAFETY: the set is available.
        let choices = [(); 50].map(|()| unsafe { pairs_are_faster() });
        assert!(choices.iter().all(|&choice| choice == choices[0]));
    }
}
