//! CLAP's features: one spectrogram of a fixed length, or four of a long audio.

use super::mel::{LogMel, MelScale, MelSettings};
use super::MOST_RATE;
use crate::files::raw_config::RawConfig;
use crate::{CancelToken, Error, Result};

/// The parts of a long audio that stand beside the whole.
const PARTS: usize = 3;

/// What becomes of audio that is shorter than a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Padding {
    /// Whole repetitions, then silence.
    RepeatThenSilence,
    Repeat,
    Silence,
}

/// As `ClapFeatureExtractor` computes them. Where that one draws lots, the middle is taken here.
pub struct ClapExtractor {
    mel: LogMel,
    /// Samples of a window.
    length: usize,
    padding: Padding,
    /// Whether a long audio becomes its whole and three parts; otherwise one part of it.
    fuses: bool,
}

impl ClapExtractor {
    pub fn read(settings: &RawConfig) -> Result<Self> {
        let size = |key: &str, usual: usize| -> Result<usize> {
            Ok(settings.opt_usize_in(key, 1..=1 << 16)?.unwrap_or(usual))
        };
        let number =
            |key: &str, usual: f64| -> Result<f64> { Ok(settings.opt_f64(key)?.unwrap_or(usual)) };
        let rate = settings.opt_usize_in("sampling_rate", 1..=MOST_RATE as usize)?;
        let rate = rate.unwrap_or(48_000);
        let fuses = match settings.opt_string("truncation")?.unwrap_or("fusion") {
            "fusion" => true,
            "rand_trunc" => false,
            other => {
                return Err(Error::unsupported(
                    settings.file(),
                    format!("the truncation {other:?} is not supported"),
                ))
            }
        };
        Ok(Self {
            mel: LogMel::new(MelSettings {
                rate: rate as u32,
                bins: size("feature_size", 64)?,
                window: size("fft_window_size", 1024)?,
                hop: size("hop_length", 480)?,
                scale: if fuses {
                    MelScale::Htk
                } else {
                    MelScale::Slaney
                },
                lowest: number("frequency_min", 0.0)?,
                highest: number("frequency_max", 14_000.0)?,
            }),
            length: size("max_length_s", 10)? * rate,
            padding: match settings.opt_string("padding")?.unwrap_or("repeatpad") {
                "repeatpad" => Padding::RepeatThenSilence,
                "repeat" => Padding::Repeat,
                _ => Padding::Silence,
            },
            fuses,
        })
    }

    /// Of the audio that it reads.
    pub fn rate(&self) -> u32 {
        self.mel.settings().rate
    }

    pub fn bins(&self) -> usize {
        self.mel.settings().bins
    }

    pub fn fuses(&self) -> bool {
        self.fuses
    }

    /// Spectrograms of `[frames, bins]`: one, or four where a model fuses them.
    pub fn extract(&self, samples: &[f32], cancel: &CancelToken) -> Result<Vec<Vec<f32>>> {
        if samples.len() <= self.length {
            let whole = self.mel.decibels(&self.padded(samples), cancel)?;
            return Ok(vec![whole; if self.fuses { 1 + PARTS } else { 1 }]);
        }
        if !self.fuses {
            let first = (samples.len() - self.length) / 2;
            let part = &samples[first..first + self.length];
            return Ok(vec![self.mel.decibels(part, cancel)?]);
        }
        let bins = self.bins();
        let whole = self.mel.decibels(samples, cancel)?;
        let (all, wanted) = (
            whole.len() / bins,
            self.length / self.mel.settings().hop + 1,
        );
        if all <= wanted {
            return Ok(vec![whole; 1 + PARTS]);
        }
        let part = |first: usize| whole[first * bins..(first + wanted) * bins].to_vec();
        let mut found = vec![shrunk(&whole, bins, wanted)];
        found.extend(firsts(all - wanted + 1).map(part));
        Ok(found)
    }

    fn padded(&self, samples: &[f32]) -> Vec<f32> {
        let mut padded = Vec::with_capacity(self.length);
        let repeats = match (self.padding, samples.len()) {
            (_, 0) | (Padding::Silence, _) => 1,
            (Padding::RepeatThenSilence, count) => self.length / count,
            (Padding::Repeat, count) => self.length / count + 1,
        };
        for _ in 0..repeats {
            let room = self.length - padded.len();
            padded.extend_from_slice(&samples[..samples.len().min(room)]);
        }
        padded.resize(self.length, 0.0);
        padded
    }
}

/// The middle of each third of so many places.
fn firsts(count: usize) -> impl Iterator<Item = usize> {
    let (each, rest) = (count / PARTS, count % PARTS);
    (0..PARTS).map(move |part| {
        let begin = part * each + part.min(rest);
        let length = each + usize::from(part < rest);
        if length == 0 {
            0
        } else {
            begin + length / 2
        }
    })
}

/// Fewer frames by linear interpolation.
fn shrunk(values: &[f32], bins: usize, wanted: usize) -> Vec<f32> {
    let frames = values.len() / bins;
    let scale = frames as f32 / wanted as f32;
    let mut result = Vec::with_capacity(wanted * bins);
    for frame in 0..wanted {
        let place = (scale * (frame as f32 + 0.5) - 0.5).max(0.0);
        let first = (place as usize).min(frames - 1);
        let second = (first + 1).min(frames - 1);
        let part = place - first as f32;
        let (one, other) = (&values[first * bins..], &values[second * bins..]);
        result.extend((0..bins).map(|bin| (1.0 - part) * one[bin] + part * other[bin]));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stand_in_the_middle_of_each_third() {
        assert_eq!(firsts(9).collect::<Vec<_>>(), [1, 4, 7]);
        assert_eq!(firsts(2).collect::<Vec<_>>(), [0, 1, 0]);
        assert_eq!(shrunk(&[0.0, 1.0, 2.0, 3.0], 1, 2), [0.5, 2.5]);
    }
}
