//! How maps are divided into windows.

use candle_core::{Device, Tensor};

use crate::Result;

/// What is added to the scores of places that only the moved windows bring together.
const APART: f32 = -100.0;

/// A map of (height, width) in windows, row by row.
pub struct Windows {
    pub count: usize,
    /// Places of one window.
    pub area: usize,
    /// For each place of each window, the map's row; the one behind the last outside of the map.
    pub rows: Vec<u32>,
    /// For each row of the map, its place among all windows'.
    pub places: Vec<u32>,
    /// For each place of each window, which part of the map it was in before windows were moved; empty where they
    /// are not.
    regions: Vec<u8>,
}

impl Windows {
    pub fn new((height, width): (usize, usize), size: usize, shift: usize) -> Self {
        let (down, across) = (height.div_ceil(size), width.div_ceil(size));
        let (high, wide) = (down * size, across * size);
        let (count, area) = (down * across, size * size);
        let mut rows = Vec::with_capacity(count * area);
        let mut places = vec![0u32; height * width];
        let mut regions = Vec::new();
        let region =
            |at: usize, end: usize| u8::from(at + size >= end) + u8::from(at + shift >= end);
        for window in 0..count {
            for place in 0..area {
                let y = window / across * size + place / size;
                let x = window % across * size + place % size;
                if shift > 0 {
                    regions.push(region(y, high) * 3 + region(x, wide));
                }
                let (y, x) = ((y + shift) % high, (x + shift) % wide);
                rows.push(if y < height && x < width {
                    places[y * width + x] = rows.len() as u32;
                    y * width + x
                } else {
                    height * width
                } as u32);
            }
        }
        Self {
            count,
            area,
            rows,
            places,
            regions,
        }
    }

    /// What is added to the scores of some windows where these are moved, [windows, 1, places, places].
    pub fn mask(&self, first: usize, count: usize, device: &Device) -> Result<Option<Tensor>> {
        if self.regions.is_empty() {
            return Ok(None);
        }
        let mut values = Vec::with_capacity(count * self.area * self.area);
        let own = &self.regions[first * self.area..][..count * self.area];
        for regions in own.chunks_exact(self.area) {
            for one in regions {
                let apart = |other: &u8| if one == other { 0.0 } else { APART };
                values.extend(regions.iter().map(apart));
            }
        }
        let shape = (count, 1, self.area, self.area);
        Ok(Some(Tensor::from_vec(values, shape, device)?))
    }
}

/// For every two places of a window, the row of a table of all distances.
pub fn distances(size: usize) -> Vec<u32> {
    let (span, area) = (2 * size - 1, size * size);
    let mut rows = Vec::with_capacity(area * area);
    for (one, other) in (0..area).flat_map(|one| (0..area).map(move |other| (one, other))) {
        let down = one / size + size - 1 - other / size;
        let right = one % size + size - 1 - other % size;
        rows.push((down * span + right) as u32);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_windows_cover_a_map_that_is_padded() {
        let windows = Windows::new((3, 4), 2, 1);
        assert_eq!(windows.rows.len(), 16);
        let found: Vec<u32> = windows
            .places
            .iter()
            .map(|&place| windows.rows[place as usize])
            .collect();
        assert_eq!(found, (0..12).collect::<Vec<u32>>());
        assert_eq!(windows.rows[..4], [5, 6, 9, 10]);
        let mask = windows.mask(0, 1, &Device::Cpu).unwrap().unwrap();
        let first: Vec<f32> = mask.flatten_all().unwrap().to_vec1().unwrap();
        assert!(first.iter().all(|&value| value == 0.0));
        assert!(Windows::new((3, 4), 2, 0)
            .mask(0, 1, &Device::Cpu)
            .unwrap()
            .is_none());
    }
}
