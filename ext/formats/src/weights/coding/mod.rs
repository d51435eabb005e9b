//! From numbers to blocks of the types that no kernel computes on, by the rules of llama.cpp's own quantizer.

mod books;
mod floats;
mod grid;
mod ternary;

use super::coded::Coded;
use crate::{Error, Result};
use base::quant::{each_block, BlockForm};

impl Coded {
    /// Whether blocks are only made with the importance of columns.
    pub fn needs_importance(self) -> bool {
        matches!(
            self,
            Self::Iq1S | Self::Iq1M | Self::Iq2Xxs | Self::Iq2Xs | Self::Iq2S
        )
    }

    /// Whole blocks of numbers, one after the other. `importance` has a number for each column of a row.
    pub fn quantize(self, values: &[f32], importance: Option<&[f32]>) -> Result<Vec<u8>> {
        let form = BlockForm {
            name: self.name(),
            elements: self.elements(),
            bytes: self.bytes(),
        };
        if self.needs_importance() && importance.is_none() {
            return Err(Error::InvalidInput(format!(
                "blocks of {} need an importance matrix",
                self.name()
            )));
        }
        each_block(form, values, importance, |_, values, columns, block| {
            self.encode(values, columns, block);
        })
    }

    fn encode(self, values: &[f32], columns: Option<&[f32]>, block: &mut [u8]) {
        match self {
            Self::Iq1S => ternary::iq1_s(values, columns, block),
            Self::Iq1M => ternary::iq1_m(values, columns, block),
            Self::Iq2Xxs => grid::iq2_xxs(values, columns, block),
            Self::Iq2Xs => grid::iq2_xs(values, columns, block),
            Self::Iq2S => grid::iq2_s(values, columns, block),
            Self::Iq3Xxs => grid::iq3_xxs(values, columns, block),
            Self::Iq3S => grid::iq3_s(values, columns, block),
            Self::Tq1_0 => ternary::tq1_0(values, block),
            Self::Tq2_0 => ternary::tq2_0(values, block),
            Self::Mxfp4 => floats::mxfp4(values, block),
            Self::Nvfp4 => floats::nvfp4(values, block),
        }
    }
}

/// Weights of the errors of numbers, the first of which is number `first` of its block. Without importance these are
/// the squares of the numbers.
fn weights(columns: Option<&[f32]>, values: &[f32], first: usize, spread: f32) -> Vec<f32> {
    match columns {
        Some(columns) => columns[first..]
            .iter()
            .zip(values)
            .map(|(importance, value)| importance * (spread + value * value).sqrt())
            .collect(),
        None => values.iter().map(|value| value * value).collect(),
    }
}

/// The code of an odd multiple of a block's unit, at most `most`.
fn odd_code(inverse: f32, scale: f32, most: i32) -> u32 {
    base::quant::nearest(0.5 * (inverse * scale - 1.0)).clamp(0, most) as u32
}
