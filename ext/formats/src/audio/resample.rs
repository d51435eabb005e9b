//! Another sample rate, by a windowed sinc filter in phases.

use crate::{Error, Result};

/// Zero crossings of the filter on each side.
const CROSSINGS: f64 = 64.0;
/// Of the lower of both Nyquist frequencies, what passes.
const ROLLOFF: f64 = 0.947_593_716_739_959_6;
/// Shape of the Kaiser window.
const BETA: f64 = 14.769_656_459_379_492;
/// Filters of more taps than this are computed where they are needed.
const MOST_TAPS: usize = 4 << 20;
/// Places between two zero crossings at which the filter is kept for that.
const RESOLUTION: usize = 1024;

/// Takes samples piece by piece; what comes out does not depend on the pieces.
pub struct Resampler {
    /// Both rates, divided by what they have in common.
    from: usize,
    to: usize,
    /// How far the filter reaches, in input samples.
    reach: usize,
    filter: Filter,
    /// Input samples that are still needed; the first has the number `start - reach`.
    pending: Vec<f32>,
    start: usize,
    taken: usize,
    made: usize,
}

enum Filter {
    /// The taps of each phase.
    Phases(Vec<f32>),
    /// The filter at fine steps, for ratios of many phases.
    Curve { curve: Vec<f32>, taps: Vec<f32> },
}

impl Resampler {
    pub fn new(from: u32, to: u32) -> Result<Self> {
        if from == 0 || to == 0 {
            return Err(Error::InvalidInput(
                "a sample rate can't be 0 Hz".to_owned(),
            ));
        }
        let common = greatest_divisor(from, to);
        let (from, to) = ((from / common) as usize, (to / common) as usize);
        let base = base(from, to);
        let reach = (CROSSINGS * from as f64 / base).ceil() as usize + 1;
        let width = 2 * reach + 1;
        let filter = if width.saturating_mul(to) <= MOST_TAPS {
            let mut taps = Vec::with_capacity(width * to);
            for phase in 0..to {
                let fraction = (phase * from % to) as f64 / to as f64;
                taps.extend((0..width).map(|tap| {
                    let distance = tap as f64 - reach as f64 - fraction;
                    weight(distance / from as f64 * base) as f32 * (base / from as f64) as f32
                }));
            }
            Filter::Phases(taps)
        } else {
            let steps = CROSSINGS as usize * RESOLUTION + 2;
            Filter::Curve {
                curve: (0..steps)
                    .map(|step| weight(step as f64 / RESOLUTION as f64) as f32)
                    .collect(),
                taps: Vec::new(),
            }
        };
        Ok(Self {
            from,
            to,
            reach,
            filter,
            pending: vec![0.0; reach],
            start: 0,
            taken: 0,
            made: 0,
        })
    }

    /// Adds to `output` what the samples so far decide.
    pub fn push(&mut self, samples: &[f32], output: &mut Vec<f32>) -> Result<()> {
        self.pending.extend_from_slice(samples);
        self.taken += samples.len();
        self.make(usize::MAX, output);
        Ok(())
    }

    /// Adds the rest, so that the duration is the input's.
    pub fn finish(mut self, output: &mut Vec<f32>) -> Result<()> {
        let total = (self.taken as u128 * self.to as u128).div_ceil(self.from as u128);
        let zeros = self.pending.len() + 2 * self.reach + self.from.min(1 << 20) + 1;
        self.pending.resize(zeros, 0.0);
        self.make(total as usize, output);
        Ok(())
    }

    fn make(&mut self, total: usize, output: &mut Vec<f32>) {
        let width = 2 * self.reach + 1;
        while self.made < total {
            let place = (self.made as u128 * self.from as u128 / self.to as u128) as usize;
            let first = place - self.start;
            let Some(window) = self.pending.get(first..first + width) else {
                break;
            };
            let sum = match &mut self.filter {
                Filter::Phases(taps) => {
                    let phase = self.made % self.to;
                    dot(window, &taps[phase * width..][..width])
                }
                Filter::Curve { curve, taps } => {
                    let rest = self.made as u128 * self.from as u128 % self.to as u128;
                    let fraction = rest as f64 / self.to as f64;
                    let step = base(self.from, self.to) / self.from as f64;
                    taps.clear();
                    taps.extend((0..width).map(|tap| {
                        let distance = (tap as f64 - self.reach as f64 - fraction).abs() * step;
                        between(curve, distance * RESOLUTION as f64) * step as f32
                    }));
                    dot(window, taps)
                }
            };
            output.push(sum);
            self.made += 1;
        }
        let next = (self.made as u128 * self.from as u128 / self.to as u128) as usize;
        let done = (next - self.start).min(self.pending.len());
        self.pending.drain(..done);
        self.start += done;
    }
}

/// Twice the highest frequency that passes, in units of which the rates have `from` and `to`.
fn base(from: usize, to: usize) -> f64 {
    from.min(to) as f64 * ROLLOFF
}

/// The filter at a distance that counts zero crossings.
fn weight(distance: f64) -> f64 {
    let place = distance / CROSSINGS;
    if place.abs() >= 1.0 {
        return 0.0;
    }
    let window = bessel(BETA * (1.0 - place * place).sqrt()) / bessel(BETA);
    let angle = distance * std::f64::consts::PI;
    let sinc = if angle == 0.0 {
        1.0
    } else {
        angle.sin() / angle
    };
    sinc * window
}

/// The modified Bessel function of order 0, by its series.
fn bessel(x: f64) -> f64 {
    let quarter = x * x / 4.0;
    let (mut term, mut sum, mut k) = (1.0, 1.0, 1.0);
    while term > sum * 1e-17 {
        term *= quarter / (k * k);
        sum += term;
        k += 1.0;
    }
    sum
}

fn between(curve: &[f32], place: f64) -> f32 {
    let step = place as usize;
    match curve.get(step..step + 2) {
        Some([low, high]) => low + (high - low) * (place - step as f64) as f32,
        _ => 0.0,
    }
}

/// Sums of eight at once, which compilers turn into vector instructions.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; 8];
    let (left, right) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = left
        .remainder()
        .iter()
        .zip(right.remainder())
        .map(|(a, b)| a * b)
        .sum();
    for (a, b) in left.zip(right) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}

fn greatest_divisor(a: u32, b: u32) -> u32 {
    if b == 0 {
        a
    } else {
        greatest_divisor(b, a % b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(rate: f64, seconds: f64, hertz: f64) -> Vec<f32> {
        let count = (rate * seconds) as usize;
        (0..count)
            .map(|at| (at as f64 / rate * hertz * std::f64::consts::TAU).sin() as f32)
            .collect()
    }

    fn resampled(samples: &[f32], from: u32, to: u32, piece: usize) -> Vec<f32> {
        let (mut resampler, mut output) = (Resampler::new(from, to).unwrap(), Vec::new());
        for piece in samples.chunks(piece) {
            resampler.push(piece, &mut output).unwrap();
        }
        resampler.finish(&mut output).unwrap();
        output
    }

    #[test]
    fn tones_keep_their_pitch_and_their_height() {
        // The last ratio has too many phases for a table.
        for (from, to) in [
            (44_100, 16_000),
            (8_000, 16_000),
            (48_000, 16_000),
            (44_101, 43_999),
        ] {
            let found = resampled(&tone(f64::from(from), 0.5, 440.0), from, to, 999);
            assert_eq!(found.len(), (to as usize).div_ceil(2), "{from} to {to}");
            let wanted = tone(f64::from(to), 0.5, 440.0);
            let inner = found.len() / 4..found.len() * 3 / 4;
            for at in inner {
                assert!(
                    (found[at] - wanted[at]).abs() < 1e-4,
                    "{from} to {to} at {at}"
                );
            }
        }
    }

    #[test]
    fn what_the_lower_rate_can_not_hold_is_filtered_out() {
        let found = resampled(&tone(48_000.0, 0.5, 11_000.0), 48_000, 16_000, 4096);
        let inner = &found[found.len() / 4..found.len() * 3 / 4];
        assert!(inner.iter().all(|sample| sample.abs() < 1e-4));
    }

    #[test]
    fn pieces_do_not_matter() {
        let samples = tone(22_050.0, 0.3, 300.0);
        let whole = resampled(&samples, 22_050, 16_000, samples.len());
        assert_eq!(whole, resampled(&samples, 22_050, 16_000, 1));
        assert_eq!(whole, resampled(&samples, 22_050, 16_000, 777));
    }
}
