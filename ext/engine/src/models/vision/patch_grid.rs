//! How states of patches come together.

use candle_core::Tensor;

use crate::nn::FeatureMap;
use crate::{Error, Result};

/// Patches row by row as blocks row by row, with those of a block side by side, row by row.
pub fn blocks(states: &Tensor, (columns, rows): (usize, usize), edge: usize) -> Result<Tensor> {
    let fits = edge > 0 && columns.is_multiple_of(edge) && rows.is_multiple_of(edge);
    if !fits || states.dim(0)? != columns * rows {
        return Err(Error::InvalidInput(format!(
            "the image became {columns}x{rows} patches, which are not whole blocks of {edge}x{edge}: its \
             preprocessor_config.json belongs to another model"
        )));
    }
    let width = states.dim(1)?;
    let shape = [rows / edge, edge, columns / edge, edge, width];
    let sorted = states.reshape(&shape[..])?.permute([0, 2, 1, 3, 4])?;
    let count = rows / edge * (columns / edge);
    Ok(sorted.contiguous()?.reshape((count, edge * edge * width))?)
}

/// 1 where a row is largest, and 0 elsewhere.
pub fn likeliest(rows: &Tensor) -> Result<Tensor> {
    let (count, width) = rows.dims2()?;
    let best: Vec<u32> = rows.argmax(1)?.to_vec1()?;
    let mut values = vec![0f32; count * width];
    for (row, best) in values.chunks_exact_mut(width.max(1)).zip(best) {
        row[best as usize] = 1.0;
    }
    let chosen = Tensor::from_vec(values, (count, width), rows.device())?;
    Ok(chosen.to_dtype(rows.dtype())?)
}

/// A map of many more places than `most`, with about as many.
pub fn smaller(map: &FeatureMap, most: usize) -> Result<FeatureMap> {
    let (height, width) = map.size();
    let ratio = ((height * width) as f64 / most.max(1) as f64).sqrt();
    if ratio <= 1.1 {
        return Ok(map.clone());
    }
    let edge = |edge: usize| ((edge as f64 / ratio).floor() as usize).max(1);
    map.stretched((edge(height), edge(width)))
}

/// How many columns and rows of a grid, at each end, were added to bring a picture of some (width,
/// height) to its proportions.
pub fn margins((columns, rows): (usize, usize), (width, height): (usize, usize)) -> (usize, usize) {
    let (c, r, w, h) = (columns as f64, rows as f64, width as f64, height as f64);
    // As the reference rounds, so that a length does not lose its last part to the division before.
    let whole = |length: f64| ((length * 1e7).round_ties_even() / 1e7) as usize;
    if w / h > c / r {
        (0, rows.saturating_sub(whole(h * (c / w))) / 2)
    } else {
        (columns.saturating_sub(whole(w * (r / h))) / 2, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn blocks_are_read_row_by_row() {
        let states = Tensor::arange(0f32, 8.0, &Device::Cpu).unwrap();
        let states = states.reshape((8, 1)).unwrap();
        let found = blocks(&states, (4, 2), 2).unwrap();
        let found: Vec<Vec<f32>> = found.to_vec2().unwrap();
        assert_eq!(found, [[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]);
        assert!(blocks(&states, (8, 1), 2).is_err());
        assert!(blocks(&states, (4, 2), 0).is_err());
    }

    #[test]
    fn margins_are_what_was_added() {
        assert_eq!(margins((8, 8), (100, 50)), (0, 2));
        assert_eq!(margins((8, 8), (50, 100)), (2, 0));
        assert_eq!(margins((8, 4), (100, 50)), (0, 0));
        assert_eq!(margins((8, 4), (1, 1000)), (4, 0));
    }
}
