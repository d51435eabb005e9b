//! How rows join a graph.

use std::collections::HashMap;

use rayon::prelude::*;

use super::search::{self, Near, Scratch};
use super::{Block, Changes, Graph, Linked, Words, BLOCK, MOST_LAYERS};
use crate::vector_index::row::Rows;
use crate::{CancelToken, Error, Result};

/// What the rows of one block have in common.
struct Builder<'a> {
    graph: &'a Graph,
    rows: &'a Rows<'a>,
    deleted: &'a [bool],
    effort: usize,
    cancel: &'a CancelToken,
    first: usize,
    /// In how many layers each row of the block is; a deleted one is in none.
    heights: Vec<usize>,
}

impl Graph {
    /// Builds the links of the next block, if there is a whole one; the best `effort` are looked at for each row.
    /// Run it inside the pool.
    pub fn build(
        &self,
        rows: &Rows<'_>,
        deleted: &[bool],
        effort: usize,
        cancel: &CancelToken,
    ) -> Result<Option<Block>> {
        let first = self.rows();
        if rows.len() < first + BLOCK {
            return Ok(None);
        }
        if first + BLOCK > Words::NONE as usize {
            return Err(Error::InvalidInput(format!(
                "a graph takes {} vectors at most: spread them over several indexes",
                Words::NONE
            )));
        }
        let mut heights: Vec<usize> = (first..first + BLOCK)
            .map(|row| {
                if deleted[row] {
                    0
                } else {
                    height(row, self.links)
                }
            })
            .collect();
        // There is always a row to begin with above the lowest layer.
        if self.layers.len() < 2 {
            if let Some(height) = heights.iter_mut().find(|height| **height > 0) {
                *height = (*height).max(2);
            }
        }
        let tallest = heights.iter().copied().max().unwrap_or(0).max(1);
        let builder = Builder {
            graph: self,
            rows,
            deleted,
            effort,
            cancel,
            first,
            heights,
        };
        let built = (0..BLOCK).into_par_iter().map_init(
            || Scratch::new(first),
            |scratch, at| match scratch {
                Ok(scratch) => builder.row(at, scratch),
                Err(error) => Err(Error::OutOfMemory(error.to_string())),
            },
        );
        let built: Vec<Vec<Vec<u32>>> = built.collect::<Result<_>>()?;
        let layers = (0..tallest).map(|layer| builder.join(&built, layer));
        Ok(Some(Block {
            first,
            links: self.links,
            layers: layers.collect::<Result<_>>()?,
        }))
    }
}

impl Builder<'_> {
    fn number(&self, at: usize) -> u32 {
        (self.first + at) as u32
    }

    /// What a row of the block links to in each of its layers.
    fn row(&self, at: usize, scratch: &mut Scratch) -> Result<Vec<Vec<u32>>> {
        self.cancel.check()?;
        let (graph, rows, heights) = (self.graph, self.rows, &self.heights);
        let mut links = vec![Vec::new(); heights[at]];
        if links.is_empty() {
            return Ok(links);
        }
        let query = rows.query(self.first + at)?;
        let earlier = (0..at).filter(|&at| heights[at] > 0);
        let earlier: Vec<u32> = earlier.map(|at| self.number(at)).collect();
        let earlier = search::scored(rows, &query, &earlier, scratch)?;
        let top = graph.descend(rows, &query, heights[at] - 1, scratch)?;
        let mut from = Vec::from_iter(top);
        for (layer, links) in links.iter_mut().enumerate().rev() {
            let mut found = Vec::new();
            if let Some(known) = graph.layers.get(layer) {
                let live = |row: u32| !self.deleted[row as usize];
                let compared = (rows, &query);
                found = search::best(
                    known,
                    compared,
                    &from,
                    self.effort,
                    live,
                    scratch,
                    self.cancel,
                )?;
                if !found.is_empty() {
                    from.clone_from(&found);
                }
            }
            let as_high = |near: &&Near| heights[near.row as usize - self.first] > layer;
            found.extend(earlier.iter().filter(as_high));
            found.sort_unstable_by(|a, b| b.cmp(a));
            found.truncate(self.effort);
            *links = spread(rows, &found, graph.links, scratch)?;
        }
        Ok(links)
    }

    /// The lists of a layer that are new or change, links leading both ways.
    fn join(&self, built: &[Vec<Vec<u32>>], layer: usize) -> Result<Changes> {
        let known = self.graph.layers.get(layer);
        let width = self.graph.links * if layer == 0 { 2 } else { 1 };
        let mut back: Vec<(u32, u32)> = Vec::new();
        for (at, links) in built.iter().enumerate() {
            let others = links.get(layer).into_iter().flatten();
            back.extend(others.map(|&other| (other, self.number(at))));
        }
        back.sort_unstable();
        let groups: Vec<&[(u32, u32)]> = back.chunk_by(|a, b| a.0 == b.0).collect();
        let joined = groups
            .par_iter()
            .map_init(Scratch::default, |scratch, group| {
                self.cancel.check()?;
                let row = group[0].0;
                let mut list: Vec<u32> = match (row as usize).checked_sub(self.first) {
                    Some(at) => built[at].get(layer).cloned().unwrap_or_default(),
                    None => known.map_or_else(Vec::new, |known| known.links_of(row).collect()),
                };
                list.extend(group.iter().map(|&(_, other)| other));
                if list.len() > width {
                    list = nearest_spread(self.rows, row, &list, width, scratch)?;
                }
                Ok((row, list))
            });
        let joined: Vec<Linked> = joined.collect::<Result<_>>()?;
        let (mut own, changed): (HashMap<u32, Vec<u32>>, Vec<Linked>) = {
            let (own, changed) = joined
                .into_iter()
                .partition::<Vec<_>, _>(|(row, _)| *row as usize >= self.first);
            (own.into_iter().collect(), changed)
        };
        let mut added = Vec::new();
        for (at, links) in built.iter().enumerate() {
            let row = self.number(at);
            if layer == 0 || links.len() > layer {
                let built = links.get(layer).cloned().unwrap_or_default();
                added.push((row, own.remove(&row).unwrap_or(built)));
            }
        }
        Ok(Changes { added, changed })
    }
}

/// In how many layers a row is: each has its share of those of the one below.
fn height(row: usize, links: usize) -> usize {
    let mut number = mixed(row as u64);
    let mut height = 1;
    while number.is_multiple_of(links as u64) && height < MOST_LAYERS {
        number /= links as u64;
        height += 1;
    }
    height
}

/// Row numbers in no order, always the same.
fn mixed(row: u64) -> u64 {
    let mut number = row.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Up to `most` of the rows in `found`, best first, in many directions: none that is nearer to one that was
/// chosen before than to where they were searched from, and of equal ones a single one. Those that equal where
/// they were searched from take half of the places at most, so that there are ways out of many of them.
fn spread(rows: &Rows<'_>, found: &[Near], most: usize, scratch: &mut Scratch) -> Result<Vec<u32>> {
    let mut chosen: Vec<u32> = Vec::with_capacity(most);
    let mut same = 0;
    let equal = rows.similarity.equal();
    for near in found {
        if chosen.len() == most {
            break;
        }
        if near.score >= equal {
            if same < most.div_ceil(2) {
                same += 1;
                chosen.push(near.row);
            }
            continue;
        }
        let query = rows.query(near.row as usize)?;
        let mut hidden = false;
        for some in chosen.chunks(4) {
            let scores = scratch.scores(rows, &query, some)?;
            hidden = scores
                .iter()
                .any(|&score| score > near.score || score >= equal);
            if hidden {
                break;
            }
        }
        if !hidden {
            chosen.push(near.row);
        }
    }
    Ok(chosen)
}

/// `spread` of rows in any order, as seen from `row`.
pub fn nearest_spread(
    rows: &Rows<'_>,
    row: u32,
    others: &[u32],
    most: usize,
    scratch: &mut Scratch,
) -> Result<Vec<u32>> {
    let mut found = search::scored(rows, &rows.query(row as usize)?, others, scratch)?;
    found.sort_unstable_by(|a, b| b.cmp(a));
    found.dedup_by_key(|near| near.row);
    spread(rows, &found, most, scratch)
}
