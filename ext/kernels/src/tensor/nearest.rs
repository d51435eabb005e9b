//! The rows of a matrix that point most nearly where a vector does.

use std::borrow::Cow;
use std::cmp::Ordering;

use candle_core::{DType, Tensor};
use rayon::prelude::*;

use super::storage::read;
use crate::cpu::similarity;
use crate::{CancelToken, Error, Result};

/// Rows between two looks at the cancel token, and the share of one task.
const ROWS: usize = 1 << 10;

/// A row's number and its score.
pub type Found = (usize, f32);

/// Some rows, as bytes, and the number of the first.
pub struct Part<'a> {
    pub first: usize,
    pub rows: &'a [u8],
}

/// Rows of `row_bytes` each in parts that are worth a task.
pub fn parts(first: usize, rows: &[u8], row_bytes: usize) -> impl Iterator<Item = Part<'_>> {
    let chunks = rows.chunks(ROWS * row_bytes).enumerate();
    chunks.map(move |(index, rows)| Part {
        first: first + index * ROWS,
        rows,
    })
}

/// The `most` best of what `score` finds in each part, best first and the earlier row where they are equal.
pub fn best(
    parts: &[Part<'_>],
    most: usize,
    cancel: &CancelToken,
    score: impl Fn(&Part<'_>) -> Result<Vec<Found>> + Sync,
) -> Result<Vec<Found>> {
    let kept = parts.par_iter().map(|part| {
        cancel.check()?;
        let mut found = score(part)?;
        keep(&mut found, most);
        Ok(found)
    });
    let mut found = kept.collect::<Result<Vec<_>>>()?.concat();
    keep(&mut found, most);
    Ok(found)
}

/// The length of each row of an f32 matrix on the CPU.
pub fn lengths(rows: &Tensor, cancel: &CancelToken) -> Result<Vec<f32>> {
    let width = width_of(rows)?;
    read::<f32, _>(rows, cancel, |elements| {
        let parts = elements.par_chunks(ROWS * width).map(|part| {
            cancel.check()?;
            part.chunks_exact(width).map(length).collect()
        });
        let parts: Vec<Vec<f32>> = parts.collect::<Result<_>>()?;
        Ok(parts.concat())
    })
}

/// The `most` rows with the greatest cosine, best first and the earlier row where they are equal;
/// `lengths` are those of the rows. The cosine with a vector of zeros is 0.
pub fn nearest(
    rows: &Tensor,
    lengths: &[f32],
    vector: &[f32],
    most: usize,
    cancel: &CancelToken,
) -> Result<Vec<Found>> {
    let width = width_of(rows)?;
    if width != vector.len() || lengths.len() != rows.dims()[0] {
        return Err(Error::InvalidInput(format!(
            "vectors of {} and of {width} components can't be compared: make both with the same model and dimensions",
            vector.len()
        )));
    }
    let (vector, length) = moderate(vector)?;
    read::<f32, _>(rows, cancel, |elements| {
        let parts: Vec<Part<'_>> = parts(0, bytes_of(elements), width * 4).collect();
        best(&parts, most, cancel, |part| {
            let mut dots = vec![0.0; part.rows.len() / (width * 4)];
            similarity::dots(part.rows, bytes_of(&vector), &mut dots)?;
            let rows = part.rows.chunks_exact(width * 4);
            let scores = rows
                .zip(dots.iter().zip(&lengths[part.first..]))
                .enumerate();
            Ok(scores
                .map(|(at, (row, (&dot, &other)))| {
                    let score = f32_cosine(dot, (row, other), (bytes_of(&vector), length));
                    (part.first + at, score)
                })
                .collect())
        })
    })
}

/// Lengths whose squares and products f32 holds without loss, whatever the number of components.
const MODERATE: std::ops::RangeInclusive<f32> = 1.0 / (1u64 << 50) as f32..=(1u64 << 50) as f32;

pub fn is_moderate(length: f32) -> bool {
    MODERATE.contains(&length)
}

/// A vector to compare others with, and its length. One whose squares f32 can't hold is scaled by a power of two,
/// which changes no cosine.
pub fn moderate(vector: &[f32]) -> Result<(Cow<'_, [f32]>, f32)> {
    let plain = length(vector)?;
    let most = vector.iter().fold(0f32, |most, x| most.max(x.abs()));
    if is_moderate(plain) || most == 0.0 || !most.is_finite() {
        return Ok((vector.into(), plain));
    }
    let scale = (-f64::from(most).log2().floor()).exp2();
    let scaled: Vec<f32> = vector
        .iter()
        .map(|&number| (f64::from(number) * scale) as f32)
        .collect();
    let length = length(&scaled)?;
    Ok((scaled.into(), length))
}

/// The cosine of two f32 vectors, given as bytes with their lengths, the second being moderate. `dot` is their product
/// in f32, unless the row is too long or too short for that: then it is computed again in f64.
pub fn f32_cosine(dot: f32, row: (&[u8], f32), vector: (&[u8], f32)) -> f32 {
    if is_moderate(row.1) {
        return cosine(dot, row.1 * vector.1);
    }
    let number = |word: &[u8; 4]| f64::from(f32::from_le_bytes(*word));
    let (row, vector) = (row.0.as_chunks::<4>().0, vector.0.as_chunks::<4>().0);
    let (mut dot, mut rows, mut vectors) = (0.0, 0.0, 0.0);
    for (a, b) in row.iter().map(number).zip(vector.iter().map(number)) {
        dot += a * b;
        rows += a * a;
        vectors += b * b;
    }
    if rows == 0.0 || vectors == 0.0 {
        0.0
    } else {
        (dot / (rows.sqrt() * vectors.sqrt())).clamp(-1.0, 1.0) as f32
    }
}

/// The length of one vector, as far as f32 holds the squares.
pub fn length(vector: &[f32]) -> Result<f32> {
    let mut square = [0.0];
    similarity::dots(bytes_of(vector), bytes_of(vector), &mut square)?;
    Ok(square[0].sqrt())
}

pub fn bytes_of(numbers: &[f32]) -> &[u8] {
    // SAFETY: every byte of an f32 is a valid u8, and a slice's bytes follow one another.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

pub(super) fn width_of(rows: &Tensor) -> Result<usize> {
    match (rows.dims(), rows.dtype()) {
        (&[_, width], DType::F32) if width > 0 => Ok(width),
        _ => Err(Error::InvalidInput(format!(
            "vectors must be an f32 tensor of shape [n, dimension], not {} {:?}",
            rows.dtype().as_str(),
            rows.dims()
        ))),
    }
}

pub fn cosine(dot: f32, lengths: f32) -> f32 {
    if lengths == 0.0 {
        0.0
    } else {
        (dot / lengths).clamp(-1.0, 1.0)
    }
}

/// The best `most`, in order.
pub fn keep(found: &mut Vec<Found>, most: usize) {
    let best_first = |a: &Found, b: &Found| -> Ordering { b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)) };
    if most == 0 {
        found.clear();
    } else if found.len() > most {
        found.select_nth_unstable_by(most - 1, best_first);
        found.truncate(most);
    }
    found.sort_unstable_by(best_first);
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn the_best_rows_come_first() {
        let values: Vec<f32> = (0..3000 * 37)
            .map(|i| ((i * 7919) % 1013) as f32 - 500.0)
            .collect();
        let rows = Tensor::from_vec(values.clone(), (3000, 37), &Device::Cpu).unwrap();
        let vector = &values[37 * 1234..37 * 1235];
        let cancel = CancelToken::new();
        let lengths = lengths(&rows, &cancel).unwrap();
        let found = nearest(&rows, &lengths, vector, 5, &cancel).unwrap();
        let mut expected: Vec<(usize, f64)> = values
            .chunks(37)
            .map(|row| {
                let sum = |a: &[f32], b: &[f32]| -> f64 {
                    a.iter()
                        .zip(b)
                        .map(|(a, b)| f64::from(*a) * f64::from(*b))
                        .sum()
                };
                sum(row, vector) / (sum(row, row) * sum(vector, vector)).sqrt()
            })
            .enumerate()
            .collect();
        expected.sort_by(|a, b| b.1.total_cmp(&a.1));
        assert_eq!(found[0].0, expected[0].0);
        for ((_, score), (_, wanted)) in found.iter().zip(&expected) {
            assert!((f64::from(*score) - wanted).abs() < 1e-5);
        }
        assert_eq!(
            nearest(&rows, &lengths, vector, 9999, &cancel)
                .unwrap()
                .len(),
            3000
        );
        assert!(nearest(&rows, &lengths, &vector[1..], 5, &cancel).is_err());
    }

    /// Whether squares overflow f32 or vanish in it makes no difference.
    #[test]
    fn the_size_of_numbers_does_not_matter() {
        let plain: Vec<f32> = (0..6 * 37)
            .map(|i| ((i * 7919) % 1013) as f32 / 512.0 - 1.0)
            .collect();
        let cancel = CancelToken::new();
        let search = |values: &[f32], vector: &[f32]| {
            let rows = Tensor::from_vec(values.to_vec(), (6, 37), &Device::Cpu).unwrap();
            let lengths = lengths(&rows, &cancel).unwrap();
            nearest(&rows, &lengths, vector, 6, &cancel).unwrap()
        };
        let expected = search(&plain, &plain[..37]);
        for scale in [3e38, 1e19, 1e12, 1e-12, 1e-19, 1e-36] {
            let scaled: Vec<f32> = plain.iter().map(|number| number * scale).collect();
            for (rows, vector) in [(&scaled, &plain), (&plain, &scaled), (&scaled, &scaled)] {
                let found = search(rows, &vector[..37]);
                for (found, expected) in found.iter().zip(&expected) {
                    assert_eq!(found.0, expected.0, "{scale}");
                    assert!((found.1 - expected.1).abs() < 1e-6, "{scale} {found:?}");
                }
            }
        }
        let tiny = search(
            &[[0.0; 36].as_slice(), &[1e-45]].concat().repeat(6),
            &plain[..37],
        );
        let length = plain[..37].iter().map(|x| x * x).sum::<f32>().sqrt();
        assert!((tiny[0].1 - plain[36] / length).abs() < 1e-6);
    }

    #[test]
    fn a_vector_of_zeros_is_near_nothing() {
        let rows = Tensor::from_vec(vec![0.0f32, 0.0, 1.0, 0.0], (2, 2), &Device::Cpu).unwrap();
        let cancel = CancelToken::new();
        let lengths = lengths(&rows, &cancel).unwrap();
        let found = nearest(&rows, &lengths, &[2.0, 0.0], 2, &cancel).unwrap();
        assert_eq!(found, [(1, 1.0), (0, 0.0)]);
        let found = nearest(&rows, &lengths, &[0.0, 0.0], 2, &cancel).unwrap();
        assert_eq!(found, [(0, 0.0), (1, 0.0)]);
    }
}
