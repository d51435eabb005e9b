//! Log-mel spectrograms: how loud audio is in bands of frequencies, frame by frame.

use std::ops::Range;

use rayon::prelude::*;

use super::fft::{Fourier, Scratch};
use super::Features;
use crate::{CancelToken, Result};
use base::runtime::{memory, threads};

/// Frames that one task computes.
const FRAMES: usize = 64;
/// The least power there is.
const FLOOR: f64 = 1e-10;

/// How frequencies become mels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MelScale {
    /// Linear below 1000 Hz, logarithmic above; all bands have the same area.
    Slaney,
    /// Logarithmic; bands rise and fall evenly in mels, and reach 1.
    Kaldi,
    /// Logarithmic; bands rise and fall evenly in hertz, and reach 1.
    Htk,
}

/// A spectrogram's settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MelSettings {
    /// Samples per second.
    pub rate: u32,
    pub bins: usize,
    /// Samples of a frame, and from one frame to the next.
    pub window: usize,
    pub hop: usize,
    pub scale: MelScale,
    /// In Hz.
    pub lowest: f64,
    pub highest: f64,
}

/// Whisper's features.
pub struct LogMel {
    settings: MelSettings,
    fourier: Fourier,
    hann: Vec<f64>,
    /// For each band its first frequency and the weights from there on.
    bands: Vec<(usize, Vec<f64>)>,
}

impl LogMel {
    pub fn new(settings: MelSettings) -> Self {
        let window = settings.window;
        let hann = (0..window).map(|at| {
            let angle = std::f64::consts::TAU * at as f64 / window as f64;
            0.5 - 0.5 * angle.cos()
        });
        Self {
            fourier: Fourier::new(window),
            hann: hann.collect(),
            bands: bands(
                (settings.rate, settings.window),
                settings.bins,
                (settings.lowest, settings.highest),
                settings.scale,
            ),
            settings,
        }
    }

    pub fn settings(&self) -> &MelSettings {
        &self.settings
    }

    /// Of samples, and of the silence after them up to `length` where they are fewer: log10 of the power in
    /// each band, not more than 8 below the largest, brought to about -1..1.
    pub fn extract(
        &self,
        samples: &[f32],
        length: usize,
        cancel: &CancelToken,
    ) -> Result<Features> {
        let MelSettings { bins, hop, .. } = self.settings;
        let length = length.max(samples.len());
        let frames = length / hop;
        let known = Known {
            samples,
            start: 0,
            length,
        };
        let mut values = self.logarithms(&known, 0..frames, cancel)?;
        let most = values.iter().copied().fold(f32::MIN, f32::max);
        normalize(&mut values, most);
        Ok(Features {
            values,
            frames,
            bins,
        })
    }

    /// Of samples alone, the frame around the last one included: `[frames, bins]` in decibels.
    pub fn decibels(&self, samples: &[f32], cancel: &CancelToken) -> Result<Vec<f32>> {
        let frames = samples.len() / self.settings.hop + 1;
        let known = Known {
            samples,
            start: 0,
            length: samples.len(),
        };
        let mut values = self.logarithms(&known, 0..frames, cancel)?;
        values.iter_mut().for_each(|value| *value *= 10.0);
        Ok(values)
    }

    /// log10 of the power in each band of some frames.
    pub(super) fn logarithms(
        &self,
        known: &Known<'_>,
        frames: Range<usize>,
        cancel: &CancelToken,
    ) -> Result<Vec<f32>> {
        let bins = self.settings.bins;
        memory::ensure_elements(&[frames.len(), bins], 4, "the features of an audio")?;
        let mut values = vec![0f32; frames.len() * bins];
        threads::install(|| {
            values
                .par_chunks_mut(FRAMES * bins)
                .enumerate()
                .try_for_each(|(chunk, rows)| {
                    cancel.check()?;
                    let mut frame = Frame::new(self);
                    for (at, row) in rows.chunks_mut(bins).enumerate() {
                        let number = frames.start + chunk * FRAMES + at;
                        self.row(known, number, &mut frame, row);
                    }
                    Ok(())
                })
        })
        .and_then(|done: Result<()>| done)?;
        Ok(values)
    }

    /// One frame, around the sample `number * hop`; beyond its ends the audio is mirrored.
    fn row(&self, known: &Known<'_>, number: usize, frame: &mut Frame, row: &mut [f32]) {
        let window = self.settings.window;
        let first = (number * self.settings.hop) as i64 - (window / 2) as i64;
        let last = known.length as i64 - 1;
        for (at, (value, hann)) in frame.input.iter_mut().zip(&self.hann).enumerate() {
            let mut place = (first + at as i64).abs();
            if place > last {
                place = (2 * last - place).max(0);
            }
            *value = f64::from(known.sample(place as usize)) * hann;
        }
        self.fourier
            .powers(&frame.input, &mut frame.scratch, &mut frame.powers);
        for (value, (start, weights)) in row.iter_mut().zip(&self.bands) {
            let powers = &frame.powers[*start..];
            let sum: f64 = powers.iter().zip(weights).map(|(a, b)| a * b).sum();
            *value = sum.max(FLOOR).log10() as f32;
        }
    }
}

/// Some samples of an audio of that length; those that are neither here nor before are silent.
pub(super) struct Known<'a> {
    pub samples: &'a [f32],
    /// The number of the first one.
    pub start: usize,
    pub length: usize,
}

impl Known<'_> {
    fn sample(&self, place: usize) -> f32 {
        let place = place.checked_sub(self.start);
        let sample = place.and_then(|place| self.samples.get(place));
        sample.copied().unwrap_or(0.0)
    }
}

/// Brings logarithms, of which the largest of the audio is `most`, to about -1..1.
pub(super) fn normalize(values: &mut [f32], most: f32) {
    for value in values {
        *value = (value.max(most - 8.0) + 4.0) / 4.0;
    }
}

/// What the frames of a task are computed in.
struct Frame {
    input: Vec<f64>,
    scratch: Scratch,
    powers: Vec<f64>,
}

impl Frame {
    fn new(mel: &LogMel) -> Self {
        let window = mel.settings.window;
        Self {
            input: vec![0.0; window],
            scratch: mel.fourier.scratch(),
            powers: vec![0.0; window / 2 + 1],
        }
    }
}

/// Triangles that overlap by half: for each its first frequency of a transform, and the weights from there on.
pub fn bands(
    (rate, transform): (u32, usize),
    bins: usize,
    (lowest, highest): (f64, f64),
    scale: MelScale,
) -> Vec<(usize, Vec<f64>)> {
    let count = transform / 2 + 1;
    let frequency = |bin: usize| f64::from(rate) / 2.0 * bin as f64 / (count.max(2) - 1) as f64;
    let (least, most) = (mels(lowest, scale), mels(highest, scale));
    let step = (most - least) / (bins + 1) as f64;
    // Triangles are drawn over hertz, or over mels.
    let place = |edge: usize| {
        let mels = least + step * edge as f64;
        match scale {
            MelScale::Slaney => hertz(mels),
            MelScale::Htk => 700.0 * (10f64.powf(mels / 2595.0) - 1.0),
            MelScale::Kaldi => mels,
        }
    };
    let edges: Vec<f64> = (0..bins + 2).map(place).collect();
    edges
        .windows(3)
        .map(|edge| {
            let height = match scale {
                MelScale::Slaney => 2.0 / (edge[2] - edge[0]),
                MelScale::Kaldi | MelScale::Htk => 1.0,
            };
            let weight = |bin: usize| {
                let at = match scale {
                    MelScale::Slaney | MelScale::Htk => frequency(bin),
                    MelScale::Kaldi => mels(frequency(bin), scale),
                };
                let rising = (at - edge[0]) / (edge[1] - edge[0]);
                let falling = (edge[2] - at) / (edge[2] - edge[1]);
                rising.min(falling).max(0.0) * height
            };
            let start = (0..count).find(|&bin| weight(bin) > 0.0).unwrap_or(0);
            let weights = (start..count)
                .map(weight)
                .take_while(|&weight| weight > 0.0);
            (start, weights.collect())
        })
        .collect()
}

const LINEAR: f64 = 200.0 / 3.0;
const KNEE: f64 = 1000.0;
const OCTAVES: f64 = 27.0;

fn mels(hertz: f64, scale: MelScale) -> f64 {
    match scale {
        MelScale::Kaldi => return 1127.0 * (1.0 + hertz / 700.0).ln(),
        MelScale::Htk => return 2595.0 * (1.0 + hertz / 700.0).log10(),
        MelScale::Slaney => {}
    }
    if hertz < KNEE {
        return hertz / LINEAR;
    }
    KNEE / LINEAR + (hertz / KNEE).ln() * OCTAVES / 6.4f64.ln()
}

fn hertz(mels: f64) -> f64 {
    let knee = KNEE / LINEAR;
    if mels < knee {
        return mels * LINEAR;
    }
    KNEE * ((mels - knee) * 6.4f64.ln() / OCTAVES).exp()
}
