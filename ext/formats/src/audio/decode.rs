//! Encoded audio to samples, within limits on bytes and seconds.

use std::fs::File;
use std::io::Cursor;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use symphonia::core::codecs::audio::well_known::CODEC_ID_OPUS;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error as StreamError;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::packet::Packet;

use super::opus::{self, OpusStream};
use super::{check_rate, mixed, Audio, Resampler};
use crate::{CancelToken, Error, Result};
use base::runtime::memory;

/// What audio may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of the encoded file.
    pub max_bytes: usize,
    /// Of the decoded audio.
    pub max_seconds: usize,
}

static MAX_BYTES: AtomicUsize = AtomicUsize::new(2 << 30);
static MAX_SECONDS: AtomicUsize = AtomicUsize::new(6 * 3600);

/// Samples that are decoded between two looks at the memory that is left.
const CHECKED: usize = 1 << 22;

/// The limits of this process.
pub fn limits() -> Limits {
    Limits {
        max_bytes: MAX_BYTES.load(Ordering::Relaxed),
        max_seconds: MAX_SECONDS.load(Ordering::Relaxed),
    }
}

pub fn set_limits(limits: Limits) {
    MAX_BYTES.store(limits.max_bytes, Ordering::Relaxed);
    MAX_SECONDS.store(limits.max_seconds, Ordering::Relaxed);
}

/// Whether bytes begin as the files do that `decode` reads.
pub fn is_encoded(bytes: &[u8]) -> bool {
    match bytes {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..]
        | [b'f', b'L', b'a', b'C', ..]
        | [b'O', b'g', b'g', b'S', ..]
        | [b'I', b'D', b'3', ..]
        | [0x1a, 0x45, 0xdf, 0xa3, ..]
        | [_, _, _, _, b'f', b't', b'y', b'p', ..] => true,
        // Frames of MP3 and of AAC without a container.
        [0xff, second, ..] => second & 0xe0 == 0xe0,
        _ => false,
    }
}

/// The audio of a file, at `rate` where one is given.
pub fn read_file(
    path: &Path,
    rate: Option<u32>,
    limits: &Limits,
    cancel: &CancelToken,
) -> Result<Audio> {
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
    caught(&format!("the audio {shown}"), || {
        samples(Box::new(file), &hint, rate, limits, cancel)
    })
}

/// The audio of a file's bytes, at `rate` where one is given.
pub fn decode(
    bytes: Vec<u8>,
    rate: Option<u32>,
    limits: &Limits,
    cancel: &CancelToken,
) -> Result<Audio> {
    check_bytes(bytes.len() as u64, limits)?;
    caught("the audio", || {
        samples(
            Box::new(Cursor::new(bytes)),
            &Hint::new(),
            rate,
            limits,
            cancel,
        )
    })
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
fn caught(what: &str, work: impl FnOnce() -> Result<Audio>) -> Result<Audio> {
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

fn samples(
    source: Box<dyn MediaSource>,
    hint: &Hint,
    rate: Option<u32>,
    limits: &Limits,
    cancel: &CancelToken,
) -> Result<Audio> {
    let stream = MediaSourceStream::new(source, Default::default());
    let mut format = symphonia::default::get_probe()
        .probe(
            hint,
            stream,
            FormatOptions::default(),
            MetadataOptions::default(),
        )
        .map_err(|error| {
            Error::InvalidInput(format!(
                "{}; WAV, FLAC, MP3, OGG (Vorbis, Opus), M4A (AAC) and WebM or MKV (Vorbis, Opus) are read",
                reason(&error)
            ))
        })?;
    let track = format
        .default_track(TrackType::Audio)
        .or_else(|| format.first_track(TrackType::Audio))
        .ok_or_else(|| Error::InvalidInput("it has no audio track".to_owned()))?;
    let parameters = track
        .codec_params
        .as_ref()
        .and_then(|parameters| parameters.audio())
        .ok_or_else(|| Error::InvalidInput("its audio track names no codec".to_owned()))?;
    let (id, decoder) = (track.id, decoder(parameters)?);
    Mixing {
        samples: Vec::new(),
        resampler: None,
        rate: 0,
        channels: 0,
        wanted: rate,
        most: limits.max_seconds,
        frames: 0,
        checked: 0,
    }
    .read(format.as_mut(), (id, decoder), cancel)
}

/// What makes samples of a track's packets.
enum PacketDecoder {
    Symphonia(Box<dyn AudioDecoder>),
    Opus(Box<OpusStream>),
}

impl PacketDecoder {
    /// Puts the samples of a packet, channel beside channel, in place of what is there. Returns their rate, and how
    /// many channels there are.
    fn decode(
        &mut self,
        packet: &Packet,
        interleaved: &mut Vec<f32>,
    ) -> std::result::Result<(u32, usize), String> {
        match self {
            Self::Symphonia(decoder) => {
                let buffer = decoder.decode(packet).map_err(|error| reason(&error))?;
                interleaved.clear();
                buffer.copy_to_vec_interleaved(interleaved);
                Ok((buffer.spec().rate(), buffer.spec().channels().count()))
            }
            Self::Opus(stream) => {
                stream.decode(packet, interleaved)?;
                Ok((opus::RATE, stream.channels()))
            }
        }
    }
}

fn decoder(parameters: &AudioCodecParameters) -> Result<PacketDecoder> {
    if parameters.codec == CODEC_ID_OPUS {
        let header = parameters.extra_data.as_deref().unwrap_or_default();
        let stream = OpusStream::new(header)?;
        return Ok(PacketDecoder::Opus(Box::new(stream)));
    }
    symphonia::default::get_codecs()
        .make_audio_decoder(parameters, &AudioDecoderOptions::default())
        .map(PacketDecoder::Symphonia)
        .map_err(|error| Error::InvalidInput(reason(&error)))
}

fn reason(error: &StreamError) -> String {
    match error {
        StreamError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "it ends too early".to_owned()
        }
        StreamError::Unsupported(what) => format!("its format is unsupported ({what})"),
        error => error.to_string(),
    }
}

/// Decoded packets on their way to one channel at one rate.
struct Mixing {
    samples: Vec<f32>,
    resampler: Option<Resampler>,
    /// Of what is decoded; 0 before the first packet.
    rate: u32,
    channels: usize,
    wanted: Option<u32>,
    most: usize,
    frames: usize,
    checked: usize,
}

impl Mixing {
    fn read(
        mut self,
        format: &mut dyn FormatReader,
        (track, mut decoder): (u32, PacketDecoder),
        cancel: &CancelToken,
    ) -> Result<Audio> {
        let (mut interleaved, mut mono) = (Vec::new(), Vec::new());
        let mut damage = None;
        loop {
            cancel.check()?;
            let packet = match format.next_packet() {
                Ok(Some(packet)) if packet.track_id == track => packet,
                Ok(Some(_)) => continue,
                Ok(None) => break,
                // What came before a file's end is audio, even if the file is cut.
                Err(error) => {
                    damage = Some(reason(&error));
                    break;
                }
            };
            match decoder.decode(&packet, &mut interleaved) {
                Ok((rate, channels)) => {
                    self.begin(rate, channels)?;
                    mono.clear();
                    mono.extend(interleaved.chunks_exact(channels.max(1)).map(mixed));
                    self.take(&mono)?;
                }
                Err(reason) => damage = Some(reason),
            }
        }
        if self.frames == 0 {
            return Err(Error::InvalidInput(
                damage.unwrap_or_else(|| "it holds no audio".to_owned()),
            ));
        }
        if let Some(resampler) = self.resampler.take() {
            resampler.finish(&mut self.samples)?;
        }
        let rate = self.wanted.unwrap_or(self.rate);
        Audio::new(self.samples, rate, self.channels)
    }

    fn begin(&mut self, rate: u32, channels: usize) -> Result<()> {
        check_rate(rate)?;
        if self.rate == 0 {
            (self.rate, self.channels) = (rate, channels);
            if let Some(wanted) = self.wanted.filter(|&wanted| wanted != rate) {
                self.resampler = Some(Resampler::new(rate, wanted)?);
            }
        }
        if rate == self.rate {
            return Ok(());
        }
        Err(Error::InvalidInput(format!(
            "its sample rate changes from {} to {rate} Hz",
            self.rate
        )))
    }

    fn take(&mut self, mono: &[f32]) -> Result<()> {
        self.frames += mono.len();
        if self.frames / self.rate as usize > self.most {
            return Err(Error::InvalidInput(format!(
                "it is longer than {} seconds: raise Candle::Audio.max_seconds",
                self.most
            )));
        }
        if self.samples.len() >= self.checked {
            self.checked = self.samples.len() + CHECKED;
            // A growing list doubles.
            memory::ensure_elements(&[2 * self.checked], 4, "the samples of an audio")?;
        }
        match &mut self.resampler {
            Some(resampler) => resampler.push(mono, &mut self.samples),
            None => {
                self.samples.extend_from_slice(mono);
                Ok(())
            }
        }
    }
}
