//! From coefficients to samples, and from those of each component to pixels: as libjpeg does, whose
//! rounding every other program's pictures have.

use std::num::Wrapping;

use super::frame::Component;

/// Of constants, and of what stands between the two passes.
const CONSTANT: usize = 13;
const BETWEEN: usize = 2;

/// Wraps where damaged files have numbers that no picture has.
type Number = Wrapping<i32>;

/// 8 rows of 8 numbers.
type Block = [[Number; 8]; 8];

/// The inverse cosine transforms of 8 columns, times 2^13 · √8, without the lowest bits of the result.
#[inline(always)]
fn transform(rows: &Block, bits: usize) -> Block {
    let mut result = [[Wrapping(0); 8]; 8];
    // Columns do not touch each other, so that the compiler computes several at a time.
    for column in 0..8 {
        let x: [Number; 8] = std::array::from_fn(|row| rows[row][column]);
        let times = |number: Number, factor: i32| number * Wrapping(factor);
        let shared = times(x[2] + x[6], 4433);
        let (even2, even3) = (shared - times(x[6], 15_137), shared + times(x[2], 6270));
        let (even0, even1) = ((x[0] + x[4]) << CONSTANT, (x[0] - x[4]) << CONSTANT);
        let sums = [even0 + even3, even1 + even2, even1 - even2, even0 - even3];
        let turned = times(x[7] + x[3] + x[5] + x[1], 9633);
        let (a, b) = (times(x[7] + x[1], -7373), times(x[5] + x[3], -20_995));
        let c = times(x[7] + x[3], -16_069) + turned;
        let d = times(x[5] + x[1], -3196) + turned;
        let odd = [
            times(x[1], 12_299) + a + d,
            times(x[3], 25_172) + b + c,
            times(x[5], 16_819) + b + d,
            times(x[7], 2446) + a + c,
        ];
        for (at, (sum, odd)) in sums.into_iter().zip(odd).enumerate() {
            result[at][column] = descaled(sum + odd, bits);
            result[7 - at][column] = descaled(sum - odd, bits);
        }
    }
    result
}

#[inline(always)]
fn descaled(value: Number, bits: usize) -> Number {
    (value + Wrapping(1 << (bits - 1))) >> bits
}

#[inline(always)]
fn transposed(rows: &Block) -> Block {
    std::array::from_fn(|row| std::array::from_fn(|column| rows[column][row]))
}

/// The samples of a block, row by row.
#[inline(always)]
pub fn block(coefficients: &[i16; 64], table: &[u16; 64]) -> [u8; 64] {
    let sample = |value: Number| (value + Wrapping(128)).0.clamp(0, 255) as u8;
    let mut scaled = [[Wrapping(0); 8]; 8];
    for (number, row) in scaled.iter_mut().enumerate() {
        for (column, value) in row.iter_mut().enumerate() {
            let at = 8 * number + column;
            *value = Wrapping(i32::from(coefficients[at])) * Wrapping(i32::from(table[at]));
        }
    }
    if coefficients[1..].iter().fold(0, |all, &one| all | one) == 0 {
        return [sample(descaled(scaled[0][0], 3)); 64];
    }
    let between = transposed(&transform(&scaled, CONSTANT - BETWEEN));
    let found = transform(&between, CONSTANT + BETWEEN + 3);
    let mut samples = [0u8; 64];
    for (column, values) in found.iter().enumerate() {
        for (row, &value) in values.iter().enumerate() {
            samples[8 * row + column] = sample(value);
        }
    }
    samples
}

/// A component's samples, row by row.
pub struct Plane {
    samples: Vec<u8>,
    stride: usize,
    /// What belongs to the picture.
    width: usize,
    height: usize,
    /// How often its samples go into the picture's pixels, across and down.
    across: usize,
    down: usize,
}

impl Plane {
    #[inline(always)]
    pub fn new(component: &Component, (across, down): (usize, usize)) -> Self {
        let stride = component.columns * 8;
        let mut samples = vec![0u8; stride * component.rows * 8];
        let (blocks, _) = component.coefficients.as_chunks::<64>();
        let lines = samples.chunks_exact_mut(8 * stride);
        for (blocks, lines) in blocks.chunks_exact(component.columns).zip(lines) {
            for (column, coefficients) in blocks.iter().enumerate() {
                let found = block(coefficients, &component.table);
                for (y, line) in found.chunks_exact(8).enumerate() {
                    let start = y * stride + column * 8;
                    lines[start..start + 8].copy_from_slice(line);
                }
            }
        }
        Self {
            samples,
            stride,
            width: component.width,
            height: component.height,
            across,
            down,
        }
    }

    #[inline(always)]
    fn row(&self, y: usize) -> &[u8] {
        let y = y.min(self.height - 1);
        &self.samples[y * self.stride..][..self.width]
    }

    /// The samples of a row of pixels, of which there are at least `row.len()`.
    #[inline(always)]
    pub fn upsample(&self, y: usize, sums: &mut Vec<i32>, row: &mut [u8]) {
        let near = y / self.down;
        let below = y % 2 == 1;
        let far = if below {
            near + 1
        } else {
            near.saturating_sub(1)
        };
        match (self.across, self.down) {
            (1, 2) => {
                let pairs = self.row(near).iter().zip(self.row(far));
                let bias = 1 + i32::from(below);
                for (pixel, (&near, &far)) in row.iter_mut().zip(pairs) {
                    *pixel = ((3 * i32::from(near) + i32::from(far) + bias) >> 2) as u8;
                }
            }
            (2, down @ (1 | 2)) if self.width > 2 => {
                sums.clear();
                match down {
                    1 => sums.extend(self.row(near).iter().map(|&sample| i32::from(sample))),
                    _ => {
                        let pairs = self.row(near).iter().zip(self.row(far));
                        sums.extend(pairs.map(|(&a, &b)| 3 * i32::from(a) + i32::from(b)));
                    }
                }
                // Rounding goes up on one side and down on the other.
                let (shift, left, right) = match down {
                    1 => (2, 1, 2),
                    _ => (4, 8, 7),
                };
                double(sums, (shift, left, right), row);
            }
            (1, _) => {
                let samples = self.row(near);
                let count = row.len().min(samples.len());
                row[..count].copy_from_slice(&samples[..count]);
            }
            (across, _) => {
                let samples = self.row(near);
                for (x, pixel) in row.iter_mut().enumerate() {
                    *pixel = samples[(x / across).min(samples.len() - 1)];
                }
            }
        }
    }
}

/// Between two neighbours there are two pixels, three parts of the nearer and one of the other each. There are more
/// than two of them.
#[inline(always)]
fn double(sums: &[i32], (shift, left, right): (i32, i32, i32), row: &mut [u8]) {
    let last = sums.len() - 1;
    let edges = [
        (0, 4 * sums[0] + left),
        (1, 3 * sums[0] + sums[1] + right),
        (2 * last, 3 * sums[last] + sums[last - 1] + left),
        (2 * last + 1, 4 * sums[last] + right),
    ];
    for (at, sum) in edges {
        if let Some(pixel) = row.get_mut(at) {
            *pixel = (sum >> shift) as u8;
        }
    }
    let inner = row.get_mut(2..).unwrap_or_default();
    for (pair, near) in inner.chunks_exact_mut(2).zip(sums.windows(3)) {
        pair[0] = ((3 * near[1] + near[0] + left) >> shift) as u8;
        pair[1] = ((3 * near[1] + near[2] + right) >> shift) as u8;
    }
}

/// Makes red, green and blue of lines of brightness and two differences of colour.
#[inline(always)]
pub fn colours([first, second, third]: [&mut [u8]; 3]) {
    for ((a, b), c) in first.iter_mut().zip(second).zip(third) {
        [*a, *b, *c] = colour([*a, *b, *c]);
    }
}

/// Red, green and blue of brightness and two differences of colour.
#[inline(always)]
fn colour([y, blue, red]: [u8; 3]) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    let (y, blue, red) = (i32::from(y), i32::from(blue) - 128, i32::from(red) - 128);
    [
        y + ((91_881 * red + HALF) >> 16),
        y + ((-22_554 * blue - 46_802 * red + HALF) >> 16),
        y + ((116_130 * blue + HALF) >> 16),
    ]
    .map(|value| value.clamp(0, 255) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_one_colour_is_flat() {
        let mut coefficients = [0i16; 64];
        coefficients[0] = 40;
        let samples = block(&coefficients, &[2; 64]);
        assert!(samples.iter().all(|&sample| sample == 138));
        coefficients[0] = 2000;
        assert_eq!(block(&coefficients, &[2; 64]), [255; 64]);
        // Numbers out of range are clamped, not an error.
        block(&[i16::MIN; 64], &[u16::MAX; 64]);
    }

    #[test]
    fn colours_are_rounded_as_everywhere() {
        assert_eq!(colour([128, 128, 128]), [128; 3]);
        assert_eq!(colour([76, 85, 255]), [254, 0, 0]);
        assert_eq!(colour([255, 0, 0]), [76, 255, 28]);
    }

    #[test]
    fn pixels_lie_between_samples() {
        let mut row = [0u8; 6];
        double(&[0, 4, 8], (2, 1, 2), &mut row);
        assert_eq!(row, [0, 1, 3, 5, 7, 8]);
    }
}
