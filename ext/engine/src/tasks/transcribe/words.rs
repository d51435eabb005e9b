//! When words are spoken: the cross-attention of some heads follows the audio, and the cheapest way through it
//! gives each token its time.

use super::sequential::STEP;
use super::settings::{Segment, Word};
use super::window::Window;
use super::{rules, WhisperParts};
use crate::{CancelToken, Result};

/// Frames that the median of attention is taken over.
const MEDIAN: usize = 7;
/// Punctuation that belongs to the word after it, and to the one before it.
const OPENING: &str = "\"'“¿([{-";
const CLOSING: &str = "\"'.。,，!！?？:：”)]}、";
const SENTENCE_ENDS: [&str; 6] = [".", "。", "!", "！", "?", "？"];
/// Written without spaces.
const UNSPACED: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];
/// The longest that half a word usually takes, in seconds.
const USUAL: f64 = 0.7;

/// A segment's own time counts where a word is off by more, in seconds.
const LATE: f64 = 0.5;

/// A word with the number of its tokens.
struct Spoken {
    text: String,
    tokens: usize,
    start: f64,
    end: f64,
    probability: f32,
}

/// Adds words to the segments of a window of so many frames, which begins at an offset in seconds. `before` is when
/// the last word before it ended, and then the last word of all.
pub fn add(
    parts: &WhisperParts,
    window: &Window,
    (frames, offset): (usize, f64),
    segments: &mut [Segment],
    before: &mut f64,
    cancel: &CancelToken,
) -> Result<()> {
    let is_text = |token: &&u32| **token < parts.tokens.end;
    let text: Vec<u32> = segments
        .iter()
        .flat_map(|segment| segment.tokens.iter().filter(is_text))
        .copied()
        .collect();
    if text.is_empty() {
        return Ok(());
    }
    let mut words = align(parts, window, frames, &text, cancel)?;
    let usual = shorten(&mut words);
    let words = joined(words);
    // In steps of a hundredth, as openai-whisper.
    let time = |seconds: f64| ((offset + seconds) * 100.0).round() / 100.0;
    let mut words = words.into_iter();
    let mut left = words.next();
    for segment in segments {
        let mut room = segment.tokens.iter().filter(is_text).count();
        while let Some(word) = left.take() {
            if room == 0 {
                left = Some(word);
                break;
            }
            room = room.saturating_sub(word.tokens);
            segment.words.push(Word {
                start: time(word.start),
                end: time(word.end),
                text: word.text,
                probability: word.probability,
            });
            left = words.next();
        }
        fit(segment, usual, before);
    }
    Ok(())
}

/// A segment and its words begin and end together, and words beside a pause do not last over it. `usual` is how
/// long a word lasts.
fn fit(segment: &mut Segment, usual: f64, before: &mut f64) {
    let most = 2.0 * usual;
    let second = segment.words.get(1).cloned();
    let Some(first) = segment.words.first_mut() else {
        return;
    };
    let both = second.as_ref().map(|second| second.end - first.start);
    let long = first.end - first.start > most || both.is_some_and(|both| both > 2.0 * most);
    let mut boundary = None;
    if first.end - *before > 4.0 * usual && long {
        if let Some(second) = second.filter(|second| second.end - second.start > most) {
            first.end = (second.end / 2.0).max(second.end - most);
            boundary = Some(first.end);
        }
        first.start = (first.end - most).max(0.0);
    }
    if segment.start < first.end && segment.start - LATE > first.start {
        first.start = (first.end - usual).min(segment.start).max(0.0);
    } else {
        segment.start = first.start;
    }
    if let (Some(boundary), Some(second)) = (boundary, segment.words.get_mut(1)) {
        second.start = boundary;
    }
    if let Some(last) = segment.words.last_mut() {
        if segment.end > last.start && segment.end + LATE < last.end {
            last.end = (last.start + usual).max(segment.end);
        } else {
            segment.end = last.end;
        }
    }
    *before = segment.end;
}

fn align(
    parts: &WhisperParts,
    window: &Window,
    frames: usize,
    text: &[u32],
    cancel: &CancelToken,
) -> Result<Vec<Spoken>> {
    let tokens = &parts.tokens;
    let own = window.prompt[window.start..].iter().copied();
    let mut ids: Vec<u32> = own.filter(|&id| Some(id) != tokens.no_timestamps).collect();
    let before = ids.len();
    ids.extend(tokens.no_timestamps);
    ids.extend(text);
    ids.push(tokens.end);
    ids.truncate(parts.max_target);
    let columns = (frames / 2).max(1);
    let mut attention: Vec<Vec<Vec<f32>>> = Vec::new();
    let logits: Vec<Vec<f32>> = parts.compute(|| {
        let decoder = parts.model.decoder()?;
        let logits = decoder.watch(
            &ids,
            &window.memory,
            &mut |layer, queries| {
                for &(_, head) in parts.alignment.iter().filter(|(of, _)| *of == layer) {
                    cancel.check()?;
                    attention.push(queries.scores(head)?);
                }
                Ok(())
            },
            cancel,
        )?;
        Ok(logits.to_vec2()?)
    })?;
    for head in &mut attention {
        cancel.check()?;
        prepare(head, columns);
    }
    // Of every token its cost in every frame.
    let rows = before..ids.len() - 1;
    let costs: Vec<Vec<f32>> = rows
        .map(|row| {
            let mean = |column: usize| {
                let sum: f32 = attention.iter().map(|head| head[row][column]).sum();
                -sum / attention.len().max(1) as f32
            };
            (0..columns).map(mean).collect()
        })
        .collect();
    let times = first_frames(&costs);
    let probability = |at: usize| {
        let scores = logits.get(before + at)?;
        let scores = &scores[..(tokens.end as usize).min(scores.len())];
        Some(rules::log_probability(scores, text[at]).map(f32::exp))
    };
    let time = |at: usize| {
        let frame = times.get(at).or(times.last()).copied().unwrap_or(0);
        frame as f64 * STEP
    };
    let mut spoken = Vec::new();
    let mut at = 0;
    for word in split(parts, text, window)? {
        let range = at..at + word.len();
        at = range.end;
        let probabilities = range.clone().filter_map(probability);
        let probabilities: Vec<f32> = probabilities.collect::<Result<_>>()?;
        spoken.push(Spoken {
            text: parts.tokenizer.decode(&word, true)?,
            tokens: word.len(),
            start: time(range.start),
            end: time(range.end),
            probability: probabilities.iter().sum::<f32>() / probabilities.len().max(1) as f32,
        });
    }
    Ok(spoken)
}

/// Attention over the frames of the audio, each frame's compared over all tokens, and smoothed.
fn prepare(head: &mut [Vec<f32>], columns: usize) {
    for row in head.iter_mut() {
        row.truncate(columns);
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for value in row.iter_mut() {
            *value = (*value - most).exp();
            sum += *value;
        }
        row.iter_mut().for_each(|value| *value /= sum);
    }
    let count = head.len().max(1) as f32;
    for column in 0..columns {
        let mean = head.iter().map(|row| row[column]).sum::<f32>() / count;
        let squares = head.iter().map(|row| (row[column] - mean).powi(2));
        let deviation = (squares.sum::<f32>() / count).sqrt();
        for row in head.iter_mut() {
            row[column] = (row[column] - mean) / deviation.max(f32::MIN_POSITIVE);
        }
    }
    for row in head.iter_mut() {
        *row = smoothed(row);
    }
}

/// The median of each value and its neighbours; beyond the ends the row is mirrored.
fn smoothed(row: &[f32]) -> Vec<f32> {
    let (half, last) = (MEDIAN / 2, row.len() as i64 - 1);
    if row.len() <= half {
        return row.to_vec();
    }
    let value = |place: i64| {
        let place = place.abs();
        row[(if place > last {
            2 * last - place
        } else {
            place
        }) as usize]
    };
    (0..row.len() as i64)
        .map(|at| {
            let mut near = [0f32; MEDIAN];
            for (slot, near) in near.iter_mut().enumerate() {
                *near = value(at + slot as i64 - half as i64);
            }
            near.sort_by(f32::total_cmp);
            near[half]
        })
        .collect()
}

/// Dynamic time warping: the first frame of each token on the cheapest way from the first token and frame to
/// the last.
fn first_frames(costs: &[Vec<f32>]) -> Vec<usize> {
    let (rows, columns) = (costs.len(), costs.first().map_or(0, Vec::len));
    if columns == 0 {
        return vec![0; rows];
    }
    let width = columns + 1;
    let mut total = vec![f32::INFINITY; (rows + 1) * width];
    let mut step = vec![0u8; (rows + 1) * width];
    total[0] = 0.0;
    for column in 1..=columns {
        for row in 1..=rows {
            let at = row * width + column;
            let (both, down, right) = (total[at - width - 1], total[at - width], total[at - 1]);
            let (least, way) = if both < down && both < right {
                (both, 0)
            } else if down < both && down < right {
                (down, 1)
            } else {
                (right, 2)
            };
            total[at] = costs[row - 1][column - 1] + least;
            step[at] = way;
        }
    }
    let mut first = vec![0; rows];
    let (mut row, mut column) = (rows, columns);
    while row > 0 || column > 0 {
        if row > 0 {
            first[row - 1] = column.saturating_sub(1);
        }
        let way = match (row, column) {
            (0, _) => 2,
            (_, 0) => 1,
            _ => step[row * width + column],
        };
        row -= usize::from(way != 2 && row > 0);
        column -= usize::from(way != 1 && column > 0);
    }
    first
}

/// The tokens of each word.
fn split(parts: &WhisperParts, text: &[u32], window: &Window) -> Result<Vec<Vec<u32>>> {
    let mut pieces: Vec<(String, Vec<u32>)> = Vec::new();
    let mut open = Vec::new();
    for &token in text {
        open.push(token);
        let decoded = parts.tokenizer.decode(&open, true)?;
        // Characters may be spread over tokens.
        if !decoded.contains('\u{fffd}') {
            pieces.push((decoded, std::mem::take(&mut open)));
        }
    }
    if !open.is_empty() {
        pieces.push((String::new(), open));
    }
    let unspaced = UNSPACED.iter().any(|code| {
        let mut languages = parts.tokens.languages();
        let token = languages.find(|(of, _)| of == code);
        token.is_some_and(|(_, id)| window.prompt[window.start..].contains(&id))
    });
    let mut words: Vec<Vec<u32>> = Vec::new();
    for (shown, tokens) in pieces {
        let trimmed = shown.trim();
        let is_mark = !trimmed.is_empty() && trimmed.chars().all(|c| c.is_ascii_punctuation());
        match words.last_mut() {
            Some(word) if !(unspaced || shown.starts_with(' ') || is_mark) => word.extend(tokens),
            _ => words.push(tokens),
        }
    }
    Ok(words)
}

/// Words beside the end of a sentence do not last over the pause. Returns how long a word lasts.
fn shorten(words: &mut [Spoken]) -> f64 {
    let mut durations: Vec<f64> = words
        .iter()
        .map(|word| word.end - word.start)
        .filter(|&duration| duration > 0.0)
        .collect();
    durations.sort_by(f64::total_cmp);
    let middle = durations.len() / 2;
    let median = match (durations.len(), durations.len() % 2) {
        (0, _) => return 0.0,
        (_, 0) => (durations[middle - 1] + durations[middle]) / 2.0,
        _ => durations[middle],
    };
    let usual = median.min(USUAL);
    let most = 2.0 * usual;
    for at in 1..words.len() {
        if words[at].end - words[at].start <= most {
            continue;
        }
        if SENTENCE_ENDS.contains(&words[at].text.as_str()) {
            words[at].end = words[at].start + most;
        } else if SENTENCE_ENDS.contains(&words[at - 1].text.as_str()) {
            words[at].start = words[at].end - most;
        }
    }
    usual
}

/// Punctuation joins its word.
fn joined(words: Vec<Spoken>) -> Vec<Spoken> {
    let mut forward: Vec<Spoken> = Vec::with_capacity(words.len());
    for word in words.into_iter().rev() {
        let opens = word.text.starts_with(' ') && OPENING.contains(word.text.trim());
        match forward.last_mut() {
            Some(next) if opens && !word.text.trim().is_empty() => {
                next.text.insert_str(0, &word.text);
                next.tokens += word.tokens;
            }
            _ => forward.push(word),
        }
    }
    let mut joined: Vec<Spoken> = Vec::with_capacity(forward.len());
    for word in forward.into_iter().rev() {
        match joined.last_mut() {
            Some(before) if !before.text.ends_with(' ') && CLOSING.contains(&word.text) => {
                before.text.push_str(&word.text);
                before.tokens += word.tokens;
            }
            _ => joined.push(word),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_way_gives_each_token_its_first_frame() {
        let spoken = [0, 0, 0, 1, 1, 2, 2, 2];
        let costs: Vec<Vec<f32>> = (0..3)
            .map(|row| {
                let cost = |&token: &usize| if token == row { -1.0 } else { 1.0 };
                spoken.iter().map(cost).collect()
            })
            .collect();
        assert_eq!(first_frames(&costs), [0, 3, 5]);
        assert_eq!(smoothed(&[0.0, 9.0, 0.0, 0.0, 0.0]), [0.0; 5]);
    }
}
