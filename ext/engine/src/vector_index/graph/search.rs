//! From row to row along links, always to the nearest that is known.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::Layer;
use crate::vector_index::row::{Query, Rows};
use crate::{CancelToken, Result};
use base::runtime::memory;

/// A row and its cosine with what is searched for; the greater one is the better, and of equal ones the earlier.
#[derive(Clone, Copy, Debug)]
pub struct Near {
    pub score: f32,
    pub row: u32,
}

impl Ord for Near {
    fn cmp(&self, other: &Self) -> Ordering {
        let scores = self.score.total_cmp(&other.score);
        scores.then(other.row.cmp(&self.row))
    }
}

impl PartialOrd for Near {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Near {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Near {}

/// What is used again from search to search.
#[derive(Default)]
pub struct Scratch {
    /// A bit for every row.
    seen: Vec<u64>,
    rows: Vec<u32>,
    scores: Vec<f32>,
}

impl Scratch {
    pub fn new(rows: usize) -> Result<Self> {
        let words = rows.div_ceil(64);
        let mut seen = memory::vector(&[words], "the rows that a search has seen")?;
        seen.resize(words, 0);
        Ok(Self {
            seen,
            ..Self::default()
        })
    }

    /// The cosine with each of `rows`; what isn't a number is the least.
    pub fn scores(&mut self, rows: &Rows<'_>, query: &Query<'_>, some: &[u32]) -> Result<&[f32]> {
        rows.scores(
            query,
            some.iter().map(|&row| row as usize),
            &mut self.scores,
        )?;
        for score in &mut self.scores {
            if score.is_nan() {
                *score = f32::NEG_INFINITY;
            }
        }
        Ok(&self.scores)
    }

    /// Whether `row` is one of the graph's and was not seen.
    fn meets(&mut self, row: u32) -> bool {
        let Some(word) = self.seen.get_mut(row as usize / 64) else {
            return false;
        };
        let bit = 1 << (row % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}

pub fn scored(
    rows: &Rows<'_>,
    query: &Query<'_>,
    some: &[u32],
    scratch: &mut Scratch,
) -> Result<Vec<Near>> {
    let scores = scratch.scores(rows, query, some)?;
    let pairs = some.iter().zip(scores);
    Ok(pairs.map(|(&row, &score)| Near { score, row }).collect())
}

/// Goes on to a better row as long as there is one.
pub fn nearer(
    layer: &Layer,
    (rows, query): (&Rows<'_>, &Query<'_>),
    from: Near,
    scratch: &mut Scratch,
) -> Result<Near> {
    let mut near = from;
    loop {
        let links: Vec<u32> = layer.links_of(near.row).collect();
        match scored(rows, query, &links, scratch)?.into_iter().max() {
            Some(best) if best > near => near = best,
            _ => return Ok(near),
        }
    }
}

/// The `effort` best that `wanted` lets through, best first. All others are ways to them.
pub fn best(
    layer: &Layer,
    (rows, query): (&Rows<'_>, &Query<'_>),
    from: &[Near],
    effort: usize,
    wanted: impl Fn(u32) -> bool,
    scratch: &mut Scratch,
    cancel: &CancelToken,
) -> Result<Vec<Near>> {
    scratch.seen.fill(0);
    let mut open = BinaryHeap::new();
    let mut found: BinaryHeap<Reverse<Near>> = BinaryHeap::new();
    for &near in from {
        if scratch.meets(near.row) {
            open.push(near);
            if wanted(near.row) {
                found.push(Reverse(near));
            }
        }
    }
    while let Some(near) = open.pop() {
        cancel.check()?;
        let worst = |found: &BinaryHeap<Reverse<Near>>| {
            if found.len() >= effort {
                found.peek().map(|worst| worst.0)
            } else {
                None
            }
        };
        if worst(&found).is_some_and(|worst| near < worst) {
            break;
        }
        let mut links = std::mem::take(&mut scratch.rows);
        links.clear();
        links.extend(layer.links_of(near.row).filter(|&row| scratch.meets(row)));
        scratch.scores(rows, query, &links)?;
        for (&row, &score) in links.iter().zip(&scratch.scores) {
            let near = Near { score, row };
            if worst(&found).is_none_or(|worst| near > worst) {
                open.push(near);
                if wanted(row) {
                    found.push(Reverse(near));
                    if found.len() > effort {
                        found.pop();
                    }
                }
            }
        }
        scratch.rows = links;
    }
    let mut best: Vec<Near> = found.into_iter().map(|near| near.0).collect();
    best.sort_unstable_by(|a, b| b.cmp(a));
    Ok(best)
}
