//! What the kernel of samplers is told of a row, and what it says.

use crate::sampling::{Found, Want};
use crate::Largest;

/// Of what is wanted of a row, and of what is said of it; as in `sampling.metal`.
pub const WORDS: usize = 4;
/// As in `sampling.metal`.
pub const NONE: u32 = u32::MAX;
/// Of a digit of a count.
const DIGIT: u32 = 31;

/// 1 / temperature as the sum of two floats, 0 where nothing is weighed; then two digits of the random number.
pub fn want(want: &Want) -> [u32; WORDS] {
    let weighs = want.temperature > 0.0;
    let inverse = if weighs {
        1.0 / f64::from(want.temperature)
    } else {
        0.0
    };
    let high = inverse as f32;
    let low = (inverse - f64::from(high)) as f32;
    let unit = f64::from(1u32 << DIGIT);
    let [first, second] = match want.uniform {
        Some(uniform) if weighs => {
            let first = (uniform * unit).floor();
            [first as u32, ((uniform * unit - first) * unit) as u32]
        }
        _ => [NONE, 0],
    };
    [high.to_bits(), low.to_bits(), first, second]
}

/// What is wanted of a row, of its largest numbers in the order of places, of which there may be more, and of what the
/// kernel says.
pub fn found(want: &Want, mut largest: Largest, said: &[u32]) -> Found {
    if largest.len() > want.count {
        // Of equal ones the first stay first.
        largest.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap_or(std::cmp::Ordering::Equal));
        largest.truncate(want.count);
        largest.sort_unstable_by_key(|&(place, _)| place);
    }
    let (total, drawn) = match *said {
        [high, higher, low, drawn] => {
            let high = u64::from(high) | u64::from(higher) << 32;
            let unit = f64::from(1u32 << DIGIT);
            let total = high as f64 / unit + f64::from(low) / unit / unit;
            (total, (drawn != NONE).then_some(drawn))
        }
        _ => (0.0, None),
    };
    Found {
        largest,
        total,
        drawn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANT: Want = Want {
        count: 2,
        temperature: 0.7,
        uniform: Some(0.3),
    };

    #[test]
    fn numbers_keep_their_bits_as_floats_and_digits() {
        let [high, low, first, second] = want(&WANT);
        let inverse = f64::from(f32::from_bits(high)) + f64::from(f32::from_bits(low));
        assert!((inverse * f64::from(WANT.temperature) - 1.0).abs() < 2f64.powi(-47));
        let uniform = f64::from(first) / 2f64.powi(31) + f64::from(second) / 2f64.powi(62);
        assert_eq!(uniform, 0.3);
        let plain = |temperature, uniform| {
            want(&Want {
                temperature,
                uniform,
                ..WANT
            })
        };
        assert_eq!(plain(0.0, Some(0.3)), [0, 0, NONE, 0]);
        assert_eq!(plain(1.0, None), [1f32.to_bits(), 0, NONE, 0]);
        assert_eq!(plain(1.0, Some(1.0 - f64::EPSILON / 2.0))[2], (1 << 31) - 1);
    }

    #[test]
    fn what_is_said_is_read() {
        let largest = vec![(1, 2.0), (4, 3.0), (5, 2.0)];
        // 2^-31 (2^32 + 3) + 2^-62.
        let read = found(&WANT, largest.clone(), &[3, 1, 1, 4]);
        assert_eq!(read.largest, [(1, 2.0), (4, 3.0)]);
        assert_eq!(read.drawn, Some(4));
        assert_eq!(read.total, 2.0 + 3.0 / 2f64.powi(31) + 2f64.powi(-62));
        let none = found(&Want::default(), largest, &[0, 0, 0, NONE]);
        assert_eq!(none, Found::default());
    }
}
