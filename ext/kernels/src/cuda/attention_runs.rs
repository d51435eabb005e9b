//! Sequences beside each other that suit different kernels: some that get one token more, and some whose prompts are read.

use std::ops::Range;

use candle_core::{Result, Tensor};

use crate::attention::{AttentionShape, Inputs};

/// More runs than this are computed by one launch.
const MOST_RUNS: usize = 4;

/// Some sequences that follow each other, with tensors and boundaries of their own.
pub(super) struct Run {
    q: Tensor,
    places: Option<Tensor>,
    query_boundaries: Vec<u32>,
    key_boundaries: Vec<u32>,
    shape: AttentionShape,
    /// Of its first query among all.
    pub first: usize,
}

impl Run {
    fn of(inputs: &Inputs<'_>, sequences: Range<usize>) -> Result<Self> {
        let rebased = |boundaries: &[u32]| -> (usize, Vec<u32>) {
            let own = &boundaries[sequences.start..=sequences.end];
            let rebased = own.iter().map(|at| at - own[0]).collect();
            (own[0] as usize, rebased)
        };
        let (first, query_boundaries) = rebased(inputs.query_boundaries);
        let (first_key, key_boundaries) = rebased(inputs.key_boundaries);
        let count = |boundaries: &[u32]| boundaries.last().map_or(0, |&end| end as usize);
        let shape = AttentionShape {
            tokens: count(&query_boundaries),
            key_tokens: count(&key_boundaries),
            ..inputs.shape
        };
        let places = inputs.places;
        let places = places.map(|places| places.narrow(0, first_key, shape.key_tokens));
        Ok(Self {
            q: inputs.q.narrow(0, first, shape.tokens)?,
            places: places.transpose()?,
            query_boundaries,
            key_boundaries,
            shape,
            first,
        })
    }

    pub fn inputs<'a>(&'a self, whole: &Inputs<'a>) -> Inputs<'a> {
        Inputs {
            q: &self.q,
            places: self.places.as_ref(),
            query_boundaries: &self.query_boundaries,
            key_boundaries: &self.key_boundaries,
            shape: self.shape,
            ..*whole
        }
    }
}

/// The runs of sequences with up to `few` queries, and of those with more. None where they had better not be computed
/// apart.
pub(super) fn runs(inputs: &Inputs<'_>, few: usize) -> Result<Vec<Run>> {
    if inputs.places.is_none() || inputs.current_boundaries.is_some() {
        return Ok(Vec::new());
    }
    let ranges = ranges(inputs.query_boundaries, few);
    match ranges.len() {
        2..=MOST_RUNS => ranges
            .into_iter()
            .map(|range| Run::of(inputs, range))
            .collect(),
        _ => Ok(Vec::new()),
    }
}

fn ranges(boundaries: &[u32], few: usize) -> Vec<Range<usize>> {
    let has_few = |at: usize| (boundaries[at + 1] - boundaries[at]) as usize <= few;
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for at in 0..boundaries.len() - 1 {
        match ranges.last_mut() {
            Some(last) if has_few(last.start) == has_few(at) => last.end = at + 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_with_few_queries_are_a_run() {
        assert_eq!(ranges(&[0, 1, 2, 6, 106, 206, 207], 4), [0..3, 3..5, 5..6]);
        assert_eq!(ranges(&[0, 100], 4), [0..1]);
        assert_eq!(ranges(&[0], 4), []);
    }
}
