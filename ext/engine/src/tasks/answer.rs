//! Answers that are parts of a text, over texts of any length.

use std::ops::Range;

use crate::models::heads::{Head, HeadKind};
use crate::nn::PackedSequences;
use crate::{CancelToken, Error, Result};
use base::runtime::stats::Reading;
use formats::files::model_files::ModelFiles;
use formats::text::tokenizer::{Detail, Encoding, Tokenizer};

use super::loading::{Checkpoint, LoadOptions, LoadedModel, ModelInfo};
use crate::serving::batching::{self, Tokens};

/// Questions with their contexts are read in windows of this many tokens, unless a call or the model allows fewer.
const USUAL_WINDOW: usize = 384;
/// Windows share this many tokens, or half of their own where that is less.
const USUAL_STRIDE: usize = 128;

/// So many spans of a window are kept before the likeliest are chosen.
const MOST_SPANS: usize = 1 << 16;

#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub text: String,
    /// Characters of the context, end excluded.
    pub start: usize,
    pub end: usize,
    pub score: f64,
}

#[derive(Clone, Copy, Debug)]
pub struct AnswerOptions {
    pub top_k: usize,
    /// Tokens of an answer.
    pub longest: usize,
    /// Whether that there is no answer competes with the others, as an empty one.
    pub may_be_none: bool,
    /// How many tokens neighbouring windows share.
    pub stride: Option<usize>,
}

impl Default for AnswerOptions {
    fn default() -> Self {
        Self {
            top_k: 1,
            longest: 15,
            may_be_none: false,
            stride: None,
        }
    }
}

pub struct AnswerModel {
    loaded: LoadedModel,
    head: Head,
    window: usize,
}

/// A part of a context's tokens as the model reads them, behind the question.
struct Window {
    /// The places of its tokens in the encoding of the whole.
    places: Vec<usize>,
    /// Which of them are the context's.
    context: Range<usize>,
}

impl AnswerModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let mut loaded = LoadedModel::load(&checkpoint, files, options, None, cancel)?;
        let head = loaded.head(&checkpoint, HeadKind::Question)?;
        if head.outputs() != 2 {
            return Err(Error::corrupt(
                &checkpoint.source.file(""),
                format!(
                    "its question answering head has {} outputs, and should have 2: where an answer starts and ends",
                    head.outputs()
                ),
            ));
        }
        let window = match options.max_length {
            Some(_) => loaded.max_length,
            None => loaded.max_length.min(USUAL_WINDOW),
        };
        Ok(Self {
            loaded,
            head,
            window,
        })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.loaded.info
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.loaded.tokenizer
    }

    /// What it counts of its calls, by name.
    pub fn stats(&self) -> Vec<(&'static str, Reading)> {
        self.loaded.batcher.stats.read()
    }

    /// How many tokens of a question and its context are read together.
    pub fn window(&self) -> usize {
        self.window
    }

    /// The likeliest parts of the context, best first. A long context is read in windows, and the same answer of
    /// several windows counts once, with the sum of its scores.
    pub fn answer(
        &self,
        question: &str,
        context: &str,
        options: &AnswerOptions,
        cancel: &CancelToken,
    ) -> Result<Vec<Answer>> {
        let tokenizer = &self.loaded.tokenizer;
        let encoding = tokenizer.encode((question, context), true, Detail::Offsets, cancel)?;
        let windows = self.windows(&encoding, options)?;
        let logits = self.logits(&encoding, &windows, cancel)?;
        let characters: Vec<char> = context.chars().collect();
        let mut answers: Vec<Answer> = Vec::new();
        let mut none = f64::INFINITY;
        for (window, logits) in windows.iter().zip(&logits) {
            self.loaded.info.check_numbers(logits)?;
            let spans = Spans::of(window, logits, self.first_token(&encoding));
            none = none.min(spans.none);
            for (first, last, score) in spans.best(
                options.top_k.saturating_mul(2).saturating_add(10),
                options.longest,
            ) {
                let (start, end) = characters_of(&encoding, window, first, last);
                let text: String = characters
                    .get(start..end)
                    .map(|part| part.iter().collect())
                    .unwrap_or_default();
                let known = answers
                    .iter_mut()
                    .find(|known| known.text.to_lowercase() == text.to_lowercase());
                match known {
                    Some(known) => known.score += score,
                    None => answers.push(Answer {
                        text,
                        start,
                        end,
                        score,
                    }),
                }
            }
        }
        if options.may_be_none {
            answers.push(Answer {
                text: String::new(),
                start: 0,
                end: 0,
                score: none,
            });
        }
        answers.sort_by(|a, b| b.score.total_cmp(&a.score));
        answers.truncate(options.top_k);
        Ok(answers)
    }

    /// Whether a text begins with the token that stands for there being no answer.
    fn first_token(&self, encoding: &Encoding) -> bool {
        let first = encoding.get_ids().first().copied();
        let special = self.loaded.tokenizer.special_tokens();
        first.is_some() && special.id("cls_token") == first
    }

    fn windows(&self, encoding: &Encoding, options: &AnswerOptions) -> Result<Vec<Window>> {
        let sequences = encoding.get_sequence_ids();
        let is_context = |place: &usize| sequences[*place] == Some(1);
        let total = encoding.get_ids().len();
        let Some(first) = (0..total).find(is_context) else {
            return Ok(Vec::new());
        };
        let last = (first..total).rev().find(is_context).unwrap_or(first);
        let (before, after) = (first, total - last - 1);
        let room = self.window.saturating_sub(before + after);
        let usual = (self.window / 2).min(USUAL_STRIDE);
        let stride = options.stride.unwrap_or(usual);
        let length = last + 1 - first;
        if room == 0 || (length > room && room <= stride) {
            return Err(Error::InvalidInput(format!(
                "the question takes {} of the {} tokens that are read at once, which leaves {room} for the context: \
                 the question must be shorter, or stride smaller",
                before + after,
                self.window
            )));
        }
        let mut windows = Vec::new();
        let mut start = 0;
        loop {
            let end = (start + room).min(length);
            let places = (0..before)
                .chain(first + start..first + end)
                .chain(last + 1..total);
            windows.push(Window {
                places: places.collect(),
                context: before..before + end - start,
            });
            if end == length {
                return Ok(windows);
            }
            start += room - stride;
        }
    }

    /// Two numbers for each token of each window.
    fn logits(
        &self,
        encoding: &Encoding,
        windows: &[Window],
        cancel: &CancelToken,
    ) -> Result<Vec<Vec<f32>>> {
        let tokens: Vec<Tokens> = windows
            .iter()
            .map(|window| {
                let cut = |values: &[u32]| window.places.iter().map(|&at| values[at]).collect();
                Tokens {
                    ids: cut(encoding.get_ids()),
                    type_ids: cut(encoding.get_type_ids()),
                }
            })
            .collect();
        let mut logits = vec![Vec::new(); windows.len()];
        let forward = |batch: &[usize]| -> Result<_> {
            let sequences = batching::pack(&tokens, batch)?;
            let rows = self.loaded.forward(&sequences, None, cancel, |hidden| {
                Ok(self.head.logits(hidden)?.flatten_all()?.to_vec1::<f32>()?)
            })?;
            Ok((sequences, rows))
        };
        let take = |batch: &[usize], (sequences, rows): (PackedSequences, Vec<f32>)| {
            for (range, &index) in sequences.ranges().zip(batch) {
                logits[index] = rows[2 * range.start..2 * range.end].to_vec();
            }
        };
        let device = self.loaded.info.device;
        batching::run(&tokens, None, device, cancel, forward, take)?;
        Ok(logits)
    }
}

/// How likely an answer starts and ends at each token of a window's context.
struct Spans {
    first: usize,
    starts: Vec<f64>,
    ends: Vec<f64>,
    /// That there is no answer.
    none: f64,
}

impl Spans {
    /// Probabilities over the context, and over the first token where that stands for no answer.
    fn of(window: &Window, logits: &[f32], with_first: bool) -> Self {
        let side = |side: usize| -> (Vec<f64>, f64) {
            let logit = |token: usize| f64::from(logits[2 * token + side]);
            let first = with_first.then(|| logit(0));
            let tokens = window.context.clone().map(logit);
            let most = tokens
                .clone()
                .chain(first)
                .fold(f64::NEG_INFINITY, f64::max);
            let power = |logit: f64| (logit - most).exp();
            let powers: Vec<f64> = tokens.map(power).collect();
            let none = first.map_or(0.0, power);
            let sum: f64 = powers.iter().sum::<f64>() + none;
            (
                powers.into_iter().map(|power| power / sum).collect(),
                none / sum,
            )
        };
        let ((starts, no_start), (ends, no_end)) = (side(0), side(1));
        Self {
            first: window.context.start,
            starts,
            ends,
            none: no_start * no_end,
        }
    }

    /// The first and last token of the likeliest answers of at most so many tokens, with their scores.
    fn best(&self, count: usize, longest: usize) -> Vec<(usize, usize, f64)> {
        let mut all = Vec::new();
        for (start, &starts) in self.starts.iter().enumerate() {
            let ends = self.ends[start..].iter().take(longest);
            all.extend(
                ends.enumerate()
                    .map(|(more, &ends)| (start, start + more, starts * ends)),
            );
            if all.len() > MOST_SPANS.max(count.saturating_mul(2)) {
                keep_best(&mut all, count);
            }
        }
        keep_best(&mut all, count);
        let place = |(start, end, score)| (self.first + start, self.first + end, score);
        all.into_iter().map(place).collect()
    }
}

fn keep_best(spans: &mut Vec<(usize, usize, f64)>, count: usize) {
    spans.sort_by(|a, b| b.2.total_cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1))));
    spans.truncate(count);
}

/// The characters from the word of one token to that of another; of the tokens themselves where these have no words.
fn characters_of(
    encoding: &Encoding,
    window: &Window,
    first: usize,
    last: usize,
) -> (usize, usize) {
    let (words, offsets) = (encoding.get_word_ids(), encoding.get_offsets());
    let place = |token: usize| window.places[token];
    let of_word = |token: usize| -> Option<(usize, usize)> {
        let word = words[place(token)]?;
        let mut same = window
            .context
            .clone()
            .filter(|&other| words[place(other)] == Some(word));
        let start = same.next()?;
        let end = same.next_back().unwrap_or(start);
        Some((offsets[place(start)].0, offsets[place(end)].1))
    };
    match (of_word(first), of_word(last)) {
        (Some((start, _)), Some((_, end))) => (start, end),
        _ => (offsets[place(first)].0, offsets[place(last)].1),
    }
}
