//! Whisper's way through an audio: window after window, each from where the last one's text ended.

use std::sync::Arc;

use super::allowed::Allowed;
use super::settings::{Segment, Timestamps, TranscribeSettings, Transcript};
use super::window::{self, Decoded, Window};
use super::{beams, words};
use super::{Sound, WhisperParts};
use crate::models::seq2seq::Memory;
use crate::{CancelToken, Result};
use formats::audio::{Audio, Windows};
use formats::text::compression;

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

    /// The frames of the next window, with zeros after the last.
    fn window(&mut self, parts: &WhisperParts, cancel: &CancelToken) -> Result<Vec<f32>> {
        match &mut self.windows {
            Some(windows) => windows.window(parts.mel()?, (self.seek, parts.window), cancel),
            None => Ok(Vec::new()),
        }
    }

    fn temperatures(&self, settings: &TranscribeSettings) -> Vec<f32> {
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
        .map(|&at| progress[at].window(parts, cancel))
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
            let rate = f64::from(parts.extractor.rate());
            let samples = (progress[at].transcript.duration * rate).round() as usize;
            let spoken = (samples / parts.hop).saturating_sub(progress[at].seek);
            let length = spoken.min(parts.window);
            let offset = progress[at].seek as f64 * STEP / 2.0;
            let heard = if progress[at].long {
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
    values[(frames * parts.bins).min(parts.window * parts.bins)..].fill(0.0);
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

/// Decodes at rising temperatures what is repetitive or unlikely.
fn with_fallback(
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
                Some(decoded) => parts.needs_fallback(decoded, settings)?,
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

impl WhisperParts {
    fn needs_fallback(&self, decoded: &Decoded, settings: &TranscribeSettings) -> Result<bool> {
        if self.is_silent(decoded, settings) {
            return Ok(false);
        }
        let unlikely = settings
            .logprob_threshold
            .is_some_and(|least| decoded.avg_logprob < least);
        let Some(most) = settings.compression_ratio_threshold else {
            return Ok(unlikely);
        };
        Ok(unlikely || compression::ratio(&self.text(&decoded.tokens)?) > most)
    }

    /// Whether a window holds no speech, whatever was decoded.
    fn is_silent(&self, decoded: &Decoded, settings: &TranscribeSettings) -> bool {
        let quiet = settings
            .no_speech_threshold
            .is_some_and(|most| decoded.no_speech_prob > most);
        let likely = settings
            .logprob_threshold
            .is_some_and(|least| decoded.avg_logprob > least);
        quiet && !likely
    }

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

/// The segments of a window, and by how many frames the next one is later.
struct Cut {
    segments: Vec<Segment>,
    frames: usize,
    /// Whether nothing is said after the last segment.
    single: bool,
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
    if progress.long && parts.is_silent(decoded, settings) {
        return Ok(Cut {
            segments: Vec::new(),
            frames: length,
            single: true,
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
        let steady = settings.condition_on_previous_text && decoded.temperature < STEADY;
        if self.long && !steady {
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
