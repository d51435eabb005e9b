//! The order in which layers read patches: block by block, so that those of a block stand together, and
//! window by window where attention keeps to windows.

use super::config::Blocks;
use crate::models::rope::Place;
use crate::{Error, Result};

/// Of the patches of several images.
pub struct Arrangement {
    /// The number of each patch, counted row by row, image after image.
    pub order: Vec<u32>,
    pub places: Vec<Place>,
    /// Where windows begin, and the number of all patches.
    pub windows: Vec<u32>,
    /// Where the patches stand when they are counted block by block, row of blocks by row.
    pub by_block: Vec<u32>,
}

impl Arrangement {
    /// `grids` are (columns, rows).
    pub fn new(blocks: &Blocks, grids: &[(usize, usize)]) -> Result<Self> {
        let mut arrangement = Self {
            order: Vec::new(),
            places: Vec::new(),
            windows: vec![0],
            by_block: Vec::new(),
        };
        for &grid in grids {
            arrangement.add(blocks, grid)?;
        }
        Ok(arrangement)
    }

    fn add(&mut self, blocks: &Blocks, (columns, rows): (usize, usize)) -> Result<()> {
        let edge = blocks.edge;
        if !columns.is_multiple_of(edge) || !rows.is_multiple_of(edge) {
            return Err(Error::InvalidInput(format!(
                "the image became {columns}x{rows} patches, which are not whole blocks of {edge}x{edge}: its \
                 preprocessor_config.json belongs to another model"
            )));
        }
        let (across, down) = (columns / edge, rows / edge);
        let base = self.order.len();
        let window = blocks.window.unwrap_or(usize::MAX);
        let steps = |count: usize| (0..count).step_by(window);
        let end = |start: usize, count: usize| start.saturating_add(window).min(count);
        let mut rank = vec![0usize; across * down];
        let mut seen = 0;
        for (top, left) in steps(down).flat_map(|top| steps(across).map(move |left| (top, left))) {
            for block_row in top..end(top, down) {
                for block_column in left..end(left, across) {
                    rank[block_row * across + block_column] = seen;
                    seen += 1;
                    for patch in 0..edge * edge {
                        let row = block_row * edge + patch / edge;
                        let column = block_column * edge + patch % edge;
                        self.order.push((base + row * columns + column) as u32);
                        self.places.push([0, row as u32, column as u32]);
                    }
                }
            }
            self.windows.push(self.order.len() as u32);
        }
        let area = edge * edge;
        for start in rank.into_iter().map(|rank| base + rank * area) {
            self.by_block
                .extend((start..start + area).map(|at| at as u32));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(window: Option<usize>) -> Blocks {
        Blocks {
            edge: 2,
            window,
            windowed: Vec::new(),
        }
    }

    #[test]
    fn the_patches_of_a_block_stand_together() {
        let arrangement = Arrangement::new(&blocks(None), &[(4, 2), (2, 2)]).unwrap();
        assert_eq!(arrangement.order, [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 10, 11]);
        assert_eq!(arrangement.windows, [0, 8, 12]);
        assert_eq!(arrangement.places[2], [0, 1, 0]);
        assert_eq!(arrangement.by_block, (0..12).collect::<Vec<_>>());
        assert!(Arrangement::new(&blocks(None), &[(3, 2)]).is_err());
    }

    #[test]
    fn windows_are_read_one_after_the_other() {
        let arrangement = Arrangement::new(&blocks(Some(1)), &[(4, 4)]).unwrap();
        assert_eq!(arrangement.windows, [0, 4, 8, 12, 16]);
        let arrangement = Arrangement::new(&blocks(Some(2)), &[(6, 4)]).unwrap();
        assert_eq!(arrangement.windows, [0, 16, 24]);
        assert_eq!(&arrangement.order[16..], [4, 5, 10, 11, 16, 17, 22, 23]);
        assert_eq!(&arrangement.by_block[8..12], [16, 17, 18, 19]);
        assert_eq!(&arrangement.by_block[12..16], [8, 9, 10, 11]);
    }
}
