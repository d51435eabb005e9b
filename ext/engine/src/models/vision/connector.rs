//! What leads from a vision tower into a decoder: rows of its width, made of the states of patches.

use candle_core::{DType, Tensor};

use super::patch_grid::{blocks, likeliest, margins, smaller};
pub use super::shown::Rows;
use crate::models::config::NormConfig;
use crate::models::decoder::image_embeddings::Grid;
use crate::models::parameters::Parameters;
use crate::models::parts::{Part, Place};
use crate::models::vision::resampler::{Resampler, ResamplerConfig};
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
    /// A product that leads what was gathered to one width, and whose weight has the numbers of a block channel by
    /// channel (Mistral 3).
    pub merges: bool,
    /// Behind that a product, a norm and what follows it (GLM-4V).
    pub inner: Option<(NormConfig, Inner)>,
    /// Between two products; without it there is the second alone.
    pub activation: Option<Between>,
    /// Behind the second product, where a third one follows (Llama 4).
    pub third: Option<Activation>,
    /// The matrix of the last product is stored as it is multiplied with (Gemma 3).
    pub transposed: bool,
    /// How many rows at the end of that matrix stand for places around and between views (Ovis 2).
    pub indicators: usize,
    pub layout: Layout,
    /// Lines of more tiles than so many are made smaller (LLaVA-OneVision).
    pub most_tiles: Option<usize>,
    /// How many layers before the last one become rows by projections of their own, which the first layers of the
    /// decoder add (Qwen3-VL).
    pub deep: usize,
    /// Learned queries look at the rows, and what they find stands in the prompt (Idefics 2).
    pub resampler: Option<ResamplerConfig>,
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

/// What follows the norm of an inner product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inner {
    Gelu,
    /// Probabilities of the words of a visual vocabulary, whose rows the next product adds (Ovis 2).
    Words,
    /// The likeliest word alone.
    Word,
}

/// What stands between the two products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Between {
    Plain(Activation),
    /// The first half of the numbers, times the activation of the second (Aya Vision); files may have the two halves of
    /// the product apart (Idefics 2).
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
    /// The same, with rows of their own around and between them (Ovis 2).
    Indicated,
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
        inner: None,
        activation: None,
        third: None,
        transposed: false,
        indicators: 0,
        layout: Layout::View,
        most_tiles: None,
        deep: 0,
        resampler: None,
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
    resampler: Option<Resampler>,
    /// What stands before and behind the views, behind the whole, between columns and between rows: [1, width] each.
    indicators: Option<Indicators>,
}

#[derive(Clone, Debug)]
struct Indicators {
    start: Tensor,
    grid: Tensor,
    column: Tensor,
    row: Tensor,
    end: Tensor,
}

impl Connector {
    /// From states of `inputs` to rows of `outputs`; `numbers` are those of the projections of layers before the last.
    pub fn load(
        config: ConnectorConfig,
        numbers: &[usize],
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
        let deep = numbers.iter().map(|&number| {
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
            resampler: match config.resampler {
                Some(config) => {
                    let place = (parameters.device(), parameters.dtype());
                    let source = parameters.source();
                    Some(Resampler::load(config, source, place, outputs)?)
                }
                None => None,
            },
            indicators: None,
            config,
        })
    }

    /// The same with the rows of the table that stand at the start of views, behind the whole, between columns, between
    /// rows and at the end; numbers count those of the indicators.
    pub fn indicated(mut self, parameters: &Parameters<'_>, numbers: [usize; 5]) -> Result<Self> {
        let shape = parameters.shape(Part::ProjectorDown)?;
        let words = self.projector.down.inputs();
        let table = parameters.tensor(Part::ProjectorDown)?;
        let row = |number: usize| -> Result<Tensor> {
            if number >= self.config.indicators {
                return Err(parameters.misfit(Part::ProjectorDown, &shape));
            }
            Ok(table.narrow(0, words + number, 1)?.contiguous()?)
        };
        let [start, grid, column, line, end] = numbers;
        self.indicators = Some(Indicators {
            start: row(start)?,
            grid: row(grid)?,
            column: row(column)?,
            row: row(line)?,
            end: row(end)?,
        });
        Ok(self)
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        if let Some(row) = &self.newline {
            inventory.add_tensor(row);
        }
        if let Some(resampler) = &self.resampler {
            resampler.list(inventory)?;
        }
        let projectors = [&self.projector].into_iter().chain(&self.deep);
        projectors.into_iter().try_for_each(|it| it.list(inventory))
    }

    /// The rows of each frame of a video, or of each pair of frames. `states` and `grids` are those of each view.
    pub fn frames(&self, states: &[Tensor], grids: &[(usize, usize)]) -> Result<Vec<Rows>> {
        let frame = |(states, &grid): (&Tensor, &(usize, usize))| self.view(states, grid);
        let found = states.iter().zip(grids).map(frame);
        Ok(found
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .flatten()
            .collect())
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
        if let Some(indicators) = &self.indicators {
            let rows: Vec<Tensor> = found.into_iter().map(|rows| rows.rows).collect();
            return Ok(vec![Rows::plain(indicators.around(&rows, views.tiles.0)?)]);
        }
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
        let rows = match &self.resampler {
            Some(resampler) => resampler.forward(&rows)?,
            None => rows,
        };
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
                grid: (layout == Layout::Grid).then_some(Grid::still(blocks)),
            }]),
        }
    }

    /// The rows of the frames of a video, each with a quarter of its places, and the learned row behind all
    /// (LLaVA-OneVision).
    pub fn halved(&self, states: &[Tensor], grids: &[(usize, usize)]) -> Result<Rows> {
        let mut pieces = Vec::with_capacity(1 + states.len());
        for (states, &(columns, rows)) in states.iter().zip(grids) {
            let map = FeatureMap::new(self.projector.projected(states)?, (rows, columns))?;
            let half = map.stretched((rows.div_ceil(2), columns.div_ceil(2)))?;
            pieces.push(half.rows);
        }
        pieces.extend(self.newline.clone());
        Ok(Rows::plain(Tensor::cat(&pieces, 0)?))
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

impl Indicators {
    /// The rows of the whole and of tiles, so many in a line.
    fn around(&self, views: &[Tensor], columns: usize) -> Result<Tensor> {
        let Some((whole, tiles)) = views.split_first() else {
            return Err(Error::Internal("an image without views".into()));
        };
        let mut pieces = vec![&self.start, whole, &self.grid];
        for (number, tile) in tiles.iter().enumerate() {
            if number > 0 && number.is_multiple_of(columns.max(1)) {
                pieces.push(&self.row);
            } else if number > 0 {
                pieces.push(&self.column);
            }
            pieces.push(tile);
        }
        pieces.push(&self.end);
        Ok(Tensor::cat(&pieces, 0)?)
    }
}

/// What leads from the states of one layer to rows.
#[derive(Debug)]
struct Projector {
    norm: Option<Norm>,
    gathered_norm: Option<Norm>,
    merge: Option<Linear>,
    inner: Option<(Linear, Norm, Inner)>,
    up: Option<(Linear, Between)>,
    down: Linear,
    /// The activation before it, and a third product.
    third: Option<(Activation, Linear)>,
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
        let wide = merge.as_ref().map_or(gathered, Linear::outputs);
        let inner = config.inner.map(|(norm, then)| -> Result<_> {
            let outputs = parameters.outputs(Part::ProjectorInner)?;
            let linear = parameters.linear(Part::ProjectorInner, wide, outputs)?;
            let norm = parameters.norm(Part::ProjectorInnerNorm, &[outputs], norm)?;
            Ok((linear, norm, then))
        });
        let refined = inner.transpose()?;
        let wide = refined
            .as_ref()
            .map_or(wide, |(linear, ..)| linear.outputs());
        let up = match config.activation {
            Some(activation) if parameters.has(Part::ProjectorGate) => {
                Some((gated(parameters, up, wide)?, activation))
            }
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
        let (outputs, third) = match config.third {
            Some(activation) => {
                let between = parameters.outputs(down)?;
                let linear = parameters.linear(Part::ProjectorOutput, between, outputs)?;
                (between, Some((activation, linear)))
            }
            None => (outputs, None),
        };
        let of = |config: Option<NormConfig>, width: usize| {
            let norm = config.map(|config| parameters.norm(norm, &[width], config));
            norm.transpose()
        };
        Ok(Self {
            norm: of(config.norm, inputs)?,
            gathered_norm: of(config.gathered_norm, gathered)?,
            merge,
            inner: refined,
            up,
            third,
            down: if config.transposed {
                let weight = parameters.shaped(down, &[inner + config.indicators, outputs])?;
                let weight = weight.narrow(0, 0, inner)?;
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
        let merge = self.merge.as_ref();
        let third = self.third.as_ref().map(|(_, third)| third);
        let inner = self.inner.as_ref().map(|(inner, ..)| inner);
        if let Some((_, norm, _)) = &self.inner {
            inventory.add_norm(norm)?;
        }
        for linear in [merge, inner, up, Some(&self.down), third] {
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
        let merged = match &self.merge {
            Some(merge) => merge.forward(&gathered.contiguous()?)?,
            None => gathered,
        };
        match &self.inner {
            Some((linear, norm, then)) => {
                let inner = norm.forward(&linear.forward(&merged.contiguous()?)?)?;
                self.projected(&match then {
                    Inner::Gelu => kernels::activate(&inner, Activation::Gelu)?,
                    Inner::Words => kernels::softmax(&inner)?,
                    Inner::Word => likeliest(&inner)?,
                })
            }
            None => self.projected(&merged),
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
        match &self.third {
            Some((activation, third)) => {
                let epilogue = Epilogue {
                    activation: Some(*activation),
                    ..Epilogue::default()
                };
                third.forward(&self.down.forward_with(&inner, &epilogue)?)
            }
            None => self.down.forward(&inner),
        }
    }
}

/// The product of blocks whose weight has them channel by channel, as one of patches side by side.
fn by_patch(parameters: &Parameters<'_>, width: usize, area: usize) -> Result<Linear> {
    let shape = parameters.shape(Part::ProjectorMerge)?;
    let outputs = shape.first().copied().unwrap_or(0);
    // A convolution over blocks is the same.
    let edge = area.isqrt();
    let fits = shape == [outputs, width * area] || shape == [outputs, width, edge, edge];
    if !fits || outputs == 0 {
        return Err(parameters.misfit(Part::ProjectorMerge, &[width, width * area]));
    }
    let weight = parameters.tensor(Part::ProjectorMerge)?;
    let weight = weight.reshape((outputs, width, area))?.transpose(1, 2)?;
    let weight = weight.contiguous()?.reshape((outputs, area * width))?;
    parameters.assemble(weight, parameters.bias(Part::ProjectorMerge)?)
}

/// The first product and what gates it, which a file may have apart.
fn gated(parameters: &Parameters<'_>, up: Place, inputs: usize) -> Result<Linear> {
    let outputs = parameters.outputs(up)?;
    let both = [up, Part::ProjectorGate.at(0)];
    let matrices = both.map(|place| parameters.shaped(place, &[outputs, inputs]));
    let [up, gate] = matrices;
    let biases = [parameters.bias(both[0])?, parameters.bias(both[1])?];
    let bias = match biases {
        [Some(up), Some(gate)] => Some(Tensor::cat(&[up, gate], 0)?),
        _ => None,
    };
    parameters.assemble(Tensor::cat(&[up?, gate?], 0)?, bias)
}

fn normed(norm: Option<&Norm>, states: &Tensor) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward(&states.contiguous()?),
        None => Ok(states.clone()),
    }
}
