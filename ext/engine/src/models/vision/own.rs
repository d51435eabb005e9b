//! Image encoders of other shapes than a tower and a connector, which they stand for.

use candle_core::{DType, Device, Tensor};

use super::clipped::Clipped;
use super::connector::Rows;
use super::convolved::Convolved;
use super::fused::Fused;
use super::merged::Merged;
use super::windowed::Windowed;
use crate::models::modules::Modules;
use crate::nn::Inventory;
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::RawConfig;
use formats::image::View;
use formats::weights::WeightSource;

/// Which of them, by the configuration of its tower.
#[derive(Clone, Debug)]
pub enum OwnConfig {
    /// SAM's (GOT-OCR).
    Windowed(RawConfig),
    /// Gemma 4's.
    Clipped(RawConfig),
    /// FastVLM's, by the configuration of the whole model.
    Convolved(RawConfig),
    /// Gemma 3n's, by the configuration of the whole model.
    Fused(RawConfig),
    /// MiniCPM-V 4.6's, by the configuration of the whole model.
    Merged(RawConfig),
}

#[derive(Debug)]
pub enum Own {
    Windowed(Box<Windowed>),
    Clipped(Box<Clipped>),
    Convolved(Box<Convolved>),
    Fused(Box<Fused>),
    Merged(Box<Merged>),
}

impl Own {
    /// Rows have `outputs` numbers.
    pub fn load(
        config: &OwnConfig,
        source: &dyn WeightSource,
        place: (&Device, DType),
        (outputs, int8): (usize, bool),
        cancel: &CancelToken,
    ) -> Result<Self> {
        let mut names = source.names();
        names.sort();
        let modules = Modules::new(source, &names, place, int8);
        Ok(match config {
            OwnConfig::Windowed(raw) => {
                Self::Windowed(Box::new(Windowed::load(raw, &modules, outputs, cancel)?))
            }
            OwnConfig::Convolved(raw) => {
                Self::Convolved(Box::new(Convolved::load(raw, &modules, outputs, cancel)?))
            }
            OwnConfig::Fused(raw) => {
                Self::Fused(Box::new(Fused::load(raw, &modules, outputs, cancel)?))
            }
            OwnConfig::Merged(raw) => {
                Self::Merged(Box::new(Merged::load(raw, &modules, outputs, cancel)?))
            }
            OwnConfig::Clipped(raw) => {
                Self::Clipped(Box::new(Clipped::load(raw, &modules, outputs, cancel)?))
            }
        })
    }

    pub fn inventory(&self) -> Result<Inventory> {
        match self {
            Self::Windowed(encoder) => encoder.inventory(),
            Self::Clipped(encoder) => encoder.inventory(),
            Self::Convolved(encoder) => encoder.inventory(),
            Self::Fused(encoder) => encoder.inventory(),
            Self::Merged(encoder) => encoder.inventory(),
        }
    }

    /// What stands for each marker: one for all views of a picture, or one for each.
    pub fn forward(&self, views: &[View], cancel: &CancelToken) -> Result<Vec<Rows>> {
        let mut rows = Vec::with_capacity(views.len());
        for view in views {
            cancel.check()?;
            rows.push(match self {
                Self::Windowed(encoder) => encoder.forward(view, cancel)?,
                Self::Clipped(encoder) => encoder.forward(view, cancel)?,
                Self::Convolved(encoder) => encoder.forward(view, cancel)?,
                Self::Fused(encoder) => encoder.forward(view, cancel)?,
                Self::Merged(encoder) => encoder.forward(view, cancel)?,
            });
        }
        if rows.is_empty() {
            return Err(Error::Internal("an image without views".into()));
        }
        if let Self::Merged(_) = self {
            return Ok(rows.into_iter().map(Rows::plain).collect());
        }
        Ok(vec![Rows::plain(Tensor::cat(&rows, 0)?)])
    }
}
