//! Attention within windows of as many tokens each, whose scores get biases of any kind. CPU; other devices and types
//! get `None`, and compute with tensors.

use candle_core::{DType, Tensor};

use super::bias::Biases;
use super::{AttentionKind, AttentionOptions, AttentionShape, Inputs};
use crate::{cpu, Error, Result};

/// Smaller windows are left to tensors.
const LEAST: usize = 4;

/// What is added to the scores of windows.
#[derive(Clone, Copy, Debug)]
pub struct WindowBias<'a> {
    /// Tokens of a window.
    pub area: usize,
    pub heads: usize,
    /// For each head, and each query and key of a window.
    pub of_heads: &'a Tensor,
    /// For each window, and each of its queries and keys.
    pub of_windows: Option<&'a Tensor>,
}

/// What queries find of the values of their own window: `q`, `k` and `v` are [windows · area, heads · width], and so is
/// the result. Scores are divided by the root of the width.
pub fn attention_in_windows(
    [q, k, v]: [&Tensor; 3],
    bias: &WindowBias<'_>,
) -> Result<Option<Tensor>> {
    let WindowBias { area, heads, .. } = *bias;
    let (tokens, all) = q.dims2()?;
    let fits = [k, v].iter().all(|x| x.dims() == q.dims());
    if !fits || area * heads == 0 || !all.is_multiple_of(heads) || !tokens.is_multiple_of(area) {
        return Err(Error::InvalidInput(format!(
            "attention: {:?}, {:?} and {:?} can't be divided into windows of {area} tokens and {heads} heads",
            q.dims(),
            k.dims(),
            v.dims()
        )));
    }
    let served = |x: &Tensor| x.device().is_cpu() && x.dtype() == DType::F32;
    if ![q, k, v].into_iter().all(served) || area < LEAST || tokens == 0 {
        return Ok(None);
    }
    let numbers = |x: &Tensor, wanted: usize| -> Result<Vec<f32>> {
        let numbers: Vec<f32> = x.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?;
        if numbers.len() == wanted {
            return Ok(numbers);
        }
        Err(Error::InvalidInput(format!(
            "attention: a bias of the shape {:?} does not fit {heads} heads and {} windows of {area} tokens",
            x.dims(),
            tokens / area
        )))
    };
    let of_windows = bias.of_windows.map(|x| numbers(x, tokens * area));
    let biases = Biases::Windows {
        area,
        of_heads: numbers(bias.of_heads, heads * area * area)?,
        of_windows: of_windows.transpose()?,
    };
    let shape = AttentionShape {
        tokens,
        heads,
        key_heads: heads,
        key_tokens: tokens,
        width: all / heads,
        value_width: all / heads,
    };
    let divided = |x: &Tensor| x.reshape((tokens, heads, all / heads));
    let boundaries: Vec<u32> = (0..=tokens / area)
        .map(|window| (window * area) as u32)
        .collect();
    let inputs = Inputs {
        q: &divided(q)?,
        k: &divided(k)?,
        v: &divided(v)?,
        places: None,
        query_boundaries: &boundaries,
        key_boundaries: &boundaries,
        current_boundaries: None,
        shape,
    };
    let scale = 1.0 / (shape.width as f32).sqrt();
    let options = AttentionOptions::new(AttentionKind::Bidirectional, scale);
    let found = cpu::attention::sequences::attend_with(&inputs, &options, &biases)?;
    Ok(Some(found.reshape((tokens, all))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use candle_core::Device;

    fn random(shape: &[usize], seed: u32) -> Tensor {
        let count = shape.iter().product();
        let values: Vec<f32> = cpu::test_numbers::numbers(count, seed);
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    #[test]
    fn windows_find_what_the_definition_says() {
        for (windows, area, heads, width) in [(3, 49, 3, 32), (2, 16, 1, 24), (1, 4, 2, 5)] {
            let shape = [windows * area, heads * width];
            let [q, k, v] = [1, 2, 3].map(|seed| random(&shape, seed));
            let of_heads = random(&[1, heads, area, area], 4);
            let mask = random(&[windows, 1, area, area], 5);
            for of_windows in [None, Some(&mask)] {
                let divided = |x: &Tensor| {
                    let x = x.reshape((windows, area, heads, width)).unwrap();
                    x.transpose(1, 2).unwrap().contiguous().unwrap()
                };
                let product = |a: &Tensor, b: &Tensor| a.matmul(&b.contiguous().unwrap()).unwrap();
                let scores = product(&divided(&q), &divided(&k).transpose(2, 3).unwrap());
                let scores = (scores / f64::from(width as u32).sqrt()).unwrap();
                let mut scores = scores.broadcast_add(&of_heads).unwrap();
                if let Some(mask) = of_windows {
                    scores = scores.broadcast_add(mask).unwrap();
                }
                let shares = crate::softmax(&scores.contiguous().unwrap()).unwrap();
                let wanted = product(&shares, &divided(&v)).transpose(1, 2).unwrap();
                let wanted: Vec<f32> = wanted.flatten_all().unwrap().to_vec1().unwrap();
                let bias = WindowBias {
                    area,
                    heads,
                    of_heads: &of_heads,
                    of_windows,
                };
                for isa in Isa::of_numbers() {
                    isa.force(|| {
                        let found = attention_in_windows([&q, &k, &v], &bias).unwrap().unwrap();
                        let found: Vec<f32> = found.flatten_all().unwrap().to_vec1().unwrap();
                        let far = found.iter().zip(&wanted).map(|(a, b)| (a - b).abs());
                        assert!(far.fold(0.0, f32::max) < 1e-4);
                    });
                }
            }
        }
    }

    #[test]
    fn biases_of_other_sizes_are_invalid() {
        let x = random(&[8, 6], 1);
        let of_heads = random(&[1, 2, 4, 4], 2);
        let bias = |area, heads| WindowBias {
            area,
            heads,
            of_heads: &of_heads,
            of_windows: None,
        };
        assert!(attention_in_windows([&x, &x, &x], &bias(4, 2)).is_ok());
        for (area, heads) in [(3, 2), (4, 4), (8, 2), (0, 2), (4, 0)] {
            assert!(attention_in_windows([&x, &x, &x], &bias(area, heads)).is_err());
        }
    }
}
