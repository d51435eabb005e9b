//! Whisper's features of an audio of any length, window by window. Short audio's are kept; those of longer audio are
//! computed twice: first for the largest of all, then where they are asked for, so that memory does not grow with
//! the audio.

use super::mel::{normalize, Known, LogMel};
use super::SampleStream;
use crate::{CancelToken, Result};

/// Frames that are kept: five minutes of Whisper's.
const KEPT: usize = 30_000;
/// Samples that are decoded before frames are made of them.
const PIECE: usize = 1 << 18;

/// Features that are asked for in their order.
pub struct Windows {
    frames: usize,
    samples: usize,
    /// The largest logarithm of all.
    most: f32,
    /// Logarithms of frames from `first` on.
    logarithms: Vec<f32>,
    first: usize,
    /// What makes further ones, where not all are kept.
    later: Option<Frames>,
}

impl Windows {
    /// Of an audio that `open` begins to decode, and of the silence after it up to `least` samples.
    pub fn new(
        mel: &LogMel,
        open: &dyn Fn() -> Result<SampleStream>,
        least: usize,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let bins = mel.settings().bins;
        let mut stream = Frames::new(open()?, least);
        let (mut logarithms, mut piece) = (Vec::new(), Vec::new());
        let (mut most, mut keeps) = (f32::MIN, true);
        loop {
            let more = stream.read(mel, &mut piece, cancel)?;
            most = piece.iter().copied().fold(most, f32::max);
            keeps = keeps && stream.made <= KEPT;
            if keeps {
                logarithms.append(&mut piece);
            } else {
                logarithms = Vec::new();
                piece.clear();
            }
            if !more {
                break;
            }
        }
        let later = if keeps {
            None
        } else {
            Some(Frames::new(open()?, least))
        };
        debug_assert!(!keeps || logarithms.len() == stream.made * bins);
        Ok(Self {
            frames: stream.made,
            samples: stream.taken(),
            most,
            logarithms,
            first: 0,
            later,
        })
    }

    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Of the audio, at the rate that the features are made of.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// So many frames, `[count, bins]`; zeros behind the last one. None before an earlier call's first one.
    pub fn window(
        &mut self,
        mel: &LogMel,
        (from, count): (usize, usize),
        cancel: &CancelToken,
    ) -> Result<Vec<f32>> {
        let bins = mel.settings().bins;
        if let Some(later) = &mut self.later {
            let known = |logarithms: &Vec<f32>| logarithms.len() / bins;
            let mut more = true;
            while more && self.first + known(&self.logarithms) < from + count {
                more = later.read(mel, &mut self.logarithms, cancel)?;
                let before = from.saturating_sub(self.first);
                let before = before.min(known(&self.logarithms));
                self.logarithms.drain(..before * bins);
                self.first += before;
            }
        }
        let end = self.frames.saturating_sub(self.first);
        let place = |frame: usize| frame.saturating_sub(self.first).min(end) * bins;
        let known = self.logarithms.len();
        let range = place(from).min(known)..place(from + count).min(known);
        let mut values = self.logarithms[range].to_vec();
        normalize(&mut values, self.most);
        values.resize(count * bins, 0.0);
        Ok(values)
    }
}

/// Frames in their order, of samples that come piece by piece.
struct Frames {
    stream: SampleStream,
    least: usize,
    /// Samples from this number on.
    samples: Vec<f32>,
    start: usize,
    made: usize,
    ended: bool,
}

impl Frames {
    fn new(stream: SampleStream, least: usize) -> Self {
        Self {
            stream,
            least,
            samples: Vec::new(),
            start: 0,
            made: 0,
            ended: false,
        }
    }

    /// Samples so far.
    fn taken(&self) -> usize {
        self.start + self.samples.len()
    }

    /// Adds the logarithms of the next frames; false after the last one.
    fn read(
        &mut self,
        mel: &LogMel,
        logarithms: &mut Vec<f32>,
        cancel: &CancelToken,
    ) -> Result<bool> {
        let (window, hop) = (mel.settings().window, mel.settings().hop);
        while !self.ended && self.samples.len() < PIECE + window {
            self.ended = !self.stream.read(&mut self.samples, cancel)?;
        }
        let taken = self.taken();
        let (length, end) = if self.ended {
            let length = taken.max(self.least);
            (length, length / hop)
        } else {
            // What no later sample changes.
            let whole = taken.checked_sub(window.div_ceil(2));
            (
                taken,
                whole.map_or(0, |whole| whole / hop + 1).min(taken / hop),
            )
        };
        let known = Known {
            samples: &self.samples,
            start: self.start,
            length,
        };
        let frames = self.made..end.max(self.made);
        logarithms.extend(mel.logarithms(&known, frames, cancel)?);
        self.made = self.made.max(end);
        let needed = (self.made * hop).saturating_sub(window / 2 + 1);
        let done = needed.clamp(self.start, taken) - self.start;
        self.samples.drain(..done);
        self.start += done;
        Ok(!self.ended)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::audio::mel::{MelScale, MelSettings};
    use crate::audio::Audio;

    fn mel(hop: usize) -> LogMel {
        LogMel::new(MelSettings {
            rate: 16_000,
            bins: 8,
            window: 400,
            hop,
            scale: MelScale::Slaney,
            lowest: 0.0,
            highest: 8000.0,
        })
    }

    fn noise(count: usize) -> Vec<f32> {
        let mut state = 1u32;
        let next = |at: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 * (at as f32 / count as f32)
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn windows_are_cuts_of_the_whole() {
        let cancel = CancelToken::new();
        // With so short a step the second is longer than what is kept.
        for (count, hop, least) in [
            (700_001, 160, 48_000),
            (12_800, 160, 48_000),
            (0, 160, 48_000),
            (16_000 * 40, 16, 0),
        ] {
            let (mel, samples) = (mel(hop), noise(count));
            let whole = mel.extract(&samples, least, &cancel).unwrap();
            let audio = Arc::new(Audio::new(samples, 16_000, 1).unwrap());
            let open = || SampleStream::of_audio(audio.clone(), 16_000);
            let mut windows = Windows::new(&mel, &open, least, &cancel).unwrap();
            assert_eq!((windows.frames(), windows.samples()), (whole.frames, count));
            assert_eq!(windows.later.is_some(), whole.frames > KEPT);
            let mut from = 0;
            while from < whole.frames + 3000 {
                let mut wanted = whole.values[(from * 8).min(whole.values.len())..].to_vec();
                wanted.resize(3000 * 8, 0.0);
                let found = windows.window(&mel, (from, 3000), &cancel).unwrap();
                assert!(found == wanted, "{count} samples, from frame {from}");
                from += 1777;
            }
            assert!(windows.logarithms.len() <= KEPT * 8);
        }
    }
}
