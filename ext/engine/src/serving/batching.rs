//! The batching policy: how many inputs a call computes before it hands on results, how many tokens a
//! forward pass takes, and which inputs share one. Texts become token ids here, in parallel.

use crate::nn::PackedSequences;
use crate::{CancelToken, Device, Error, Result};
use base::runtime::{memory, threads};
use formats::text::tokenizer::{
    Detail, Encoding, Input, Tokenizer, Truncation, TruncationStrategy,
};

use std::sync::{Mutex, PoisonError};

/// Inputs of a call that are computed before their results are handed on. A longer list does not lie in memory as
/// tokens, an interrupt costs at most one slice, and progress is told after each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slice {
    /// Texts of which one vector each remains.
    Embed,
    /// The same while somebody watches the progress.
    Watched,
    /// Texts with larger results, or with pairs.
    Read,
    /// Texts with a result for every token.
    Tag,
    Images,
}

impl Slice {
    pub fn size(self) -> usize {
        match self {
            Self::Embed => 1024,
            Self::Read => 256,
            Self::Tag => 128,
            Self::Watched | Self::Images => 64,
        }
    }

    /// How many texts, where each stands for a group of so many inputs.
    pub fn size_of_groups(self, group: usize) -> usize {
        (self.size() / group.max(1)).max(1)
    }
}

/// Calls of encoders with more tokens have a queue of their own, so that a short one does not wait for a long
/// one.
pub const SHORT_CALL: usize = 512;

/// Only texts longer than this are cut before they are tokenized.
const LONG_TEXT_BYTES: usize = 1 << 16;
/// Tokens near a cut may differ from those of the whole text; this many are thrown away.
const CUT_MARGIN: usize = 256;

#[derive(Clone, Debug)]
pub struct Tokens {
    pub ids: Vec<u32>,
    pub type_ids: Vec<u32>,
}

impl From<&Encoding> for Tokens {
    fn from(encoding: &Encoding) -> Self {
        Self {
            ids: encoding.get_ids().to_vec(),
            type_ids: encoding.get_type_ids().to_vec(),
        }
    }
}

/// What becomes of a text beyond the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// Of a pair only the second text is cut, as long as that can be enough.
    Cut,
    /// Of a pair the longer text is cut.
    CutLonger,
    /// An `InvalidInput` error that names the text and its length; counted from this index.
    Refuse { first_index: usize },
}

impl Excess {
    /// The same for texts from `start` on.
    pub fn counting_from(self, start: usize) -> Self {
        match self {
            Self::Refuse { first_index } => Self::Refuse {
                first_index: first_index + start,
            },
            other => other,
        }
    }
}

/// Tokenizes in parallel.
pub fn tokenize(
    tokenizer: &Tokenizer,
    inputs: &[Input<'_>],
    max_length: usize,
    excess: Excess,
    cancel: &CancelToken,
) -> Result<Vec<Tokens>> {
    let strategy = match excess {
        Excess::CutLonger => TruncationStrategy::LongestFirst,
        Excess::Cut | Excess::Refuse { .. } => TruncationStrategy::OnlySecond,
    };
    let cutting = tokenizer.with_truncation(Some(Truncation::new(max_length).strategy(strategy)));
    threads::map(inputs, |index, input| {
        let Excess::Refuse { first_index } = excess else {
            let shortened = shorten(tokenizer, *input, max_length, cancel)?;
            let encoding = cutting.encode(shortened, true, Detail::Ids, cancel)?;
            return Ok(Tokens::from(&encoding));
        };
        let encoding = tokenizer.encode(*input, true, Detail::Ids, cancel)?;
        refuse(encoding.len(), max_length, first_index + index)?;
        Ok(Tokens::from(&encoding))
    })
}

/// An error for a text that is longer than it may be and must not be cut.
pub fn refuse(tokens: usize, max_length: usize, index: usize) -> Result<()> {
    if tokens <= max_length {
        return Ok(());
    }
    Err(Error::InvalidInput(format!(
        "the text at index {index} has {tokens} tokens, more than the {max_length} that the model takes: shorten it, \
         split it, or allow truncation"
    )))
}

/// The beginning of a very long text that already holds more tokens than are kept.
fn shorten<'a>(
    tokenizer: &Tokenizer,
    input: Input<'a>,
    max_length: usize,
    cancel: &CancelToken,
) -> Result<Input<'a>> {
    Ok(match input {
        Input::Single(text) => Input::Single(shorten_text(tokenizer, text, max_length, cancel)?),
        Input::Pair(first, second) => Input::Pair(
            shorten_text(tokenizer, first, max_length, cancel)?,
            shorten_text(tokenizer, second, max_length, cancel)?,
        ),
    })
}

pub fn shorten_text<'a>(
    tokenizer: &Tokenizer,
    text: &'a str,
    max_length: usize,
    cancel: &CancelToken,
) -> Result<&'a str> {
    let mut bytes = LONG_TEXT_BYTES.max(max_length.saturating_mul(16));
    while text.len() > bytes {
        let end = (0..=bytes)
            .rev()
            .find(|&at| text.is_char_boundary(at))
            .unwrap_or(0);
        let beginning = &text[..end];
        let cut = beginning
            .rfind(char::is_whitespace)
            .filter(|&at| at > bytes / 2);
        let beginning = &beginning[..cut.unwrap_or(beginning.len())];
        let tokens = tokenizer
            .encode(beginning, false, Detail::Ids, cancel)?
            .len();
        if tokens > max_length.saturating_add(CUT_MARGIN) {
            return Ok(beginning);
        }
        bytes = bytes.saturating_mul(4);
    }
    Ok(text)
}

/// The budget of a forward; a call may ask for another.
pub fn budget(asked: Option<usize>, device: Device) -> Result<usize> {
    match asked {
        Some(0) => Err(Error::InvalidInput(
            "batch_tokens must be at least 1".into(),
        )),
        Some(tokens) => Ok(tokens),
        None => Ok(device.batch_tokens()),
    }
}

/// A batch that one thread of the CPU runs by itself holds this many tokens: enough to read every
/// weight seldom, and few enough for the second-level cache.
const ALONE_TOKENS: std::ops::RangeInclusive<usize> = 256..=1024;

/// What `forward` makes of all texts, a batch at a time: a row of `width` numbers for each, in their order.
pub fn rows(
    tokens: &[Tokens],
    width: usize,
    device: Device,
    cancel: &CancelToken,
    forward: impl Fn(&PackedSequences) -> Result<Vec<f32>> + Sync,
) -> Result<Vec<f32>> {
    memory::ensure_elements(
        &[tokens.len(), width],
        size_of::<f32>(),
        format_args!("{} vectors", tokens.len()),
    )?;
    let mut values = vec![0f32; tokens.len() * width];
    let forward = |batch: &[usize]| -> Result<Vec<f32>> {
        let sequences = pack(tokens, batch)?;
        // In the pool: a thread of Ruby's has little room for what it calls.
        device.compute(|| forward(&sequences))?
    };
    let take = |batch: &[usize], rows: Vec<f32>| {
        for (row, &index) in rows.chunks_exact(width).zip(batch) {
            values[index * width..][..width].copy_from_slice(row);
        }
    };
    run(tokens, None, device, cancel, forward, take)?;
    Ok(values)
}

/// Runs `forward` on batches of texts and hands each result to `take`, with the indexes of its texts.
///
/// Where there is enough for every thread of the CPU, batches run side by side on one thread each, so
/// that no operation waits for its slowest part; else one after the other, each on all threads and on the
/// thread that called, which may wait for other calls there.
pub fn run<R: Send>(
    tokens: &[Tokens],
    asked: Option<usize>,
    device: Device,
    cancel: &CancelToken,
    forward: impl Fn(&[usize]) -> Result<R> + Sync,
    take: impl FnMut(&[usize], R) + Send,
) -> Result<()> {
    let budget = budget(asked, device)?;
    let total: usize = tokens.iter().map(|tokens| tokens.ids.len()).sum();
    let threads = threads::count();
    let share = total / (4 * threads);
    let alone = share.clamp(*ALONE_TOKENS.start(), *ALONE_TOKENS.end());
    let take = Mutex::new(take);
    let one = |batch: &Vec<usize>| -> Result<()> {
        cancel.check()?;
        let result = forward(batch)?;
        let mut take = take.lock().unwrap_or_else(PoisonError::into_inner);
        take(batch, result);
        Ok(())
    };
    if device.computes_on_threads() && threads > 1 {
        let batches = plan(tokens, budget.min(alone));
        if batches.len() >= 2 * threads {
            return threads::side_by_side(batches.len(), |batch| one(&batches[batch]));
        }
    }
    plan(tokens, budget).iter().try_for_each(one)
}

/// One result per text, in the order of the texts: `forward` returns those of a batch in the batch's order.
pub fn collect<R: Send>(
    tokens: &[Tokens],
    asked: Option<usize>,
    device: Device,
    cancel: &CancelToken,
    forward: impl Fn(&[usize]) -> Result<Vec<R>> + Sync,
) -> Result<Vec<R>> {
    let mut found: Vec<Option<R>> = tokens.iter().map(|_| None).collect();
    let take = |batch: &[usize], results: Vec<R>| {
        for (result, &index) in results.into_iter().zip(batch) {
            found[index] = Some(result);
        }
    };
    run(tokens, asked, device, cancel, forward, take)?;
    let missing = || Error::Internal("a text was not computed".to_owned());
    let results = found.into_iter();
    results.map(|result| result.ok_or_else(missing)).collect()
}

/// Indexes of texts, batch by batch: like lengths together, longest first, and at most `budget`
/// tokens each, unless a single text is longer.
fn plan(tokens: &[Tokens], budget: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..tokens.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(tokens[index].ids.len()));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut filled = usize::MAX;
    for index in order {
        let length = tokens[index].ids.len();
        match batches.last_mut() {
            Some(batch) if filled + length <= budget => {
                batch.push(index);
                filled += length;
            }
            _ => {
                batches.push(vec![index]);
                filled = length;
            }
        }
    }
    batches
}

pub fn pack(tokens: &[Tokens], batch: &[usize]) -> Result<PackedSequences> {
    let mut sequences = PackedSequences::new();
    for &index in batch {
        let Tokens { ids, type_ids } = &tokens[index];
        sequences.push(ids, Some(type_ids))?;
    }
    Ok(sequences)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_lengths(lengths: &[usize]) -> Vec<Tokens> {
        let tokens = |&length: &usize| Tokens {
            ids: vec![1; length],
            type_ids: vec![0; length],
        };
        lengths.iter().map(tokens).collect()
    }

    #[test]
    fn batches_keep_to_the_budget_and_hold_every_text_once() {
        let tokens = of_lengths(&[3, 9, 1, 0, 5, 4, 20]);
        let batches = plan(&tokens, 10);
        assert_eq!(batches[0], [6]);
        for batch in &batches[1..] {
            let total: usize = batch.iter().map(|&index| tokens[index].ids.len()).sum();
            assert!(total <= 10, "{batch:?}");
        }
        let mut all: Vec<usize> = batches.concat();
        all.sort();
        assert_eq!(all, [0, 1, 2, 3, 4, 5, 6]);
        assert!(plan(&[], 10).is_empty());
    }

    #[test]
    fn every_text_is_run_once_whatever_the_number_of_threads() {
        for lengths in [vec![], vec![3, 900, 20], (1..400).collect::<Vec<_>>()] {
            let tokens = of_lengths(&lengths);
            let mut seen = vec![0; tokens.len()];
            let forward = |batch: &[usize]| Ok(batch.len());
            let take = |batch: &[usize], count: usize| {
                assert_eq!(batch.len(), count);
                batch.iter().for_each(|&index| seen[index] += 1);
            };
            let cancel = CancelToken::new();
            threads::install(|| run(&tokens, None, Device::Cpu, &cancel, forward, take))
                .unwrap()
                .unwrap();
            assert!(seen.iter().all(|&count| count == 1));
        }
    }

    #[test]
    fn the_first_failure_is_the_result() {
        let tokens = of_lengths(&[500; 40]);
        let forward = |_: &[usize]| -> Result<()> { Err(Error::InvalidInput("no".into())) };
        let cancel = CancelToken::new();
        let result = run(&tokens, None, Device::Cpu, &cancel, forward, |_, _| {});
        assert!(result.is_err());
        assert!(run(
            &tokens,
            Some(0),
            Device::Cpu,
            &cancel,
            |_| Ok(()),
            |_, _| {}
        )
        .is_err());
    }

    #[test]
    fn slices_hold_at_least_one_text() {
        assert_eq!(Slice::Read.size_of_groups(0), 256);
        assert_eq!(Slice::Read.size_of_groups(100), 2);
        assert_eq!(Slice::Read.size_of_groups(1000), 1);
    }

    #[test]
    fn a_budget_is_at_least_one_token() {
        assert!(budget(Some(0), Device::Cpu).is_err());
        assert_eq!(budget(Some(7), Device::Cpu).unwrap(), 7);
    }
}
