//! What a checkpoint's feature extractor makes of audio.

use super::bank::{BankKind, BankSettings, FilterBank};
use super::mel::{LogMel, MelScale, MelSettings};
use super::MOST_RATE;
use crate::files::raw_config::RawConfig;
use crate::{CancelToken, Result};

/// Rows of numbers, one per frame.
#[derive(Clone, Debug)]
pub struct Features {
    /// `[frames, bins]`
    pub values: Vec<f32>,
    pub frames: usize,
    pub bins: usize,
}

/// As `preprocessor_config.json` says.
pub enum Extractor {
    /// Whisper: log-mel bands; seconds of a window.
    LogMel { mel: Box<LogMel>, seconds: usize },
    /// wav2vec 2.0 and Moonshine: the samples themselves, normalized or not.
    Samples { rate: u32, normalize: bool },
    /// wav2vec2-bert and Parakeet: bands that are normalized one by one.
    Bank(Box<FilterBank>),
}

impl Extractor {
    /// `settings` are those of a feature extractor; `usual` those of the family where the checkpoint has none.
    pub fn log_mel(settings: &RawConfig) -> Result<Self> {
        let rate = rate(settings)?;
        let size = |key: &str, usual: usize| -> Result<usize> {
            Ok(settings.opt_usize_in(key, 1..=1 << 16)?.unwrap_or(usual))
        };
        Ok(Self::LogMel {
            seconds: size("chunk_length", 30)?,
            mel: Box::new(LogMel::new(MelSettings {
                rate,
                bins: size("feature_size", 80)?,
                window: size("n_fft", 400)?,
                hop: size("hop_length", 160)?,
                scale: MelScale::Slaney,
                lowest: 0.0,
                highest: 8000.0,
            })),
        })
    }

    pub fn samples(settings: &RawConfig, normalize: bool) -> Result<Self> {
        Ok(Self::Samples {
            rate: rate(settings)?,
            normalize: settings.opt_bool("do_normalize")?.unwrap_or(normalize),
        })
    }

    /// Kaldi's bands, of which some frames make one row (wav2vec2-bert).
    pub fn kaldi(settings: &RawConfig) -> Result<Self> {
        let size = |keys: &[&str], usual: usize| -> Result<usize> {
            Ok(settings.opt_usize_in(keys, 1..=1 << 12)?.unwrap_or(usual))
        };
        Ok(Self::Bank(Box::new(FilterBank::new(BankSettings {
            rate: rate(settings)?,
            bins: size(&["num_mel_bins", "feature_size"], 80)?,
            window: 400,
            transform: 512,
            hop: 160,
            kind: BankKind::Kaldi {
                stacked: size(&["stride"], 2)?,
            },
        }))))
    }

    /// Kaldi's bands of a fixed number of frames (audio spectrogram transformer).
    pub fn spectrogram(settings: &RawConfig) -> Result<Self> {
        let size = |key: &str, usual: usize| -> Result<usize> {
            Ok(settings.opt_usize_in(key, 1..=1 << 16)?.unwrap_or(usual))
        };
        let number =
            |key: &str, usual: f64| -> Result<f64> { Ok(settings.opt_f64(key)?.unwrap_or(usual)) };
        let (mean, deviation) = match settings.opt_bool("do_normalize")? {
            Some(false) => (0.0, 1.0),
            _ => (number("mean", -4.2677393)?, 2.0 * number("std", 4.5689974)?),
        };
        Ok(Self::Bank(Box::new(FilterBank::new(BankSettings {
            rate: rate(settings)?,
            bins: size("num_mel_bins", 128)?,
            window: 400,
            transform: 512,
            hop: 160,
            kind: BankKind::Fixed {
                frames: size("max_length", 1024)?,
                mean,
                deviation,
            },
        }))))
    }

    /// Rows that it makes of every audio, and the numbers of each, where these are fixed.
    pub fn fixed_shape(&self) -> Option<(usize, usize)> {
        let Self::Bank(bank) = self else { return None };
        match bank.settings().kind {
            BankKind::Fixed { frames, .. } => Some((frames, bank.settings().bins)),
            BankKind::Kaldi { .. } | BankKind::Nemo { .. } => None,
        }
    }

    /// NeMo's bands (Parakeet).
    pub fn nemo(settings: &RawConfig) -> Result<Self> {
        let size = |key: &str, usual: usize| -> Result<usize> {
            Ok(settings.opt_usize_in(key, 1..=1 << 16)?.unwrap_or(usual))
        };
        let window = size("win_length", 400)?;
        Ok(Self::Bank(Box::new(FilterBank::new(BankSettings {
            rate: rate(settings)?,
            bins: size("feature_size", 80)?,
            window,
            transform: size("n_fft", 512)?.max(window),
            hop: size("hop_length", 160)?,
            kind: BankKind::Nemo {
                preemphasis: settings.opt_f64("preemphasis")?.unwrap_or(0.97) as f32,
            },
        }))))
    }

    /// Samples from one row of features to the next.
    pub fn hop(&self) -> usize {
        match self {
            Self::LogMel { mel, .. } => mel.settings().hop,
            Self::Samples { .. } => 1,
            Self::Bank(bank) => bank.hop(),
        }
    }

    /// Of the audio that it reads.
    pub fn rate(&self) -> u32 {
        match self {
            Self::LogMel { mel, .. } => mel.settings().rate,
            Self::Samples { rate, .. } => *rate,
            Self::Bank(bank) => bank.settings().rate,
        }
    }

    /// Of all samples, which are silent from their end up to `length`.
    pub fn extract(
        &self,
        samples: &[f32],
        length: usize,
        cancel: &CancelToken,
    ) -> Result<Features> {
        match self {
            Self::LogMel { mel, .. } => mel.extract(samples, length, cancel),
            Self::Bank(bank) => bank.extract(samples, cancel),
            Self::Samples { normalize, .. } => {
                let mut values = samples.to_vec();
                if *normalize {
                    normalize_samples(&mut values);
                }
                values.resize(length.max(values.len()), 0.0);
                Ok(Features {
                    frames: values.len(),
                    values,
                    bins: 1,
                })
            }
        }
    }
}

fn rate(settings: &RawConfig) -> Result<u32> {
    let rate = settings.opt_usize_in("sampling_rate", 1..=MOST_RATE as usize)?;
    Ok(rate.unwrap_or(16_000) as u32)
}

/// To a mean of 0 and a variance of 1.
fn normalize_samples(samples: &mut [f32]) {
    let count = samples.len().max(1) as f64;
    let mean = samples.iter().map(|&sample| f64::from(sample)).sum::<f64>() / count;
    let squares = samples.iter().map(|&sample| {
        let distance = f64::from(sample) - mean;
        distance * distance
    });
    let deviation = (squares.sum::<f64>() / count + 1e-7).sqrt();
    for sample in samples {
        *sample = ((f64::from(*sample) - mean) / deviation) as f32;
    }
}
