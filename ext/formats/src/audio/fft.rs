//! The powers of the frequencies in real numbers: a discrete Fourier transform of any length, by its prime factors.

use std::f64::consts::TAU;

/// Complex numbers as pairs.
type Complex = (f64, f64);

/// What transforms of one length share.
pub struct Fourier {
    length: usize,
    /// Of pairs of numbers where the length is even, else of the numbers.
    transform: Transform,
    /// exp(-2πi k / length)
    roots: Vec<Complex>,
}

/// What a transform is computed in.
pub struct Scratch {
    input: Vec<Complex>,
    output: Vec<Complex>,
}

impl Fourier {
    pub fn new(length: usize) -> Self {
        let halved = length.is_multiple_of(2);
        Self {
            length,
            transform: Transform::new(if halved { length / 2 } else { length }),
            roots: roots(length),
        }
    }

    pub fn scratch(&self) -> Scratch {
        Scratch {
            input: vec![(0.0, 0.0); self.transform.length],
            output: vec![(0.0, 0.0); self.transform.length],
        }
    }

    /// Squares of the absolute values of the frequencies from 0 to half the rate: `length / 2 + 1` of them.
    /// `values` are as many as the length.
    pub fn powers(&self, values: &[f64], scratch: &mut Scratch, powers: &mut [f64]) {
        let Scratch { input, output } = scratch;
        if self.transform.length == self.length {
            for (slot, &value) in input.iter_mut().zip(values) {
                *slot = (value, 0.0);
            }
            self.transform.apply(input, output);
            for (power, (real, imaginary)) in powers.iter_mut().zip(output.iter()) {
                *power = real * real + imaginary * imaginary;
            }
            return;
        }
        for (slot, pair) in input.iter_mut().zip(values.chunks_exact(2)) {
            *slot = (pair[0], pair[1]);
        }
        self.transform.apply(input, output);
        let half = output.len();
        for (k, power) in powers.iter_mut().enumerate().take(half + 1) {
            // The transforms of the even and of the odd numbers, which were computed as one.
            let (a, b) = output[k % half];
            let (c, d) = output[(half - k) % half];
            let even = ((a + c) / 2.0, (b - d) / 2.0);
            let odd = ((b + d) / 2.0, (c - a) / 2.0);
            let (real, imaginary) = times(odd, self.roots[k]);
            let (real, imaginary) = (even.0 + real, even.1 + imaginary);
            *power = real * real + imaginary * imaginary;
        }
    }
}

/// A transform of complex numbers.
struct Transform {
    length: usize,
    /// From the largest part to the smallest.
    factors: Vec<usize>,
    roots: Vec<Complex>,
}

impl Transform {
    fn new(length: usize) -> Self {
        let (mut factors, mut rest, mut factor) = (Vec::new(), length, 2);
        while rest > 1 {
            if rest.is_multiple_of(factor) {
                factors.push(factor);
                rest /= factor;
            } else {
                factor += 1;
            }
        }
        Self {
            length,
            factors,
            roots: roots(length),
        }
    }

    fn apply(&self, input: &[Complex], output: &mut [Complex]) {
        let mut terms = vec![(0.0, 0.0); self.factors.iter().copied().max().unwrap_or(0)];
        self.part(input, 1, &self.factors, output, &mut terms);
    }

    /// Every `stride`th value of `input`.
    fn part(
        &self,
        input: &[Complex],
        stride: usize,
        factors: &[usize],
        output: &mut [Complex],
        terms: &mut [Complex],
    ) {
        let Some((&factor, rest)) = factors.split_first() else {
            if let (Some(slot), Some(&value)) = (output.first_mut(), input.first()) {
                *slot = value;
            }
            return;
        };
        let inner = output.len() / factor;
        for (number, part) in output.chunks_exact_mut(inner).enumerate() {
            let input = &input[number * stride..];
            self.part(input, stride * factor, rest, part, terms);
        }
        if factor == 2 {
            let (low, high) = output.split_at_mut(inner);
            let turns = self.roots.iter().step_by(stride);
            for ((a, b), &turn) in low.iter_mut().zip(high).zip(turns) {
                let (x, y) = times(*b, turn);
                (*a, *b) = ((a.0 + x, a.1 + y), (a.0 - x, a.1 - y));
            }
            return;
        }
        let terms = &mut terms[..factor];
        for at in 0..inner {
            for (number, term) in terms.iter_mut().enumerate() {
                let turn = self.roots[number * at * stride];
                *term = times(output[number * inner + at], turn);
            }
            for place in 0..factor {
                let (step, around) = (place * (self.length / factor), self.length);
                let (mut sum, mut turn) = (terms[0], 0);
                for &term in &terms[1..] {
                    turn += step;
                    turn -= if turn >= around { around } else { 0 };
                    let (x, y) = times(term, self.roots[turn]);
                    sum = (sum.0 + x, sum.1 + y);
                }
                output[place * inner + at] = sum;
            }
        }
    }
}

fn roots(length: usize) -> Vec<Complex> {
    let root = |k: usize| {
        let angle = -TAU * k as f64 / length as f64;
        (angle.cos(), angle.sin())
    };
    (0..length).map(root).collect()
}

fn times((a, b): Complex, (c, d): Complex) -> Complex {
    (a * c - b * d, a * d + b * c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_equals_the_definition() {
        for length in [1, 2, 3, 7, 12, 98, 400, 512] {
            let input: Vec<f64> = (0..length).map(|at| (at as f64 * 0.7).sin()).collect();
            let fourier = Fourier::new(length);
            let mut found = vec![0.0; length / 2 + 1];
            fourier.powers(&input, &mut fourier.scratch(), &mut found);
            for (k, &power) in found.iter().enumerate() {
                let terms = input.iter().enumerate().map(|(at, &value)| {
                    let angle = -TAU * (k * at % length) as f64 / length as f64;
                    (value * angle.cos(), value * angle.sin())
                });
                let (x, y) = terms.fold((0.0, 0.0), |(x, y), (a, b)| (x + a, y + b));
                assert!((power - x * x - y * y).abs() < 1e-9, "{length}: {k}");
            }
        }
    }
}
