//! Groups that are multiplied row by row: their codes are unpacked once, and a row has its sums in registers from its
//! first step to its last, so that only totals have to stay there for all rows.

use super::format::Format;
use super::integers::Integers;
use super::place::Place;
use super::product::{add_second_run, add_sums, half_codes, scale_first_run, Coding, Number};
use super::quantize::{JOINED_SUMS, PLANES};
use super::rows::Rows;

/// Multiplies a group and adds it to the panels' totals.
#[inline(always)]
pub(super) unsafe fn add_group<S: Integers, F: Format, const R: usize, const P: usize>(
    totals: &mut [[Number<S>; R]; P],
    places: &[Place<Number<S>>; P],
    coding: &Coding,
    rows: &Rows,
    group: usize,
) {
    const { assert!(JOINED_SUMS || !S::BY_HALVES) };
    let offset = if F::WIDE { S::WIDE_OFFSET } else { F::OFFSET };
    // SAFETY: the places are those of a group of this format, and the rows have it, R of them, as the caller
    // vouches, who has the instruction set; `panel` is below P, and `r` below R.
    unsafe {
        let mut panel = 0;
        while panel < P {
            let place = &places[panel];
            let (low, high) = place.planes;
            let first = half_codes::<S, F, 0>(low, high, coding);
            let second = half_codes::<S, F, 1>(low, high, coding);
            let mut r = 0;
            while r < R {
                let row = rows.starting_at(r);
                let x = row.in_group(group);
                let [begin, end] = row.group(0, PLANES - 1, group).byte_sums;
                let total = std::array::from_mut(&mut totals[panel][r]);
                let half = row.half(0, group, 0, S::JOINS_PLANES);
                if F::RUNS {
                    let sums = dot_half::<S, F>(S::begin([0, -offset * begin]), &first, half);
                    let run = scale_first_run::<S, 1>(place, &[sums]);
                    let half = row.half(0, group, 1, S::JOINS_PLANES);
                    let sums = dot_half::<S, F>(S::begin([0, -offset * end]), &second, half);
                    add_second_run::<S, F, 1>(total, place, (run, &[sums]), &x);
                } else {
                    let sums = S::begin([0, -offset * (begin + end)]);
                    let sums = dot_half::<S, F>(sums, &first, half);
                    let half = row.half(0, group, 1, S::JOINS_PLANES);
                    let sums = dot_half::<S, F>(sums, &second, half);
                    add_sums::<S, F, 1>(total, place, &[sums], &x);
                }
                r += 1;
            }
            panel += 1;
        }
    }
}

#[inline(always)]
unsafe fn dot_half<S: Integers, F: Format>(
    sums: [S::V; PLANES],
    codes: &[S::V; 4],
    x: [*const i8; PLANES],
) -> [S::V; PLANES] {
    // SAFETY: the caller vouches for the 16 inputs of both planes and has the instruction set.
    unsafe {
        if F::WIDE {
            S::dot_half::<true>(sums, codes, x)
        } else {
            S::dot_half::<false>(sums, codes, x)
        }
    }
}
