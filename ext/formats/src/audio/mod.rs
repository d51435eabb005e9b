//! Audio: what is in its files, at which rate, and what models are shown of it.

mod bank;
mod clap;
mod decode;
mod features;
mod fft;
mod mel;
mod opus;
mod packets;
mod resample;
mod stream;
mod windows;

pub use bank::{BankKind, BankSettings, FilterBank};
pub use clap::ClapExtractor;
pub use decode::{decode, is_encoded, limits, read_file, set_limits, Limits};
pub use features::{Extractor, Features};
pub use mel::{LogMel, MelScale};
pub use resample::Resampler;
pub use stream::SampleStream;
pub use windows::Windows;

use crate::{CancelToken, Error, Result};

/// The highest sample rate that is taken; recordings have at most half of it.
pub const MOST_RATE: u32 = 768_000;

/// Decoded audio, mixed down to one channel: samples between -1 and 1.
#[derive(Clone, PartialEq)]
pub struct Audio {
    samples: Vec<f32>,
    rate: u32,
    channels: usize,
}

impl Audio {
    /// `channels` is how many the source had.
    pub fn new(samples: Vec<f32>, rate: u32, channels: usize) -> Result<Self> {
        check_rate(rate)?;
        ensure_finite(&samples, 0)?;
        Ok(Self {
            samples,
            rate,
            channels: channels.max(1),
        })
    }

    /// Of interleaved channels, which are mixed down.
    pub fn interleaved(samples: &[f32], rate: u32, channels: usize) -> Result<Self> {
        if channels == 0 || !samples.len().is_multiple_of(channels) {
            return Err(Error::InvalidInput(format!(
                "{} samples can't be divided among {channels} channels",
                samples.len()
            )));
        }
        let mixed = samples.chunks_exact(channels).map(mixed).collect();
        Self::new(mixed, rate, channels)
    }

    pub fn samples(&self) -> &[f32] {
        &self.samples
    }

    pub fn rate(&self) -> u32 {
        self.rate
    }

    /// How many channels the source had.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// In seconds.
    pub fn duration(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.rate)
    }

    /// The same audio at another rate.
    pub fn resampled(&self, rate: u32, cancel: &CancelToken) -> Result<Self> {
        check_rate(rate)?;
        if rate == self.rate {
            return Ok(self.clone());
        }
        let mut resampler = Resampler::new(self.rate, rate)?;
        let mut samples = Vec::new();
        for chunk in self.samples.chunks(1 << 16) {
            cancel.check()?;
            resampler.push(chunk, &mut samples)?;
        }
        resampler.finish(&mut samples)?;
        Ok(Self {
            samples,
            rate,
            channels: self.channels,
        })
    }
}

/// The mean of the channels.
fn mixed(frame: &[f32]) -> f32 {
    match frame {
        [one] => *one,
        several => several.iter().sum::<f32>() / several.len() as f32,
    }
}

/// Samples of which the first has this number.
fn ensure_finite(samples: &[f32], first: usize) -> Result<()> {
    let Some(at) = samples.iter().position(|sample| !sample.is_finite()) else {
        return Ok(());
    };
    Err(Error::InvalidInput(format!(
        "sample {} of the audio is not a number (NaN or infinite)",
        first + at
    )))
}

fn check_rate(rate: u32) -> Result<()> {
    if (1..=MOST_RATE).contains(&rate) {
        return Ok(());
    }
    Err(Error::InvalidInput(format!(
        "a sample rate must be between 1 and {MOST_RATE} Hz, not {rate}"
    )))
}

impl std::fmt::Debug for Audio {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Audio({:.2} s at {} Hz)",
            self.duration(),
            self.rate
        )
    }
}
