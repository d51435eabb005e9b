//! What a model counts of the texts that it writes.

use crate::runtime::stats::{Counter, Gauge, Histogram, Reading};

#[derive(Debug)]
pub struct Counts {
    /// Texts whose next tokens are computed.
    pub running: Gauge,
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

impl Default for Counts {
    fn default() -> Self {
        Self {
            running: Gauge::default(),
            batches: Counter::default(),
            batch_size: Histogram::of_sizes(),
            tokens_in: Counter::default(),
            tokens_out: Counter::default(),
            first_token_ms: Histogram::of_times(),
            token_ms: Histogram::of_times(),
        }
    }
}

impl Counts {
    /// Everything as it is now, by name. Texts begin at once, so that none waits.
    pub fn read(&self) -> Vec<(&'static str, Reading)> {
        let spread = |histogram: &Histogram| Reading::Distribution(histogram.read());
        vec![
            ("running", Reading::Number(self.running.value())),
            ("waiting", Reading::Number(0)),
            ("batches", Reading::Number(self.batches.value())),
            ("tokens_in", Reading::Number(self.tokens_in.value())),
            ("tokens_out", Reading::Number(self.tokens_out.value())),
            ("batch_size", spread(&self.batch_size)),
            ("first_token_ms", spread(&self.first_token_ms)),
            ("token_ms", spread(&self.token_ms)),
        ]
    }
}
