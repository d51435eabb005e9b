//! Whether a window came out well enough, and what happens where it did not.

use super::sequential::Progress;
use super::settings::TranscribeSettings;
use super::window::{self, Decoded, Window};
use super::{beams, WhisperParts};
use crate::{CancelToken, Result};
use formats::text::compression;

/// Decodes at rising temperatures what is repetitive or unlikely.
pub fn with_fallback(
    parts: &WhisperParts,
    active: &[usize],
    progress: &[Progress],
    windows: &[Window],
    settings: &TranscribeSettings,
    cancel: &CancelToken,
) -> Result<Vec<Decoded>> {
    let mut results: Vec<Option<Decoded>> = vec![None; windows.len()];
    let ladders: Vec<Vec<f32>> = active
        .iter()
        .map(|&at| progress[at].temperatures(settings))
        .collect();
    let mut round = 0;
    loop {
        let mut open: Vec<usize> = (0..windows.len())
            .filter(|&at| round < ladders[at].len())
            .collect();
        let mut failing = Vec::with_capacity(open.len());
        for at in open.drain(..) {
            let again = match &results[at] {
                Some(decoded) => decoded.fails(|| parts.text(&decoded.tokens), settings)?,
                None => true,
            };
            if again {
                failing.push(at);
            }
        }
        if failing.is_empty() {
            break;
        }
        // Audios of one call may be at different temperatures.
        while let Some(&first) = failing.first() {
            let temperature = ladders[first][round];
            let (now, later): (Vec<usize>, Vec<usize>) = failing
                .iter()
                .partition(|&&at| ladders[at][round] == temperature);
            let chosen: Vec<&Window> = now.iter().map(|&at| &windows[at]).collect();
            let seed = settings.seed.wrapping_add(round as u64);
            let decoded = parts.compute(|| {
                let decoder = parts.model.decoder()?;
                let width = settings.num_beams.or(parts.tokens.num_beams).unwrap_or(1);
                if temperature == 0.0 && width > 1 {
                    return beams::decode(decoder, &parts.tokens, &chosen, width, cancel);
                }
                window::decode(decoder, &parts.tokens, &chosen, (temperature, seed), cancel)
            })?;
            for (at, decoded) in now.into_iter().zip(decoded) {
                results[at] = Some(decoded);
            }
            failing = later;
        }
        round += 1;
    }
    let missing = || crate::Error::Internal("a window was not decoded".to_owned());
    results
        .into_iter()
        .map(|one| one.ok_or_else(missing))
        .collect()
}

impl Decoded {
    /// Whether a window should be decoded at the next temperature.
    fn fails(
        &self,
        text: impl FnOnce() -> Result<String>,
        settings: &TranscribeSettings,
    ) -> Result<bool> {
        // Silent whatever the temperature is.
        if self.is_silent(settings) {
            return Ok(false);
        }
        let unlikely = settings
            .logprob_threshold
            .is_some_and(|least| self.avg_logprob < least);
        match settings.compression_ratio_threshold {
            Some(most) if !unlikely => Ok(compression::ratio(text()?.trim()) > most),
            _ => Ok(unlikely),
        }
    }

    /// Whether a window holds no speech, whatever was decoded.
    pub fn is_silent(&self, settings: &TranscribeSettings) -> bool {
        let quiet = settings
            .no_speech_threshold
            .is_some_and(|most| self.no_speech_prob > most);
        let likely = settings
            .logprob_threshold
            .is_some_and(|least| self.avg_logprob > least);
        quiet && !likely
    }
}

impl WhisperParts {
    /// The text of tokens, those for times left out.
    pub fn text(&self, tokens: &[u32]) -> Result<String> {
        let shown: Vec<u32> = tokens
            .iter()
            .copied()
            .filter(|&token| token < self.tokens.first_beyond_text)
            .collect();
        self.tokenizer.decode(&shown, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPEATED: &str =
        "no no no no no no no no no no no no no no no no no no no no no no no no no no no";

    fn settings(
        compression_ratio_threshold: Option<f32>,
        logprob_threshold: Option<f32>,
        no_speech_threshold: Option<f32>,
    ) -> TranscribeSettings {
        TranscribeSettings {
            compression_ratio_threshold,
            logprob_threshold,
            no_speech_threshold,
            ..TranscribeSettings::default()
        }
    }

    fn decoded(avg_logprob: f32, no_speech_prob: f32) -> Decoded {
        Decoded {
            tokens: Vec::new(),
            avg_logprob,
            no_speech_prob,
            temperature: 0.0,
        }
    }

    /// As openai-whisper's `decode_with_fallback`.
    #[test]
    fn unlikely_and_repetitive_windows_fail() {
        let usual = settings(Some(2.4), Some(-1.0), Some(0.6));
        let fails = |decoded: Decoded, text: &str, settings: &TranscribeSettings| {
            decoded.fails(|| Ok(text.to_owned()), settings).unwrap()
        };
        assert!(!fails(decoded(-0.5, 0.1), "good", &usual));
        assert!(fails(decoded(-1.5, 0.1), "good", &usual));
        assert!(fails(decoded(-0.5, 0.1), REPEATED, &usual));
        assert!(!fails(decoded(-0.5, 0.1), "", &usual));
        // Silence is not decoded again, and likely text is not silence.
        assert!(!fails(decoded(-1.5, 0.9), REPEATED, &usual));
        assert!(fails(decoded(-0.5, 0.9), REPEATED, &usual));
        assert!(fails(
            decoded(-1.5, 0.9),
            "good",
            &settings(None, Some(-1.0), None)
        ));
        assert!(!fails(
            decoded(-1.5, 0.1),
            REPEATED,
            &settings(None, None, Some(0.6))
        ));
        assert!(fails(
            decoded(-1.5, 0.1),
            REPEATED,
            &settings(Some(2.4), None, None)
        ));
    }

    #[test]
    fn silence_is_unlikely_too() {
        let usual = settings(None, Some(-1.0), Some(0.6));
        assert!(decoded(-1.5, 0.7).is_silent(&usual));
        assert!(!decoded(-0.5, 0.7).is_silent(&usual));
        assert!(!decoded(-1.5, 0.5).is_silent(&usual));
        assert!(decoded(-0.5, 0.7).is_silent(&settings(None, None, Some(0.6))));
        assert!(!decoded(-1.5, 0.9).is_silent(&settings(None, Some(-1.0), None)));
    }
}
