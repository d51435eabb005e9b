//! Chunked prefill: how many tokens of prompts a step computes beside those of sequences that decode.

use std::time::Duration;

/// The time that a step with a part of a prompt may take, in steps without one: a gap between two tokens
/// stays below three of the usual ones with some to spare.
const STRETCH: f64 = 2.2;
/// The same where a queue of prompts makes parts longer; and a gap in seconds that nobody takes for a pause.
const QUEUE_STRETCH: f64 = 2.6;
const SHORT_GAP: f64 = 0.06;
/// A part is at least this long, so that a prompt gets on.
const LEAST: usize = 1;
/// Before it is known what its tokens take, it is no longer than this.
const FIRST: usize = 2;
/// By how much a part may be longer than the one before it: what a token takes changes with their number.
const GROWTH: f64 = 1.5;
/// What exceeds so many steps is an accident, such as a thread that had to wait.
const ACCIDENT: f64 = 5.0;
/// The weight of the latest measurement.
const LATEST: f64 = 0.25;
/// After so many steps with parts, one without is measured again.
const AGAIN: usize = 64;
/// Steps of more sequences than this are taken for equal.
const MOST_SEQUENCES: usize = 256;

/// What steps have taken so far, in seconds.
#[derive(Default)]
pub struct ChunkedPrefill {
    /// A step in which every sequence gets one token, by their number.
    steps: Vec<Option<f64>>,
    /// A token of a prompt beside it, and such a token of the latest part.
    token: Option<f64>,
    latest: f64,
    /// The same, accidents too: what a part took, however long it was.
    measured: Option<f64>,
    /// How many tokens that part had, and beside how many sequences.
    part: usize,
    beside: usize,
    /// How many parts there were since a step without one.
    parts: usize,
    /// A draft token beside it that is verified, and a step of the draft model.
    verify: Option<f64>,
    draft: Option<f64>,
}

fn blend(before: Option<f64>, latest: f64) -> Option<f64> {
    Some(before.map_or(latest, |before| before + LATEST * (latest - before)))
}

impl ChunkedPrefill {
    /// How many tokens of prompts go into a step beside a token of each of `decoding` sequences. None where it
    /// is to be seen what a step takes without.
    pub fn part(&self, decoding: usize, most: usize) -> usize {
        if self.parts >= AGAIN {
            return 0;
        }
        // Beside fewer sequences a token takes more of a step: it is to be seen how much.
        let before = if decoding < self.beside { 0 } else { self.part };
        let longest = ((before as f64 * GROWTH) as usize).max(FIRST).min(most);
        let token = self.token.map(|token| token.max(self.latest));
        match (self.usual(decoding), token) {
            (Some(step), Some(token)) if token > 0.0 => {
                (((STRETCH - 1.0) * step / token) as usize).clamp(LEAST.min(longest), longest)
            }
            (Some(_), Some(_)) => longest,
            (Some(_), None) => FIRST.min(most),
            (None, _) => 0,
        }
    }

    /// How many tokens of prompts a step beside `decoding` sequences has to read so that those that wait are read
    /// within `steps`, as far as the gap stays short. `pending` is what each request has yet to read; those with one
    /// token decode.
    pub fn backlog(
        &self,
        decoding: usize,
        pending: impl Iterator<Item = usize>,
        steps: Option<usize>,
    ) -> usize {
        let waiting = pending.filter(|&tokens| tokens > 1).sum::<usize>();
        let wanted = steps.map_or(0, |steps| waiting / steps.max(1));
        match (self.usual(decoding), self.measured) {
            (Some(step), Some(token)) if token > 0.0 => {
                let gap = SHORT_GAP.max(QUEUE_STRETCH * step);
                wanted.min(((gap - step) / token) as usize)
            }
            (Some(_), Some(_)) => wanted,
            _ => 0,
        }
    }

    /// What a step of so many sequences takes. Where it was not measured, that of fewer sequences stands in, or
    /// the share that so many of more sequences have in theirs: rather too little than too much.
    fn usual(&self, sequences: usize) -> Option<f64> {
        let sequences = sequences.min(MOST_SEQUENCES);
        let known = |at: usize| self.steps.get(at).copied().flatten();
        let fewer = (1..=sequences).rev().find_map(known);
        let share = |at: usize| known(at).map(|step| step * sequences as f64 / at as f64);
        fewer.or_else(|| (sequences + 1..self.steps.len()).find_map(share))
    }

    /// What one draft token more for each of `drafting` of the `decoding` sequences takes, in steps without any:
    /// to make it and to verify it. `None` before a step was measured.
    pub fn draft_cost(&self, decoding: usize, drafting: usize) -> Option<f64> {
        let step = self.usual(decoding).filter(|&step| step > 0.0)?;
        let verify = self.verify.unwrap_or(0.0) * drafting as f64;
        Some((self.draft.unwrap_or(0.0) + verify) / step)
    }

    /// Takes note of a step of the draft model.
    pub fn note_draft(&mut self, took: Duration) {
        self.draft = blend(self.draft, took.as_secs_f64());
    }

    /// Takes note of a step with `decoding` sequences that got a token, `reading` tokens of prompts and
    /// `drafted` tokens to verify.
    pub fn note(&mut self, decoding: usize, reading: usize, drafted: usize, took: Duration) {
        let took = took.as_secs_f64();
        let usual = self.usual(decoding);
        match (decoding, reading) {
            // Alone a part is read faster than between others.
            (0, _) => {}
            (_, 0) if drafted > 0 && usual.is_some() => {
                let each = (took - usual.unwrap_or(0.0)).max(0.0) / drafted as f64;
                self.verify = blend(self.verify, each);
                self.parts = 0;
            }
            (_, 0) => {
                self.parts = 0;
                let at = decoding.min(MOST_SEQUENCES);
                if self.steps.len() <= at {
                    self.steps.resize(at + 1, None);
                }
                self.steps[at] = blend(self.steps[at], took);
            }
            _ => {
                let checks = self.verify.unwrap_or(0.0) * drafted as f64;
                let step = usual.unwrap_or(0.0) + checks;
                let measured = (took - step).max(0.0) / reading as f64;
                self.measured = blend(self.measured, measured);
                let took = if step > 0.0 {
                    took.min(ACCIDENT * step)
                } else {
                    took
                };
                let each = (took - step).max(0.0) / reading as f64;
                self.token = blend(self.token, each);
                self.latest = each;
                (self.part, self.beside) = (reading, decoding);
                self.parts += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::random::Random;

    fn milliseconds(count: f64) -> Duration {
        Duration::from_secs_f64(count / 1e3)
    }

    #[test]
    fn parts_are_as_long_as_the_time_allows() {
        let mut prefill = ChunkedPrefill::default();
        assert_eq!(prefill.part(4, 256), 0);
        prefill.note(4, 0, 0, milliseconds(10.0));
        assert_eq!(prefill.part(4, 256), FIRST);
        for _ in 0..20 {
            let part = prefill.part(4, 256);
            prefill.note(4, part, 0, milliseconds(10.0 + part as f64));
        }
        // A token takes 1 ms, and 12 ms may be added.
        assert!((11..=12).contains(&prefill.part(4, 256)));
        assert_eq!(prefill.part(4, 8), 8);
        for _ in 0..40 {
            prefill.note(4, 1, 0, milliseconds(500.0));
        }
        assert_eq!(prefill.part(4, 256), LEAST);
        (0..AGAIN).for_each(|_| prefill.note(4, 1, 0, milliseconds(10.0)));
        assert_eq!(prefill.part(4, 256), 0);
        prefill.note(4, 0, 0, milliseconds(10.0));
        assert!(prefill.part(4, 256) > 0);
    }

    #[test]
    fn a_queue_of_prompts_makes_parts_longer_where_the_device_gains_by_it() {
        let pending = [1, 1000, 1, 600];
        let mut prefill = ChunkedPrefill::default();
        let backlog = |prefill: &ChunkedPrefill, pending: &[usize], steps| {
            prefill.backlog(2, pending.iter().copied(), steps)
        };
        assert_eq!(backlog(&prefill, &pending, Some(16)), 0);
        prefill.note(2, 0, 0, milliseconds(10.0));
        assert_eq!(backlog(&prefill, &pending, Some(16)), 0);
        prefill.note(2, 64, 0, milliseconds(16.4));
        assert_eq!(backlog(&prefill, &pending, Some(16)), 100);
        assert_eq!(backlog(&prefill, &pending, None), 0);
        assert_eq!(backlog(&prefill, &[1, 1], Some(16)), 0);
    }

    #[test]
    fn a_queue_of_prompts_makes_gaps_no_longer_than_a_short_one_or_a_few_usual_ones() {
        for (step, token) in [(10.0, 0.03), (4.0, 0.1), (100.0, 1.0)] {
            let mut prefill = ChunkedPrefill::default();
            prefill.note(64, 0, 0, milliseconds(step));
            prefill.note(64, 64, 0, milliseconds(step + 64.0 * token));
            let part = prefill.backlog(64, [1_000_000].into_iter(), Some(16));
            let gap = step + part as f64 * token;
            let most = (1e3 * SHORT_GAP).max(QUEUE_STRETCH * step);
            assert!(
                (most - token - 1e-6..=most).contains(&gap),
                "{gap} of {most}"
            );
        }
    }

    #[test]
    fn a_step_of_another_number_of_sequences_is_estimated_with_care() {
        let mut prefill = ChunkedPrefill::default();
        assert_eq!(prefill.usual(2), None);
        prefill.note(4, 0, 0, milliseconds(8.0));
        assert_eq!(prefill.usual(4), Some(0.008));
        assert_eq!(prefill.usual(9), Some(0.008));
        assert_eq!(prefill.usual(2), Some(0.004));
        prefill.note(1, 0, 0, milliseconds(3.0));
        assert_eq!(prefill.usual(2), Some(0.003));
        assert_eq!(prefill.usual(1000), Some(0.008));
    }

    #[test]
    fn a_draft_token_costs_what_it_takes_to_make_and_to_verify_it() {
        let mut prefill = ChunkedPrefill::default();
        assert_eq!(prefill.draft_cost(2, 1), None);
        prefill.note(2, 0, 4, milliseconds(10.0));
        assert_eq!(prefill.draft_cost(2, 1), Some(0.0));
        prefill.note(2, 0, 4, milliseconds(14.0));
        prefill.note_draft(milliseconds(2.0));
        let near = |cost: Option<f64>, wanted: f64| (cost.unwrap() - wanted).abs() < 1e-9;
        assert!(near(prefill.draft_cost(2, 1), 0.3));
        assert!(near(prefill.draft_cost(2, 2), 0.4));
    }

    /// What a step of so many rows takes, of which some read a prompt at a position, in steps of one row.
    type Machine = fn(usize, usize, usize) -> f64;

    /// Every row counts, but less the more there are.
    fn processor(rows: usize, _: usize, _: usize) -> f64 {
        let rows = rows as f64 - 1.0;
        1.0 + 0.24 * rows.min(8.0) + 0.06 * (rows - 8.0).max(0.0)
    }

    /// Rows are free until there are many.
    fn graphics(rows: usize, _: usize, _: usize) -> f64 {
        (rows as f64 / 200.0).max(1.0)
    }

    /// Attention makes the end of a prompt dear.
    fn attentive(rows: usize, reading: usize, position: usize) -> f64 {
        processor(rows, 0, 0) + reading as f64 * position as f64 * 1e-4
    }

    /// The steps that a prompt of 4,000 tokens takes beside others' tokens, and the longest of them in
    /// usual ones. In the middle all sequences but one may end.
    fn read(
        machine: Machine,
        sequences: usize,
        most: usize,
        noise: f64,
        leave: bool,
    ) -> (usize, f64) {
        let mut random = Random::new(7);
        let mut prefill = ChunkedPrefill::default();
        let mut noisy = |cost: f64| cost * (1.0 + noise * (2.0 * random.next_f64() - 1.0));
        for number in [1, sequences] {
            for _ in 0..20 {
                let took = noisy(machine(number, 0, 0));
                prefill.note(number, 0, 0, milliseconds(took));
            }
        }
        let (mut position, mut steps, mut longest) = (0, 0, 0f64);
        while position < 4_000 {
            let sequences = if leave && position > 2_000 {
                1
            } else {
                sequences
            };
            let part = prefill.part(sequences, most).min(4_000 - position);
            let took = noisy(machine(sequences + part, part, position));
            prefill.note(sequences, part, 0, milliseconds(took));
            longest = longest.max(took / machine(sequences, 0, 0));
            position += part;
            steps += 1;
        }
        (steps, longest)
    }

    #[test]
    fn no_gap_grows_beyond_three_while_a_long_prompt_is_read() {
        let machines: [(Machine, usize); 3] =
            [(processor, 256), (graphics, 1024), (attentive, 256)];
        for (name, (machine, most)) in machines.into_iter().enumerate() {
            for sequences in [1, 2, 8, 30] {
                for (noise, leave) in [(0.0, false), (0.15, false), (0.0, true), (0.15, true)] {
                    let (steps, longest) = read(machine, sequences, most, noise, leave);
                    let seen = (name, sequences, noise, leave, steps, longest);
                    assert!(longest <= 3.0, "{seen:?}");
                    // The prompt gets on as far as that allows.
                    assert!(longest > 1.6 && steps < 2_500, "{seen:?}");
                }
            }
        }
    }
}
