//! Norms over all places of a map and the channels of a group.

use candle_core::{DType, Tensor};

use super::elementwise;
use super::feature_map::FeatureMap;
use super::inventory::Inventory;
use crate::{Error, Result};

#[derive(Clone, Debug)]
pub struct GroupNorm {
    weight: Vec<f32>,
    bias: Tensor,
    groups: usize,
    epsilon: f32,
}

impl GroupNorm {
    /// Weight and bias are [channels].
    pub fn new(weight: &Tensor, bias: &Tensor, groups: usize, epsilon: f32) -> Result<Self> {
        let channels = weight.elem_count();
        if groups == 0 || !channels.is_multiple_of(groups) || bias.dims() != weight.dims() {
            return Err(Error::CorruptModel(format!(
                "a norm of {channels} channels can't have {groups} groups"
            )));
        }
        Ok(Self {
            weight: weight.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?,
            bias: bias.to_dtype(DType::F32)?,
            groups,
            epsilon,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) {
        inventory.add_tensor(&self.bias);
    }

    pub fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let dtype = map.rows.dtype();
        let wide = map.with(map.rows.to_dtype(DType::F32)?)?;
        let means = self.by_group(&wide.mean()?)?;
        let means = Tensor::from_vec(means, self.weight.len(), wide.rows.device())?;
        let centred = elementwise::subtract(&wide.rows, &means)?;
        let squares = wide.with(elementwise::multiply(&centred, &centred)?)?;
        let mut factors = self.by_group(&squares.mean()?)?;
        for (factor, weight) in factors.iter_mut().zip(&self.weight) {
            *factor = weight / (*factor + self.epsilon).sqrt();
        }
        let factors = Tensor::from_vec(factors, self.weight.len(), wide.rows.device())?;
        let scaled = elementwise::multiply(&centred, &factors)?;
        map.with(elementwise::add(&scaled, &self.bias)?.to_dtype(dtype)?)
    }

    /// For each channel the mean of its group.
    fn by_group(&self, of_channels: &Tensor) -> Result<Vec<f32>> {
        let mut values: Vec<f32> = of_channels.to_vec1()?;
        let each = self.weight.len() / self.groups;
        for group in values.chunks_mut(each.max(1)) {
            let mean = group.iter().sum::<f32>() / group.len() as f32;
            group.fill(mean);
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::super::joined::testing::{close, numbers};
    use super::*;

    #[test]
    fn groups_have_a_mean_of_0_and_a_deviation_of_1() {
        let x = (numbers(&[12, 6], 1) * 3.0).unwrap();
        let (weight, bias) = (numbers(&[6], 2), numbers(&[6], 3));
        let norm = GroupNorm::new(&weight, &bias, 3, 1e-5).unwrap();
        let found = norm.forward(&FeatureMap::new(x.clone(), (3, 4)).unwrap());
        let found = found.unwrap();
        for group in 0..3 {
            let own = x.narrow(1, 2 * group, 2).unwrap();
            let mean = own.mean_all().unwrap().to_scalar::<f32>().unwrap();
            let centred = &own - f64::from(mean);
            let centred = centred.unwrap();
            let square = centred.sqr().unwrap().mean_all().unwrap();
            let deviation = (f64::from(square.to_scalar::<f32>().unwrap()) + 1e-5).sqrt();
            let part = |x: &Tensor| x.narrow(0, 2 * group, 2).unwrap();
            let wanted = (centred / deviation).unwrap();
            let wanted = wanted.broadcast_mul(&part(&weight)).unwrap();
            let wanted = wanted.broadcast_add(&part(&bias)).unwrap();
            close(
                &found
                    .rows
                    .narrow(1, 2 * group, 2)
                    .unwrap()
                    .contiguous()
                    .unwrap(),
                &wanted,
            );
        }
        assert!(GroupNorm::new(&weight, &bias, 4, 1e-5).is_err());
    }
}
