//! Models that write an audio's text and nothing else (Moonshine): no times, no languages, no prompts.

use std::ops::Range;
use std::sync::Arc;

use super::allowed::Allowed;
use super::sequential::Progress;
use super::settings::{Segment, Task, Timestamps, TranscribeSettings};
use super::{compute, NewSegments, Sound, BATCH};
use crate::generation::{GenerationConfig, Search, SearchSettings};
use crate::models::seq2seq::{Cache, Memory, Rows};
use crate::models::speech::SpeechModel;
use crate::tasks::seq2seq::GenerationDefaults;
use crate::{CancelToken, Device, Error, Result};
use formats::audio::Extractor;
use formats::text::tokenizer::Tokenizer;

/// Longer audio is read in windows of at most so many seconds, each cut at the quietest moment of its end.
const WINDOW: usize = 30;
const END: usize = 5;
/// Such moments last so many parts of a second.
const MOMENTS: usize = 10;
/// Where neither the call nor the checkpoint says how many tokens a window may have, as in transformers.
const USUAL_TOKENS: usize = 20;

pub(crate) struct WriterParts {
    pub model: SpeechModel,
    pub tokenizer: Tokenizer,
    pub extractor: Extractor,
    pub defaults: GenerationDefaults,
    /// How many tokens the decoder was made for, the first one included.
    pub positions: usize,
    pub device: Device,
}

/// What a window became.
struct Written {
    tokens: Vec<u32>,
    text: String,
    avg_logprob: f32,
}

struct Running<'a> {
    number: usize,
    memory: &'a Memory,
    cache: Cache,
    search: Search,
}

/// An error that names what a call asks for and the model does not have.
pub fn check(settings: &TranscribeSettings) -> Result<()> {
    let language = settings.language.as_deref().map(str::to_lowercase);
    let temperatures = settings.temperatures.as_deref().unwrap_or_default();
    let refused = [
        (
            settings.timestamps == Timestamps::Words,
            "has no times of words: use timestamps: :segment, or a Whisper",
        ),
        (
            settings.task == Task::Translate,
            "does not translate: use a multilingual Whisper",
        ),
        (
            language.is_some_and(|language| !matches!(language.as_str(), "en" | "english")),
            "writes the language that it was trained for: leave language: out",
        ),
        (
            settings.initial_prompt.is_some() || settings.hotwords.is_some(),
            "reads no text beside the audio: leave initial_prompt: and hotwords: out",
        ),
        (
            temperatures.len() > 1,
            "takes one temperature: the thresholds of several are Whisper's",
        ),
    ];
    match refused.iter().find(|(asked, _)| *asked) {
        Some((_, reason)) => Err(Error::InvalidInput(format!("this model {reason}"))),
        None => Ok(()),
    }
}

/// The next window of each audio that is not over, all computed together. Returns the new segments by audio.
pub fn step(
    parts: &WriterParts,
    sounds: &[Sound],
    progress: &mut [Progress],
    (settings, allowed): (&TranscribeSettings, Option<&Allowed>),
    cancel: &CancelToken,
) -> Result<NewSegments> {
    let rate = parts.extractor.rate() as usize;
    let open = (0..progress.len()).filter(|&at| !progress[at].over);
    let active: Vec<usize> = open.take(BATCH).collect();
    let mut windows: Vec<Range<usize>> = Vec::with_capacity(active.len());
    let mut features = Vec::with_capacity(active.len());
    for &at in &active {
        let audio = progress[at].listen(&sounds[at], rate as u32, cancel)?;
        let samples = audio.samples();
        let from = progress[at].seek;
        let window = from..window_end(samples, from, rate);
        features.push(
            parts
                .extractor
                .extract(&samples[window.clone()], 0, cancel)?,
        );
        windows.push(window);
    }
    // What is too short for a state is silent.
    let spoken = (0..active.len()).filter(|&at| parts.model.states(features[at].frames) > 0);
    let spoken: Vec<usize> = spoken.collect();
    let inputs = spoken.iter().map(|&at| &features[at]);
    let inputs: Vec<(&[f32], usize)> = inputs
        .map(|features| (features.values.as_slice(), features.bins))
        .collect();
    let written = if inputs.is_empty() {
        Vec::new()
    } else {
        compute(&parts.device, || {
            let memories = parts.model.memories(&inputs, cancel)?;
            write(parts, &memories, (settings, allowed), cancel)
        })?
    };
    let mut found: Vec<Option<Written>> = active.iter().map(|_| None).collect();
    for (at, written) in spoken.into_iter().zip(written) {
        found[at] = Some(written);
    }
    let seconds = |sample: usize| sample as f64 / rate as f64;
    let mut new = Vec::with_capacity(active.len());
    for ((&at, window), written) in active.iter().zip(windows).zip(found) {
        let times = (seconds(window.start), seconds(window.end));
        let segment = written.map(|written| segment(written, times, settings));
        new.push((at, progress[at].add(window.end, segment)));
    }
    Ok(new)
}

fn segment(written: Written, (start, end): (f64, f64), settings: &TranscribeSettings) -> Segment {
    Segment {
        start,
        end,
        text: written.text,
        tokens: written.tokens,
        avg_logprob: written.avg_logprob,
        no_speech_prob: 0.0,
        temperature: temperature(settings),
        words: Vec::new(),
    }
}

fn temperature(settings: &TranscribeSettings) -> f32 {
    let given = settings.temperatures.as_deref().unwrap_or_default();
    given.first().copied().unwrap_or(0.0)
}

/// Where a window that begins at a sample ends.
fn window_end(samples: &[f32], from: usize, rate: usize) -> usize {
    if samples.len() - from <= WINDOW * rate {
        return samples.len();
    }
    let first = from + (WINDOW - END) * rate;
    let length = (rate / MOMENTS).max(1);
    let loudness = |moment: &[f32]| moment.iter().map(|sample| sample * sample).sum::<f32>();
    let moments = samples[first..from + WINDOW * rate].chunks_exact(length);
    let quietest = moments
        .enumerate()
        .min_by(|(_, a), (_, b)| loudness(a).total_cmp(&loudness(b)));
    first + quietest.map_or(0, |(number, _)| number) * length + length / 2
}

impl WriterParts {
    fn settings(&self, settings: &TranscribeSettings) -> SearchSettings {
        let defaults = &self.defaults;
        let mut rules = defaults.rules.clone();
        let said = settings.max_new_tokens;
        rules.max_new_tokens = match (said, rules.max_new_tokens) {
            (Some(most), _) => most,
            (None, 0) => USUAL_TOKENS.min(self.positions.saturating_sub(1)),
            (None, most) => most,
        };
        rules.suppressed.extend(&settings.suppress_tokens);
        let num_beams = settings.num_beams.unwrap_or(defaults.num_beams);
        SearchSettings {
            config: GenerationConfig {
                max_new_tokens: rules.max_new_tokens,
                temperature: temperature(settings),
                repetition_penalty: defaults.repetition_penalty,
                seed: settings.seed,
                logprobs: (num_beams == 1).then_some(0),
                ..GenerationConfig::default()
            },
            num_beams,
            length_penalty: defaults.length_penalty,
            early_stopping: defaults.early_stopping,
            rules,
        }
    }

    fn written(&self, search: &Search) -> Result<Written> {
        let (mut tokens, avg_logprob): (Vec<u32>, f32) = match search {
            Search::Tokens(run) => {
                let logprobs = run.choices().iter().filter_map(|choice| choice.logprob);
                let count = run.choices().len().max(1) as f32;
                let tokens = run.choices().iter().map(|choice| choice.token);
                (tokens.collect(), logprobs.sum::<f32>() / count)
            }
            Search::Beams(search) => (search.tokens().to_vec(), search.score()),
        };
        let ends = &self.defaults.rules.end_ids;
        if tokens.last().is_some_and(|last| ends.contains(last)) {
            tokens.pop();
        }
        Ok(Written {
            text: self.tokenizer.decode(&tokens, true)?,
            tokens,
            avg_logprob,
        })
    }
}

/// Writes the windows together, each in rows of its own: what comes of one does not depend on the others.
fn write(
    parts: &WriterParts,
    memories: &[Memory],
    (settings, allowed): (&TranscribeSettings, Option<&Allowed>),
    cancel: &CancelToken,
) -> Result<Vec<Written>> {
    let settings = parts.settings(settings);
    settings.check(false)?;
    let (start, tokenizer) = (parts.defaults.start, &parts.tokenizer);
    let decoder = parts.model.decoder()?;
    let mut written: Vec<Option<Written>> = memories.iter().map(|_| None).collect();
    let mut running = Vec::with_capacity(memories.len());
    for (number, memory) in memories.iter().enumerate() {
        running.push(Running {
            number,
            memory,
            cache: Cache::default(),
            search: Search::new(&settings, &[start], tokenizer, None)?,
        });
    }
    loop {
        let (over, going): (Vec<_>, Vec<_>) = running
            .into_iter()
            .partition(|run: &Running<'_>| run.search.is_over());
        for run in over {
            written[run.number] = Some(parts.written(&run.search)?);
        }
        running = going;
        if running.is_empty() {
            break;
        }
        cancel.check()?;
        let latest = |run: &Running<'_>| {
            let mut ids = Vec::with_capacity(settings.num_beams);
            run.search.last_tokens(start, &mut ids);
            ids
        };
        let ids: Vec<Vec<u32>> = running.iter().map(latest).collect();
        let groups = running.iter().zip(&ids).map(|(run, ids)| Rows {
            ids,
            cache: &run.cache,
            memory: run.memory,
        });
        let groups: Vec<Rows<'_>> = groups.collect();
        let (logits, caches) = decoder.write_together(&groups, cancel)?;
        let rows: Vec<Vec<f32>> = logits.to_vec2()?;
        let chunks = rows.chunks(settings.num_beams);
        for ((run, cache), rows) in running.iter_mut().zip(caches).zip(chunks) {
            let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
            let piece = run.search.take_by(
                &settings.rules,
                (&[start], tokenizer),
                &rows,
                |written, scores| {
                    if let Some(allowed) = allowed {
                        allowed.apply(written, false, scores);
                    }
                },
            )?;
            let parents: Vec<u32> = piece.parents.iter().map(|&parent| parent as u32).collect();
            run.cache = cache.of(&parents)?;
        }
    }
    let missing = || Error::Internal("a window was not written".to_owned());
    written
        .into_iter()
        .map(|one| one.ok_or_else(missing))
        .collect()
}

impl Progress {
    /// The audio, decoded before its first window.
    fn listen(
        &mut self,
        sound: &Sound,
        rate: u32,
        cancel: &CancelToken,
    ) -> Result<Arc<formats::audio::Audio>> {
        if let Some(audio) = &self.audio {
            return Ok(audio.clone());
        }
        let audio = sound.load(rate, cancel)?;
        self.transcript.duration = audio.duration();
        self.audio = Some(audio.clone());
        Ok(audio)
    }

    /// Takes the segment of a window over, which ends at a sample.
    fn add(&mut self, end: usize, segment: Option<Segment>) -> Vec<Segment> {
        self.seek = end;
        let samples = self.audio.as_ref().map_or(0, |audio| audio.samples().len());
        self.over = end >= samples;
        if self.over {
            self.audio = None;
        }
        let Some(segment) = segment else {
            return Vec::new();
        };
        let transcript = &mut self.transcript;
        transcript.token_ids.extend_from_slice(&segment.tokens);
        if segment.text.is_empty() {
            return Vec::new();
        }
        if !transcript.text.is_empty() && !segment.text.starts_with(' ') {
            transcript.text.push(' ');
        }
        transcript.text.push_str(&segment.text);
        transcript.segments.push(segment.clone());
        vec![segment]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_audio_is_cut_where_it_is_quiet() {
        let rate = 100;
        let mut samples = vec![0.5; 70 * rate];
        samples[2700..2710].fill(0.0);
        assert_eq!(window_end(&samples, 0, rate), 2705);
        assert_eq!(window_end(&samples, 2705, rate), 2705 + 2500 + 5);
        assert_eq!(window_end(&samples, 4500, rate), samples.len());
        assert_eq!(window_end(&samples[..3000], 0, rate), 3000);
    }
}
