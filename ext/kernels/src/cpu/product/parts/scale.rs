//! Which power of two the integers of a row stand for, and which of its numbers are outliers.
//!
//! An integer has 24 bits, so that a number is off by up to 2⁻²³ of that power. One outlier would raise the
//! power for all the others, and a result that needs only those (because the weights of the outlier are
//! small) would lose their digits; f32 itself keeps them. Therefore the power is bounded by the length
//! (the Euclidean norm) of the row without its largest numbers. What does not fit below the bound
//! is an outlier, which `outliers.rs` multiplies in f32.
//!
//! The bound follows from f32's own error. With n inputs, f32 adds an error of about √n · 2⁻²⁵·⁸ of the result's
//! size. Rounding to integers adds 2⁻²³·⁸ · power · √n / length, for each of the two factors. Shares of
//! 0.36 and 0.25 of the length keep the sum of both below 1.8 times the error of f32, for any n. Weights get the
//! smaller share: their outliers are known at load, and rare.

use std::ops::Range;

/// How much of its length the power of a row may be, and that of the weights of an output.
pub(super) const SHARE_OF_ROWS: f32 = 0.36;
pub(super) const SHARE_OF_WEIGHTS: f32 = 0.25;

/// Outliers that a row may have. Without its 15 largest numbers, a row has at most 1 / 0.36² = 7 above its
/// bound: this is never too few.
pub(super) const MOST_OUTLIERS: usize = 32;

/// The bits that the largest number of a row or of an output may have, unless it is 0: those of 2⁻⁵⁰ to
/// 2⁵⁰. Any sum of products is then finite, and the square of none of the largest is lost.
const USUAL: Range<u32> = (127 - 50) << 23..(127 + 50) << 23;

/// 2⁻⁵⁰.
const LEAST: f32 = f32::from_bits(USUAL.start);

const EXPONENT: u32 = 0xff << 23;

/// The largest integer has 127 in all of its parts: 2²³ is less than this times that, whatever rounds.
const ROOM: f32 = 8_388_608.0 / 8_355_000.0;

/// What the highest part counts, where `largest` are the bits of the largest number and `squares` is the sum of the
/// row's squares without outliers; not a number if the largest is not usual. It is a power of two unless the bound is close,
/// so that short numbers have exact integers.
pub(super) fn unit(largest: u32, squares: f32, share: f32) -> f32 {
    match largest {
        0 => 1.0,
        largest if USUAL.contains(&largest) => {
            let largest = f32::from_bits(largest) * ROOM;
            let power = f32::from_bits(largest.to_bits() & EXPONENT);
            let is_below = power * power <= share * share * squares;
            let size = if is_below {
                power
            } else {
                let most = (share * squares.sqrt()).max(LEAST);
                most.min(0.500_001 * largest)
            };
            size / 64.0
        }
        _ => f32::NAN,
    }
}

/// What numbers are multiplied by to become integers, for the unit of their highest part.
pub(super) fn factor(unit: f32) -> f32 {
    65536.0 / unit
}

/// What the size of an outlier, multiplied by `ROOM`, reaches.
pub(super) fn edge(unit: f32) -> (f32, f32) {
    (128.0 * unit, ROOM)
}

/// Whether a number has no integer.
pub(super) fn is_outlier(number: f32, unit: f32) -> bool {
    let (edge, room) = edge(unit);
    number.abs() * room >= edge
}

/// How many of so many numbers the sum of squares leaves out.
fn left_out(inputs: usize) -> usize {
    (inputs / 16).min(15)
}

/// The sum of the squares of a row without its largest numbers.
pub(super) fn trimmed_squares(row: &[f32]) -> f32 {
    let square = |&number: &f32| f64::from(number) * f64::from(number);
    let mut squares: Vec<f64> = row.iter().map(square).collect();
    let kept = squares.len() - left_out(row.len());
    if kept < squares.len() {
        squares.select_nth_unstable_by(kept, f64::total_cmp);
    }
    squares[..kept].iter().sum::<f64>() as f32
}

/// The bits of the largest of some numbers, without its sign; above those of infinity if one is not a
/// number.
pub(super) fn largest(numbers: impl Iterator<Item = f32>) -> u32 {
    numbers
        .map(|number| number.abs().to_bits())
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::test_numbers::numbers;

    fn unit_of(row: &[f32]) -> f32 {
        let largest = largest(row.iter().copied());
        unit(largest, trimmed_squares(row), SHARE_OF_ROWS)
    }

    #[test]
    fn outliers_do_not_change_the_unit_of_the_others() {
        let plain = numbers(384, 1);
        let unit = unit_of(&plain);
        assert!(!plain.iter().any(|&number| is_outlier(number, unit)));
        for count in 1..=15 {
            for size in [1e2, 1e3, 1e6, 1e12] {
                let mut row = plain.clone();
                for number in &mut row[..count] {
                    *number = size;
                }
                let found = unit_of(&row);
                assert!(
                    found <= 8.0 * unit,
                    "{count} of {size}: {found} from {unit}"
                );
                let outliers = row.iter().filter(|&&number| is_outlier(number, found));
                assert_eq!(outliers.count(), count);
            }
        }
    }

    #[test]
    fn a_row_never_has_more_outliers_than_allowed() {
        for seed in 1..200 {
            let row: Vec<f32> = numbers(16 * (seed as usize + 4), seed)
                .iter()
                .map(|number| number.powi(1 + 2 * (seed as i32 % 40)) * 1e3)
                .collect();
            let unit = unit_of(&row);
            let outliers = row.iter().filter(|&&number| is_outlier(number, unit));
            assert!(outliers.count() <= MOST_OUTLIERS);
        }
    }

    #[test]
    fn what_is_not_an_outlier_has_an_integer() {
        for bits in 1.99_f32.to_bits()..2.01_f32.to_bits() {
            let number = f32::from_bits(bits);
            for squares in [f32::MAX, 16.0] {
                let unit = unit(bits, squares, SHARE_OF_ROWS);
                let integer = (number * factor(unit)).round();
                assert!(is_outlier(number, unit) || integer <= 127.0 * 65793.0);
            }
        }
    }
}
