//! Beam search over one text, as transformers has it: the same candidates, scores and end.

use super::logit_bias::LogitBias;
use super::rules::TokenRules;
use super::sampler::log_sum_exp;

/// What a beam that does not exist yet scores, and what is taken from one that may not go on.
const NOTHING: f32 = -1e9;

/// When a search is over before its beams reach the greatest length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyStopping {
    /// As soon as there are as many ended texts as beams.
    Always,
    /// When the best beam, at its length, is worse than the ended texts.
    #[default]
    Heuristic,
    /// When no beam can become better any more.
    Never,
}

#[derive(Clone, Debug, PartialEq)]
pub struct BeamSettings {
    pub width: usize,
    /// A text's score is divided by its length to this power.
    pub length_penalty: f32,
    pub early_stopping: EarlyStopping,
    /// Divides, or multiplies where negative, the scores of tokens that a beam has.
    pub repetition_penalty: f32,
    pub logit_bias: LogitBias,
}

#[derive(Clone, Debug)]
struct Beam {
    /// With the tokens that every text starts with.
    text: Vec<u32>,
    score: f32,
    ended: bool,
}

#[derive(Clone, Debug)]
pub struct BeamSearch {
    settings: BeamSettings,
    rules: TokenRules,
    /// How many tokens every text starts with.
    given: usize,
    running: Vec<Beam>,
    /// The best texts so far, best first; some may not have ended.
    best: Vec<Beam>,
    improvable: bool,
    over: bool,
}

/// A token that one of the beams might go on with.
struct Candidate {
    beam: usize,
    token: u32,
    score: f32,
}

impl BeamSearch {
    pub fn new(settings: BeamSettings, rules: TokenRules, start: &[u32]) -> Self {
        let beam = |score| Beam {
            text: start.to_vec(),
            score,
            ended: false,
        };
        let running = (0..settings.width).map(|at| beam(if at == 0 { 0.0 } else { NOTHING }));
        Self {
            running: running.collect(),
            best: vec![beam(NOTHING); settings.width],
            improvable: true,
            over: rules.max_new_tokens == 0,
            settings,
            rules,
            given: start.len(),
        }
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    /// The last token of each beam.
    pub fn last_tokens(&self) -> impl Iterator<Item = u32> + '_ {
        let last = |beam: &Beam| beam.text.last().copied().unwrap_or(0);
        self.running.iter().map(last)
    }

    /// The tokens of the best text, an end token included.
    pub fn tokens(&self) -> &[u32] {
        self.chosen().map_or(&[], |beam| &beam.text[self.given..])
    }

    /// The score of the best text.
    pub fn score(&self) -> f32 {
        self.chosen().map_or(NOTHING, |beam| beam.score)
    }

    fn chosen(&self) -> Option<&Beam> {
        let best = self.best.first().filter(|best| best.ended);
        best.or(self.running.first())
    }

    /// Goes on by the logits of each beam's next token. Returns for each beam the one it continues.
    pub fn advance(&mut self, logits: &[&[f32]]) -> Vec<usize> {
        self.advance_by(logits, |_, _| ())
    }

    /// The same where the log-probabilities of tokens after a text are `adjusted`. The text is without its start.
    pub fn advance_by(
        &mut self,
        logits: &[&[f32]],
        adjusted: impl Fn(&[u32], &mut [f32]),
    ) -> Vec<usize> {
        let written = |beam: &Beam| beam.text.len() + 1 - self.given;
        let new = self.running.first().map_or(0, written);
        let candidates = self.candidates(logits, adjusted);
        let next: Vec<(Beam, usize)> = candidates
            .iter()
            .map(|candidate| {
                let mut text = self.running[candidate.beam].text.clone();
                text.push(candidate.token);
                let ended = self.rules.end_ids.contains(&candidate.token)
                    || new >= self.rules.max_new_tokens;
                let score = candidate.score;
                (Beam { text, score, ended }, candidate.beam)
            })
            .collect();
        self.keep_ended(&next, new);
        let all_ended = next.iter().all(|(beam, _)| beam.ended);
        let parents = self.keep_running(next);
        self.improvable &= self.may_improve(new);
        let full = self.best.iter().all(|beam| beam.ended);
        self.over = !self.improvable
            || (full && self.settings.early_stopping == EarlyStopping::Always)
            || all_ended;
        parents
    }

    /// The likeliest continuations of all beams, best first: enough of them that the beams can go on
    /// although some end.
    fn candidates(
        &self,
        logits: &[&[f32]],
        adjusted: impl Fn(&[u32], &mut [f32]),
    ) -> Vec<Candidate> {
        let count = self.settings.width * (1 + self.rules.end_ids.len()).max(2);
        let mut found: Vec<Candidate> = Vec::new();
        for (number, (beam, logits)) in self.running.iter().zip(logits).enumerate() {
            let total = log_sum_exp(logits);
            let mut scores: Vec<f32> = logits.iter().map(|logit| logit - total).collect();
            self.settings.logit_bias.apply(&mut scores);
            self.penalize(beam, &mut scores);
            self.rules.apply(&beam.text, self.given, &mut scores);
            adjusted(&beam.text[self.given..], &mut scores);
            found.extend(
                (0u32..)
                    .zip(&scores)
                    .map(|(token, score)| Candidate {
                        beam: number,
                        token,
                        score: score + beam.score,
                    })
                    .filter(|candidate| !candidate.score.is_nan()),
            );
            keep_best(&mut found, count);
        }
        found.sort_by(|a, b| b.score.total_cmp(&a.score));
        found
    }

    fn penalize(&self, beam: &Beam, scores: &mut [f32]) {
        let penalty = self.settings.repetition_penalty;
        if penalty == 1.0 {
            return;
        }
        let mut seen = beam.text.clone();
        seen.sort_unstable();
        seen.dedup();
        for token in seen {
            if let Some(score) = scores.get_mut(token as usize) {
                *score = if *score < 0.0 {
                    *score * penalty
                } else {
                    *score / penalty
                };
            }
        }
    }

    /// What ends now competes with what has ended; only the first candidates count, as many as beams.
    fn keep_ended(&mut self, next: &[(Beam, usize)], new: usize) {
        let full = self.best.iter().all(|beam| beam.ended);
        let closed = full && self.settings.early_stopping == EarlyStopping::Always;
        let length = (new as f32).powf(self.settings.length_penalty);
        for (at, (beam, _)) in next.iter().enumerate() {
            let ended = beam.ended && at < self.settings.width;
            if !ended || closed || !self.improvable {
                continue;
            }
            self.best.push(Beam {
                score: beam.score / length,
                ..beam.clone()
            });
        }
        self.best.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.best.truncate(self.settings.width);
    }

    fn keep_running(&mut self, next: Vec<(Beam, usize)>) -> Vec<usize> {
        let mut going_on: Vec<(Beam, usize)> = next
            .into_iter()
            .map(|(mut beam, parent)| {
                if std::mem::take(&mut beam.ended) {
                    beam.score += NOTHING;
                }
                (beam, parent)
            })
            .collect();
        going_on.sort_by(|a, b| b.0.score.total_cmp(&a.0.score));
        going_on.truncate(self.settings.width);
        let (running, parents) = going_on.into_iter().unzip();
        self.running = running;
        parents
    }

    /// Whether a beam may still become better than the worst of the ended texts.
    fn may_improve(&self, new: usize) -> bool {
        let settings = &self.settings;
        let length = match settings.early_stopping {
            EarlyStopping::Never if settings.length_penalty > 0.0 => self.rules.max_new_tokens,
            _ => new,
        };
        let running = self.running.first().map_or(NOTHING, |beam| beam.score);
        let reachable = running / (length as f32).powf(settings.length_penalty);
        let lowest = self.best.iter().map(|beam| beam.score);
        let lowest = lowest.fold(f32::INFINITY, f32::min);
        self.best
            .iter()
            .any(|beam| reachable > if beam.ended { lowest } else { NOTHING })
    }
}

/// The best of them, equal ones in their order.
fn keep_best(candidates: &mut Vec<Candidate>, count: usize) {
    if candidates.len() <= count {
        return;
    }
    let order = |a: &Candidate, b: &Candidate| {
        let by_place = (a.beam, a.token).cmp(&(b.beam, b.token));
        b.score.total_cmp(&a.score).then(by_place)
    };
    candidates.select_nth_unstable_by(count - 1, order);
    candidates.truncate(count);
    candidates.sort_by(order);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(width: usize, early_stopping: EarlyStopping) -> BeamSearch {
        let settings = BeamSettings {
            width,
            length_penalty: 1.0,
            early_stopping,
            repetition_penalty: 1.0,
            logit_bias: LogitBias::default(),
        };
        let rules = TokenRules {
            end_ids: vec![0],
            max_new_tokens: 3,
            ..TokenRules::default()
        };
        BeamSearch::new(settings, rules, &[9])
    }

    /// Tokens 1 and 2 begin; after 1 nothing is certain, after 2 the end is.
    fn logits(last: u32) -> [f32; 3] {
        match last {
            9 => [-9.0, 1.0, 0.9],
            2 => [9.0, -9.0, -9.0],
            _ => [0.0, 0.0, 0.1],
        }
    }

    fn run(mut search: BeamSearch) -> Vec<u32> {
        while !search.is_over() {
            let rows: Vec<[f32; 3]> = search.last_tokens().map(logits).collect();
            let rows: Vec<&[f32]> = rows.iter().map(|row| row.as_slice()).collect();
            search.advance(&rows);
        }
        search.tokens().to_vec()
    }

    #[test]
    fn a_second_beam_finds_what_the_likeliest_token_misses() {
        assert_eq!(run(search(1, EarlyStopping::Heuristic)), [1, 2, 0]);
        for early in [
            EarlyStopping::Always,
            EarlyStopping::Heuristic,
            EarlyStopping::Never,
        ] {
            assert_eq!(run(search(2, early)), [2, 0]);
        }
    }

    #[test]
    fn no_room_is_over_at_once() {
        let mut none = search(2, EarlyStopping::Always);
        none.rules.max_new_tokens = 0;
        let none = BeamSearch::new(none.settings, none.rules, &[9]);
        assert!(none.is_over() && none.tokens().is_empty());
    }
}
