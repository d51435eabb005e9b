//! The packets of encoded audio, one after the other, as samples of one channel at one rate.

use symphonia::core::codecs::audio::well_known::CODEC_ID_OPUS;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error as StreamError;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::packet::Packet;

use super::opus::{self, OpusStream};
use super::{check_rate, mixed, Limits, Resampler};
use crate::{CancelToken, Error, Result};

/// A file on its way.
pub struct Packets {
    format: Box<dyn FormatReader>,
    track: u32,
    decoder: PacketDecoder,
    resampler: Option<Resampler>,
    /// Of what is decoded; 0 before the first packet.
    rate: u32,
    channels: usize,
    wanted: Option<u32>,
    most: usize,
    frames: usize,
    interleaved: Vec<f32>,
    mono: Vec<f32>,
    damage: Option<String>,
    over: bool,
}

impl Packets {
    /// Those of a file's audio track, resampled where a rate is wanted.
    pub fn open(
        source: Box<dyn MediaSource>,
        hint: &Hint,
        wanted: Option<u32>,
        limits: &Limits,
    ) -> Result<Self> {
        let stream = MediaSourceStream::new(source, Default::default());
        let format = symphonia::default::get_probe()
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
        let (track, decoder) = (track.id, decoder(parameters)?);
        Ok(Self {
            format,
            track,
            decoder,
            resampler: None,
            rate: 0,
            channels: 0,
            wanted,
            most: limits.max_seconds,
            frames: 0,
            interleaved: Vec::new(),
            mono: Vec::new(),
            damage: None,
            over: false,
        })
    }

    /// Of the samples, once there are some.
    pub fn rate(&self) -> u32 {
        self.wanted.unwrap_or(self.rate)
    }

    /// Of the source, once there are samples.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Adds the samples of the next packet; false after the last one.
    pub fn read(&mut self, samples: &mut Vec<f32>, cancel: &CancelToken) -> Result<bool> {
        cancel.check()?;
        if self.over {
            return Ok(false);
        }
        match self.format.next_packet() {
            Ok(Some(packet)) if packet.track_id == self.track => {
                match self.decoder.decode(&packet, &mut self.interleaved) {
                    Ok((rate, channels)) => self.take(rate, channels, samples)?,
                    Err(reason) => self.damage = Some(reason),
                }
                Ok(true)
            }
            Ok(Some(_)) => Ok(true),
            Ok(None) => self.end(samples),
            // What came before a file's end is audio, even if the file is cut.
            Err(error) => {
                self.damage = Some(reason(&error));
                self.end(samples)
            }
        }
    }

    fn take(&mut self, rate: u32, channels: usize, samples: &mut Vec<f32>) -> Result<()> {
        check_rate(rate)?;
        if self.rate == 0 {
            (self.rate, self.channels) = (rate, channels);
            if let Some(wanted) = self.wanted.filter(|&wanted| wanted != rate) {
                self.resampler = Some(Resampler::new(rate, wanted)?);
            }
        }
        if rate != self.rate {
            return Err(Error::InvalidInput(format!(
                "its sample rate changes from {} to {rate} Hz",
                self.rate
            )));
        }
        self.mono.clear();
        let frames = self.interleaved.chunks_exact(channels.max(1));
        self.mono.extend(frames.map(mixed));
        self.frames += self.mono.len();
        if self.frames / self.rate as usize > self.most {
            return Err(Error::InvalidInput(format!(
                "it is longer than {} seconds: raise Candle::Audio.max_seconds",
                self.most
            )));
        }
        match &mut self.resampler {
            Some(resampler) => resampler.push(&self.mono, samples),
            None => {
                samples.extend_from_slice(&self.mono);
                Ok(())
            }
        }
    }

    fn end(&mut self, samples: &mut Vec<f32>) -> Result<bool> {
        self.over = true;
        if self.frames == 0 {
            let damage = self.damage.take();
            return Err(Error::InvalidInput(
                damage.unwrap_or_else(|| "it holds no audio".to_owned()),
            ));
        }
        if let Some(resampler) = self.resampler.take() {
            resampler.finish(samples)?;
        }
        Ok(false)
    }
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
