//! What a model that reads texts counts of its calls.

use std::time::Instant;

use crate::Result;
use base::runtime::stats::{Counter, Gauge, Histogram, Reading};

pub struct CallStats {
    /// Calls whose batch is computed now.
    running: Gauge,
    /// Calls that wait for their batch to begin.
    pub waiting: Gauge,
    batches: Counter,
    tokens_in: Counter,
    /// Texts of a batch.
    batch_size: Histogram,
    batch_tokens: Histogram,
    /// From a call's coming to the beginning of its batch.
    pub queue_ms: Histogram,
    /// How long a batch took.
    forward_ms: Histogram,
}

impl Default for CallStats {
    fn default() -> Self {
        Self {
            running: Gauge::default(),
            waiting: Gauge::default(),
            batches: Counter::default(),
            tokens_in: Counter::default(),
            batch_size: Histogram::of_sizes(),
            batch_tokens: Histogram::of_sizes(),
            queue_ms: Histogram::of_times(),
            forward_ms: Histogram::of_times(),
        }
    }
}

impl CallStats {
    /// Runs a batch of so many calls and counts it if it succeeds; `size` then says how many texts and
    /// tokens it had.
    pub fn measured<T>(
        &self,
        calls: usize,
        size: impl FnOnce() -> (usize, usize),
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let _runs = self.running.enter_many(calls as u64);
        let began = Instant::now();
        let result = work()?;
        let (texts, tokens) = size();
        self.forward_ms.observe_time(began.elapsed());
        self.batches.add(1);
        self.tokens_in.add(tokens as u64);
        self.batch_size.observe(texts as f64);
        self.batch_tokens.observe(tokens as f64);
        Ok(result)
    }

    pub fn read(&self) -> Vec<(&'static str, Reading)> {
        let number = |value| Reading::Number(value);
        let spread = |histogram: &Histogram| Reading::Distribution(histogram.read());
        vec![
            ("running", number(self.running.value())),
            ("waiting", number(self.waiting.value())),
            ("batches", number(self.batches.value())),
            ("tokens_in", number(self.tokens_in.value())),
            ("batch_size", spread(&self.batch_size)),
            ("batch_tokens", spread(&self.batch_tokens)),
            ("queue_ms", spread(&self.queue_ms)),
            ("forward_ms", spread(&self.forward_ms)),
        ]
    }
}
