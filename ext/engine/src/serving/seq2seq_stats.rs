//! What a model counts of the texts that it writes.

use std::sync::atomic::{AtomicUsize, Ordering};

use base::runtime::stats::{Counter, Gauge, Histogram, Reading};

#[derive(Debug)]
pub struct Stats {
    /// Texts whose next tokens are computed.
    pub running: Gauge,
    /// Calls whose texts were not read before the latest pass, which others filled.
    waiting: AtomicUsize,
    /// Passes over the decoder's weights.
    pub batches: Counter,
    /// How many rows each pass had, texts times beams.
    pub batch_size: Histogram,
    pub tokens_in: Counter,
    pub tokens_out: Counter,
    /// From the start to the first token of a text, and between tokens.
    pub first_token_ms: Histogram,
    pub token_ms: Histogram,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            running: Gauge::default(),
            waiting: AtomicUsize::new(0),
            batches: Counter::default(),
            batch_size: Histogram::of_sizes(),
            tokens_in: Counter::default(),
            tokens_out: Counter::default(),
            first_token_ms: Histogram::of_times(),
            token_ms: Histogram::of_times(),
        }
    }
}

impl Stats {
    pub fn note_waiting(&self, calls: usize) {
        self.waiting.store(calls, Ordering::Relaxed);
    }

    /// No more calls wait than are there: those that leave may be the ones that waited.
    pub fn note_live(&self, calls: usize) {
        self.waiting.fetch_min(calls, Ordering::Relaxed);
    }

    /// Everything as it is now, by name.
    pub fn read(&self) -> Vec<(&'static str, Reading)> {
        let spread = |histogram: &Histogram| Reading::Distribution(histogram.read());
        let waiting = self.waiting.load(Ordering::Relaxed);
        vec![
            ("running", Reading::Number(self.running.value())),
            ("waiting", Reading::Number(waiting as u64)),
            ("batches", Reading::Number(self.batches.value())),
            ("tokens_in", Reading::Number(self.tokens_in.value())),
            ("tokens_out", Reading::Number(self.tokens_out.value())),
            ("batch_size", spread(&self.batch_size)),
            ("first_token_ms", spread(&self.first_token_ms)),
            ("token_ms", spread(&self.token_ms)),
        ]
    }
}
