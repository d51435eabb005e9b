//! What a served model counts; written by its calls, read by anyone without a lock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::Result;
use base::runtime::stats::{Counter, Gauge, Histogram, Reading};

/// How a model is served, which decides what there is to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// Dynamic batching: one forward pass per call.
    Encoder,
    /// Continuous batching over a paged KV cache.
    Decoder,
    /// Continuous batching of encoder-decoders.
    Seq2Seq,
}

/// Counts and times of all requests to one model.
pub struct Stats {
    served: Served,
    /// What is computed now: sequences with pages; calls of an encoder; sequences of an encoder-decoder.
    pub running: Gauge,
    /// What waits for pages, or for its batch to begin.
    pub waiting: Gauge,
    /// Forward passes.
    pub batches: Counter,
    /// Tokens of inputs that were computed, and tokens that were generated.
    pub tokens_in: Counter,
    pub tokens_out: Counter,
    /// Requests that reused a prefix, and how many tokens that was.
    pub prefix_hits: Counter,
    pub prefix_tokens: Counter,
    /// Draft tokens, and those of them that were accepted.
    pub drafted: Counter,
    pub accepted: Counter,
    /// Sequences whose pages were taken for others.
    pub preempted: Counter,
    pub pages: Pages,
    /// Sequences (or rows: sequences times beams) of a forward pass, and their tokens.
    pub batch_size: Histogram,
    pub batch_tokens: Histogram,
    /// From the call to the beginning of its first batch.
    pub queue_ms: Histogram,
    /// How long an encoder's batch took.
    pub forward_ms: Histogram,
    /// From the call to its first token, and between tokens.
    pub first_token_ms: Histogram,
    pub token_ms: Histogram,
}

/// Pages of the KV cache.
#[derive(Debug, Default)]
pub struct Pages {
    limit: AtomicUsize,
    used: AtomicUsize,
    idle: AtomicUsize,
    /// Of the draft model.
    draft: AtomicUsize,
}

impl Pages {
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    pub fn set(&self, used: usize, idle: usize, draft: usize) {
        self.used.store(used, Ordering::Relaxed);
        self.idle.store(idle, Ordering::Relaxed);
        self.draft.store(draft, Ordering::Relaxed);
    }

    /// Used, idle, free, and the draft model's.
    fn read(&self) -> [u64; 4] {
        let now = |number: &AtomicUsize| number.load(Ordering::Relaxed) as u64;
        let used = now(&self.used);
        let free = now(&self.limit).saturating_sub(used);
        [used, now(&self.idle), free, now(&self.draft)]
    }
}

impl Stats {
    pub fn new(served: Served) -> Self {
        Self {
            served,
            running: Gauge::default(),
            waiting: Gauge::default(),
            batches: Counter::default(),
            tokens_in: Counter::default(),
            tokens_out: Counter::default(),
            prefix_hits: Counter::default(),
            prefix_tokens: Counter::default(),
            drafted: Counter::default(),
            accepted: Counter::default(),
            preempted: Counter::default(),
            pages: Pages::default(),
            batch_size: Histogram::of_sizes(),
            batch_tokens: Histogram::of_sizes(),
            queue_ms: Histogram::of_times(),
            forward_ms: Histogram::of_times(),
            first_token_ms: Histogram::of_times(),
            token_ms: Histogram::of_times(),
        }
    }

    /// Runs an encoder's batch of so many calls and counts it if it succeeds; `size` then says how many
    /// sequences and tokens it had.
    pub fn measured<T>(
        &self,
        calls: usize,
        size: impl FnOnce() -> (usize, usize),
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let _runs = self.running.enter_many(calls as u64);
        let began = Instant::now();
        let result = work()?;
        let (sequences, tokens) = size();
        self.forward_ms.observe_time(began.elapsed());
        self.batches.add(1);
        self.tokens_in.add(tokens as u64);
        self.batch_size.observe(sequences as f64);
        self.batch_tokens.observe(tokens as f64);
        Ok(result)
    }

    /// Everything that this kind of model counts, as it is now, by name.
    pub fn read(&self) -> Vec<(&'static str, Reading)> {
        use Served::{Decoder, Encoder, Seq2Seq};
        let all: &[Served] = &[Encoder, Decoder, Seq2Seq];
        let (generates, packs): (&[Served], &[Served]) = (&[Decoder, Seq2Seq], &[Encoder, Decoder]);
        let number = |value: u64| Reading::Number(value);
        let spread = |histogram: &Histogram| Reading::Distribution(histogram.read());
        let [used, idle, free, draft] = self.pages.read();
        let readings = [
            ("running", all, number(self.running.value())),
            ("waiting", all, number(self.waiting.value())),
            ("batches", all, number(self.batches.value())),
            ("tokens_in", all, number(self.tokens_in.value())),
            ("tokens_out", generates, number(self.tokens_out.value())),
            ("prefix_hits", &[Decoder], number(self.prefix_hits.value())),
            (
                "prefix_tokens",
                &[Decoder],
                number(self.prefix_tokens.value()),
            ),
            ("drafted", &[Decoder], number(self.drafted.value())),
            ("accepted", &[Decoder], number(self.accepted.value())),
            ("preempted", &[Decoder], number(self.preempted.value())),
            ("pages_used", &[Decoder], number(used)),
            ("pages_idle", &[Decoder], number(idle)),
            ("pages_free", &[Decoder], number(free)),
            ("draft_pages_used", &[Decoder], number(draft)),
            ("batch_size", all, spread(&self.batch_size)),
            ("batch_tokens", packs, spread(&self.batch_tokens)),
            ("queue_ms", packs, spread(&self.queue_ms)),
            ("forward_ms", &[Encoder], spread(&self.forward_ms)),
            ("first_token_ms", generates, spread(&self.first_token_ms)),
            ("token_ms", generates, spread(&self.token_ms)),
        ];
        let own = readings
            .into_iter()
            .filter(|(_, kinds, _)| kinds.contains(&self.served));
        own.map(|(name, _, reading)| (name, reading)).collect()
    }
}
