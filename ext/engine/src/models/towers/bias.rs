//! BEiT's bias of scores by how far patches lie apart, for pictures of any size.

use candle_core::{Device, Tensor};

use crate::models::modules::Modules;
use crate::nn::feature_map::between;
use crate::Result;
use base::runtime::memory;

/// Learned for one grid, with a token before the patches.
#[derive(Debug)]
pub struct BiasTable {
    /// [distances + 3, heads]
    values: Vec<f32>,
    heads: usize,
    /// (rows, columns) of the patches that it was learned for.
    grid: (usize, usize),
}

/// For pairs with the token before the patches: that as the query, as the key, and as both.
const APART: usize = 3;

fn spans((rows, columns): (usize, usize)) -> (usize, usize) {
    (2 * rows - 1, 2 * columns - 1)
}

impl BiasTable {
    pub fn load(modules: &Modules<'_>, grid: (usize, usize), heads: usize) -> Result<Self> {
        if grid.0 == 0 || grid.1 == 0 || grid.0.max(grid.1) > 4096 {
            let reason = format!("a grid of {grid:?} patches has no distances");
            return Err(modules.corrupt(reason));
        }
        let (high, wide) = spans(grid);
        let name = "relative_position_bias_table";
        modules.shaped(name, &[high * wide + APART, heads])?;
        Ok(Self {
            values: modules.values(name)?,
            heads,
            grid,
        })
    }

    /// [1, heads, tokens, tokens] for so many rows and columns of patches.
    pub fn of_grid(&self, (rows, columns): (usize, usize), device: &Device) -> Result<Tensor> {
        let (old_high, old_wide) = spans(self.grid);
        let (high, wide) = spans((rows, columns));
        let tokens = 1 + rows * columns;
        let elements = [self.heads, tokens, tokens];
        memory::ensure_elements(&elements, 4, "the biases of patches")?;
        let learned = old_high * old_wide;
        // The reference reads the table of a grid that is not square with rows and columns exchanged.
        let (down, across) = (between(old_wide, high), between(old_high, wide));
        let mut values = vec![0f32; self.heads * tokens * tokens];
        for head in 0..self.heads {
            let at = |row: usize| self.values[row * self.heads + head];
            let mut table = Vec::with_capacity(high * wide);
            for &(top, below, lower) in &down {
                for &(left, right, later) in &across {
                    let place = |y: usize, x: usize| at(y * old_high + x);
                    let upper = place(top, left) * (1.0 - later) + place(top, right) * later;
                    let under = place(below, left) * (1.0 - later) + place(below, right) * later;
                    table.push(upper * (1.0 - lower) + under * lower);
                }
            }
            let out = &mut values[head * tokens * tokens..][..tokens * tokens];
            for (one, row) in out.chunks_exact_mut(tokens).enumerate() {
                for (other, value) in row.iter_mut().enumerate() {
                    *value = match (one, other) {
                        (0, 0) => at(learned + 2),
                        (_, 0) => at(learned + 1),
                        (0, _) => at(learned),
                        (one, other) => {
                            let (one, other) = (one - 1, other - 1);
                            let y = one / columns + rows - 1 - other / columns;
                            let x = one % columns + columns - 1 - other % columns;
                            table[y * wide + x]
                        }
                    };
                }
            }
        }
        let shape = (1, self.heads, tokens, tokens);
        Ok(Tensor::from_vec(values, shape, device)?)
    }
}
