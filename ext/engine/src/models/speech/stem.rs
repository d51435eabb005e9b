//! From an audio's features to the first hidden states.

use candle_core::{DType, Tensor};

use super::config::{SamplesStem, SpeechConfig, StemConfig, StemNorm};
use super::grid::Grid;
use super::patches::Patches;
use super::waves::Waves;
use crate::models::config::{Frequencies, NormConfig, NormKind};
use crate::models::parameters::Parameters;
use crate::models::parts::{Part, Place};
use crate::models::positions::sinusoids;
use crate::nn::{elementwise, Conv1d, Embedding, Inventory, Linear, Norm};
use crate::{CancelToken, Error, Result};
use kernels::Activation;

/// Of the norms between convolutions.
const EPSILON: f32 = 1e-5;

#[derive(Debug)]
pub enum Stem {
    Bands {
        first: Conv1d,
        second: Conv1d,
        /// [states, hidden]
        positions: Tensor,
    },
    Samples {
        layers: Vec<SamplesLayer>,
        activation: Activation,
        feature_norm: Option<Norm>,
        projection: Linear,
        positions: Conv1d,
        /// Frames that the convolution of positions adds.
        surplus: usize,
        norm: Option<Norm>,
    },
    Rows {
        norm: Norm,
        projection: Linear,
    },
    Grid(Grid),
    Waves(Waves),
    Patches(Patches),
}

#[derive(Debug)]
pub struct SamplesLayer {
    convolution: Conv1d,
    norm: Option<(StemNorm, Norm)>,
}

impl Stem {
    pub fn load(config: &SpeechConfig, parameters: &Parameters<'_>) -> Result<Self> {
        match &config.stem {
            StemConfig::Bands { bins, states } => bands(config, parameters, (*bins, *states)),
            StemConfig::Samples(stem) => samples(config, parameters, stem),
            StemConfig::Rows { inputs } => {
                let hidden = config.encoder.hidden_size;
                Ok(Self::Rows {
                    norm: parameters.norm(Part::FeatureNorm, &[*inputs], config.encoder.norm)?,
                    projection: parameters.linear(Part::FeatureProjection, *inputs, hidden)?,
                })
            }
            StemConfig::Grid(stem) => {
                Grid::load(stem, config.encoder.hidden_size, parameters).map(Self::Grid)
            }
            StemConfig::Waves => {
                Waves::load(config.encoder.hidden_size, parameters).map(Self::Waves)
            }
            StemConfig::Patches(stem) => {
                Patches::load(*stem, config.encoder.hidden_size, parameters).map(Self::Patches)
            }
        }
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        match self {
            Self::Bands {
                first,
                second,
                positions,
            } => {
                first.list(inventory)?;
                second.list(inventory)?;
                inventory.add_tensor(positions);
            }
            Self::Samples {
                layers,
                feature_norm,
                projection,
                positions,
                norm,
                ..
            } => {
                for layer in layers {
                    layer.convolution.list(inventory)?;
                    if let Some((_, norm)) = &layer.norm {
                        inventory.add_norm(norm)?;
                    }
                }
                inventory.add_linear(projection)?;
                positions.list(inventory)?;
                for norm in [feature_norm, norm].into_iter().flatten() {
                    inventory.add_norm(norm)?;
                }
            }
            Self::Rows { norm, projection } => {
                inventory.add_norm(norm)?;
                inventory.add_linear(projection)?;
            }
            Self::Grid(grid) => grid.list(inventory)?,
            Self::Waves(waves) => waves.list(inventory)?,
            Self::Patches(patches) => patches.list(inventory)?,
        }
        Ok(())
    }

    /// How many states come of so many frames.
    pub fn states(&self, frames: usize) -> usize {
        match self {
            Self::Bands { first, second, .. } => second.frames(first.frames(frames)),
            Self::Samples { layers, .. } => layers
                .iter()
                .fold(frames, |frames, layer| layer.convolution.frames(frames)),
            Self::Rows { .. } => frames,
            Self::Grid(grid) => grid.states(frames),
            Self::Waves(waves) => waves.states(frames),
            Self::Patches(patches) => patches.states(frames),
        }
    }

    /// [states, hidden] of one audio's frames, [frames, bins].
    pub fn forward(&self, features: &Tensor, cancel: &CancelToken) -> Result<Tensor> {
        match self {
            Self::Bands {
                first,
                second,
                positions,
            } => {
                let x = first.forward(features, Some(Activation::Gelu), cancel)?;
                let x = second.forward(&x, Some(Activation::Gelu), cancel)?;
                if x.dims() != positions.dims() {
                    return Err(Error::Internal(format!(
                        "{} states of an audio where the model has {} positions",
                        x.dim(0)?,
                        positions.dim(0)?
                    )));
                }
                elementwise::add(&x, positions)
            }
            Self::Samples {
                layers,
                activation,
                feature_norm,
                projection,
                positions,
                surplus,
                norm,
            } => {
                let mut x = features.clone();
                for layer in layers {
                    x = layer.forward(&x, *activation, cancel)?;
                }
                let x = normed(feature_norm.as_ref(), x)?;
                let x = projection.forward(&x)?;
                let moved = positions.forward(&x, Some(*activation), cancel)?;
                let kept = moved.dim(0)? - surplus;
                let x = elementwise::add(&x, &moved.narrow(0, 0, kept)?.contiguous()?)?;
                normed(norm.as_ref(), x)
            }
            Self::Rows { norm, projection } => projection.forward(&norm.forward(features)?),
            Self::Grid(grid) => grid.forward(features),
            Self::Waves(waves) => waves.forward(features, cancel),
            Self::Patches(patches) => patches.forward(features),
        }
    }
}

fn normed(norm: Option<&Norm>, x: Tensor) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward(&x),
        None => Ok(x),
    }
}

impl SamplesLayer {
    fn forward(&self, x: &Tensor, activation: Activation, cancel: &CancelToken) -> Result<Tensor> {
        let Some((kind, norm)) = &self.norm else {
            return self.convolution.forward(x, Some(activation), cancel);
        };
        let x = self.convolution.forward(x, None, cancel)?;
        let x = match kind {
            StemNorm::Frames => norm.forward(&x)?,
            StemNorm::Channels => over_frames(norm, &x)?,
        };
        kernels::activate(&x, activation)
    }
}

/// Each channel of [frames, channels] brought to a mean of 0 and a variance of 1.
fn over_frames(norm: &Norm, x: &Tensor) -> Result<Tensor> {
    let Norm::Layer { weight, bias, .. } = norm else {
        return Err(Error::Internal(
            "channels are normalized by a layer norm".into(),
        ));
    };
    let channels = x.t()?.contiguous()?;
    let ones = Tensor::ones(channels.dim(1)?, x.dtype(), x.device())?;
    let rows = kernels::layer_norm(&channels, &ones, None, EPSILON)?;
    let rows = rows.t()?.contiguous()?;
    let rows = elementwise::multiply(&rows, weight)?;
    match bias {
        Some(bias) => elementwise::add(&rows, bias),
        None => Ok(rows),
    }
}

fn bands(
    config: &SpeechConfig,
    parameters: &Parameters<'_>,
    (bins, states): (usize, usize),
) -> Result<Stem> {
    let hidden = config.encoder.hidden_size;
    let convolution = |part: Part, inputs: usize, stride: usize| -> Result<Conv1d> {
        let weight = parameters.shaped(part, &[hidden, inputs, 3])?;
        Conv1d::new(&weight, parameters.bias(part)?.as_ref(), (stride, 1, 1))
    };
    let positions = if parameters.has(Part::PositionEmbedding) {
        parameters.shaped(Part::PositionEmbedding, &[states, hidden])?
    } else {
        match sinusoids((states, hidden), Frequencies::Closed, None, parameters)? {
            Embedding::Dense(table) => table,
            _ => return Err(parameters.missing(Part::PositionEmbedding)),
        }
    };
    Ok(Stem::Bands {
        first: convolution(Part::PatchEmbedding, bins, 1)?,
        second: convolution(Part::Convolution, hidden, 2)?,
        positions,
    })
}

fn samples(config: &SpeechConfig, parameters: &Parameters<'_>, stem: &SamplesStem) -> Result<Stem> {
    let hidden = config.encoder.hidden_size;
    let mut inputs = 1;
    let mut layers = Vec::with_capacity(stem.layers.len());
    for (number, shape) in stem.layers.iter().enumerate() {
        let place = |part: Part| Place::from(part).expert(number);
        let convolution = place(Part::StemConvolution);
        let weight = parameters.shaped(convolution, &[shape.outputs, inputs, shape.kernel])?;
        let bias = parameters.bias(convolution)?;
        let normalizes = stem.norm == StemNorm::Frames || number == 0;
        let settings = NormConfig::new(NormKind::Layer, EPSILON);
        layers.push(SamplesLayer {
            convolution: Conv1d::new(&weight, bias.as_ref(), (shape.stride, 0, 1))?,
            norm: if normalizes {
                let norm = parameters.norm(place(Part::StemNorm), &[shape.outputs], settings)?;
                Some((stem.norm, norm))
            } else {
                None
            },
        });
        inputs = shape.outputs;
    }
    let norm = config.encoder.norm;
    let (weight, kernel) = position_weight(parameters, hidden, stem.position_groups)?;
    let bias = parameters.bias(Part::PositionConvolution)?;
    let shape = (1, kernel / 2, stem.position_groups);
    Ok(Stem::Samples {
        layers,
        activation: stem.activation,
        feature_norm: parameters.optional_norm(Part::FeatureNorm, &[inputs], norm)?,
        projection: parameters.linear(Part::FeatureProjection, inputs, hidden)?,
        positions: Conv1d::new(&weight, bias.as_ref(), shape)?,
        surplus: usize::from(kernel.is_multiple_of(2)),
        norm: if stem.norm_first {
            Some(parameters.norm(Part::EmbeddingNorm, &[hidden], norm)?)
        } else {
            None
        },
    })
}

/// The weight [hidden, hidden / groups, kernel], which checkpoints keep as directions and their lengths for
/// each place of the kernel.
fn position_weight(
    parameters: &Parameters<'_>,
    hidden: usize,
    groups: usize,
) -> Result<(Tensor, usize)> {
    if groups == 0 || !hidden.is_multiple_of(groups) {
        return Err(Error::CorruptModel(format!(
            "{hidden} channels can't be divided into {groups} groups"
        )));
    }
    let direct = parameters.has(Part::PositionConvolution);
    let part = if direct {
        Part::PositionConvolution
    } else {
        Part::PositionDirection
    };
    let shape = parameters.shape(part)?;
    let kernel = shape.last().copied().unwrap_or(0);
    let directions = parameters.shaped(part, &[hidden, hidden / groups, kernel])?;
    if direct {
        return Ok((directions, kernel));
    }
    let lengths = parameters.shaped(Part::PositionGain, &[1, 1, kernel])?;
    // In f32: sums of 16 bits lose digits.
    let (directions, lengths) = (
        directions.to_dtype(DType::F32)?,
        lengths.to_dtype(DType::F32)?,
    );
    let squares = directions.sqr()?.sum_keepdim(0)?.sum_keepdim(1)?;
    let factors = (lengths / squares.sqrt()?)?;
    let weight = directions.broadcast_mul(&factors)?;
    Ok((weight.to_dtype(parameters.dtype())?, kernel))
}
