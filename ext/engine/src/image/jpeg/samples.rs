//! From coefficients to samples, and from those of each component to pixels: as libjpeg does, whose
//! rounding every other program's pictures have.

use super::frame::Component;

/// Of constants, and of what stands between the two passes.
const CONSTANT: u32 = 13;
const BETWEEN: u32 = 2;

/// The inverse cosine transform of 8 values, times 2^13 · √8.
fn transform(x: [i64; 8]) -> [i64; 8] {
    let shared = (x[2] + x[6]) * 4433;
    let (even2, even3) = (shared - x[6] * 15_137, shared + x[2] * 6270);
    let (even0, even1) = ((x[0] + x[4]) << CONSTANT, (x[0] - x[4]) << CONSTANT);
    let sums = [even0 + even3, even1 + even2, even1 - even2, even0 - even3];
    let turned = (x[7] + x[3] + x[5] + x[1]) * 9633;
    let (a, b) = ((x[7] + x[1]) * -7373, (x[5] + x[3]) * -20_995);
    let c = (x[7] + x[3]) * -16_069 + turned;
    let d = (x[5] + x[1]) * -3196 + turned;
    let odd = [
        x[1] * 12_299 + a + d,
        x[3] * 25_172 + b + c,
        x[5] * 16_819 + b + d,
        x[7] * 2446 + a + c,
    ];
    std::array::from_fn(|at| match at < 4 {
        true => sums[at] + odd[at],
        false => sums[7 - at] - odd[7 - at],
    })
}

fn descaled(value: i64, bits: u32) -> i64 {
    (value + (1 << (bits - 1))) >> bits
}

/// The samples of a block, row by row.
pub fn block(coefficients: &[i16], table: &[u16; 64]) -> [u8; 64] {
    let mut between = [0i64; 64];
    for column in 0..8 {
        let values = std::array::from_fn(|row| {
            let at = 8 * row + column;
            i64::from(coefficients[at]) * i64::from(table[at])
        });
        for (row, value) in transform(values).into_iter().enumerate() {
            between[8 * row + column] = descaled(value, CONSTANT - BETWEEN);
        }
    }
    let mut samples = [0u8; 64];
    for row in 0..8 {
        let values = std::array::from_fn(|column| between[8 * row + column]);
        for (column, value) in transform(values).into_iter().enumerate() {
            let sample = descaled(value, CONSTANT + BETWEEN + 3) + 128;
            samples[8 * row + column] = sample.clamp(0, 255) as u8;
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
    pub fn new(component: &Component, (across, down): (usize, usize)) -> Self {
        let stride = component.columns * 8;
        let mut samples = vec![0u8; stride * component.rows * 8];
        let blocks = component.coefficients.chunks_exact(64).enumerate();
        for (number, coefficients) in blocks {
            let (column, row) = (number % component.columns, number / component.columns);
            let found = block(coefficients, &component.table);
            for (y, line) in found.chunks_exact(8).enumerate() {
                let start = (row * 8 + y) * stride + column * 8;
                samples[start..start + 8].copy_from_slice(line);
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

    fn row(&self, y: usize) -> &[u8] {
        let y = y.min(self.height - 1);
        &self.samples[y * self.stride..][..self.width]
    }

    /// The samples of a row of pixels, of which there are at least `row.len()`.
    pub fn upsample(&self, y: usize, sums: &mut Vec<i32>, row: &mut [u8]) {
        let near = y / self.down;
        let below = y % 2 == 1;
        let far = match below {
            true => near + 1,
            false => near.saturating_sub(1),
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
            (across, _) => {
                let samples = self.row(near);
                for (x, pixel) in row.iter_mut().enumerate() {
                    *pixel = samples[(x / across).min(samples.len() - 1)];
                }
            }
        }
    }
}

/// Between two neighbours there are two pixels, three parts of the nearer and one of the other each.
fn double(sums: &[i32], (shift, left, right): (i32, i32, i32), row: &mut [u8]) {
    for (x, pixel) in row.iter_mut().enumerate() {
        let at = (x / 2).min(sums.len() - 1);
        let (other, bias) = match x % 2 {
            0 => (at.checked_sub(1), left),
            _ => (Some(at + 1).filter(|&next| next < sums.len()), right),
        };
        let sum = match other {
            Some(other) => 3 * sums[at] + sums[other],
            None => 4 * sums[at],
        };
        *pixel = ((sum + bias) >> shift) as u8;
    }
}

/// Red, green and blue of brightness and two differences of colour.
pub fn colour([y, blue, red]: [u8; 3]) -> [u8; 3] {
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
        let wild = block(&[i16::MIN; 64], &[u16::MAX; 64]);
        assert!(wild.iter().all(|sample| [0, 255].contains(sample)));
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
