//! Whisper's way through an audio: window after window, each from where the last one's text ended.

use std::sync::Arc;

use super::allowed::Allowed;
use super::fallback::with_fallback;
use super::settings::{Segment, Timestamps, TranscribeSettings, Transcript};
use super::window::{Decoded, Window};
use super::words;
use super::{Sound, WhisperParts};
use crate::models::seq2seq::Memory;
use crate::{CancelToken, Result};
use formats::audio::{Audio, Windows};

/// Seconds that a token for times stands for.
pub const STEP: f64 = 0.02;
/// Above this temperature, the text is not used as context for the next window.
const STEADY: f32 = 0.5;

/// One audio on its way.
pub struct Progress {
    pub transcript: Transcript,
    language: Option<String>,
    windows: Option<Windows>,
    /// The audio itself, of models that read samples.
    pub audio: Option<Arc<Audio>>,
    /// In frames.
    pub seek: usize,
    frames: usize,
    /// Whether the audio is longer than a window.
    long: bool,
    /// Tokens before the next window, and before those.
    context: Vec<u32>,
    hotwords: Vec<u32>,
    /// The longest window so far, its prompt included: transformers lets later ones be as long, and longer by
    /// their own prompt.
    longest: Option<usize>,
    /// When the last word ended, in seconds.
    spoken: f64,
    pub over: bool,
}

impl Progress {
    pub fn new() -> Self {
        Self {
            transcript: Transcript::default(),
            language: None,
            windows: None,
            audio: None,
            seek: 0,
            frames: 0,
            long: false,
            context: Vec::new(),
            hotwords: Vec::new(),
            longest: None,
            spoken: 0.0,
            over: false,
        }
    }

    /// Seconds that are written, where a frame lasts so many.
    pub fn written(&self, frame: f64) -> f64 {
        if self.over {
            return self.transcript.duration;
        }
        self.seek as f64 * frame
    }

    /// The audio's features, computed before its first window.
    fn prepare(
        &mut self,
        sound: &Sound,
        parts: &WhisperParts,
        settings: &TranscribeSettings,
        cancel: &CancelToken,
    ) -> Result<()> {
        if self.windows.is_some() {
            return Ok(());
        }
        let windows = parts.windows(sound, cancel)?;
        self.transcript.duration = windows.samples() as f64 / f64::from(parts.extractor.rate());
        self.long = windows.frames() > parts.window;
        self.frames = windows.frames();
        if let Some(prompt) = &settings.initial_prompt {
            let text = format!(" {}", prompt.trim());
            self.context = parts.tokenizer.ids(&text, false)?;
        }
        if let Some(hotwords) = &settings.hotwords {
            let text = format!(" {}", hotwords.trim());
            self.hotwords = parts.tokenizer.ids(&text, false)?;
        }
        if let Some(language) = &settings.language {
            self.language = Some(parts.tokens.language(language)?);
        } else if !parts.tokens.is_multilingual() {
            self.language = Some("en".to_owned());
        }
        self.windows = Some(windows);
        Ok(())
    }

    /// The frames of the next window, with zeros after the last. Behind short audio transformers hears silence, and
    /// openai-whisper, which always decodes with tokens for times, nothing.
    fn window(
        &mut self,
        parts: &WhisperParts,
        settings: &TranscribeSettings,
        cancel: &CancelToken,
    ) -> Result<Vec<f32>> {
        let Some(windows) = &mut self.windows else {
            return Ok(Vec::new());
        };
        let mut values = windows.window(parts.mel()?, (self.seek, parts.window), cancel)?;
        if settings.timestamp_tokens && !self.long {
            clear_silence(parts, &mut values, self.spoken_frames(parts));
        }
        Ok(values)
    }

    /// Frames of the window that begin within the audio.
    fn spoken_frames(&self, parts: &WhisperParts) -> usize {
        let rate = f64::from(parts.extractor.rate());
        let samples = (self.transcript.duration * rate).round() as usize;
        (samples / parts.hop)
            .saturating_sub(self.seek)
            .min(parts.window)
    }

    /// One after the other, until a window is good enough.
    pub fn temperatures(&self, settings: &TranscribeSettings) -> Vec<f32> {
        match &settings.temperatures {
            Some(temperatures) if !temperatures.is_empty() => temperatures.clone(),
            _ if self.long => vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            _ => vec![0.0],
        }
    }
}

/// The next window of each audio that is not over, all computed together. Returns the new segments by audio.
pub fn step(
    parts: &WhisperParts,
    sounds: &[Sound],
    progress: &mut [Progress],
    (settings, allowed): (&TranscribeSettings, Option<&Arc<Allowed>>),
    cancel: &CancelToken,
) -> Result<Vec<(usize, Vec<Segment>)>> {
    let active: Vec<usize> = (0..progress.len())
        .filter(|&at| !progress[at].over)
        .take(parts.batch)
        .collect();
    for &at in &active {
        progress[at].prepare(&sounds[at], parts, settings, cancel)?;
    }
    let values: Vec<Vec<f32>> = active
        .iter()
        .map(|&at| progress[at].window(parts, settings, cancel))
        .collect::<Result<_>>()?;
    let features: Vec<(&[f32], usize)> = values
        .iter()
        .map(|values| (values.as_slice(), parts.bins))
        .collect();
    let memories = parts.compute(|| parts.model.memories(&features, cancel))?;
    let mut windows = Vec::with_capacity(active.len());
    for (&at, memory) in active.iter().zip(memories) {
        if progress[at].language.is_none() {
            progress[at].language = Some(detect(parts, &memory, cancel)?.0);
        }
        windows.push(prompted(parts, &progress[at], memory, (settings, allowed))?);
    }
    let decoded = with_fallback(parts, &active, progress, &windows, settings, cancel)?;
    let first = parts.tokens.first_timestamp;
    let mut new = Vec::with_capacity(active.len());
    for (((&at, window), values), decoded) in active.iter().zip(&windows).zip(&values).zip(decoded)
    {
        let mut cut = cut(parts, &progress[at], &decoded, settings)?;
        if settings.timestamps == Timestamps::Words {
            // No word can be in the silence after the audio's end.
            let length = progress[at].spoken_frames(parts);
            let offset = progress[at].seek as f64 * STEP / 2.0;
            let heard = if progress[at].long || settings.timestamp_tokens {
                None
            } else {
                Some(without_silence(parts, window, values, length, cancel)?)
            };
            let window = heard.as_ref().unwrap_or(window);
            let (place, before) = ((length, offset), &mut progress[at].spoken);
            words::add(parts, window, place, &mut cut.segments, before, cancel)?;
            cut.end_with_words(&progress[at], offset);
        }
        progress[at].longest = Some(window.prompt.len() + window.most);
        new.push((at, progress[at].take(cut, first, &decoded, settings)));
    }
    Ok(new)
}

/// A window of so many frames with nothing behind them, as openai-whisper aligns words: transformers, whose text
/// this is, hears silence there.
fn without_silence(
    parts: &WhisperParts,
    window: &Window,
    values: &[f32],
    frames: usize,
    cancel: &CancelToken,
) -> Result<Window> {
    let mut values = values.to_vec();
    clear_silence(parts, &mut values, frames);
    let features = [(values.as_slice(), parts.bins)];
    let memories = parts.compute(|| parts.model.memories(&features, cancel))?;
    let memory = memories.into_iter().next();
    let missing = || crate::Error::Internal("a window was not encoded".to_owned());
    Ok(Window {
        prompt: window.prompt.clone(),
        start: window.start,
        memory: memory.ok_or_else(missing)?,
        timestamps: window.timestamps,
        suppressed: window.suppressed.clone(),
        allowed: window.allowed.clone(),
        most: window.most,
    })
}

fn clear_silence(parts: &WhisperParts, values: &mut [f32], spoken: usize) {
    let from = (spoken * parts.bins).min(values.len());
    values[from..].fill(0.0);
}

/// The likeliest language of a window, and how likely it is.
pub fn detect(
    parts: &WhisperParts,
    memory: &Memory,
    cancel: &CancelToken,
) -> Result<(String, f32)> {
    let logits = parts.compute(|| {
        let (logits, _) =
            parts
                .model
                .decoder()?
                .begin(&[parts.tokens.start], memory, &[0], cancel)?;
        Ok(logits.to_vec2::<f32>()?.remove(0))
    })?;
    let score = |id: u32| {
        logits
            .get(id as usize)
            .copied()
            .unwrap_or(f32::NEG_INFINITY)
    };
    let mut best: Option<(&str, f32)> = None;
    let mut scores = Vec::new();
    // By token, as an argmax does.
    let mut languages: Vec<(&str, u32)> = parts.tokens.languages().collect();
    languages.sort_by_key(|&(_, id)| id);
    for (code, id) in languages {
        scores.push(score(id));
        if best.is_none_or(|(_, most)| score(id) > most) {
            best = Some((code, score(id)));
        }
    }
    let Some((code, most)) = best else {
        return Ok(("en".to_owned(), 1.0));
    };
    let total: f64 = scores
        .iter()
        .map(|&score| f64::from(score - most).exp())
        .sum();
    Ok((code.to_owned(), (1.0 / total) as f32))
}

fn prompted(
    parts: &WhisperParts,
    progress: &Progress,
    memory: Memory,
    (settings, allowed): (&TranscribeSettings, Option<&Arc<Allowed>>),
) -> Result<Window> {
    let tokens = &parts.tokens;
    // Long audio goes on where the last time of a window says.
    let wanted = progress.long || tokens.always_timestamps || settings.timestamp_tokens;
    let timestamps = wanted && tokens.has_timestamps(parts.model.config().vocab_size());
    let own = tokens.prompt(progress.language.as_deref(), settings.task, timestamps)?;
    let target = parts.max_target;
    let room = (target / 2).saturating_sub(1);
    let mut prompt = Vec::new();
    let shown = progress.hotwords.len().min(room);
    let from = progress.context.len().saturating_sub(room - shown);
    let context = [&progress.hotwords[..shown], &progress.context[from..]].concat();
    if let (Some(previous), false) = (tokens.previous, context.is_empty()) {
        prompt.push(previous);
        prompt.extend(context);
    }
    let start = prompt.len();
    prompt.extend(own);
    let free = target.saturating_sub(prompt.len());
    let most = match settings.max_new_tokens.or(tokens.max_new_tokens) {
        Some(most) => most.min(free),
        None => (progress.longest.unwrap_or(tokens.max_length) + prompt.len().min(room))
            .min(target)
            .saturating_sub(prompt.len()),
    };
    Ok(Window {
        prompt,
        start,
        memory,
        timestamps,
        suppressed: settings.suppress_tokens.as_slice().into(),
        allowed: allowed.cloned(),
        most,
    })
}

/// The segments of a window, and by how many frames the next one is later.
struct Cut {
    segments: Vec<Segment>,
    frames: usize,
    /// Whether nothing is said after the last segment.
    single: bool,
    /// Whether nothing is said at all.
    silent: bool,
}

impl Cut {
    /// The next window of long audio begins after the last word, as openai-whisper has it where words have times.
    fn end_with_words(&mut self, progress: &Progress, offset: f64) {
        let mut words = self
            .segments
            .iter()
            .rev()
            .flat_map(|segment| segment.words.last());
        let end = words
            .next()
            .map(|word| word.end)
            .filter(|&end| end > offset);
        if let (Some(end), true, false) = (end, progress.long, self.single) {
            let seek = (end * 2.0 / STEP).round() as usize;
            let left = progress.frames - progress.seek;
            self.frames = seek.saturating_sub(progress.seek).clamp(1, left.max(1));
        }
    }
}

fn cut(
    parts: &WhisperParts,
    progress: &Progress,
    decoded: &Decoded,
    settings: &TranscribeSettings,
) -> Result<Cut> {
    let length = (progress.frames - progress.seek).min(parts.window);
    if progress.long && decoded.is_silent(settings) {
        return Ok(Cut {
            segments: Vec::new(),
            frames: length,
            single: true,
            silent: true,
        });
    }
    let offset = progress.seek as f64 * STEP / 2.0;
    let first = parts.tokens.first_timestamp;
    let time = |token: u32| offset + f64::from(token.saturating_sub(first)) * STEP;
    let segment = |start: f64, end: f64, tokens: &[u32]| -> Result<Segment> {
        Ok(Segment {
            start,
            end,
            text: parts.text(tokens)?,
            tokens: tokens.to_vec(),
            avg_logprob: decoded.avg_logprob,
            no_speech_prob: decoded.no_speech_prob,
            temperature: decoded.temperature,
            words: Vec::new(),
        })
    };
    let tokens = &decoded.tokens;
    let is_time: Vec<bool> = tokens.iter().map(|&token| token >= first).collect();
    let mut ends: Vec<usize> = (1..tokens.len())
        .filter(|&at| is_time[at - 1] && is_time[at])
        .collect();
    let single = is_time.len() >= 2 && is_time[is_time.len() - 2..] == [false, true];
    if ends.is_empty() {
        let times = tokens.iter().rev().copied().find(|&token| token >= first);
        let end = match times.filter(|&token| token != first) {
            Some(token) => time(token),
            None => (offset + length as f64 * STEP / 2.0).min(progress.transcript.duration),
        };
        return Ok(Cut {
            segments: vec![segment(offset, end.max(offset), tokens)?],
            frames: length,
            single,
            silent: false,
        });
    }
    if single {
        ends.push(tokens.len());
    } else if let Some(last) = ends.last_mut() {
        // With the time that shows that the segment was not the last.
        *last += 1;
    }
    let mut segments = Vec::with_capacity(ends.len());
    let mut begin = 0;
    for (number, &end) in ends.iter().enumerate() {
        let slice = &tokens[begin..end];
        let back = if number + 1 == ends.len() && !single {
            2
        } else {
            1
        };
        let close = slice.len().checked_sub(back).map_or(first, |at| slice[at]);
        segments.push(segment(
            time(slice.first().copied().unwrap_or(first)),
            time(close),
            slice,
        )?);
        begin = end;
    }
    let frames = if single {
        length
    } else {
        let last = begin.checked_sub(2).map_or(first, |at| tokens[at]);
        match last.saturating_sub(first) as usize * 2 {
            // A window that ends where it begins would come for ever.
            0 => length,
            frames => frames.min(length),
        }
    };
    Ok(Cut {
        segments,
        frames,
        single,
        silent: false,
    })
}

impl Progress {
    /// Takes the segments of a window over.
    fn take(
        &mut self,
        cut: Cut,
        first_timestamp: u32,
        decoded: &Decoded,
        settings: &TranscribeSettings,
    ) -> Vec<Segment> {
        self.seek += cut.frames;
        self.over = self.seek >= self.frames;
        let steady = settings.condition_on_previous_text && decoded.temperature <= STEADY;
        // Silence changes nothing of what the next window reads, as in openai-whisper.
        if self.long && !steady && !cut.silent {
            self.context.clear();
        }
        let transcript = &mut self.transcript;
        for segment in &cut.segments {
            if self.long && steady {
                self.context
                    .extend_from_slice(context(&segment.tokens, first_timestamp));
            }
            transcript.token_ids.extend_from_slice(&segment.tokens);
            transcript.text.push_str(&segment.text);
        }
        transcript.segments.extend(cut.segments.iter().cloned());
        if self.over {
            transcript.language = self.language.take();
            self.windows = None;
        }
        cut.segments
    }
}

/// What a next window reads of a segment: of the two times at its end only one.
fn context(tokens: &[u32], first_timestamp: u32) -> &[u32] {
    match tokens {
        [rest @ .., before, _] if *before >= first_timestamp && !rest.is_empty() => {
            &tokens[..tokens.len() - 1]
        }
        _ => tokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the next window reads after one of this temperature.
    fn read_after(temperature: f32, condition: bool, silent: bool) -> Vec<u32> {
        let mut progress = Progress::new();
        (progress.long, progress.frames, progress.context) = (true, 300, vec![7]);
        let segment = Segment {
            start: 0.0,
            end: 0.4,
            text: "a".to_owned(),
            tokens: vec![100, 1, 120],
            avg_logprob: -0.5,
            no_speech_prob: 0.0,
            temperature,
            words: Vec::new(),
        };
        let cut = Cut {
            segments: if silent { Vec::new() } else { vec![segment] },
            frames: 100,
            single: silent,
            silent,
        };
        let decoded = Decoded {
            tokens: Vec::new(),
            avg_logprob: -0.5,
            no_speech_prob: 0.0,
            temperature,
        };
        let settings = TranscribeSettings {
            condition_on_previous_text: condition,
            ..TranscribeSettings::default()
        };
        progress.take(cut, 100, &decoded, &settings);
        progress.context
    }

    #[test]
    fn windows_read_what_was_written_at_low_temperatures() {
        for temperature in [0.0, 0.4, 0.5] {
            assert_eq!(read_after(temperature, true, false), [7, 100, 1, 120]);
        }
        for temperature in [0.6, 1.0] {
            assert!(read_after(temperature, true, false).is_empty());
        }
        assert!(read_after(0.0, false, false).is_empty());
    }

    #[test]
    fn silence_leaves_what_windows_read() {
        assert_eq!(read_after(0.8, true, true), [7]);
        assert_eq!(read_after(0.0, false, true), [7]);
    }
}
