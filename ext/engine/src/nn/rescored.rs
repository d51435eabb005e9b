//! An output layer in bytes whose largest outputs are computed again with the exact weight.

use candle_core::{DType, Tensor};

use super::inventory::Inventory;
use super::linear::Linear;
use crate::Result;

/// Outputs of a part. Rules that forbid whole ranges of tokens, such as those for times, leave parts.
const PART: usize = 8192;
/// Outputs of a part that are exact.
const EXACT: usize = 32;
/// Numbers that are compared side by side.
const LANES: usize = 16;

/// Of each `PART` outputs the `EXACT` that are the largest in bytes are exact; the others are those of bytes.
#[derive(Clone, Debug)]
pub struct RescoredLinear {
    bytes: Linear,
    /// [outputs, inputs], which mostly another part of the model holds too.
    weight: Tensor,
}

impl RescoredLinear {
    /// A layer without a bias, on the CPU.
    pub fn new(weight: &Tensor) -> Result<Self> {
        let weight = weight.contiguous()?;
        Ok(Self {
            bytes: Linear::bytes(weight.clone(), None)?,
            weight,
        })
    }

    pub fn outputs(&self) -> usize {
        self.bytes.outputs()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.bytes)?;
        inventory.add_tensor(&self.weight);
        Ok(())
    }

    /// f32 [rows, outputs] of `x`, [rows, inputs].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let outputs = self.bytes.forward(x)?.to_dtype(DType::F32)?;
        let (rows, width) = outputs.dims2()?;
        let mut values: Vec<f32> = outputs.flatten_all()?.to_vec1()?;
        let x = x.to_dtype(DType::F32)?;
        for (number, row) in values.chunks_exact_mut(width.max(1)).enumerate() {
            let places = places_of_largest(row);
            let chosen = Tensor::new(places.as_slice(), self.weight.device())?;
            let weight = self.weight.index_select(&chosen, 0)?.to_dtype(DType::F32)?;
            let exact = Linear::shared(weight, None)?.forward(&x.narrow(0, number, 1)?)?;
            let exact: Vec<f32> = exact.flatten_all()?.to_vec1()?;
            for (place, value) in places.into_iter().zip(exact) {
                row[place as usize] = value;
            }
        }
        Ok(Tensor::from_vec(values, (rows, width), x.device())?)
    }
}

/// Where the `EXACT` largest numbers of each part are.
fn places_of_largest(row: &[f32]) -> Vec<u32> {
    let mut places = Vec::with_capacity(row.len().div_ceil(PART) * EXACT);
    for (number, part) in row.chunks(PART).enumerate() {
        let first = (number * PART) as u32;
        let found = largest_of_part(part).into_iter();
        places.extend(found.map(|(place, _)| first + place));
    }
    places
}

fn largest_of_part(part: &[f32]) -> Vec<(u32, f32)> {
    let mut found: Vec<(u32, f32)> = Vec::with_capacity(2 * EXACT + LANES);
    let mut least = f32::NEG_INFINITY;
    for (number, numbers) in part.chunks(LANES).enumerate() {
        // Without a branch, since most numbers are small.
        if !numbers
            .iter()
            .fold(false, |any, &value| any | (value > least))
        {
            continue;
        }
        let places = (number * LANES) as u32..;
        let larger = places.zip(numbers.iter().copied());
        found.extend(larger.filter(|&(_, value)| value > least));
        if found.len() >= 2 * EXACT {
            keep_largest(&mut found);
            least = found[EXACT - 1].1;
        }
    }
    keep_largest(&mut found);
    found
}

fn keep_largest(found: &mut Vec<(u32, f32)>) {
    if found.len() > EXACT {
        found.select_nth_unstable_by(EXACT - 1, |a, b| b.1.total_cmp(&a.1));
        found.truncate(EXACT);
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// Numbers without a pattern, within ±0.5.
    fn numbers(shape: &[usize], seed: u32) -> Tensor {
        let mut state = seed;
        let next = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        });
        let values: Vec<f32> = next.take(shape.iter().product()).collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    fn rows(tensor: &Tensor) -> Vec<Vec<f32>> {
        tensor.to_vec2().unwrap()
    }

    /// From the largest to the least.
    fn order(row: &[f32]) -> Vec<usize> {
        let mut places: Vec<usize> = (0..row.len()).collect();
        places.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        places
    }

    #[test]
    fn the_largest_of_each_part_are_exact() {
        let outputs = if cfg!(miri) { 40 } else { 2 * PART + 700 };
        let (weight, x) = (numbers(&[outputs, 64], 1), numbers(&[3, 64], 2));
        let exact = rows(
            &Linear::shared(weight.clone(), None)
                .unwrap()
                .forward(&x)
                .unwrap(),
        );
        let layer = RescoredLinear::new(&weight).unwrap();
        let bytes = rows(&layer.bytes.forward(&x).unwrap());
        let found = rows(&layer.forward(&x).unwrap());
        for ((found, exact), bytes) in found.iter().zip(&exact).zip(&bytes) {
            for (part, first) in exact.chunks(PART).zip((0..).step_by(PART)) {
                let best = order(part);
                // Bytes move the last of the exact ones across the edge.
                for at in best.into_iter().take(EXACT / 2).map(|at| first + at) {
                    assert_eq!(found[at].to_bits(), exact[at].to_bits(), "output {at}");
                }
            }
            let places = places_of_largest(bytes);
            let is_exact = |at: usize| places.contains(&(at as u32));
            for at in 0..outputs {
                let wanted = if is_exact(at) { exact[at] } else { bytes[at] };
                assert_eq!(found[at].to_bits(), wanted.to_bits(), "output {at}");
            }
        }
        let moved = bytes.iter().flatten().zip(exact.iter().flatten());
        assert!(moved.into_iter().any(|(a, b)| (a - b).abs() > 1e-3));
    }

    /// Rows of a weight that bytes do not tell apart.
    #[test]
    fn neighbours_are_in_the_order_of_the_exact_weight() {
        let base: Vec<f32> = numbers(&[1, 64], 3)
            .flatten_all()
            .unwrap()
            .to_vec1()
            .unwrap();
        let count = 20;
        let row = |number: usize| {
            let factor = 1.0 + 1e-5 * (number * 7 % count) as f32;
            base.iter().map(move |value| value * factor)
        };
        let weight: Vec<f32> = (0..count).flat_map(row).collect();
        let weight = Tensor::from_vec(weight, (count, 64), &Device::Cpu).unwrap();
        let x = Tensor::from_vec(base.clone(), (1, 64), &Device::Cpu).unwrap();
        let layer = RescoredLinear::new(&weight).unwrap();
        let found = &rows(&layer.forward(&x).unwrap())[0];
        let mut wanted: Vec<usize> = (0..count).collect();
        wanted.sort_by_key(|number| std::cmp::Reverse(number * 7 % count));
        assert_eq!(order(found), wanted);
    }

    #[test]
    fn the_weight_may_be_a_view() {
        let (weight, x) = (numbers(&[40, 64], 1), numbers(&[2, 64], 2));
        let view = weight.t().unwrap().contiguous().unwrap().t().unwrap();
        assert!(!view.is_contiguous());
        let of = |weight: &Tensor| rows(&RescoredLinear::new(weight).unwrap().forward(&x).unwrap());
        assert_eq!(of(&view), of(&weight));
    }

    #[test]
    fn what_is_not_a_number_stays() {
        let mut part = vec![f32::NAN; 100];
        (part[3], part[70]) = (f32::INFINITY, -1.0);
        let found = largest_of_part(&part);
        assert_eq!(found, [(3, f32::INFINITY), (70, -1.0)]);
        assert!(places_of_largest(&[]).is_empty());
    }
}
