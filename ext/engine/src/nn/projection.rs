//! Matrices that read one input, whether a checkpoint stores them apart or as one: queries, keys and
//! values, or gate and up.

use candle_core::Tensor;

use super::linear::Linear;
use super::low_rank::{apart, RowUpdates};
use crate::{Error, Result};
use kernels::{self, Activation};

/// One or several parts, of which a caller says what is to be computed; how is decided here, by how
/// they are stored and by what the device has a kernel for.
#[derive(Clone, Debug)]
pub struct Projection {
    /// One for each part, or a single one that holds the rows of all.
    matrices: Vec<Linear>,
    /// The outputs of each part.
    widths: Vec<usize>,
}

/// Additions to the outputs of a projection's matrices, in their order; none where it is empty.
pub type ProjectionUpdates<'a> = [RowUpdates<'a>];

impl Projection {
    /// Parts that have a matrix each.
    pub fn split(matrices: Vec<Linear>) -> Result<Self> {
        let inputs = matrices.first().map(Linear::inputs);
        if let Some(other) = matrices.iter().find(|one| Some(one.inputs()) != inputs) {
            return Err(Error::CorruptModel(format!(
                "matrices of {} and {} inputs cannot read the same input",
                inputs.unwrap_or(0),
                other.inputs()
            )));
        }
        Ok(Self {
            widths: matrices.iter().map(Linear::outputs).collect(),
            matrices,
        })
    }

    /// Parts of these widths in one matrix, the first part's rows first.
    pub fn fused(matrix: Linear, widths: &[usize]) -> Result<Self> {
        if widths.iter().sum::<usize>() != matrix.outputs() {
            return Err(Error::CorruptModel(format!(
                "a matrix of {} outputs does not hold parts of {widths:?}",
                matrix.outputs()
            )));
        }
        Ok(Self {
            matrices: vec![matrix],
            widths: widths.to_vec(),
        })
    }

    /// Gate and up in one matrix, gate first.
    pub fn fused_halves(matrix: Linear) -> Result<Self> {
        let half = matrix.outputs() / 2;
        Self::fused(matrix, &[half, half])
    }

    pub fn inputs(&self) -> usize {
        self.matrices.first().map_or(0, Linear::inputs)
    }

    /// The outputs of each part.
    pub fn widths(&self) -> &[usize] {
        &self.widths
    }

    /// One for each part, or a single one for all of them.
    pub fn matrices(&self) -> &[Linear] {
        &self.matrices
    }

    /// The parts of `x`, [tokens, in], cut into heads of `size`: [tokens, heads, size] each.
    pub fn heads(
        &self,
        x: &Tensor,
        size: usize,
        updates: &ProjectionUpdates<'_>,
    ) -> Result<Vec<Tensor>> {
        // One launch for all matrices makes other last bits than one for each.
        if !x.device().is_cpu() && self.matrices.len() > 1 {
            let cut = |x: &Tensor, updates: &ProjectionUpdates<'_>| self.heads(x, size, updates);
            if let Some(parts) = apart(x, updates, cut)? {
                return Ok(parts);
            }
        }
        let tokens = x.dim(0)?;
        let heads = self.widths.iter().map(|width| width / size.max(1));
        let Some(all) = self.side_by_side(x, updates)? else {
            let parts = self.each(x, updates)?.into_iter().zip(heads);
            return parts
                .map(|(part, heads)| Ok(part.reshape((tokens, heads, size))?))
                .collect();
        };
        // Heads are cut out of all of them: a view, where cutting the rows first would need copies.
        let all = all.reshape((tokens, heads.clone().sum::<usize>(), size))?;
        let mut start = 0;
        heads
            .map(|heads| {
                start += heads;
                Ok(all.narrow(1, start - heads, heads)?)
            })
            .collect()
    }

    /// activation(part) of a single part, activation(gate) · up of two.
    pub fn activated(
        &self,
        x: &Tensor,
        activation: Activation,
        updates: &ProjectionUpdates<'_>,
    ) -> Result<Tensor> {
        if let ([matrix], 1) = (&self.matrices[..], self.widths.len()) {
            return matrix.forward_activated(x, activation, update_of(updates, 0));
        }
        // The CPU has no kernel of its own for products without additions.
        if !x.device().is_cpu() {
            if updates.iter().all(RowUpdates::is_empty) {
                if let Some(out) = Linear::forward_gated(&self.matrices, x, activation)? {
                    return Ok(out);
                }
            }
            let one = |x: &Tensor, updates: &ProjectionUpdates<'_>| {
                Ok(vec![self.activated(x, activation, updates)?])
            };
            if let Some(part) = apart(x, updates, one)?.and_then(|mut parts| parts.pop()) {
                return Ok(part);
            }
        }
        match (&self.each(x, updates)?[..], self.widths.len()) {
            ([both], 2) => kernels::gated_fused(both, activation),
            ([gate, up], 2) => kernels::gated(gate, up, activation),
            (_, parts) => Err(Error::Internal(format!("an activation of {parts} parts"))),
        }
    }

    /// The parts of `x`, [tokens, in], each by itself.
    pub fn parts(&self, x: &Tensor, updates: &ProjectionUpdates<'_>) -> Result<Vec<Tensor>> {
        let outputs = self.each(x, updates)?;
        let ([fused], true) = (&outputs[..], self.widths.len() > 1) else {
            return Ok(outputs);
        };
        let mut start = 0;
        let widths = self.widths.iter();
        widths
            .map(|&width| {
                start += width;
                Ok(fused.narrow(1, start - width, width)?.contiguous()?)
            })
            .collect()
    }

    /// All parts in one tensor, where one product makes them.
    fn side_by_side(&self, x: &Tensor, updates: &ProjectionUpdates<'_>) -> Result<Option<Tensor>> {
        match &self.matrices[..] {
            [one] => one.forward_updated(x, update_of(updates, 0)).map(Some),
            several if updates.iter().all(RowUpdates::is_empty) => {
                Linear::forward_joined(several, x)
            }
            _ => Ok(None),
        }
    }

    /// The output of each matrix.
    fn each(&self, x: &Tensor, updates: &ProjectionUpdates<'_>) -> Result<Vec<Tensor>> {
        let outputs = Linear::forward_each(&self.matrices, x)?;
        let outputs = outputs.into_iter().enumerate();
        outputs
            .map(|(at, output)| update_of(updates, at).add(x, output))
            .collect()
    }
}

fn update_of<'a, 'b>(updates: &'b ProjectionUpdates<'a>, matrix: usize) -> &'b RowUpdates<'a> {
    const NONE: &RowUpdates<'static> = &RowUpdates::NONE;
    updates.get(matrix).unwrap_or(NONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{LowRank, RowUpdate};
    use candle_core::Device;

    fn linear(outputs: usize, inputs: usize, seed: usize) -> Linear {
        let values: Vec<f32> = (0..outputs * inputs)
            .map(|i| ((i * 37 + seed * 101) % 29) as f32 / 29.0 - 0.4)
            .collect();
        Linear::new(
            Tensor::from_vec(values, (outputs, inputs), &Device::Cpu).unwrap(),
            None,
        )
        .unwrap()
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn weight(linears: &[Linear]) -> Linear {
        // The weight of a layer is what it makes of the unit matrix.
        let unit = Tensor::eye(linears[0].inputs(), candle_core::DType::F32, &Device::Cpu).unwrap();
        let rows: Vec<_> = linears
            .iter()
            .map(|linear| linear.forward(&unit).unwrap().t().unwrap())
            .collect();
        Linear::new(Tensor::cat(&rows, 0).unwrap().contiguous().unwrap(), None).unwrap()
    }

    #[test]
    fn split_and_fused_parts_give_the_same_with_and_without_updates() {
        let parts = vec![linear(12, 5, 1), linear(6, 5, 2), linear(6, 5, 3)];
        let widths: Vec<_> = parts.iter().map(Linear::outputs).collect();
        let fused = Projection::fused(weight(&parts), &widths).unwrap();
        let x = linear(4, 5, 4)
            .forward(&Tensor::eye(5, candle_core::DType::F32, &Device::Cpu).unwrap());
        let x = x.unwrap().t().unwrap().contiguous().unwrap();
        let update = |outputs| {
            RowUpdate::Add(Box::new(LowRank {
                down: linear(2, 5, 5),
                up: linear(outputs, 2, 6),
            }))
        };
        let split = Projection::split(parts).unwrap();
        let zero = RowUpdate::Add(Box::new(LowRank {
            down: linear(2, 5, 5),
            up: Linear::new(
                Tensor::zeros((24, 2), candle_core::DType::F32, &Device::Cpu).unwrap(),
                None,
            )
            .unwrap(),
        }));
        let close = |a: &[Tensor], b: &[Tensor]| {
            a.iter().zip(b).all(|(a, b)| {
                a.dims() == b.dims()
                    && values(a)
                        .iter()
                        .zip(values(b))
                        .all(|(a, b)| (a - b).abs() < 1e-5)
            })
        };
        let plain = split.heads(&x, 3, &[]).unwrap();
        assert_eq!(
            plain.iter().map(|t| t.dims().to_vec()).collect::<Vec<_>>(),
            [[4, 4, 3], [4, 2, 3], [4, 2, 3]]
        );
        assert!(close(&plain, &fused.heads(&x, 3, &[]).unwrap()));
        let zero = [RowUpdates::from_iter([(0..4, &zero)])];
        assert!(close(&plain, &fused.heads(&x, 3, &zero).unwrap()));
        let update = update(6);
        let none = RowUpdates::default();
        let updates = [none.clone(), RowUpdates::from_iter([(0..4, &update)]), none];
        let updated = split.heads(&x, 3, &updates).unwrap();
        assert!(close(&plain[..1], &updated[..1]));
        assert!(!close(&plain[1..2], &updated[1..2]));
    }

    #[test]
    fn gate_and_up_are_the_same_split_and_fused() {
        let parts = vec![linear(8, 5, 1), linear(8, 5, 2)];
        let fused = Projection::fused_halves(weight(&parts)).unwrap();
        let split = Projection::split(parts).unwrap();
        let x = Tensor::eye(5, candle_core::DType::F32, &Device::Cpu).unwrap();
        let [a, b] = [&split, &fused]
            .map(|both| values(&both.activated(&x, Activation::Silu, &[]).unwrap()));
        assert_eq!(a.len(), 40);
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5));
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        assert!(Projection::split(vec![linear(4, 5, 1), linear(4, 6, 1)]).is_err());
        assert!(Projection::fused(linear(9, 5, 1), &[4, 4]).is_err());
        assert!(Projection::fused_halves(linear(9, 5, 1)).is_err());
    }
}
