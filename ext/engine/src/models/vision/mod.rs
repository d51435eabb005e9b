//! One tower for every family: images in, hidden states of their patches out.

mod arrangement;
mod clipped;
pub mod config;
pub mod connector;
mod convolved;
mod fused;
mod merged;
pub mod own;
mod patch_grid;
mod pooling;
pub mod positions;
pub mod resampler;
mod shown;
pub mod vlm;
mod windowed;

use candle_core::{DType, Device, Tensor};

use crate::models::encoder::layer::Layer;
use crate::models::encoder::relative::{RelativePositions, RelativeState};
use crate::models::encoder::spans::Spans;
use crate::models::families;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::rope::{Place, Rotations};
use crate::nn::{elementwise, pooling as rows, Inventory, Linear, Norm};
use crate::{CancelToken, Error, Result};
use base::runtime::device::ensure_activations;
use formats::image::{View, CHANNELS};
use formats::weights::WeightSource;

pub use config::VisionConfig;

use arrangement::Arrangement;
use config::{ClassifierInput, VisionPooling};
use pooling::AttentionPooling;
use positions::{GridTable, Table};

/// What a checkpoint of a vision tower is.
pub type Blueprint = families::Blueprint<VisionConfig>;

/// Weights and blueprint; immutable, and free to be shared between threads.
#[derive(Debug)]
pub struct Tower {
    config: VisionConfig,
    patches: Linear,
    /// What the second of two frames adds, where they differ.
    second_frame: Option<Linear>,
    /// Of patches before their positions.
    patch_norm: Option<Norm>,
    /// `None` where patches rotate instead.
    positions: Option<GridTable>,
    rotations: Option<Rotations>,
    /// Tokens before the patches, positions added: [count, hidden].
    leading: Option<Tensor>,
    embedding_norm: Option<Norm>,
    /// What is added behind layers, where they have positions of their own.
    later_positions: Vec<Table>,
    layers: Vec<Layer>,
    final_norm: Option<Norm>,
    pooling: Option<AttentionPooling>,
    device: Device,
    dtype: DType,
}

/// The hidden states of images laid end to end.
pub struct Seen {
    /// [tokens, hidden]
    pub states: Tensor,
    /// Image i is the tokens from `boundaries[i]` to `boundaries[i + 1]`.
    pub boundaries: Vec<u32>,
    /// How many tokens of an image stand before its patches.
    pub leading: usize,
}

impl Tower {
    pub fn load(
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        int8: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let config = blueprint.config.clone();
        let parameters = Parameters::new(source, &blueprint.names, device, dtype)?.with_int8(int8);
        let encoder = &config.encoder;
        parameters.check_layers(encoder.stored_layers())?;
        let hidden = encoder.hidden_size;
        let mut layers = Vec::with_capacity(encoder.layers.len());
        for number in 0..encoder.layers.len() {
            cancel.check()?;
            let layer = Layer::load(encoder, &parameters, number, &RelativePositions::None)?;
            layers.push(layer);
        }
        let norm = |part: Part| parameters.optional_norm(part, &[hidden], encoder.norm);
        let (positions, leading) = positions::load(&config, &parameters)?;
        let rope = encoder.relative.rope();
        let rotations = rope.map(|rope| Rotations::new(rope, 1, device));
        Ok(Self {
            rotations: rotations.transpose()?,
            patches: patch_projection(&config, &parameters)?,
            second_frame: second_frame(&config, &parameters)?,
            patch_norm: norm(Part::PatchNorm)?,
            positions,
            leading,
            later_positions: positions::later(&config, &parameters)?,
            embedding_norm: norm(Part::EmbeddingNorm)?,
            layers,
            final_norm: norm(Part::FinalNorm)?,
            pooling: if parameters.has(Part::PoolingQuery) {
                Some(AttentionPooling::load(encoder, &parameters)?)
            } else {
                None
            },
            config,
            device: device.clone(),
            dtype,
        })
    }

    pub fn config(&self) -> &VisionConfig {
        &self.config
    }

    /// What it is made of.
    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        inventory.add_linear(&self.patches)?;
        self.second_frame
            .iter()
            .try_for_each(|linear| inventory.add_linear(linear))?;
        self.leading
            .iter()
            .for_each(|rows| inventory.add_tensor(rows));
        for layer in &self.layers {
            layer.list(&mut inventory)?;
        }
        for norm in [&self.patch_norm, &self.embedding_norm, &self.final_norm]
            .into_iter()
            .flatten()
        {
            inventory.add_norm(norm)?;
        }
        if let Some(pooling) = &self.pooling {
            pooling.list(&mut inventory)?;
        }
        inventory.add_rows("activation", &self.device)?;
        let width = self.config.encoder.head_size;
        inventory.add_attention(&self.device, self.dtype, width)?;
        Ok(inventory)
    }

    /// How many tokens a view becomes.
    pub fn tokens(&self, view: &View) -> usize {
        let (columns, rows) = self.grid(view);
        self.leading_count() + columns * rows
    }

    /// The hidden states after some numbers of layers, side by side; without any, after all and the last norm.
    pub fn forward(&self, views: &[View], read: &[usize], cancel: &CancelToken) -> Result<Seen> {
        self.forward_frames((views, &[]), read, cancel)
    }

    /// The same of frames, each with the one behind it where there are those too.
    pub fn forward_frames(
        &self,
        (views, behind): (&[View], &[View]),
        read: &[usize],
        cancel: &CancelToken,
    ) -> Result<Seen> {
        let tokens = views.iter().map(|view| self.tokens(view)).sum();
        let width = self.config.encoder.hidden_size;
        ensure_activations(tokens, width, self.dtype, &self.device)?;
        let (mut x, boundaries) = self.embed(views, behind)?;
        if let Some(norm) = &self.embedding_norm {
            x = norm.forward(&x)?;
        }
        let grids: Vec<_> = views.iter().map(|view| self.grid(view)).collect();
        let blocks = self.config.blocks.as_ref();
        let arranged = blocks.map(|blocks| Arrangement::new(blocks, &grids));
        let arranged = arranged.transpose()?;
        if let Some(arranged) = &arranged {
            x = self.sorted(x, &arranged.order)?;
        }
        let relative = match (&self.rotations, &arranged) {
            (Some(rotations), Some(arranged)) => {
                RelativeState::Rope(rotations.of_places(&arranged.places, &self.device)?)
            }
            (Some(rotations), None) => {
                RelativeState::Rope(rotations.of_places(&self.places(&grids), &self.device)?)
            }
            _ => RelativeState::None,
        };
        let whole = Spans::whole(&boundaries);
        let windows = arranged.as_ref().map(|it| Spans::whole(&it.windows));
        let count = read.iter().copied().max().unwrap_or(self.layers.len());
        let configs = &self.config.encoder.layers;
        let mut kept = Vec::with_capacity(read.len());
        for (number, (layer, config)) in self.layers.iter().zip(configs).take(count).enumerate() {
            cancel.check()?;
            if read.contains(&number) {
                kept.push((number, x.clone()));
            }
            let windowed = blocks.and_then(|blocks| blocks.windowed.get(number));
            let spans = match (&windows, windowed) {
                (Some(windows), Some(true)) => windows,
                _ => &whole,
            };
            x = layer.forward(&x, spans, (config, &relative), cancel)?;
            if let Some(table) = self.later_positions.get(number) {
                x = elementwise::add(&x, &self.positions_of(table, &grids)?)?;
            }
        }
        kept.push((count, x));
        let mut states = Vec::with_capacity(read.len().max(1));
        for number in read.iter().copied().chain(read.is_empty().then_some(count)) {
            let found = kept.iter().find(|(kept, _)| *kept == number);
            let (_, x) = found.ok_or_else(|| misread(number))?;
            states.push(match &arranged {
                Some(arranged) => self.sorted(x.clone(), &arranged.by_block)?,
                None => x.clone(),
            });
        }
        let x = match &states[..] {
            [one] => one.clone(),
            several => Tensor::cat(several, 1)?,
        };
        Ok(Seen {
            states: match self.final_norm.as_ref().filter(|_| read.is_empty()) {
                Some(norm) => norm.forward(&x)?,
                None => x,
            },
            boundaries,
            leading: self.leading_count(),
        })
    }

    /// What is added to the tokens of pictures of these (columns, rows).
    fn positions_of(&self, table: &Table, grids: &[(usize, usize)]) -> Result<Tensor> {
        let mut pieces = Vec::with_capacity(2 * grids.len());
        for grid in grids {
            pieces.extend(table.leading.clone());
            pieces.push(table.grid.rows(&[*grid], &self.device, self.dtype)?);
        }
        Ok(Tensor::cat(&pieces, 0)?)
    }

    /// By column and row, counted from 1; tokens before the patches do not rotate (Llama 4).
    fn places(&self, grids: &[(usize, usize)]) -> Vec<Place> {
        let of_grid = |&(columns, rows): &(usize, usize)| {
            let patch =
                move |at: usize| [0, at % columns + 1, at / columns + 1].map(|at| at as u32);
            let leading = std::iter::repeat_n([0; 3], self.leading_count());
            leading.chain((0..columns * rows).map(patch))
        };
        grids.iter().flat_map(of_grid).collect()
    }

    fn sorted(&self, x: Tensor, order: &[u32]) -> Result<Tensor> {
        let order = Tensor::from_slice(order, order.len(), &self.device)?;
        Ok(x.index_select(&order, 0)?)
    }

    /// One row per image.
    pub fn pool(&self, seen: &Seen) -> Result<Tensor> {
        match (self.config.pooling, &self.pooling) {
            (VisionPooling::Attention, Some(pooling)) => pooling.forward(seen),
            _ => seen.first(),
        }
    }

    /// What a classifier reads of each image.
    pub fn classifier_input(&self, seen: &Seen) -> Result<Tensor> {
        Ok(match self.config.classifier {
            ClassifierInput::First => seen.first()?,
            ClassifierInput::FirstAndMean => {
                Tensor::cat(&[seen.first()?, seen.mean_of_patches()?], 1)?
            }
            ClassifierInput::Mean | ClassifierInput::MeanBeforeNorm => seen.mean_of_patches()?,
        })
    }

    /// How many tokens of an image stand before its patches.
    pub fn leading_count(&self) -> usize {
        let rows = self.leading.as_ref().map(|rows| rows.dim(0));
        rows.and_then(|rows| rows.ok()).unwrap_or(0)
    }

    /// (columns, rows) of whole patches.
    pub fn grid(&self, view: &View) -> (usize, usize) {
        let patch = self.config.patch_size;
        (view.width / patch, view.height / patch)
    }

    /// [tokens, hidden] and where images begin.
    fn embed(&self, views: &[View], behind: &[View]) -> Result<(Tensor, Vec<u32>)> {
        let (patch, order) = (self.config.patch_size, self.config.patch_order);
        let mut values = Vec::new();
        let mut grids = Vec::with_capacity(views.len());
        for view in views {
            view.patches(patch, order, &mut values);
            grids.push(self.grid(view));
        }
        let width = CHANNELS * patch * patch;
        let count = values.len() / width;
        let mut changes = Vec::new();
        for view in behind {
            view.patches(patch, order, &mut changes);
        }
        let changed = match &self.second_frame {
            Some(second) if changes.len() == values.len() && !behind.is_empty() => {
                let pairs = changes.iter_mut().zip(&values);
                pairs.for_each(|(later, earlier)| *later -= earlier);
                let changes = Tensor::from_vec(changes, (count, width), &self.device)?;
                Some(second.forward(&changes.to_dtype(self.dtype)?)?)
            }
            _ => None,
        };
        let patches = Tensor::from_vec(values, (count, width), &self.device)?;
        let patches = self.patches.forward(&patches.to_dtype(self.dtype)?)?;
        let patches = match changed {
            Some(changed) => elementwise::add(&patches, &changed)?,
            None => patches,
        };
        let patches = match &self.patch_norm {
            Some(norm) => norm.forward(&patches)?,
            None => patches,
        };
        let patches = match &self.positions {
            Some(table) => {
                let positions = table.rows(&grids, &self.device, self.dtype)?;
                elementwise::add(&patches, &positions)?
            }
            None => patches,
        };
        let mut boundaries = vec![0u32];
        let mut pieces = Vec::with_capacity(2 * views.len());
        let (mut start, mut end) = (0, 0);
        for (columns, rows) in grids {
            pieces.extend(self.leading.clone());
            pieces.push(patches.narrow(0, start, columns * rows)?);
            start += columns * rows;
            end += self.leading_count() + columns * rows;
            boundaries.push(end as u32);
        }
        Ok((Tensor::cat(&pieces, 0)?, boundaries))
    }
}

impl Seen {
    fn ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        let pairs = self.boundaries.windows(2);
        pairs.map(|pair| pair[0] as usize..pair[1] as usize)
    }

    /// The first token of each image.
    fn first(&self) -> Result<Tensor> {
        let first: Vec<_> = self.ranges().map(|range| Some(range.start)).collect();
        Ok(rows::pick(&self.states, &first)?.to_dtype(self.states.dtype())?)
    }

    /// The states of each image.
    pub fn images(&self) -> Result<Vec<Tensor>> {
        let of_image =
            |range: std::ops::Range<usize>| Ok(self.states.narrow(0, range.start, range.len())?);
        self.ranges().map(of_image).collect()
    }

    /// The states of each image's patches, what stands before them left out.
    pub fn patches(&self) -> Result<Vec<Tensor>> {
        let of_image = |range: std::ops::Range<usize>| {
            let count = range.len() - self.leading;
            Ok(self.states.narrow(0, range.start + self.leading, count)?)
        };
        self.ranges().map(of_image).collect()
    }

    fn mean_of_patches(&self) -> Result<Tensor> {
        let patches = self.patches()?;
        let mut boundaries = vec![0u32];
        for rows in &patches {
            let end = boundaries.last().copied().unwrap_or(0) + rows.dim(0)? as u32;
            boundaries.push(end);
        }
        let states = Tensor::cat(&patches, 0)?.contiguous()?;
        Ok(kernels::mean_pool(&states, &boundaries)?.to_dtype(self.states.dtype())?)
    }
}

/// The convolution over patches, which do not overlap, as a product.
fn patch_projection(config: &VisionConfig, parameters: &Parameters<'_>) -> Result<Linear> {
    let (hidden, patch) = (config.encoder.hidden_size, config.patch_size);
    let width = CHANNELS * patch * patch;
    let shape = parameters.shape(Part::PatchEmbedding)?;
    let frames = match shape[..] {
        [_, _, frames, _, _] => frames,
        _ => 1,
    };
    let fits = shape == [hidden, CHANNELS, patch, patch]
        || shape == [hidden, CHANNELS, frames, patch, patch]
        || shape == [hidden, width];
    if !fits {
        return Err(parameters.misfit(Part::PatchEmbedding, &[hidden, CHANNELS, patch, patch]));
    }
    let mut weight = parameters.tensor(Part::PatchEmbedding)?;
    // A still image is the same in every frame. Added in f32: sums of 16 bits lose digits.
    if shape.len() == 5 {
        let sums = weight.to_dtype(DType::F32)?.sum(2)?;
        weight = sums.to_dtype(weight.dtype())?;
    }
    if parameters.has(Part::SecondPatchEmbedding) {
        let second = parameters.shaped(Part::SecondPatchEmbedding, &shape)?;
        weight = elementwise::add(&weight, &second)?;
    }
    Linear::new(
        weight.reshape((hidden, width))?,
        parameters.bias(Part::PatchEmbedding)?,
    )
}

/// What towers of two frames multiply the second one by.
fn second_frame(config: &VisionConfig, parameters: &Parameters<'_>) -> Result<Option<Linear>> {
    let (hidden, patch) = (config.encoder.hidden_size, config.patch_size);
    let width = CHANNELS * patch * patch;
    let weight = if parameters.has(Part::SecondPatchEmbedding) {
        parameters.tensor(Part::SecondPatchEmbedding)?
    } else {
        match parameters.shape(Part::PatchEmbedding)?[..] {
            [_, _, 2, _, _] => parameters.tensor(Part::PatchEmbedding)?.narrow(2, 1, 1)?,
            _ => return Ok(None),
        }
    };
    let weight = weight.contiguous()?.reshape((hidden, width))?;
    Ok(Some(Linear::new(weight, None)?))
}

/// The complaint about a picture without a whole patch.
pub fn too_small(view: &View) -> Error {
    Error::InvalidInput(format!(
        "an image of {}x{} pixels is smaller than a patch of the model",
        view.width, view.height
    ))
}

fn misread(number: usize) -> Error {
    Error::Internal(format!(
        "a vision tower is read after layer {number}, which it does not have"
    ))
}

/// A `CorruptModel` error for tables that do not fit each other.
fn misfit(parameters: &Parameters<'_>, reason: String) -> Error {
    Error::corrupt(&parameters.source().file(""), reason)
}
