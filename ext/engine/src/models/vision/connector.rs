//! What leads from a vision tower into a decoder: rows of its width, made of the states of patches.

use candle_core::{DType, Tensor};

use crate::models::config::NormConfig;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{Epilogue, Inventory, Linear, Norm};
use crate::{Error, Result};
use formats::image::Views;
use kernels::Activation;

/// How patches become rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ConnectorConfig {
    /// Two products with an activation between them (LLaVA).
    Mlp { activation: Activation },
    /// `Mlp`; the whole first, then all tiles line by line as the picture has them, without what was
    /// added around it, and a learned row after each line (LLaVA-NeXT).
    Lines { activation: Activation },
    /// The patches of blocks of an edge side by side, then a product (Idefics 3).
    Blocks { edge: usize },
    /// Patches are normed, those of a block side by side, then an MLP; the tower has them block by block
    /// (Qwen2-VL).
    Merged { edge: usize, norm: NormConfig },
    /// The means of blocks, so many blocks to a side, normed, then a product (Gemma 3).
    Means { side: usize, norm: NormConfig },
}

#[derive(Debug)]
pub struct Connector {
    config: ConnectorConfig,
    norm: Option<Norm>,
    up: Option<(Linear, Activation)>,
    down: Linear,
    /// What stands after each line: [1, width].
    newline: Option<Tensor>,
}

/// What stands in a prompt for one marker.
pub struct Rows {
    /// [count, width]
    pub rows: Tensor,
    /// (columns, rows) of the blocks that they were made of, where their positions follow from it.
    pub grid: Option<(usize, usize)>,
}

impl Connector {
    /// From states of `inputs` to rows of `outputs`.
    pub fn load(
        config: ConnectorConfig,
        parameters: &Parameters<'_>,
        inputs: usize,
        outputs: usize,
    ) -> Result<Self> {
        let wide = match config {
            ConnectorConfig::Blocks { edge } | ConnectorConfig::Merged { edge, .. } => {
                inputs * edge * edge
            }
            _ => inputs,
        };
        let activation = match config {
            ConnectorConfig::Mlp { activation } | ConnectorConfig::Lines { activation } => {
                Some(activation)
            }
            ConnectorConfig::Merged { .. } => Some(Activation::Gelu),
            _ => None,
        };
        let up = match activation {
            Some(activation) => {
                let inner = parameters.outputs(Part::ProjectorUp)?;
                let up = parameters.linear(Part::ProjectorUp, wide, inner)?;
                Some((up, activation))
            }
            None => None,
        };
        let inner = up.as_ref().map_or(wide, |(up, _)| up.outputs());
        Ok(Self {
            down: match config {
                // Stored as it is multiplied with.
                ConnectorConfig::Means { .. } => {
                    let weight = parameters.shaped(Part::ProjectorDown, &[inner, outputs])?;
                    parameters.assemble(weight.t()?.contiguous()?, None)?
                }
                _ => parameters.linear(Part::ProjectorDown, inner, outputs)?,
            },
            norm: match config {
                ConnectorConfig::Merged { norm, .. } | ConnectorConfig::Means { norm, .. } => {
                    Some(parameters.norm(Part::ProjectorNorm, &[inputs], norm)?)
                }
                _ => None,
            },
            newline: match config {
                ConnectorConfig::Lines { .. } => {
                    let row = parameters.shaped(Part::ImageNewline, &[outputs])?;
                    Some(row.reshape((1, outputs))?)
                }
                _ => None,
            },
            config,
            up,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        if let Some(norm) = &self.norm {
            inventory.add_norm(norm)?;
        }
        if let Some((up, _)) = &self.up {
            inventory.add_linear(up)?;
        }
        if let Some(row) = &self.newline {
            inventory.add_tensor(row);
        }
        inventory.add_linear(&self.down)
    }

    /// One entry per marker. `states` and `grids`, (columns, rows), are those of each view.
    pub fn forward(
        &self,
        states: &[Tensor],
        grids: &[(usize, usize)],
        views: &Views,
    ) -> Result<Vec<Rows>> {
        if let ConnectorConfig::Lines { .. } = self.config {
            let rows = self.lines(states, grids, views)?;
            return Ok(vec![Rows { rows, grid: None }]);
        }
        let view = |(states, &grid): (&Tensor, &(usize, usize))| self.view(states, grid);
        states.iter().zip(grids).map(view).collect()
    }

    fn view(&self, states: &Tensor, grid: (usize, usize)) -> Result<Rows> {
        let width = states.dim(1)?;
        let mut merged = None;
        let states = match self.config {
            ConnectorConfig::Mlp { .. } | ConnectorConfig::Lines { .. } => states.clone(),
            ConnectorConfig::Blocks { edge } => blocks(states, grid, edge)?,
            ConnectorConfig::Merged { edge, .. } => {
                merged = Some((grid.0 / edge, grid.1 / edge));
                let rows = states.dim(0)? / (edge * edge);
                self.normed(states)?.reshape((rows, edge * edge * width))?
            }
            ConnectorConfig::Means { side, .. } => {
                let edge = grid.0 / side;
                let patches = blocks(states, grid, edge)?;
                let patches = patches.reshape((patches.dim(0)?, edge * edge, width))?;
                // Added in f32, as the reference does: sums of 16 bits lose digits.
                let means = patches.to_dtype(DType::F32)?.mean(1)?;
                self.normed(&means.to_dtype(states.dtype())?)?
            }
        };
        Ok(Rows {
            rows: self.projected(&states)?,
            grid: merged,
        })
    }

    fn normed(&self, states: &Tensor) -> Result<Tensor> {
        match &self.norm {
            Some(norm) => norm.forward(&states.contiguous()?),
            None => Ok(states.clone()),
        }
    }

    fn projected(&self, states: &Tensor) -> Result<Tensor> {
        let states = states.contiguous()?;
        let Some((up, activation)) = &self.up else {
            return self.down.forward(&states);
        };
        let epilogue = Epilogue {
            activation: Some(*activation),
            ..Epilogue::default()
        };
        self.down.forward(&up.forward_with(&states, &epilogue)?)
    }

    fn lines(&self, states: &[Tensor], grids: &[(usize, usize)], views: &Views) -> Result<Tensor> {
        let (across, down) = views.tiles;
        let ([whole, tiles @ ..], [grid, ..], Some(newline)) = (states, grids, &self.newline)
        else {
            return Err(Error::Internal("an image without views".into()));
        };
        let (columns, rows) = *grid;
        let fits = tiles.len() == across * down && grids.iter().all(|other| other == grid);
        if !fits {
            return Err(Error::InvalidInput(
                "the tiles of an image are not of one size: preprocessor_config.json belongs to another model"
                    .into(),
            ));
        }
        let tiles = Tensor::stack(tiles, 0)?;
        let width = tiles.dim(2)?;
        let tiles = tiles.reshape(&[down, across, rows, columns, width][..])?;
        let map = tiles.permute([0, 2, 1, 3, 4])?.contiguous()?;
        let map = map.reshape((down * rows, across * columns, width))?;
        let (left, top) = margins((across * columns, down * rows), views.size);
        let map = map.narrow(0, top, down * rows - 2 * top)?;
        let map = map.narrow(1, left, across * columns - 2 * left)?;
        let (height, length, _) = map.dims3()?;
        let map = self.projected(&map.contiguous()?.reshape((height * length, width))?)?;
        let mut pieces = vec![self.projected(whole)?];
        for line in 0..height {
            pieces.push(map.narrow(0, line * length, length)?);
            pieces.push(newline.clone());
        }
        Ok(Tensor::cat(&pieces, 0)?)
    }
}

/// Patches row by row as blocks row by row, with those of a block side by side, row by row.
fn blocks(states: &Tensor, (columns, rows): (usize, usize), edge: usize) -> Result<Tensor> {
    let fits = edge > 0 && columns.is_multiple_of(edge) && rows.is_multiple_of(edge);
    if !fits || states.dim(0)? != columns * rows {
        return Err(Error::InvalidInput(format!(
            "the image became {columns}x{rows} patches, which are not whole blocks of {edge}x{edge}: its \
             preprocessor_config.json belongs to another model"
        )));
    }
    let width = states.dim(1)?;
    let shape = [rows / edge, edge, columns / edge, edge, width];
    let sorted = states.reshape(&shape[..])?.permute([0, 2, 1, 3, 4])?;
    let count = rows / edge * (columns / edge);
    Ok(sorted.contiguous()?.reshape((count, edge * edge * width))?)
}

/// How many columns and rows of a grid, at each end, were added to bring a picture of some (width,
/// height) to its proportions.
fn margins((columns, rows): (usize, usize), (width, height): (usize, usize)) -> (usize, usize) {
    let (c, r, w, h) = (columns as f64, rows as f64, width as f64, height as f64);
    // As the reference rounds, so that a length does not lose its last part to the division before.
    let whole = |length: f64| ((length * 1e7).round_ties_even() / 1e7) as usize;
    if w / h > c / r {
        (0, rows.saturating_sub(whole(h * (c / w))) / 2)
    } else {
        (columns.saturating_sub(whole(w * (r / h))) / 2, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn blocks_are_read_row_by_row() {
        let states = Tensor::arange(0f32, 8.0, &Device::Cpu).unwrap();
        let states = states.reshape((8, 1)).unwrap();
        let found = blocks(&states, (4, 2), 2).unwrap();
        let found: Vec<Vec<f32>> = found.to_vec2().unwrap();
        assert_eq!(found, [[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]);
        assert!(blocks(&states, (8, 1), 2).is_err());
        assert!(blocks(&states, (4, 2), 0).is_err());
    }

    #[test]
    fn margins_are_what_was_added() {
        assert_eq!(margins((8, 8), (100, 50)), (0, 2));
        assert_eq!(margins((8, 8), (50, 100)), (2, 0));
        assert_eq!(margins((8, 4), (100, 50)), (0, 0));
        assert_eq!(margins((8, 4), (1, 1000)), (4, 0));
    }
}
