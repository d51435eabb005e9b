//! Speculative decoding: draft tokens are verified together with a sequence's next token in one step. They cost or
//! save time and change no text: every token is chosen by its own logits, and a wrong draft token is dropped.
//!
//! Draft tokens come from
//! - a constraint that leaves no choice,
//! - an n-gram of the sequence so far ([`ngram`]),
//! - a draft model ([`draft_model`]), by the sequence's own sampler ([`draft_sampler`]), as many as pay ([`payoff`]).

mod draft_model;
mod draft_sampler;
mod ngram;
mod payoff;

pub use draft_model::{DraftModel, Drafter};
pub use draft_sampler::DraftSampler;
use ngram::NgramLookup;
use payoff::Payoff;

use crate::generation::{Run, Speculative};

/// The speculation of one sequence.
pub struct Speculation {
    source: Source,
    /// Whether the latest draft tokens are what a constraint leaves no choice of.
    forced: bool,
}

enum Source {
    None,
    Lookup(NgramLookup),
    DraftModel(Payoff),
}

impl Speculation {
    pub fn new(speculative: Speculative) -> Self {
        Self {
            source: match speculative {
                Speculative::None => Source::None,
                Speculative::Lookup => Source::Lookup(NgramLookup::default()),
                Speculative::Draft => Source::DraftModel(Payoff::default()),
            },
            forced: false,
        }
    }

    /// Whether nothing but a constraint makes draft tokens.
    pub fn is_off(&self) -> bool {
        matches!(self.source, Source::None)
    }

    /// Draft tokens after `ids` without a draft model.
    pub fn draft(&mut self, run: &mut Run, ids: &[u32]) -> Vec<u32> {
        let mut forced = run.forced_tokens();
        self.forced = !forced.is_empty();
        if self.forced {
            forced.truncate(run.left());
            return forced;
        }
        match &mut self.source {
            Source::Lookup(lookup) => lookup.draft(ids, run.left()),
            Source::None | Source::DraftModel(_) => Vec::new(),
        }
    }

    /// Whether the draft model reads along, since it may soon be asked.
    pub fn follows(&self) -> bool {
        matches!(&self.source, Source::DraftModel(payoff) if !payoff.is_paused())
    }

    /// How the draft model's tokens are chosen, where they pay; see [`Payoff::count`].
    pub fn sampler(&mut self, run: &mut Run, cost: f64) -> Option<DraftSampler> {
        let Source::DraftModel(payoff) = &mut self.source else {
            return None;
        };
        let count = payoff.count(cost).min(run.left());
        if count == 0 {
            return None;
        }
        let (sampler, constraint) = run.fork();
        let end_ids = run.end_ids().to_vec();
        Some(DraftSampler::new(sampler, constraint, end_ids, count))
    }

    /// Takes note of how many draft tokens were accepted.
    pub fn note(&mut self, drafted: usize, accepted: usize) {
        match &mut self.source {
            _ if self.forced => {}
            Source::None => {}
            Source::Lookup(lookup) => lookup.note(drafted, accepted),
            Source::DraftModel(payoff) => payoff.note(drafted, accepted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sequence_without_speculation_is_off() {
        assert!(Speculation::new(Speculative::None).is_off());
        assert!(!Speculation::new(Speculative::Lookup).is_off());
        let draft = Speculation::new(Speculative::Draft);
        assert!(!draft.is_off() && draft.follows());
    }
}
