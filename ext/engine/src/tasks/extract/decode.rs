//! Which of the spans that may be entities are taken.

/// A span of words and how sure it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub first: usize,
    /// Included.
    pub last: usize,
    pub label: usize,
    pub score: f32,
}

/// Which spans may stand beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlaps {
    /// Spans may lie inside others.
    pub nested: bool,
    /// One span may have several labels.
    pub multi_label: bool,
}

impl Overlaps {
    fn conflict(self, a: &Candidate, b: &Candidate) -> bool {
        if (a.first, a.last) == (b.first, b.last) {
            return !self.multi_label;
        }
        let apart = a.first > b.last || b.first > a.last;
        let inside = |a: &Candidate, b: &Candidate| a.first <= b.first && a.last >= b.last;
        !apart && !(self.nested && (inside(a, b) || inside(b, a)))
    }

    /// The surest first, each unless one before it stands in its way; in the order of the text.
    pub fn choose(self, mut candidates: Vec<Candidate>) -> Vec<Candidate> {
        candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
        let mut chosen: Vec<Candidate> = Vec::new();
        for candidate in candidates {
            if !chosen.iter().any(|other| self.conflict(&candidate, other)) {
                chosen.push(candidate);
            }
        }
        chosen.sort_by_key(|candidate| candidate.first);
        chosen
    }
}

/// Spans above the threshold, of logits as [`super::head::SpanScores::all`] gives them.
pub fn of_spans(logits: &[Vec<f32>], labels: usize, threshold: f32) -> Vec<Candidate> {
    let mut found = Vec::new();
    for (first, row) in logits.iter().enumerate() {
        for (more, logits) in row.chunks_exact(labels.max(1)).enumerate() {
            let scores = logits.iter().map(|&logit| sigmoid(logit)).enumerate();
            let above = scores.filter(|&(_, score)| score > threshold);
            found.extend(above.map(|(label, score)| Candidate {
                first,
                last: first + more,
                label,
                score,
            }));
        }
    }
    found
}

/// Spans from a word that starts one to a word that ends one, all between being inside.
pub fn of_words(logits: &[[f32; 3]], labels: usize, threshold: f32) -> Vec<Candidate> {
    let scores: Vec<[f32; 3]> = logits.iter().map(|logits| logits.map(sigmoid)).collect();
    let labels = labels.max(1);
    let words = scores.len() / labels;
    let mut found = Vec::new();
    for first in 0..words {
        for label in 0..labels {
            let at = |word: usize| &scores[word * labels + label];
            let start = at(first)[0];
            if start <= threshold {
                continue;
            }
            let mut least = start;
            for last in first..words {
                let [_, end, inside] = *at(last);
                if inside < threshold {
                    break;
                }
                least = least.min(inside);
                if end > threshold {
                    found.push(Candidate {
                        first,
                        last,
                        label,
                        score: least.min(end),
                    });
                }
            }
        }
    }
    found
}

pub fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: usize, last: usize, score: f32) -> Candidate {
        Candidate {
            first,
            last,
            label: 0,
            score,
        }
    }

    #[test]
    fn the_surest_of_spans_that_overlap_is_taken() {
        let candidates = vec![
            span(0, 2, 0.6),
            span(1, 1, 0.9),
            span(2, 4, 0.7),
            span(6, 6, 0.6),
        ];
        let flat = Overlaps {
            nested: false,
            multi_label: false,
        };
        assert_eq!(
            flat.choose(candidates.clone()),
            [span(1, 1, 0.9), span(2, 4, 0.7), span(6, 6, 0.6)]
        );
        let nested = Overlaps {
            nested: true,
            ..flat
        };
        assert_eq!(
            nested.choose(vec![span(0, 2, 0.6), span(1, 1, 0.9), span(2, 4, 0.5)]),
            [span(0, 2, 0.6), span(1, 1, 0.9)]
        );
    }

    #[test]
    fn a_span_has_one_label_unless_several_are_allowed() {
        let both = vec![
            span(0, 1, 0.8),
            Candidate {
                label: 1,
                ..span(0, 1, 0.7)
            },
        ];
        let flat = |multi_label| Overlaps {
            nested: false,
            multi_label,
        };
        assert_eq!(flat(false).choose(both.clone()).len(), 1);
        assert_eq!(flat(true).choose(both).len(), 2);
    }

    #[test]
    fn words_make_spans_while_they_are_inside() {
        let (on, off) = (4.0, -4.0);
        let logits = [[on, off, on], [off, on, on], [off, on, off], [on, on, on]];
        let found = of_words(&logits, 1, 0.5);
        let places: Vec<(usize, usize)> = found.iter().map(|one| (one.first, one.last)).collect();
        assert_eq!(places, [(0, 1), (3, 3)]);
    }
}
