//! Audio as a call gives it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::{CancelToken, Result};
use formats::audio::{self, Audio, SampleStream};

/// Audio, decoded or not.
#[derive(Clone, Debug)]
pub enum Sound {
    Decoded(Arc<Audio>),
    Encoded(Arc<[u8]>),
    File(PathBuf),
}

impl Sound {
    /// At the rate that a model reads.
    pub(in crate::tasks) fn load(&self, rate: u32, cancel: &CancelToken) -> Result<Arc<Audio>> {
        let limits = audio::limits();
        let audio = match self {
            Self::Decoded(audio) if audio.rate() == rate => return Ok(audio.clone()),
            Self::Decoded(audio) => audio.resampled(rate, cancel)?,
            Self::Encoded(bytes) => audio::decode(bytes.clone(), Some(rate), &limits, cancel)?,
            Self::File(path) => audio::read_file(path, Some(rate), &limits, cancel)?,
        };
        Ok(Arc::new(audio))
    }

    /// Piece by piece, at the rate that a model reads.
    pub(super) fn stream(&self, rate: u32) -> Result<SampleStream> {
        let limits = audio::limits();
        match self {
            Self::Decoded(audio) => SampleStream::of_audio(audio.clone(), rate),
            Self::Encoded(bytes) => SampleStream::of_bytes(bytes.clone(), Some(rate), &limits),
            Self::File(path) => SampleStream::of_file(path, Some(rate), &limits),
        }
    }

    /// At its own rate.
    pub fn decode(&self, cancel: &CancelToken) -> Result<Arc<Audio>> {
        let limits = audio::limits();
        match self {
            Self::Decoded(audio) => Ok(audio.clone()),
            Self::Encoded(bytes) => {
                audio::decode(bytes.clone(), None, &limits, cancel).map(Arc::new)
            }
            Self::File(path) => audio::read_file(path, None, &limits, cancel).map(Arc::new),
        }
    }
}
