//! What convolutions over time and over maps share.

use candle_core::Tensor;

use crate::Result;
use kernels::cpu::maps;

/// Tensors one after the other, without gaps in memory.
pub fn joined(mut parts: Vec<Tensor>, dimension: usize) -> Result<Tensor> {
    if parts.len() == 1 {
        return Ok(parts.remove(0).contiguous()?);
    }
    let all: Vec<&Tensor> = parts.iter().collect();
    let found = match (dimension, all.iter().all(|part| part.rank() == 2)) {
        (0, true) => maps::stacked(&all)?,
        (1, true) => maps::side_by_side(&all)?,
        _ => None,
    };
    match found {
        Some(found) => Ok(found),
        None => Ok(Tensor::cat(&all, dimension)?.contiguous()?),
    }
}

#[cfg(test)]
pub mod testing {
    use candle_core::{Device, Tensor};

    /// Numbers of no pattern, the same for the same seed.
    pub fn numbers(shape: &[usize], seed: usize) -> Tensor {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count)
            .map(|at| ((at * 37 + seed * 11) % 23) as f32 / 23.0 - 0.5)
            .collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    pub fn close(a: &Tensor, b: &Tensor) {
        assert_eq!(a.dims(), b.dims());
        let [a, b] = [a, b].map(|x| x.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        for (a, b) in a.iter().zip(&b) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }
}
