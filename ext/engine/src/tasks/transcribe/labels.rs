//! A label for every state of an audio (CTC): repeated ones and blanks fall away.

use std::collections::HashMap;

use super::settings::{Segment, Timestamps, TranscribeSettings, Transcript, Word};
use super::{LabelParts, Sound};
use crate::{CancelToken, Error, Result};
use formats::audio::Audio;
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::text::tokenizer::Tokenizer;
use serde_json::Value;

/// Audio of up to so many seconds is read at once; longer audio in parts with what surrounds them.
const WHOLE: usize = 120;
const PART: usize = 20;
const AROUND: usize = 5;

/// What labels stand for.
pub enum Vocabulary {
    /// wav2vec 2.0's characters.
    Characters(Characters),
    Tokenizer(Box<Tokenizer>),
}

pub struct Characters {
    tokens: HashMap<u32, String>,
    blank: String,
    delimiter: String,
    unknown: String,
    /// What the delimiter is shown as.
    space: String,
    lower_case: bool,
    cleans_up: bool,
}

/// A label and the states that it lasts.
struct Label {
    id: u32,
    states: std::ops::Range<usize>,
}

impl Vocabulary {
    pub fn read(files: &ModelFiles, cancel: &CancelToken) -> Result<Self> {
        let vocabulary = match files.file("tokenizer.json", cancel)? {
            Some(_) => None,
            None => files.file("vocab.json", cancel)?,
        };
        let Some(path) = vocabulary else {
            return Tokenizer::from_model(files, cancel)
                .map(|tokenizer| Self::Tokenizer(Box::new(tokenizer)));
        };
        let raw = RawConfig::read(&path)?;
        let settings = files.file("tokenizer_config.json", cancel)?;
        let settings = match settings {
            Some(path) => RawConfig::read(&path)?,
            None => RawConfig::parse(&path, "{}")?,
        };
        // Several languages' vocabularies may stand in one file.
        let raw = match token(&settings, "target_lang") {
            Some(language) => raw.opt_nested(language.as_str())?.unwrap_or(raw),
            None => raw,
        };
        let mut tokens: HashMap<u32, String> = entries(&raw).collect();
        if let Some(path) = files.file("added_tokens.json", cancel)? {
            tokens.extend(entries(&RawConfig::read(&path)?));
        }
        tokens.extend(added(&settings));
        let token = |key: &str, usual: &str| token(&settings, key).unwrap_or(usual.to_owned());
        let flag = |key: &str| Ok::<_, Error>(settings.opt_bool(key)?.unwrap_or(false));
        Ok(Self::Characters(Characters {
            tokens,
            blank: token("pad_token", "<pad>"),
            delimiter: token("word_delimiter_token", "|"),
            unknown: token("unk_token", "<unk>"),
            space: token("replace_word_delimiter_char", " "),
            lower_case: flag("do_lower_case")?,
            cleans_up: flag("clean_up_tokenization_spaces")?,
        }))
    }

    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        match self {
            Self::Characters(_) => None,
            Self::Tokenizer(tokenizer) => Some(tokenizer),
        }
    }

    fn text(&self, labels: &[Label]) -> Result<String> {
        let characters = match self {
            Self::Characters(characters) => characters,
            Self::Tokenizer(tokenizer) => {
                let ids: Vec<u32> = labels.iter().map(|label| label.id).collect();
                return tokenizer.decode(&ids, false);
            }
        };
        let text: String = labels.iter().map(|label| characters.shown(label)).collect();
        let text = text.trim();
        let text = if characters.cleans_up {
            cleaned(text)
        } else {
            text.to_owned()
        };
        Ok(if characters.lower_case {
            text.to_lowercase()
        } else {
            text
        })
    }

    /// Whether a label stands between words.
    fn separates(&self, label: &Label) -> bool {
        match self {
            Self::Characters(characters) => characters
                .tokens
                .get(&label.id)
                .is_some_and(|token| *token == characters.delimiter),
            Self::Tokenizer(_) => false,
        }
    }

    /// Whether a label begins a word by itself.
    fn begins(&self, label: &Label) -> bool {
        match self {
            Self::Characters(_) => false,
            Self::Tokenizer(tokenizer) => tokenizer
                .id_to_token(label.id)
                .is_some_and(|token| token.starts_with(['▁', 'Ġ'])),
        }
    }

    fn is_blank(&self, id: u32, blank: u32) -> bool {
        match self {
            Self::Characters(characters) => {
                id == blank || characters.tokens.get(&id) == Some(&characters.blank)
            }
            Self::Tokenizer(_) => id == blank,
        }
    }
}

impl Characters {
    fn shown(&self, label: &Label) -> &str {
        match self.tokens.get(&label.id) {
            Some(token) if *token == self.delimiter => &self.space,
            Some(token) => token,
            None => &self.unknown,
        }
    }
}

fn entries(raw: &RawConfig) -> impl Iterator<Item = (u32, String)> + '_ {
    raw.keys().filter_map(|token| {
        let id = u32::try_from(raw.get(token)?.as_u64()?).ok()?;
        Some((id, token.to_owned()))
    })
}

/// What a tokenizer's settings add to its vocabulary.
fn added(settings: &RawConfig) -> HashMap<u32, String> {
    let Some(Value::Object(added)) = settings.get("added_tokens_decoder") else {
        return HashMap::new();
    };
    added
        .iter()
        .filter_map(|(id, token)| {
            let content = token.get("content")?.as_str()?;
            Some((id.parse().ok()?, content.to_owned()))
        })
        .collect()
}

/// A token of a configuration, which may be written out with its properties.
fn token(settings: &RawConfig, key: &str) -> Option<String> {
    let value = settings.get(key)?;
    let content = value.get("content").unwrap_or(value);
    content.as_str().map(str::to_owned)
}

/// Spaces before marks, as transformers removes them.
fn cleaned(text: &str) -> String {
    let marks = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    marks
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// What becomes of one audio.
pub fn transcribe(
    parts: &LabelParts,
    sound: &Sound,
    settings: &TranscribeSettings,
    cancel: &CancelToken,
) -> Result<Transcript> {
    let audio = sound.load(parts.extractor.rate(), cancel)?;
    let (ids, scores) = best(parts, &audio, cancel)?;
    let labels = collapsed(parts, &ids);
    let text = parts.vocabulary.text(&labels)?;
    let seconds = |state: usize| (state * parts.hop) as f64 / f64::from(parts.extractor.rate());
    let words = match settings.timestamps {
        Timestamps::Words => words(parts, &labels, &scores, seconds)?,
        Timestamps::Segments | Timestamps::None => Vec::new(),
    };
    let token_ids: Vec<u32> = labels.iter().map(|label| label.id).collect();
    let mean = scores.iter().sum::<f32>() / scores.len().max(1) as f32;
    let segment = Segment {
        start: 0.0,
        end: audio.duration(),
        text: text.clone(),
        tokens: token_ids.clone(),
        avg_logprob: mean,
        no_speech_prob: 0.0,
        temperature: 0.0,
        words,
    };
    Ok(Transcript {
        duration: audio.duration(),
        language: None,
        segments: if text.is_empty() {
            Vec::new()
        } else {
            vec![segment]
        },
        token_ids,
        text,
    })
}

/// The likeliest label of every state, and ln of its probability.
fn best(parts: &LabelParts, audio: &Audio, cancel: &CancelToken) -> Result<(Vec<u32>, Vec<f32>)> {
    let samples = audio.samples();
    let rate = parts.extractor.rate() as usize;
    let (mut ids, mut scores) = (Vec::new(), Vec::new());
    if samples.len() <= WHOLE * rate {
        add_best(
            parts,
            samples,
            0..usize::MAX,
            (&mut ids, &mut scores),
            cancel,
        )?;
        return Ok((ids, scores));
    }
    // Whole states, so that parts join without a seam.
    let aligned = |seconds: usize| (seconds * rate / parts.hop).max(1);
    let (part, around) = (aligned(PART), aligned(AROUND));
    let states = samples.len() / parts.hop;
    let mut first = 0;
    while first < states {
        let from = first.saturating_sub(around);
        let to = ((first + part + around) * parts.hop).min(samples.len());
        let last = if first + part < states {
            part
        } else {
            usize::MAX / 2
        };
        let kept = first - from..first - from + last;
        let piece = &samples[from * parts.hop..to];
        add_best(parts, piece, kept, (&mut ids, &mut scores), cancel)?;
        first += part;
    }
    Ok((ids, scores))
}

fn add_best(
    parts: &LabelParts,
    samples: &[f32],
    kept: std::ops::Range<usize>,
    (ids, scores): (&mut Vec<u32>, &mut Vec<f32>),
    cancel: &CancelToken,
) -> Result<()> {
    let features = parts.extractor.extract(samples, 0, cancel)?;
    if parts.model.states(features.frames) == 0 {
        return Ok(());
    }
    let rows: Vec<Vec<f32>> = parts.compute(|| {
        let input = [(features.values.as_slice(), features.bins)];
        let (states, _) = parts.model.encode(&input, cancel)?;
        Ok(parts.model.labels(&states)?.to_vec2()?)
    })?;
    for row in rows.iter().skip(kept.start).take(kept.len()) {
        let id = kernels::largest_of(row).ok_or_else(|| {
            Error::Generation(
                "the model gave no usable logits (all are NaN or forbidden); try dtype: :f32"
                    .to_owned(),
            )
        })?;
        ids.push(id);
        scores.push(super::rules::log_probability(row, id)?);
    }
    Ok(())
}

/// Runs of one label become one; blanks separate them and fall away.
fn collapsed(parts: &LabelParts, ids: &[u32]) -> Vec<Label> {
    let mut labels: Vec<Label> = Vec::new();
    for (state, &id) in ids.iter().enumerate() {
        match labels.last_mut() {
            Some(label) if label.id == id && label.states.end == state => label.states.end += 1,
            _ => labels.push(Label {
                id,
                states: state..state + 1,
            }),
        }
    }
    labels.retain(|label| !parts.vocabulary.is_blank(label.id, parts.blank));
    labels
}

fn words(
    parts: &LabelParts,
    labels: &[Label],
    scores: &[f32],
    seconds: impl Fn(usize) -> f64,
) -> Result<Vec<Word>> {
    let mut groups: Vec<Vec<&Label>> = vec![Vec::new()];
    for label in labels {
        if parts.vocabulary.separates(label) {
            groups.push(Vec::new());
            continue;
        }
        if parts.vocabulary.begins(label) {
            groups.push(Vec::new());
        }
        if let Some(group) = groups.last_mut() {
            group.push(label);
        }
    }
    let mut words = Vec::new();
    for group in groups {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            continue;
        };
        let states = first.states.start..last.states.end;
        let spelled: Vec<Label> = group
            .iter()
            .map(|label| Label {
                id: label.id,
                states: label.states.clone(),
            })
            .collect();
        let sum: f32 = scores[states.clone()].iter().sum();
        words.push(Word {
            start: seconds(states.start),
            end: seconds(states.end),
            text: parts.vocabulary.text(&spelled)?.trim().to_owned(),
            probability: (sum / states.len().max(1) as f32).exp(),
        });
    }
    Ok(words)
}
