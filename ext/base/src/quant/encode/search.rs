//! Scales and minimums that leave the least weighted error.

use super::{largest, nearest, TINY};

/// What an affine search tries, and how it measures.
pub struct Search {
    pub most: i32,
    pub first: f32,
    pub step: f32,
    pub tries: usize,
    /// Absolute errors, not squares.
    pub absolute: bool,
}

impl Search {
    /// Where the importance of every number is known.
    pub fn weighted(most: i32) -> Self {
        Self {
            most,
            first: -0.9,
            step: 0.05,
            tries: 36,
            absolute: false,
        }
    }
}

/// What stands for a group of numbers: `scale * code - minimum`, with codes from 0 to `most`.
pub struct Affine {
    pub scale: f32,
    pub minimum: f32,
    most: i32,
    /// How codes were found.
    inverse: f32,
    from: f32,
}

impl Affine {
    /// The code that the search gave to a number of the group.
    pub fn code(&self, value: f32) -> u8 {
        code(value, self.inverse, self.from, self.most) as u8
    }
}

fn code(value: f32, inverse: f32, from: f32, most: i32) -> i32 {
    nearest(inverse * (value - from)).clamp(0, most)
}

/// The scale and the minimum of a group that leave the least error.
pub fn affine_search(values: &[f32], weights: &[f32], search: &Search) -> Affine {
    let smaller = |least: f32, value: f32| if value < least { value } else { least };
    // A zero keeps its sign, which the block's minimum has then, too.
    let least = values.iter().copied().fold(values[0], smaller);
    let least = if least > 0.0 { 0.0 } else { least };
    let most = values.iter().copied().fold(values[0], f32::max);
    let mut found = Affine {
        scale: 0.0,
        minimum: -least,
        most: search.most,
        inverse: 0.0,
        from: least,
    };
    if most <= least {
        return found;
    }
    let pairs = || values.iter().zip(weights);
    // Codes are counted from the minimum that was best so far.
    let code = |inverse: f32, from: f32, value: f32| code(value, inverse, from, search.most) as f32;
    let error = |inverse: f32, from: f32, scale: f32, minimum: f32| {
        pairs().fold(0.0, |sum, (&value, weight)| {
            let off = scale * code(inverse, from, value) + minimum - value;
            sum + weight
                * if search.absolute {
                    off.abs()
                } else {
                    off * off
                }
        })
    };
    let (sum_weights, sum_values) = pairs().fold((0.0, 0.0), |(weights, sum), (value, weight)| {
        (weights + weight, sum + weight * value)
    });
    found.inverse = search.most as f32 / (most - least);
    found.scale = 1.0 / found.inverse;
    let mut minimum = least;
    let mut best = error(found.inverse, least, found.scale, minimum);
    for number in 0..=search.tries {
        let from = minimum;
        let inverse =
            (search.first + search.step * number as f32 + search.most as f32) / (most - from);
        let (mut codes, mut squares, mut products) = (0.0, 0.0, 0.0);
        for (&value, weight) in pairs() {
            let code = code(inverse, from, value);
            codes += weight * code;
            squares += weight * code * code;
            products += weight * code * value;
        }
        let determinant = sum_weights * squares - codes * codes;
        if determinant <= 0.0 {
            continue;
        }
        let mut tried = (sum_weights * products - sum_values * codes) / determinant;
        let mut below = (squares * sum_values - codes * products) / determinant;
        if below > 0.0 {
            (below, tried) = (0.0, products / squares);
        }
        let off = error(inverse, from, tried, below);
        if off < best {
            (best, minimum) = (off, below);
            (found.scale, found.inverse, found.from) = (tried, inverse, from);
        }
    }
    found.minimum = -minimum;
    found
}

/// What stands for a group of numbers: `scale * code`, with codes from `-half` to below `half`.
pub struct Signed {
    pub scale: f32,
    half: i32,
    /// How codes were found; `None` for a group of zeros.
    inverse: Option<f32>,
}

impl Signed {
    /// The code that the search gave to a number of the group, counted from the lowest.
    pub fn code(&self, value: f32) -> u8 {
        let limits = (-self.half, self.half - 1);
        self.inverse.map_or(0, |inverse| {
            (nearest(inverse * value).clamp(limits.0, limits.1) + self.half) as u8
        })
    }
}

/// The scale of a group whose codes are around zero, which leaves the least error.
pub fn signed_search(values: &[f32], weights: &[f32], half: i32) -> Signed {
    let farthest = largest(values);
    let mut found = Signed {
        scale: 0.0,
        half,
        inverse: None,
    };
    if farthest.abs() < TINY {
        return found;
    }
    let sums = |inverse: f32| {
        let pairs = values.iter().zip(weights);
        pairs.fold((0.0f32, 0.0f32), |(products, squares), (&value, weight)| {
            let code = nearest(inverse * value).clamp(-half, half - 1) as f32;
            (
                products + weight * value * code,
                squares + weight * code * code,
            )
        })
    };
    let first = -(half as f32) / farthest;
    let (products, squares) = sums(first);
    found.inverse = Some(first);
    found.scale = if squares > 0.0 {
        products / squares
    } else {
        0.0
    };
    let mut best = found.scale * products;
    for number in (-9..=9).filter(|&number| number != 0) {
        let inverse = -(half as f32 + 0.1 * number as f32) / farthest;
        let (products, squares) = sums(inverse);
        if squares > 0.0 && products * products > best * squares {
            found.scale = products / squares;
            found.inverse = Some(inverse);
            best = found.scale * products;
        }
    }
    found
}

/// Codes of numbers, moved one by one while that lessens the error; and their scale.
struct Moved<'a> {
    values: &'a [f32],
    weights: &'a [f32],
    /// What remains of a code in memory.
    stored: fn(i32) -> i32,
    codes: Vec<i32>,
    products: f32,
    squares: f32,
}

impl<'a> Moved<'a> {
    fn new(
        values: &'a [f32],
        weights: &'a [f32],
        mut codes: Vec<i32>,
        stored: fn(i32) -> i32,
    ) -> Self {
        let (mut products, mut squares) = (0.0f32, 0.0f32);
        for ((&value, &weight), code) in values.iter().zip(weights).zip(&mut codes) {
            products += weight * value * *code as f32;
            squares += weight * *code as f32 * *code as f32;
            *code = stored(*code);
        }
        Self {
            values,
            weights,
            stored,
            codes,
            products,
            squares,
        }
    }

    /// Moves codes within limits, in a few rounds. `positive` demands that what is left without a code has a size.
    fn improve(&mut self, limited: impl Fn(i32) -> i32, positive: bool) {
        for _ in 0..5 {
            let mut changed = false;
            for (at, code) in self.codes.iter_mut().enumerate() {
                let (value, weight) = (self.values[at], self.weights[at]);
                let without = self.products - weight * value * *code as f32;
                let square = self.squares - weight * *code as f32 * *code as f32;
                if without <= 0.0 || (positive && square <= 0.0) {
                    continue;
                }
                let other = limited(nearest(value * square / without));
                if other == *code {
                    continue;
                }
                let product = without + weight * value * other as f32;
                let square = square + weight * other as f32 * other as f32;
                let before = self.products * self.products * square;
                if square > 0.0 && product * product * self.squares > before {
                    (*code, self.products, self.squares) = ((self.stored)(other), product, square);
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
    }

    fn scale(&self) -> f32 {
        if self.squares > 0.0 {
            self.products / self.squares
        } else {
            0.0
        }
    }
}

/// The scale of a group of Q3_K without importance, and its codes from 0 on.
pub fn three_bit_search(values: &[f32]) -> (f32, Vec<u8>) {
    const HALF: i32 = 4;
    let farthest = largest(values);
    if farthest.abs() < TINY {
        return (0.0, vec![0; values.len()]);
    }
    let inverse = -(HALF as f32) / farthest;
    let limited = |code: i32| code.clamp(-HALF, HALF - 1);
    let codes = values.iter().map(|value| limited(nearest(inverse * value)));
    let weights: Vec<f32> = values.iter().map(|value| value * value).collect();
    let mut moved = Moved::new(values, &weights, codes.collect(), |code| code);
    moved.improve(limited, false);
    let codes = moved.codes.iter().map(|code| (code + HALF) as u8);
    (moved.scale(), codes.collect())
}

/// Integers up to `most` for numbers from zero on, and the number that one of them stands for.
pub fn whole(numbers: &[f32], most: i32) -> (Vec<u8>, f32) {
    let largest = numbers.iter().copied().fold(0.0, f32::max);
    let inverse = if largest > 0.0 {
        most as f32 / largest
    } else {
        0.0
    };
    let whole = numbers
        .iter()
        .map(|number| nearest(inverse * number).clamp(0, most) as u8);
    (whole.collect(), largest / most as f32)
}

/// A code as a byte has it: llama.cpp counts negative ones from 256 down, which changes what its search finds.
fn byte(code: i32) -> i32 {
    i32::from(code as u8)
}

/// The scale of numbers with weights whose codes are from 0 to `most`.
pub fn positive_scale(numbers: &[f32], weights: &[f32], most: i32) -> f32 {
    whole_weighted(numbers, weights, most).1
}

/// The same with weights, which may leave the largest number a little off.
pub fn whole_weighted(numbers: &[f32], weights: &[f32], most: i32) -> (Vec<u8>, f32) {
    let largest = numbers.iter().copied().fold(0.0, f32::max);
    if largest < TINY {
        return (vec![0; numbers.len()], 0.0);
    }
    let limited = |code: i32| code.min(most);
    let error = |inverse: f32, limited: &dyn Fn(i32) -> i32| {
        let scale = 1.0 / inverse;
        let pairs = numbers.iter().zip(weights);
        pairs.fold(0.0f32, |sum, (&number, weight)| {
            let off = number - scale * limited(nearest(inverse * number)) as f32;
            sum + weight * off * off
        })
    };
    let mut inverse = most as f32 / largest;
    let mut best = error(inverse, &byte);
    for number in (-4..=4).filter(|&number| number != 0) {
        let tried = (0.1 * number as f32 + most as f32) / largest;
        let off = error(tried, &limited);
        if off < best {
            (best, inverse) = (off, tried);
        }
    }
    let codes = numbers
        .iter()
        .map(|number| limited(nearest(inverse * number)));
    let mut moved = Moved::new(numbers, weights, codes.collect(), byte);
    moved.improve(limited, true);
    let scale = moved.scale();
    (moved.codes.iter().map(|&code| code as u8).collect(), scale)
}
