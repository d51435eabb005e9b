//! Transposed convolutions whose kernels do not overlap: every place becomes a square of places.

use candle_core::Tensor;

use super::feature_map::FeatureMap;
use super::inventory::Inventory;
use super::linear::Linear;
use crate::{Error, Result};

#[derive(Clone, Debug)]
pub struct Spread {
    /// To the channels of all places of a square.
    linear: Linear,
    edge: usize,
}

impl Spread {
    /// `weight` is [inputs, outputs, edge, edge], as checkpoints store it.
    pub fn new(weight: &Tensor, bias: Option<&Tensor>) -> Result<Self> {
        let (inputs, outputs, edge, wide) = weight.dims4()?;
        if edge != wide || edge == 0 || bias.is_some_and(|bias| bias.dims() != [outputs]) {
            return Err(Error::CorruptModel(format!(
                "a transposed convolution of the shape {:?} is not one of squares",
                weight.dims()
            )));
        }
        let matrix = weight.permute((2, 3, 1, 0))?.contiguous()?;
        let matrix = matrix.reshape((edge * edge * outputs, inputs))?;
        let bias = match bias {
            Some(bias) => Some(Tensor::cat(&vec![bias; edge * edge], 0)?),
            None => None,
        };
        Ok(Self {
            linear: Linear::new(matrix, bias)?,
            edge,
        })
    }

    pub fn outputs(&self) -> usize {
        self.linear.outputs() / (self.edge * self.edge)
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.linear)
    }

    pub fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let (height, width, edge) = (map.height, map.width, self.edge);
        let rows = self.linear.forward(&map.rows.contiguous()?)?;
        let shape = (height, width, edge, edge * self.outputs());
        let rows = rows.reshape(shape)?.transpose(1, 2)?.contiguous()?;
        let rows = rows.reshape((height * edge * width * edge, self.outputs()))?;
        FeatureMap::new(rows, (height * edge, width * edge))
    }
}

#[cfg(test)]
mod tests {
    use super::super::joined::testing::{close, numbers};
    use super::*;

    #[test]
    fn squares_equal_the_transposed_convolution() {
        let (weight, bias) = (numbers(&[3, 5, 2, 2], 1), numbers(&[5], 2));
        let x = numbers(&[1, 3, 4, 3], 3);
        let rows = |x: &Tensor| {
            let rows = x.squeeze(0).unwrap().flatten_from(1).unwrap();
            rows.t().unwrap().contiguous().unwrap()
        };
        let spread = Spread::new(&weight, Some(&bias)).unwrap();
        let found = spread.forward(&FeatureMap::new(rows(&x), (4, 3)).unwrap());
        let found = found.unwrap();
        let wanted = x.conv_transpose2d(&weight, 0, 0, 2, 1).unwrap();
        assert_eq!(found.size(), (8, 6));
        close(&found.rows, &rows(&wanted).broadcast_add(&bias).unwrap());
    }
}
