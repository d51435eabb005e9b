//! What leads from a vision tower into a decoder: rows of its width, made of the states of patches.

use candle_core::{DType, Tensor};

use crate::models::config::NormConfig;
use crate::models::parameters::Parameters;
use crate::models::parts::{Part, Place};
use crate::nn::{elementwise, Epilogue, FeatureMap, Inventory, Linear, Norm};
use crate::{Error, Result};
use formats::image::Views;
use kernels::Activation;

/// How patches become rows: what is done to them, in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConnectorConfig {
    /// Of each patch.
    pub norm: Option<NormConfig>,
    pub gather: Gather,
    /// Of what was gathered.
    pub gathered_norm: Option<NormConfig>,
    /// A product that leads what was gathered back to the width of a patch, and whose weight has the numbers of a
    /// block channel by channel (Mistral 3).
    pub merges: bool,
    /// Between two products; without it there is the second alone.
    pub activation: Option<Between>,
    /// The matrix of the last product is stored as it is multiplied with (Gemma 3).
    pub transposed: bool,
    pub layout: Layout,
    /// Lines of more tiles than so many are made smaller (LLaVA-OneVision).
    pub most_tiles: Option<usize>,
    /// How many layers before the last one become rows by projections of their own, which the first layers of the
    /// decoder add (Qwen3-VL).
    pub deep: usize,
}

/// Which patches become one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gather {
    /// Each by itself.
    Alone,
    /// Those of blocks of an edge, side by side (Idefics 3).
    Blocks { edge: usize },
    /// The same of a tower that has its patches block by block (Qwen2-VL).
    Arranged { edge: usize },
    /// The means of blocks, so many blocks to a side (Gemma 3).
    Means { side: usize },
}

/// What stands between the two products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Between {
    Plain(Activation),
    /// The first half of the numbers, times the activation of the second (Aya Vision).
    Gated(Activation),
}

/// What stands for a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The rows of a view.
    View,
    /// The same, with positions in both directions (Qwen2-VL).
    Grid,
    /// Each line of a view (Pixtral).
    Line,
    /// All views, one after the other (InternVL).
    All,
    /// The whole first, then all tiles line by line as the picture has them, without what was added around it, and a
    /// learned row after each line (LLaVA-NeXT).
    Joined,
}

impl ConnectorConfig {
    /// One product of each patch.
    pub const PLAIN: Self = Self {
        norm: None,
        gather: Gather::Alone,
        gathered_norm: None,
        merges: false,
        activation: None,
        transposed: false,
        layout: Layout::View,
        most_tiles: None,
        deep: 0,
    };

    /// Two products with an activation between them (LLaVA).
    pub const fn mlp(activation: Activation) -> Self {
        Self {
            activation: Some(Between::Plain(activation)),
            ..Self::PLAIN
        }
    }

    /// Of a tower that has its patches block by block (Qwen2-VL).
    pub const fn merged(edge: usize, norm: NormConfig) -> Self {
        Self {
            norm: Some(norm),
            gather: Gather::Arranged { edge },
            layout: Layout::Grid,
            ..Self::mlp(Activation::Gelu)
        }
    }

    /// The edge of the blocks that become rows.
    fn edge(&self) -> usize {
        match self.gather {
            Gather::Blocks { edge } | Gather::Arranged { edge } => edge,
            Gather::Alone | Gather::Means { .. } => 1,
        }
    }
}

#[derive(Debug)]
pub struct Connector {
    config: ConnectorConfig,
    projector: Projector,
    /// Of the layers before the last one.
    deep: Vec<Projector>,
    /// What stands after each line: [1, width].
    newline: Option<Tensor>,
}

/// What stands in a prompt for one marker.
pub struct Rows {
    /// [count, width]
    pub rows: Tensor,
    /// Rows that the first layers of the decoder add.
    pub deep: Vec<Tensor>,
    /// (columns, rows) of the blocks that they were made of, where their positions follow from it.
    pub grid: Option<(usize, usize)>,
}

impl Rows {
    fn plain(rows: Tensor) -> Self {
        Self {
            rows,
            deep: Vec::new(),
            grid: None,
        }
    }
}

impl Connector {
    /// From states of `inputs` to rows of `outputs`.
    pub fn load(
        config: ConnectorConfig,
        parameters: &Parameters<'_>,
        inputs: usize,
        outputs: usize,
    ) -> Result<Self> {
        let sizes = (inputs / (1 + config.deep), outputs);
        let parts = [Part::ProjectorNorm, Part::ProjectorUp, Part::ProjectorDown];
        let of_deep = ConnectorConfig {
            norm: None,
            gathered_norm: config.norm,
            ..config
        };
        let deep = (0..config.deep).map(|number| {
            let parts = [Part::DeepNorm, Part::DeepUp, Part::DeepDown];
            let places = parts.map(|part| part.at(0).expert(number));
            Projector::load(&of_deep, parameters, places, sizes)
        });
        Ok(Self {
            projector: Projector::load(&config, parameters, parts.map(|part| part.at(0)), sizes)?,
            deep: deep.collect::<Result<_>>()?,
            newline: match config.layout {
                Layout::Joined => {
                    let row = parameters.shaped(Part::ImageNewline, &[outputs])?;
                    Some(row.reshape((1, outputs))?)
                }
                _ => None,
            },
            config,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        if let Some(row) = &self.newline {
            inventory.add_tensor(row);
        }
        let projectors = [&self.projector].into_iter().chain(&self.deep);
        projectors.into_iter().try_for_each(|it| it.list(inventory))
    }

    /// One entry per marker. `states` and `grids`, (columns, rows), are those of each view.
    pub fn forward(
        &self,
        states: &[Tensor],
        grids: &[(usize, usize)],
        views: &Views,
    ) -> Result<Vec<Rows>> {
        if self.config.layout == Layout::Joined {
            let rows = self.joined(states, grids, views)?;
            return Ok(vec![Rows::plain(rows)]);
        }
        let view = |(states, &grid): (&Tensor, &(usize, usize))| self.view(states, grid);
        let found = states.iter().zip(grids).map(view);
        let found = found.collect::<Result<Vec<_>>>()?;
        let mut found: Vec<Rows> = found.into_iter().flatten().collect();
        if self.config.layout == Layout::All {
            let rows: Vec<&Tensor> = found.iter().map(|rows| &rows.rows).collect();
            found = vec![Rows::plain(Tensor::cat(&rows, 0)?)];
        }
        Ok(found)
    }

    /// The rows of one view, which are one entry or one per line.
    fn view(&self, states: &Tensor, grid: (usize, usize)) -> Result<Vec<Rows>> {
        let width = states.dim(1)? / (1 + self.deep.len());
        let of_layer = |number: usize| states.narrow(1, number * width, width)?.contiguous();
        let last = if self.deep.is_empty() {
            states.clone()
        } else {
            of_layer(0)?
        };
        let rows = self.projector.forward(&self.config, &last, grid)?;
        let deep = self.deep.iter().enumerate().map(|(number, projector)| {
            projector.forward(&self.config, &of_layer(1 + number)?, grid)
        });
        let deep = deep.collect::<Result<_>>()?;
        let edge = self.config.edge().max(1);
        let blocks = (grid.0 / edge, grid.1 / edge);
        match self.config.layout {
            Layout::Line => {
                let line =
                    |line: usize| Ok(Rows::plain(rows.narrow(0, line * blocks.0, blocks.0)?));
                (0..blocks.1).map(line).collect()
            }
            layout => Ok(vec![Rows {
                rows,
                deep,
                grid: (layout == Layout::Grid).then_some(blocks),
            }]),
        }
    }

    fn joined(&self, states: &[Tensor], grids: &[(usize, usize)], views: &Views) -> Result<Tensor> {
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
        if tiles.is_empty() {
            let pieces = [self.projector.projected(whole)?, newline.clone()];
            return Ok(Tensor::cat(&pieces, 0)?);
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
        let map = map.contiguous()?.reshape((height * length, width))?;
        let map = FeatureMap::new(self.projector.projected(&map)?, (height, length))?;
        let map = match self.config.most_tiles {
            Some(most) => smaller(&map, most * rows * rows)?,
            None => map,
        };
        let (height, length) = map.size();
        let mut pieces = vec![self.projector.projected(whole)?];
        for line in 0..height {
            pieces.push(map.rows.narrow(0, line * length, length)?);
            pieces.push(newline.clone());
        }
        Ok(Tensor::cat(&pieces, 0)?)
    }
}

/// What leads from the states of one layer to rows.
#[derive(Debug)]
struct Projector {
    norm: Option<Norm>,
    gathered_norm: Option<Norm>,
    merge: Option<Linear>,
    up: Option<(Linear, Between)>,
    down: Linear,
}

impl Projector {
    fn load(
        config: &ConnectorConfig,
        parameters: &Parameters<'_>,
        [norm, up, down]: [Place; 3],
        (inputs, outputs): (usize, usize),
    ) -> Result<Self> {
        let area = config.edge() * config.edge();
        let gathered = inputs * area;
        let merge = config.merges.then(|| by_patch(parameters, inputs, area));
        let merge = merge.transpose()?;
        let wide = if config.merges { inputs } else { gathered };
        let up = match config.activation {
            Some(activation) => {
                let inner = parameters.outputs(up)?;
                Some((parameters.linear(up, wide, inner)?, activation))
            }
            None => None,
        };
        let inner = match &up {
            Some((up, Between::Plain(_))) => up.outputs(),
            Some((up, Between::Gated(_))) => up.outputs() / 2,
            None => wide,
        };
        let of = |config: Option<NormConfig>, width: usize| {
            let norm = config.map(|config| parameters.norm(norm, &[width], config));
            norm.transpose()
        };
        Ok(Self {
            norm: of(config.norm, inputs)?,
            gathered_norm: of(config.gathered_norm, gathered)?,
            merge,
            up,
            down: if config.transposed {
                let weight = parameters.shaped(down, &[inner, outputs])?;
                parameters.assemble(weight.t()?.contiguous()?, None)?
            } else {
                parameters.linear(down, inner, outputs)?
            },
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let norms = [&self.norm, &self.gathered_norm].into_iter().flatten();
        for norm in norms {
            inventory.add_norm(norm)?;
        }
        let up = self.up.as_ref().map(|(up, _)| up);
        for linear in [self.merge.as_ref(), up, Some(&self.down)] {
            linear.map_or(Ok(()), |linear| inventory.add_linear(linear))?;
        }
        Ok(())
    }

    /// The rows of a view of (columns, rows).
    fn forward(
        &self,
        config: &ConnectorConfig,
        states: &Tensor,
        grid: (usize, usize),
    ) -> Result<Tensor> {
        let width = states.dim(1)?;
        let states = normed(self.norm.as_ref(), states)?;
        let gathered = match config.gather {
            Gather::Alone => states,
            Gather::Blocks { edge } => blocks(&states, grid, edge)?,
            Gather::Arranged { edge } => {
                let rows = states.dim(0)? / (edge * edge);
                states.reshape((rows, edge * edge * width))?
            }
            Gather::Means { side } => {
                let edge = grid.0 / side.max(1);
                let patches = blocks(&states, grid, edge)?;
                let patches = patches.reshape((patches.dim(0)?, edge * edge, width))?;
                // Added in f32, as the reference does: sums of 16 bits lose digits.
                let means = patches.to_dtype(DType::F32)?.mean(1)?;
                means.to_dtype(states.dtype())?
            }
        };
        let gathered = normed(self.gathered_norm.as_ref(), &gathered)?;
        match &self.merge {
            Some(merge) => self.projected(&merge.forward(&gathered.contiguous()?)?),
            None => self.projected(&gathered),
        }
    }

    fn projected(&self, states: &Tensor) -> Result<Tensor> {
        let states = states.contiguous()?;
        let inner = match &self.up {
            None => return self.down.forward(&states),
            Some((up, Between::Plain(activation))) => {
                let epilogue = Epilogue {
                    activation: Some(*activation),
                    ..Epilogue::default()
                };
                up.forward_with(&states, &epilogue)?
            }
            Some((up, Between::Gated(activation))) => {
                let both = up.forward(&states)?;
                let half = both.dim(1)? / 2;
                let gate = both.narrow(1, half, half)?.contiguous()?;
                let gate = kernels::activate(&gate, *activation)?;
                elementwise::multiply(&both.narrow(1, 0, half)?.contiguous()?, &gate)?
            }
        };
        self.down.forward(&inner)
    }
}

/// The product of blocks whose weight has them channel by channel, as one of patches side by side.
fn by_patch(parameters: &Parameters<'_>, width: usize, area: usize) -> Result<Linear> {
    let weight = parameters.shaped(Part::ProjectorMerge, &[width, width * area])?;
    let weight = weight.reshape((width, width, area))?.transpose(1, 2)?;
    let weight = weight.contiguous()?.reshape((width, area * width))?;
    parameters.assemble(weight, parameters.bias(Part::ProjectorMerge)?)
}

fn normed(norm: Option<&Norm>, states: &Tensor) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward(&states.contiguous()?),
        None => Ok(states.clone()),
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

/// A map of many more places than `most`, with about as many.
fn smaller(map: &FeatureMap, most: usize) -> Result<FeatureMap> {
    let (height, width) = map.size();
    let ratio = ((height * width) as f64 / most.max(1) as f64).sqrt();
    if ratio <= 1.1 {
        return Ok(map.clone());
    }
    let edge = |edge: usize| ((edge as f64 / ratio).floor() as usize).max(1);
    map.stretched((edge(height), edge(width)))
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
