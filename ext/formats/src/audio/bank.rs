//! Bands of frequencies as Kaldi and NeMo compute them, brought to a mean of 0 and a variance of 1.

use rayon::prelude::*;

use super::fft::Fourier;
use super::mel::{bands, MelScale};
use super::Features;
use crate::{CancelToken, Result};
use base::runtime::{memory, threads};

/// Frames that one task computes.
const FRAMES: usize = 64;
/// Kaldi counts samples as integers of 16 bits, and begins at 20 Hz.
const SIXTEEN_BITS: f64 = 32_768.0;
const LOWEST: f64 = 20.0;
const PREEMPHASIS: f64 = 0.97;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BankKind {
    /// Frames that lie within the audio; so many make one row.
    Kaldi { stacked: usize },
    /// Frames around every step, of samples that the one before is taken off.
    Nemo { preemphasis: f32 },
    /// Kaldi's frames of samples that count 1 at most, so many of them whatever the audio's length; mean and
    /// deviation are the same for all audio.
    Fixed {
        frames: usize,
        mean: f64,
        deviation: f64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BankSettings {
    /// Samples per second.
    pub rate: u32,
    pub bins: usize,
    /// Samples of a frame, of its transform, and from one frame to the next.
    pub window: usize,
    pub transform: usize,
    pub hop: usize,
    pub kind: BankKind,
}

pub struct FilterBank {
    settings: BankSettings,
    fourier: Fourier,
    window: Vec<f64>,
    bands: Vec<(usize, Vec<f64>)>,
}

impl FilterBank {
    pub fn new(settings: BankSettings) -> Self {
        let length = settings.window;
        let hann = |at: usize| {
            let angle = std::f64::consts::TAU * at as f64 / (length.max(2) - 1) as f64;
            0.5 - 0.5 * angle.cos()
        };
        let highest = f64::from(settings.rate) / 2.0;
        let (window, limits, scale): (Vec<f64>, _, _) = match settings.kind {
            BankKind::Kaldi { .. } => (
                (0..length).map(|at| hann(at).powf(0.85)).collect(),
                (LOWEST, highest),
                MelScale::Kaldi,
            ),
            BankKind::Fixed { .. } => (
                (0..length).map(hann).collect(),
                (LOWEST, highest.floor()),
                MelScale::Kaldi,
            ),
            BankKind::Nemo { .. } => (
                (0..length).map(hann).collect(),
                (0.0, highest),
                MelScale::Slaney,
            ),
        };
        let transform = (settings.rate, settings.transform);
        Self {
            fourier: Fourier::new(settings.transform),
            window,
            bands: bands(transform, settings.bins, limits, scale),
            settings,
        }
    }

    pub fn settings(&self) -> &BankSettings {
        &self.settings
    }

    /// Samples from one row to the next.
    pub fn hop(&self) -> usize {
        self.settings.hop * self.stacked()
    }

    fn stacked(&self) -> usize {
        match self.settings.kind {
            BankKind::Kaldi { stacked } => stacked,
            BankKind::Nemo { .. } | BankKind::Fixed { .. } => 1,
        }
    }

    /// Where the first frame begins, and how many there are.
    fn frames(&self, samples: usize) -> (i64, usize) {
        let BankSettings { window, hop, .. } = self.settings;
        match self.settings.kind {
            BankKind::Kaldi { .. } => {
                let room = samples.checked_sub(window);
                (0, room.map_or(0, |room| room / hop + 1))
            }
            BankKind::Fixed { frames, .. } => {
                let room = samples.checked_sub(window);
                (0, room.map_or(0, |room| room / hop + 1).min(frames))
            }
            BankKind::Nemo { .. } => (-((window / 2) as i64), samples / hop),
        }
    }

    pub fn extract(&self, samples: &[f32], cancel: &CancelToken) -> Result<Features> {
        let BankSettings { bins, hop, .. } = self.settings;
        let (first, frames) = self.frames(samples.len());
        memory::ensure_elements(&[frames, bins], 4, "the features of an audio")?;
        let mut values = vec![0f32; frames * bins];
        threads::install(|| {
            values
                .par_chunks_mut(FRAMES * bins)
                .enumerate()
                .try_for_each(|(chunk, rows)| {
                    cancel.check()?;
                    for (at, row) in rows.chunks_mut(bins).enumerate() {
                        let number = (chunk * FRAMES + at) * hop;
                        self.row(samples, first + number as i64, row);
                    }
                    Ok(())
                })
        })
        .and_then(|done: Result<()>| done)?;
        let frames = match self.settings.kind {
            // Silence is added behind what there is.
            BankKind::Fixed { frames: all, .. } if frames > 0 => {
                memory::ensure_elements(&[all, bins], 4, "the features of an audio")?;
                values.resize(all * bins, 0.0);
                all
            }
            _ => frames,
        };
        self.normalize(&mut values);
        let rows = frames / self.stacked();
        values.truncate(rows * self.stacked() * bins);
        Ok(Features {
            values,
            frames: rows,
            bins: bins * self.stacked(),
        })
    }

    /// The frame from a sample on; there is silence around the audio.
    fn row(&self, samples: &[f32], from: i64, row: &mut [f32]) {
        let BankSettings {
            window, transform, ..
        } = self.settings;
        let sample = |place: i64| {
            let place = usize::try_from(place).ok();
            place.and_then(|at| samples.get(at)).copied().unwrap_or(0.0)
        };
        let mut frame: Vec<f64> = match self.settings.kind {
            BankKind::Kaldi { .. } => (0..window)
                .map(|at| f64::from(sample(from + at as i64)) * SIXTEEN_BITS)
                .collect(),
            BankKind::Fixed { .. } => (0..window)
                .map(|at| f64::from(sample(from + at as i64)))
                .collect(),
            BankKind::Nemo { preemphasis } => (0..window)
                .map(|at| {
                    let place = from + at as i64;
                    let inside = place >= 0 && place < samples.len() as i64;
                    let before = if inside { sample(place - 1) } else { 0.0 };
                    f64::from(sample(place) - preemphasis * before)
                })
                .collect(),
        };
        if let BankKind::Kaldi { .. } | BankKind::Fixed { .. } = self.settings.kind {
            let mean = frame.iter().sum::<f64>() / window.max(1) as f64;
            frame.iter_mut().for_each(|value| *value -= mean);
            for at in (1..window).rev() {
                frame[at] -= PREEMPHASIS * frame[at - 1];
            }
            frame[0] *= 1.0 - PREEMPHASIS;
        }
        for (value, weight) in frame.iter_mut().zip(&self.window) {
            *value *= weight;
        }
        frame.resize(transform, 0.0);
        let mut powers = vec![0.0; transform / 2 + 1];
        self.fourier
            .powers(&frame, &mut self.fourier.scratch(), &mut powers);
        for (value, (start, weights)) in row.iter_mut().zip(&self.bands) {
            let powers = &powers[*start..];
            let sum: f64 = powers.iter().zip(weights).map(|(a, b)| a * b).sum();
            *value = match self.settings.kind {
                BankKind::Kaldi { .. } | BankKind::Fixed { .. } => sum.max(f64::from(f32::EPSILON)),
                BankKind::Nemo { .. } => sum + 2f64.powi(-24),
            }
            .ln() as f32;
        }
    }

    /// Each band over all frames, or all by fixed numbers.
    fn normalize(&self, values: &mut [f32]) {
        if let BankKind::Fixed {
            mean, deviation, ..
        } = self.settings.kind
        {
            for value in values {
                *value = ((f64::from(*value) - mean) / deviation) as f32;
            }
            return;
        }
        let bins = self.settings.bins;
        let frames = values.len() / bins.max(1);
        for bin in 0..bins {
            let column = || {
                values
                    .iter()
                    .skip(bin)
                    .step_by(bins)
                    .copied()
                    .map(f64::from)
            };
            let mean = column().sum::<f64>() / frames.max(1) as f64;
            let squares: f64 = column().map(|value| (value - mean).powi(2)).sum();
            let variance = squares / frames.saturating_sub(1).max(1) as f64;
            let deviation = match self.settings.kind {
                BankKind::Kaldi { .. } | BankKind::Fixed { .. } => (variance + 1e-7).sqrt(),
                BankKind::Nemo { .. } => variance.sqrt() + 1e-5,
            };
            for value in values.iter_mut().skip(bin).step_by(bins) {
                *value = ((f64::from(*value) - mean) / deviation) as f32;
            }
        }
    }
}
