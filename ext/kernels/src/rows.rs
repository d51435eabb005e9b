//! Where the rows of a strided tensor start.

use candle_core::{Layout, Tensor};

use crate::Result;

/// The leading dimensions of a tensor whose last dimension is contiguous, merged as far as their
/// strides allow: at most three remain. A stride of 0 repeats a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// In elements, of the first row.
    pub start: usize,
    pub width: usize,
    pub count: usize,
    /// (size, stride) from the outermost to the innermost; unused ones are (1, 0).
    pub dims: [(usize, usize); 3],
}

impl Rows {
    /// `None` where the layout needs a copy first.
    pub fn of(layout: &Layout) -> Option<Self> {
        let (dims, strides) = (layout.dims(), layout.stride());
        let (width, leading) = match dims.split_last() {
            Some((&width, leading)) => (width, leading),
            None => (1, dims),
        };
        if width > 1 && strides.last() != Some(&1) {
            return None;
        }
        let mut merged: Vec<(usize, usize)> = Vec::new();
        for (&size, &stride) in leading.iter().zip(strides) {
            match merged.last_mut() {
                _ if size == 1 => {}
                Some(outer) if outer.1 == size * stride => *outer = (outer.0 * size, stride),
                _ => merged.push((size, stride)),
            }
        }
        if merged.len() > 3 {
            return None;
        }
        let mut rows = [(1, 0); 3];
        rows[3 - merged.len()..].copy_from_slice(&merged);
        Some(Self {
            start: layout.start_offset(),
            width,
            count: leading.iter().product(),
            dims: rows,
        })
    }

    /// One row at the start of its storage.
    pub fn single(width: usize) -> Self {
        Self {
            start: 0,
            width,
            count: 1,
            dims: [(1, 0); 3],
        }
    }

    /// Where the last element of all ends; 0 where there is none.
    pub fn end(&self) -> usize {
        if self.count * self.width == 0 {
            return 0;
        }
        let last = self.dims.iter().map(|(size, stride)| (size - 1) * stride);
        self.start + last.sum::<usize>() + self.width
    }

    /// Where row `row` starts, in elements of the storage.
    pub fn at(&self, row: usize) -> usize {
        let [(_, outer), (middle_size, middle), (inner_size, inner)] = self.dims;
        if middle_size == 1 && self.dims[0].0 == 1 {
            return self.start + row * inner;
        }
        let rest = row / inner_size;
        self.start
            + row % inner_size * inner
            + rest % middle_size * middle
            + rest / middle_size * outer
    }

    /// Whether the rows follow each other without a gap.
    pub fn is_dense(&self) -> bool {
        let [outer, middle, (size, stride)] = self.dims;
        outer.0 == 1 && middle.0 == 1 && (size == 1 || stride == self.width)
    }

    /// The same elements as rows of at most `width`, for what works element by element.
    pub fn rewidth(&self, width: usize) -> Option<Self> {
        let elements = self.count * self.width;
        (self.is_dense() && elements.is_multiple_of(width)).then(|| Self {
            start: self.start,
            width,
            count: elements / width,
            dims: [(1, 0), (1, 0), (elements / width, width)],
        })
    }
}

/// The tensor itself where its layout serves, else a contiguous copy.
pub fn row_major(x: &Tensor) -> Result<Tensor> {
    match Rows::of(x.layout()) {
        Some(_) => Ok(x.clone()),
        None => Ok(x.contiguous()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    fn tensor(shape: &[usize]) -> Tensor {
        Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap()
    }

    #[test]
    fn strided_rows_are_found_without_a_copy() {
        let x = tensor(&[4, 5, 6, 7]).transpose(1, 2).unwrap();
        let rows = Rows::of(x.layout()).unwrap();
        assert_eq!((rows.count, rows.width), (120, 7));
        // Row (b, i, j) of the transposed tensor is row (b, j, i) of the original.
        for (row, (b, i, j)) in [(0, (0, 0, 0)), (1, (0, 0, 1)), (37, (1, 1, 2))] {
            assert_eq!(rows.at(row), ((b * 5 + j) * 6 + i) * 7);
        }
        assert!(!rows.is_dense());
    }

    #[test]
    fn contiguous_dimensions_merge_and_repeats_keep_stride_0() {
        let rows = Rows::of(tensor(&[2, 3, 4, 5, 6]).layout()).unwrap();
        assert_eq!(rows.dims, [(1, 0), (1, 0), (120, 6)]);
        assert!(rows.is_dense());
        let repeated = tensor(&[1, 6]).broadcast_as((9, 6)).unwrap();
        let rows = Rows::of(repeated.layout()).unwrap();
        assert!((0..9).all(|row| rows.at(row) == 0));
        assert!(Rows::of(tensor(&[3, 4]).t().unwrap().layout()).is_none());
    }

    #[test]
    fn offsets_and_empty_tensors_are_counted() {
        let narrowed = tensor(&[4, 10]).narrow(1, 3, 5).unwrap();
        let rows = Rows::of(narrowed.layout()).unwrap();
        assert_eq!((rows.at(0), rows.at(3), rows.width), (3, 33, 5));
        assert_eq!((rows.end(), Rows::single(7).end()), (38, 7));
        let empty = Rows::of(tensor(&[0, 7]).layout()).unwrap();
        assert_eq!((empty.count, empty.end()), (0, 0));
        // A size of 0 among others that do not merge with it.
        let inside = tensor(&[4, 0, 6, 7]).transpose(1, 2).unwrap();
        let rows = Rows::of(inside.layout()).unwrap();
        assert_eq!((rows.count, rows.end()), (0, 0));
    }
}
