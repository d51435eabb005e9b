//! What a scheduler counts; read by anyone without a lock.

use std::sync::atomic::{AtomicUsize, Ordering};

use base::runtime::stats::{Counter, Histogram, Reading};

/// Counts and times of all generating on one model.
pub struct Stats {
    /// Texts that have pages, and texts that have none yet.
    pub running: AtomicUsize,
    pub waiting: AtomicUsize,
    /// Passes over the weights.
    pub batches: Counter,
    /// How many texts each pass had, and how many tokens of them.
    pub batch_size: Histogram,
    pub batch_tokens: Histogram,
    /// Tokens of prompts that were read, and tokens that were generated.
    pub tokens_in: Counter,
    pub tokens_out: Counter,
    /// Texts that began with something read before, and how many tokens that was.
    pub prefix_hits: Counter,
    pub prefix_tokens: Counter,
    /// Tokens that were guessed, and those of them that were right.
    pub drafted: Counter,
    pub accepted: Counter,
    /// Sequences whose pages were taken for others.
    pub preempted: Counter,
    pub pages_used: AtomicUsize,
    pub pages_idle: AtomicUsize,
    pub pages_limit: AtomicUsize,
    /// Pages of a smaller model that guesses.
    pub draft_pages_used: AtomicUsize,
    /// From the call to the first work on it, to its first token, and between tokens.
    pub queue_ms: Histogram,
    pub first_token_ms: Histogram,
    pub token_ms: Histogram,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            running: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            batches: Counter::default(),
            batch_size: Histogram::of_sizes(),
            batch_tokens: Histogram::of_sizes(),
            tokens_in: Counter::default(),
            tokens_out: Counter::default(),
            prefix_hits: Counter::default(),
            prefix_tokens: Counter::default(),
            drafted: Counter::default(),
            accepted: Counter::default(),
            preempted: Counter::default(),
            pages_used: AtomicUsize::new(0),
            pages_idle: AtomicUsize::new(0),
            pages_limit: AtomicUsize::new(0),
            draft_pages_used: AtomicUsize::new(0),
            queue_ms: Histogram::of_times(),
            first_token_ms: Histogram::of_times(),
            token_ms: Histogram::of_times(),
        }
    }
}

impl Stats {
    /// Everything as it is now, by name.
    pub fn read(&self) -> Vec<(&'static str, Reading)> {
        let number = |value: usize| Reading::Number(value as u64);
        let used = Self::now(&self.pages_used);
        let free = Self::now(&self.pages_limit).saturating_sub(used);
        vec![
            ("running", number(Self::now(&self.running))),
            ("waiting", number(Self::now(&self.waiting))),
            ("batches", Reading::Number(self.batches.value())),
            ("tokens_in", Reading::Number(self.tokens_in.value())),
            ("tokens_out", Reading::Number(self.tokens_out.value())),
            ("prefix_hits", Reading::Number(self.prefix_hits.value())),
            ("prefix_tokens", Reading::Number(self.prefix_tokens.value())),
            ("drafted", Reading::Number(self.drafted.value())),
            ("accepted", Reading::Number(self.accepted.value())),
            ("preempted", Reading::Number(self.preempted.value())),
            ("pages_used", number(used)),
            ("pages_idle", number(Self::now(&self.pages_idle))),
            ("pages_free", number(free)),
            (
                "draft_pages_used",
                number(Self::now(&self.draft_pages_used)),
            ),
            ("batch_size", Reading::Distribution(self.batch_size.read())),
            (
                "batch_tokens",
                Reading::Distribution(self.batch_tokens.read()),
            ),
            ("queue_ms", Reading::Distribution(self.queue_ms.read())),
            (
                "first_token_ms",
                Reading::Distribution(self.first_token_ms.read()),
            ),
            ("token_ms", Reading::Distribution(self.token_ms.read())),
        ]
    }

    /// A number as it is now.
    pub(crate) fn now(number: &AtomicUsize) -> usize {
        number.load(Ordering::Relaxed)
    }

    pub(crate) fn set(number: &AtomicUsize, value: usize) {
        number.store(value, Ordering::Relaxed);
    }
}
