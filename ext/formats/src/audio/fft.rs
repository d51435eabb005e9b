//! The discrete Fourier transform of any length, by its prime factors.

use std::f64::consts::TAU;

/// Complex numbers as pairs.
pub type Complex = (f64, f64);

/// What transforms of one length share.
pub struct Fourier {
    length: usize,
    factors: Vec<usize>,
    /// exp(-2πi k / length)
    roots: Vec<Complex>,
}

impl Fourier {
    pub fn new(length: usize) -> Self {
        let (mut factors, mut rest, mut factor) = (Vec::new(), length, 2);
        while rest > 1 {
            if rest.is_multiple_of(factor) {
                factors.push(factor);
                rest /= factor;
            } else {
                factor += 1;
            }
        }
        let roots = (0..length).map(|k| {
            let angle = -TAU * k as f64 / length as f64;
            (angle.cos(), angle.sin())
        });
        Self {
            length,
            factors,
            roots: roots.collect(),
        }
    }

    /// The transform of `input` into `output`; both are as long as the plan.
    pub fn transform(&self, input: &[Complex], output: &mut [Complex]) {
        let mut scratch = vec![(0.0, 0.0); self.length];
        self.part(input, 1, &self.factors, output, &mut scratch);
    }

    /// Every `stride`th value of `input`.
    fn part(
        &self,
        input: &[Complex],
        stride: usize,
        factors: &[usize],
        output: &mut [Complex],
        scratch: &mut [Complex],
    ) {
        let Some((&factor, rest)) = factors.split_first() else {
            output[0] = input[0];
            return;
        };
        let inner = output.len() / factor;
        for number in 0..factor {
            let range = number * inner..(number + 1) * inner;
            let (part, spare) = (&mut output[range.clone()], &mut scratch[range]);
            self.part(
                &input[number * stride..],
                stride * factor,
                rest,
                part,
                spare,
            );
        }
        scratch.copy_from_slice(output);
        for (at, sum) in output.iter_mut().enumerate() {
            let (mut real, mut imaginary) = (0.0, 0.0);
            for number in 0..factor {
                let (a, b) = scratch[number * inner + at % inner];
                let (c, d) = self.roots[number * at * stride % self.length];
                real += a * c - b * d;
                imaginary += a * d + b * c;
            }
            *sum = (real, imaginary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_equals_the_definition() {
        for length in [1, 2, 7, 12, 400, 512] {
            let input: Vec<Complex> = (0..length)
                .map(|at| ((at as f64 * 0.7).sin(), (at as f64 * 1.3).cos()))
                .collect();
            let mut found = vec![(0.0, 0.0); length];
            Fourier::new(length).transform(&input, &mut found);
            for (k, &(real, imaginary)) in found.iter().enumerate() {
                let terms = input.iter().enumerate().map(|(at, &(a, b))| {
                    let angle = -TAU * (k * at % length) as f64 / length as f64;
                    let (c, d) = (angle.cos(), angle.sin());
                    (a * c - b * d, a * d + b * c)
                });
                let (x, y) = terms.fold((0.0, 0.0), |(x, y), (a, b)| (x + a, y + b));
                assert!((real - x).abs() < 1e-9 && (imaginary - y).abs() < 1e-9);
            }
        }
    }
}
