//! A graph over the rows of an index, whose links lead to the nearest after few comparisons: a hierarchical
//! navigable small world. All rows are in its lowest layer, ever fewer in those above, which are searched first.
//!
//! Rows join in blocks. Those of a block are compared with what the graph had before and with the earlier ones of
//! the block, each on its own, and all links are written afterwards: the graph depends on the rows and on their
//! order, never on threads. What is built is applied at once or not at all, so that an interrupt leaves a whole
//! graph, and so that others search meanwhile.

mod build;
mod parts;
mod repair;
mod search;
mod words;

use super::row::{Query, Rows};
use crate::{CancelToken, Result};
use search::{Near, Scratch};
use words::Words;

/// Rows that join together.
pub const BLOCK: usize = 256;
/// How many links a row may get, and twice as many in the lowest layer.
pub const LINKS: std::ops::RangeInclusive<usize> = 2..=256;
/// More than a layer's share of rows leaves of four thousand million.
const MOST_LAYERS: usize = 32;

pub struct Graph {
    links: usize,
    /// From the lowest up; the first row of the last is where searches begin.
    layers: Vec<Layer>,
}

struct Layer {
    /// The rows in it, ascending; without it all.
    rows: Option<Words>,
    links: Words,
    /// How many links a row may have.
    width: usize,
}

/// What a block adds to a graph.
pub struct Block {
    first: usize,
    links: usize,
    layers: Vec<Changes>,
}

struct Changes {
    added: Vec<Linked>,
    changed: Vec<Linked>,
}

/// A row and what it links to.
type Linked = (u32, Vec<u32>);

impl Layer {
    fn new(rows: Option<Words>, width: usize) -> Self {
        Self {
            rows,
            links: Words::default(),
            width,
        }
    }

    fn len(&self) -> usize {
        self.links.len() / self.width
    }

    fn first(&self) -> Option<u32> {
        match &self.rows {
            Some(rows) => rows.get(0),
            None => (self.len() > 0).then_some(0),
        }
    }

    fn all(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len()).filter_map(|at| {
            self.rows
                .as_ref()
                .map_or(Some(at as u32), |rows| rows.get(at))
        })
    }

    fn position(&self, row: u32) -> Option<usize> {
        match &self.rows {
            Some(rows) => rows.position(row),
            None => Some(row as usize),
        }
    }

    fn links_of(&self, row: u32) -> impl Iterator<Item = u32> + '_ {
        let at = self.position(row).unwrap_or(usize::MAX);
        self.links.list(at, self.width)
    }

    fn reserve(&mut self, more: usize) -> Result<()> {
        if let Some(rows) = &mut self.rows {
            rows.reserve(more)?;
        }
        self.links.reserve(more * self.width)
    }

    fn push(&mut self, row: u32, links: &[u32]) {
        if let Some(rows) = &mut self.rows {
            rows.push(row);
        }
        self.links.push_list(links, self.width);
    }
}

impl Graph {
    pub fn new(links: usize) -> Self {
        Self {
            links,
            layers: vec![Layer::new(None, 2 * links)],
        }
    }

    pub fn links(&self) -> usize {
        self.links
    }

    /// How many rows of the index are in it, deleted ones too: the first ones.
    pub fn rows(&self) -> usize {
        self.layers[0].len()
    }

    /// What it takes of this process's memory, without the file.
    pub fn memory(&self) -> usize {
        let words =
            |layer: &Layer| layer.links.memory() + layer.rows.as_ref().map_or(0, Words::memory);
        self.layers.iter().map(words).sum()
    }

    /// Whether searching for the best `effort` compares fewer rows than there are `left` to compare: where many
    /// are left out, more are passed on the way.
    pub fn is_shorter(&self, left: usize, effort: usize) -> bool {
        let steps = 2 * self.links as u128 * effort as u128;
        (left as u128).pow(2) > steps * self.rows() as u128
    }

    /// The `effort` best of the rows that `wanted` lets through, best first.
    pub fn search(
        &self,
        rows: &Rows<'_>,
        query: &Query<'_>,
        effort: usize,
        wanted: impl Fn(usize) -> bool,
        cancel: &CancelToken,
    ) -> Result<Vec<(usize, f32)>> {
        let mut scratch = Scratch::new(self.rows())?;
        let from = self.descend(rows, query, 0, &mut scratch)?;
        let found = search::best(
            &self.layers[0],
            (rows, query),
            &Vec::from_iter(from),
            effort,
            |row| wanted(row as usize),
            &mut scratch,
            cancel,
        )?;
        let numbered = found.iter().map(|near| (near.row as usize, near.score));
        Ok(numbered.filter(|(_, score)| score.is_finite()).collect())
    }

    /// The row to begin with in `layer`.
    fn descend(
        &self,
        rows: &Rows<'_>,
        query: &Query<'_>,
        layer: usize,
        scratch: &mut Scratch,
    ) -> Result<Option<Near>> {
        let Some(first) = self.layers.last().and_then(Layer::first) else {
            return Ok(None);
        };
        let mut near = search::scored(rows, query, &[first], scratch)?
            .into_iter()
            .next();
        for layer in self.layers.iter().skip(layer + 1).rev() {
            if let Some(from) = near {
                near = Some(search::nearer(layer, (rows, query), from, scratch)?);
            }
        }
        Ok(near)
    }

    /// Installs what `build` found; a graph that was built for another state is dropped.
    pub fn take(&mut self, block: Block) -> Result<()> {
        if block.first != self.rows() || block.links != self.links {
            return Ok(());
        }
        let mut new: Vec<Layer> = (self.layers.len()..block.layers.len())
            .map(|_| Layer::new(Some(Words::default()), self.links))
            .collect();
        for (layer, changes) in self.layers.iter_mut().chain(&mut new).zip(&block.layers) {
            layer.reserve(changes.added.len())?;
        }
        self.layers.append(&mut new);
        for (layer, changes) in self.layers.iter_mut().zip(&block.layers) {
            for (row, links) in &changes.changed {
                if let Some(at) = layer.position(*row) {
                    layer.links.set_list(at, links, layer.width);
                }
            }
            for (row, links) in &changes.added {
                layer.push(*row, links);
            }
        }
        Ok(())
    }
}
