//! A graph without the rows that were deleted.

use rayon::prelude::*;

use super::build::nearest_spread;
use super::search::Scratch;
use super::{Graph, Layer, Words};
use crate::vector_index::row::Rows;
use crate::{CancelToken, Result};

/// Deleted rows that are looked through for what may take their place.
const LOOKED_THROUGH: usize = 256;
/// Rows that are repaired before what they got is written.
const REPAIRED: usize = 1 << 12;

impl Graph {
    /// The graph without deleted rows, as the rows are numbered once those are gone. Who linked to a deleted
    /// row links to what that one did. Run it inside the pool.
    pub fn without(&self, rows: &Rows<'_>, deleted: &[bool], cancel: &CancelToken) -> Result<Self> {
        let mut numbers: Vec<u32> = Words::room(self.rows())?;
        let mut next = 0;
        for &gone in &deleted[..self.rows()] {
            numbers.push(if gone { Words::NONE } else { next });
            next += u32::from(!gone);
        }
        let mut left = Self::new(self.links);
        for (height, layer) in self.layers.iter().enumerate() {
            let mut live: Vec<u32> = Words::room(layer.len())?;
            live.extend(layer.all().filter(|&row| !deleted[row as usize]));
            if live.is_empty() {
                break;
            }
            if height > 0 {
                left.layers
                    .push(Layer::new(Some(Words::default()), self.links));
            }
            let new = &mut left.layers[height];
            new.reserve(live.len())?;
            for some in live.chunks(REPAIRED) {
                let repaired = some.par_iter().map_init(Scratch::default, |scratch, &row| {
                    cancel.check()?;
                    repair(layer, rows, deleted, row, scratch)
                });
                for (row, links) in some.iter().zip(repaired.collect::<Result<Vec<_>>>()?) {
                    let links: Vec<u32> =
                        links.iter().map(|&other| numbers[other as usize]).collect();
                    new.push(numbers[*row as usize], &links);
                }
            }
        }
        if left.layers.len() == 1 && left.rows() > 0 {
            let mut above = Layer::new(Some(Words::default()), self.links);
            above.reserve(1)?;
            above.push(0, &[]);
            left.layers.push(above);
        }
        Ok(left)
    }
}

/// What a row links to once deleted ones are gone.
fn repair(
    layer: &Layer,
    rows: &Rows<'_>,
    deleted: &[bool],
    row: u32,
    scratch: &mut Scratch,
) -> Result<Vec<u32>> {
    let is_gone = |row: u32| deleted.get(row as usize).copied().unwrap_or(true);
    let links: Vec<u32> = layer.links_of(row).collect();
    let (mut gone, mut live): (Vec<u32>, Vec<u32>) =
        links.into_iter().partition(|&other| is_gone(other));
    if gone.is_empty() {
        return Ok(live);
    }
    let mut at = 0;
    while at < gone.len() && at < LOOKED_THROUGH {
        for other in layer.links_of(gone[at]).filter(|&other| other != row) {
            let known = if is_gone(other) { &mut gone } else { &mut live };
            if !known.contains(&other) {
                known.push(other);
            }
        }
        at += 1;
        if live.len() >= 4 * layer.width {
            break;
        }
    }
    nearest_spread(rows, row, &live, layer.width, scratch)
}
