//! Opus, whose packets symphonia finds in OGG and WebM and leaves to others to decode.

use opus_decoder::OpusMultistreamDecoder;
use symphonia::core::packet::Packet;

use crate::{Error, Result};

/// What every stream is decoded at.
pub const RATE: u32 = 48_000;

const SIGNATURE: &[u8] = b"OpusHead";
/// Frames of the longest packet, 120 ms.
const MOST_FRAMES: usize = 5760;

/// One track on its way.
pub struct OpusStream {
    decoder: OpusMultistreamDecoder,
    channels: usize,
    /// Frames that are still to be dropped: the encoder's delay.
    skipped: usize,
    gain: f32,
    decoded: Vec<f32>,
}

impl OpusStream {
    /// `header` is the track's `OpusHead`.
    pub fn new(header: &[u8]) -> Result<Self> {
        let damaged = || Error::InvalidInput("its Opus header is damaged".to_owned());
        let (signature, rest) = header
            .split_at_checked(SIGNATURE.len())
            .ok_or_else(damaged)?;
        let [_, channels, skip_low, skip_high, _, _, _, _, gain_low, gain_high, family, layout @ ..] =
            rest
        else {
            return Err(damaged());
        };
        let channels = usize::from(*channels);
        if signature != SIGNATURE || channels == 0 {
            return Err(damaged());
        }
        let (streams, coupled, mapping) = match (family, layout) {
            (0, _) if channels <= 2 => (1, channels - 1, vec![0, 1]),
            (0, _) => return Err(damaged()),
            (_, [streams, coupled, mapping @ ..]) => {
                let streams = (usize::from(*streams), usize::from(*coupled));
                (streams.0, streams.1, mapping.to_vec())
            }
            _ => return Err(damaged()),
        };
        let mapping = mapping.get(..channels).ok_or_else(damaged)?;
        let decoder = OpusMultistreamDecoder::new(RATE, channels, streams, coupled, mapping)
            .map_err(|error| Error::InvalidInput(error.to_string()))?;
        let gain = f32::from(i16::from_le_bytes([*gain_low, *gain_high])) / 256.0;
        Ok(Self {
            decoder,
            channels,
            skipped: usize::from(u16::from_le_bytes([*skip_low, *skip_high])),
            gain: 10f32.powf(gain / 20.0),
            decoded: vec![0.0; MOST_FRAMES * channels],
        })
    }

    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Puts the packet's samples, channel beside channel, in place of what is there.
    pub fn decode(
        &mut self,
        packet: &Packet,
        interleaved: &mut Vec<f32>,
    ) -> std::result::Result<(), String> {
        interleaved.clear();
        let frames = self
            .decoder
            .decode_float(&packet.data, &mut self.decoded, false)
            .map_err(|error| error.to_string())?;
        let first = frames.min(self.skipped);
        self.skipped -= first;
        let padding = usize::try_from(packet.trim_end.get()).unwrap_or(usize::MAX);
        let end = frames.saturating_sub(padding).max(first);
        let range = first * self.channels..end * self.channels;
        let samples = self.decoded.get(range).unwrap_or_default();
        interleaved.extend(samples.iter().map(|sample| sample * self.gain));
        Ok(())
    }
}
