//! Squares of a spectrogram behind two tokens of the model's own (audio spectrogram transformer).

use candle_core::Tensor;

use super::config::PatchStem;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{elementwise, Inventory, Linear};
use crate::{Error, Result};

/// Before the patches: one for classes, one for what a teacher says.
pub const TOKENS: usize = 2;

#[derive(Debug)]
pub struct Patches {
    shape: PatchStem,
    projection: Linear,
    /// [tokens, hidden]
    tokens: Tensor,
    /// [tokens + patches, hidden]
    positions: Tensor,
    /// Where the numbers of every patch stand in a spectrogram, patch by patch.
    places: Tensor,
}

impl Patches {
    pub fn load(shape: PatchStem, hidden: usize, parameters: &Parameters<'_>) -> Result<Self> {
        let size = shape.size;
        let weight = parameters.shaped(Part::PatchEmbedding, &[hidden, 1, size, size])?;
        let weight = weight.reshape((hidden, size * size))?;
        let bias = parameters.bias(Part::PatchEmbedding)?;
        let token = |part: Part| -> Result<Tensor> {
            Ok(parameters
                .shaped(part, &[1, 1, hidden])?
                .reshape((1, hidden))?)
        };
        let tokens = [token(Part::ClassToken)?, token(Part::RegisterTokens)?];
        let (high, wide) = shape.grid();
        let count = TOKENS + high * wide;
        let positions = parameters.shaped(Part::PositionEmbedding, &[1, count, hidden])?;
        let mut places = Vec::with_capacity(high * wide * size * size);
        for row in 0..high {
            for column in 0..wide {
                for band in 0..size {
                    let band = row * shape.band_stride + band;
                    let first = column * shape.frame_stride;
                    places.extend((first..first + size).map(|at| (at * shape.bins + band) as u32));
                }
            }
        }
        let length = places.len();
        Ok(Self {
            projection: Linear::new(weight, bias)?,
            tokens: Tensor::cat(&tokens, 0)?,
            positions: positions.reshape((count, hidden))?,
            places: Tensor::from_vec(places, length, parameters.device())?,
            shape,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_tensor(&self.tokens);
        inventory.add_tensor(&self.positions);
        inventory.add_linear(&self.projection)
    }

    pub fn states(&self, frames: usize) -> usize {
        let (high, wide) = self.shape.grid();
        match frames {
            0 => 0,
            _ => TOKENS + high * wide,
        }
    }

    /// [states, hidden] of [frames, bins].
    pub fn forward(&self, features: &Tensor) -> Result<Tensor> {
        if features.dims() != [self.shape.frames, self.shape.bins] {
            return Err(Error::Internal(format!(
                "features of {:?} where the model reads {} frames of {} bands",
                features.dims(),
                self.shape.frames,
                self.shape.bins
            )));
        }
        let squares = features.flatten_all()?.index_select(&self.places, 0)?;
        let size = self.shape.size;
        let squares = squares.reshape(((), size * size))?;
        let patches = self.projection.forward(&squares)?;
        let states = Tensor::cat(&[&self.tokens, &patches], 0)?;
        elementwise::add(&states, &self.positions)
    }
}
