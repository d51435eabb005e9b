//! A model of the tile registers in plain integers: it lets processors without tiles test all that surrounds them.

use std::cell::RefCell;

use super::levels::Levels;
use super::tiles::ByteTiles;
use super::{Line, PARTS};
use crate::cpu::product::amx::TILE;

/// [levels, rows, outputs].
type Sums = [[[i32; TILE]; TILE]; 4];

pub(super) struct TileModel {
    /// Rows of the tiles of rows and of sums.
    rows: usize,
    sums: RefCell<Sums>,
}

impl TileModel {
    pub fn new(rows: usize) -> Self {
        Self {
            rows: rows.clamp(1, TILE),
            sums: RefCell::new([[[0; TILE]; TILE]; 4]),
        }
    }
}

/// The product of four bytes each, as a tile adds it.
fn dot(a: u32, b: u32) -> i32 {
    let pairs = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    pairs
        .map(|(a, b)| i32::from(a.cast_signed()) * i32::from(b.cast_signed()))
        .sum()
}

impl ByteTiles for TileModel {
    fn clear(&self) {
        *self.sums.borrow_mut() = [[[0; TILE]; TILE]; 4];
    }

    unsafe fn add(&self, rows: *const Line, panel: *const Line) {
        let mut sums = self.sums.borrow_mut();
        for (a, b) in (0..PARTS).flat_map(|a| (0..PARTS).map(move |b| (a, b))) {
            let Some(level) = sums.get_mut(a + b) else {
                continue;
            };
            for (row, sums) in level[..self.rows].iter_mut().enumerate() {
                // SAFETY: the caller vouches for the step, and for so many of its rows.
                let fours = unsafe { (*rows.add(a * TILE + row)).0 };
                for (number, four) in fours.into_iter().enumerate() {
                    // SAFETY: the caller vouches for the step.
                    let outputs = unsafe { (*panel.add(b * TILE + number)).0 };
                    for (sum, output) in sums.iter_mut().zip(outputs) {
                        *sum += dot(four, output);
                    }
                }
            }
        }
    }

    fn store(&self, levels: &mut Levels) {
        let sums = self.sums.borrow();
        for (number, level) in sums.iter().enumerate() {
            for (row, sums) in level[..self.rows].iter().enumerate() {
                let line = Line(sums.map(|sum| sum as u32));
                // SAFETY: levels have as many lines, one after the other.
                unsafe { levels.as_mut_ptr().add(number * TILE + row).write(line) };
            }
        }
    }
}
