//! Labels for tokens, over texts of any length.

use crate::models::heads::{Head, HeadKind};
use crate::nn::PackedSequences;
use crate::{CancelToken, Error, Result};
use base::runtime::stats::Reading;
use base::runtime::{memory, threads};
use formats::files::model_files::ModelFiles;
use formats::text::tokenizer::{Detail, Encoding, Tokenizer};

use super::classify::{labels, softmax};
use super::loading::{Checkpoint, LoadOptions, LoadedModel, ModelInfo};
use crate::serving::batching::{self, Tokens};

/// A token of the text itself; special tokens are left out.
#[derive(Clone, Debug, PartialEq)]
pub struct TaggedToken {
    /// As the vocabulary writes it: `##ing`, `Ġthe`, `▁the`.
    pub token: String,
    pub id: u32,
    /// Its place among the tokens of the text, special ones included: the first is usually 1.
    pub index: usize,
    /// Characters of the text, end excluded.
    pub start: usize,
    pub end: usize,
    /// The tokenizer's number of the word.
    pub word: Option<u32>,
    /// Whether it continues the word of the token before.
    pub continues: bool,
    /// One per label.
    pub probabilities: Vec<f32>,
}

impl TaggedToken {
    /// The label of the highest probability, and that.
    pub fn best(&self) -> (usize, f32) {
        best(&self.probabilities)
    }
}

pub struct TagModel {
    loaded: LoadedModel,
    head: Head,
    labels: Vec<String>,
    unknown: Option<u32>,
}

/// Neighbouring windows of a long text share this part of their tokens.
const OVERLAP: f64 = 0.5;

impl TagModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let mut loaded = LoadedModel::load(&checkpoint, files, options, None, cancel)?;
        let head = loaded.head(&checkpoint, HeadKind::Token)?;
        let added = loaded.tokenizer.added_tokens(false);
        if loaded.max_length <= added {
            return Err(Error::InvalidInput(format!(
                "a maximum length of {} tokens leaves none for the text beside {added} special tokens",
                loaded.max_length
            )));
        }
        Ok(Self {
            labels: labels(&checkpoint, head.outputs())?,
            unknown: loaded.tokenizer.special_tokens().id("unk_token"),
            loaded,
            head,
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

    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The tokens of each text with the probability of each label. A text beyond the maximum length is
    /// read in overlapping windows, and each token is judged in the window where it stands farthest
    /// from an edge.
    pub fn tag<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        batch_tokens: Option<usize>,
        cancel: &CancelToken,
    ) -> Result<Vec<Vec<TaggedToken>>> {
        let encodings = threads::map(texts, |_, text| {
            self.loaded
                .tokenizer
                .encode(text.as_ref(), true, Detail::Offsets, cancel)
        })?;
        let logits = self.logits(&encodings, batch_tokens, cancel)?;
        let each = texts.iter().zip(&encodings).zip(logits);
        each.map(|((text, encoding), logits)| {
            self.loaded.info.check_numbers(&logits)?;
            Ok(self.tokens(text.as_ref(), encoding, &logits))
        })
        .collect()
    }

    /// The logits of each encoding's own tokens, special ones left out.
    fn logits(
        &self,
        encodings: &[Encoding],
        batch_tokens: Option<usize>,
        cancel: &CancelToken,
    ) -> Result<Vec<Vec<f32>>> {
        let bodies: Vec<Body> = encodings.iter().map(Body::of).collect();
        let mut windows = Vec::new();
        let mut tokens = Vec::new();
        for (text, (body, encoding)) in bodies.iter().zip(encodings).enumerate() {
            let room = self.loaded.max_length.saturating_sub(body.around()).max(1);
            for window in cut_windows(body.length(), room) {
                tokens.push(body.window(encoding, &window));
                windows.push((text, window));
            }
        }
        let width = self.head.outputs();
        let length: usize = bodies.iter().map(Body::length).sum();
        memory::ensure_elements(
            &[length, width],
            size_of::<f32>(),
            format_args!("the labels of {length} tokens"),
        )?;
        let mut logits: Vec<Vec<f32>> = bodies
            .iter()
            .map(|body| vec![0f32; body.length() * width])
            .collect();
        let forward = |batch: &[usize]| -> Result<_> {
            let sequences = batching::pack(&tokens, batch)?;
            let rows = self
                .loaded
                .forward(&sequences, batch_tokens, cancel, |hidden| {
                    Ok(self.head.logits(hidden)?.flatten_all()?.to_vec1::<f32>()?)
                })?;
            Ok((sequences, rows))
        };
        let take = |batch: &[usize], (sequences, rows): (PackedSequences, Vec<f32>)| {
            for (range, &index) in sequences.ranges().zip(batch) {
                let (text, window) = &windows[index];
                let first = (range.start + bodies[*text].before) * width;
                let kept = window.kept.start * width..window.kept.end * width;
                let from = first + (window.kept.start - window.range.start) * width;
                let length = kept.len();
                logits[*text][kept].copy_from_slice(&rows[from..from + length]);
            }
        };
        let device = self.loaded.info.device;
        batching::run(&tokens, batch_tokens, device, cancel, forward, take)?;
        Ok(logits)
    }

    fn tokens(&self, text: &str, encoding: &Encoding, logits: &[f32]) -> Vec<TaggedToken> {
        let body = Body::of(encoding);
        let characters: Vec<char> = text.chars().collect();
        let prefixed = self.loaded.tokenizer.model_kind() == "WordPiece";
        let rows = logits.chunks_exact(self.head.outputs().max(1));
        (body.before..body.end)
            .zip(rows)
            .map(|(at, row)| {
                let (start, end) = encoding.get_offsets()[at];
                let token = encoding.get_tokens()[at].clone();
                let id = encoding.get_ids()[at];
                let continues = if Some(id) == self.unknown {
                    false
                } else if prefixed {
                    token.chars().count() != end - start
                } else {
                    start > 0 && !beside_space(&characters, start)
                };
                TaggedToken {
                    token,
                    id,
                    index: at,
                    start,
                    end,
                    word: encoding.get_word_ids()[at],
                    continues,
                    probabilities: softmax(row),
                }
            })
            .collect()
    }
}

/// Where an encoding's own tokens lie between the special ones that the tokenizer adds.
struct Body {
    before: usize,
    end: usize,
    total: usize,
}

impl Body {
    fn of(encoding: &Encoding) -> Self {
        let mask = encoding.get_special_tokens_mask();
        let before = mask.iter().take_while(|&&special| special == 1).count();
        let after = mask[before..]
            .iter()
            .rev()
            .take_while(|&&special| special == 1)
            .count();
        Self {
            before,
            end: mask.len() - after,
            total: mask.len(),
        }
    }

    fn length(&self) -> usize {
        self.end - self.before
    }

    fn around(&self) -> usize {
        self.total - self.length()
    }

    fn window(&self, encoding: &Encoding, window: &Window) -> Tokens {
        let cut = |values: &[u32]| {
            let inside = self.before + window.range.start..self.before + window.range.end;
            [&values[..self.before], &values[inside], &values[self.end..]].concat()
        };
        Tokens {
            ids: cut(encoding.get_ids()),
            type_ids: cut(encoding.get_type_ids()),
        }
    }
}

/// Tokens that are read together, and those of them that are judged here.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    range: std::ops::Range<usize>,
    kept: std::ops::Range<usize>,
}

/// Every token is kept in exactly one window.
fn cut_windows(length: usize, room: usize) -> Vec<Window> {
    if length <= room {
        return vec![Window {
            range: 0..length,
            kept: 0..length,
        }];
    }
    let step = ((room as f64 * (1.0 - OVERLAP)) as usize).max(1);
    let mut starts: Vec<usize> = (0..length - room).step_by(step).collect();
    starts.push(length - room);
    let mut windows = Vec::with_capacity(starts.len());
    let mut kept_from = 0;
    for (number, &start) in starts.iter().enumerate() {
        let end = start + room;
        // Where the next window begins, both see the tokens up to this one's end: each keeps its half.
        let kept_to = starts
            .get(number + 1)
            .map_or(length, |&next| next + (end - next) / 2);
        windows.push(Window {
            range: start..end,
            kept: kept_from..kept_to,
        });
        kept_from = kept_to;
    }
    windows
}

fn beside_space(characters: &[char], start: usize) -> bool {
    let near = [start.checked_sub(1), Some(start)];
    near.into_iter()
        .flatten()
        .any(|at| characters.get(at) == Some(&' '))
}

pub(super) fn best(probabilities: &[f32]) -> (usize, f32) {
    let mut found = (0, f32::NEG_INFINITY);
    for (label, &probability) in probabilities.iter().enumerate() {
        if probability > found.1 {
            found = (label, probability);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_keep_every_token_once_and_stay_inside() {
        for length in 0..200 {
            for room in 1..40 {
                let windows = cut_windows(length, room);
                let kept: Vec<usize> = windows
                    .iter()
                    .flat_map(|window| window.kept.clone())
                    .collect();
                assert_eq!(kept, (0..length).collect::<Vec<_>>(), "{length} in {room}");
                for window in &windows {
                    assert!(window.range.len() <= room);
                    assert!(
                        window.range.start <= window.kept.start
                            && window.kept.end <= window.range.end
                    );
                }
            }
        }
    }

    #[test]
    fn tokens_are_judged_away_from_the_edges() {
        let windows = cut_windows(100, 20);
        for window in &windows[1..windows.len() - 1] {
            assert!(window.kept.start - window.range.start >= 4);
            assert!(window.range.end - window.kept.end >= 4);
        }
    }
}
