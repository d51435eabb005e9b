//! The samples of an audio of any length, piece by piece.

use std::fs::File;
use std::io::Cursor;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::Arc;

use symphonia::core::formats::probe::Hint;

use super::packets::Packets;
use super::{ensure_finite, Audio, Limits, Resampler};
use crate::{CancelToken, Error, Result};

/// Samples of decoded audio that come at once.
const PIECE: usize = 1 << 16;

/// An audio on its way, decoded or not.
pub struct SampleStream {
    source: Source,
    /// What errors call it.
    name: String,
    given: usize,
}

enum Source {
    Encoded(Box<Packets>),
    Decoded {
        audio: Arc<Audio>,
        done: usize,
        resampler: Option<Resampler>,
    },
}

impl SampleStream {
    /// Of decoded audio, at a rate.
    pub fn of_audio(audio: Arc<Audio>, rate: u32) -> Result<Self> {
        let resampler = if audio.rate() == rate {
            None
        } else {
            Some(Resampler::new(audio.rate(), rate)?)
        };
        let source = Source::Decoded {
            audio,
            done: 0,
            resampler,
        };
        Ok(Self::new(source, "the audio".to_owned()))
    }

    /// Of a file, at `rate` where one is given.
    pub fn of_file(path: &Path, rate: Option<u32>, limits: &Limits) -> Result<Self> {
        let shown = path.display();
        let unreadable = |error: std::io::Error| {
            Error::InvalidInput(format!("the audio {shown} can't be read: {error}"))
        };
        let file = File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(Error::InvalidInput(format!("{shown} is not a file")));
        }
        check_bytes(metadata.len(), limits)?;
        let mut hint = Hint::new();
        if let Some(extension) = path.extension().and_then(|extension| extension.to_str()) {
            hint.with_extension(extension);
        }
        let name = format!("the audio {shown}");
        let open = || Packets::open(Box::new(file), &hint, rate, limits);
        let packets = caught(&name, open)?;
        Ok(Self::new(Source::Encoded(Box::new(packets)), name))
    }

    /// Of a file's bytes, at `rate` where one is given.
    pub fn of_bytes(bytes: Arc<[u8]>, rate: Option<u32>, limits: &Limits) -> Result<Self> {
        check_bytes(bytes.len() as u64, limits)?;
        let name = "the audio".to_owned();
        let source = Box::new(Cursor::new(bytes));
        let open = || Packets::open(source, &Hint::new(), rate, limits);
        let packets = caught(&name, open)?;
        Ok(Self::new(Source::Encoded(Box::new(packets)), name))
    }

    fn new(source: Source, name: String) -> Self {
        Self {
            source,
            name,
            given: 0,
        }
    }

    /// Adds the next samples; false after the last one.
    pub fn read(&mut self, samples: &mut Vec<f32>, cancel: &CancelToken) -> Result<bool> {
        cancel.check()?;
        let before = samples.len();
        let more = match &mut self.source {
            Source::Encoded(packets) => {
                let given = self.given;
                caught(&self.name, || {
                    let more = packets.read(samples, cancel)?;
                    ensure_finite(&samples[before..], given)?;
                    Ok(more)
                })?
            }
            Source::Decoded {
                audio,
                done,
                resampler,
            } => {
                let rest = &audio.samples()[*done..];
                let piece = &rest[..rest.len().min(PIECE)];
                *done += piece.len();
                match (resampler.as_mut(), piece.is_empty()) {
                    (Some(resampler), false) => resampler.push(piece, samples)?,
                    (None, _) => samples.extend_from_slice(piece),
                    (Some(_), true) => {
                        if let Some(resampler) = resampler.take() {
                            resampler.finish(samples)?;
                        }
                    }
                }
                !piece.is_empty()
            }
        };
        self.given += samples.len() - before;
        Ok(more)
    }

    /// The rate of the samples so far and the source's channels.
    pub(super) fn format(&self) -> (u32, usize) {
        match &self.source {
            Source::Encoded(packets) => (packets.rate(), packets.channels()),
            Source::Decoded { audio, .. } => (audio.rate(), audio.channels()),
        }
    }
}

fn check_bytes(bytes: u64, limits: &Limits) -> Result<()> {
    if bytes <= limits.max_bytes as u64 {
        return Ok(());
    }
    Err(Error::InvalidInput(format!(
        "the audio has {bytes} bytes, and the limit is {}: raise Candle::Audio.max_bytes",
        limits.max_bytes
    )))
}

/// Decoders meet bytes that nobody checked: a panic there is an error of the file.
fn caught<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Err(Error::InvalidInput(reason))) => Err(Error::InvalidInput(format!(
            "{what} can't be decoded: {reason}"
        ))),
        Ok(result) => result,
        Err(_) => Err(Error::InvalidInput(format!(
            "{what} can't be decoded: it is damaged"
        ))),
    }
}
