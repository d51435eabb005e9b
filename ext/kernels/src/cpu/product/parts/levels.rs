//! What the sums of parts' products are worth: every level 256 times as much as the next.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::Line;
use crate::cpu::product::amx::TILE;
use crate::cpu::product::driver::Sums;

/// Highest · highest; highest · middle; highest · lowest and middle · middle; middle · lowest.
const LEVELS: usize = 4;

/// Integers of every level, 16 rows of 16 outputs each.
pub(in super::super) struct Levels([[MaybeUninit<Line>; TILE]; LEVELS]);

impl Levels {
    pub const NONE: Self = Self([[MaybeUninit::uninit(); TILE]; LEVELS]);

    pub fn as_mut_ptr(&mut self) -> *mut Line {
        self.0.as_mut_ptr().cast()
    }

    /// Joins and stores some of the rows that wait.
    ///
    /// # Safety
    /// They were stored here, and the CPU has AVX-512.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub unsafe fn join(&self, waiting: &mut Joining<'_>, rows: usize) {
        let till = (waiting.next + rows).min(waiting.units.len());
        // SAFETY: lines are whole vectors, and the maker of what waits vouches for the sums; AVX-512F is enabled.
        unsafe {
            let panel_units = _mm512_load_ps(waiting.panel_units.0.as_ptr().cast());
            let next = _mm512_set1_ps(1.0 / 256.0);
            for row in waiting.next..till {
                let level = |level: usize| {
                    let sums = _mm512_load_si512(self.0[level][row].as_ptr().cast());
                    _mm512_cvtepi32_ps(sums)
                };
                let sum = _mm512_fmadd_ps(level(3), next, level(2));
                let sum = _mm512_fmadd_ps(sum, next, level(1));
                let sum = _mm512_fmadd_ps(sum, next, level(0));
                let sum = _mm512_mul_ps(sum, _mm512_set1_ps(waiting.units[row]));
                _mm512_storeu_ps(waiting.to.row(row), _mm512_mul_ps(sum, panel_units));
            }
        }
        waiting.next = till;
    }
}

/// A block whose levels wait to become its sums.
pub(in super::super) struct Joining<'a> {
    /// Of its rows.
    units: &'a [f32],
    panel_units: &'a Line,
    to: Sums,
    /// The first row that waits.
    next: usize,
}

impl<'a> Joining<'a> {
    pub const NONE: Self = Self {
        units: &[],
        panel_units: &Line([0; 16]),
        to: Sums {
            start: std::ptr::null_mut(),
            stride: 0,
        },
        next: 0,
    };

    /// # Safety
    /// There is room for the sums of as many rows as have a unit.
    pub unsafe fn new(units: &'a [f32], panel_units: &'a Line, to: Sums) -> Self {
        Self {
            units,
            panel_units,
            to,
            next: 0,
        }
    }
}
