//! The sequences of a batch as attention sees them: whose queries meet whose keys.

use std::ops::Range;

use candle_core::{Device, Tensor};

use crate::nn::{attention, Alignment, AttentionOptions, PackedSequences};
use crate::Result;

pub struct Spans<'a> {
    boundaries: &'a [u32],
    /// Where some tokens are not attended to: the rows of those that are, and their boundaries.
    attended: Option<(Tensor, Vec<u32>)>,
    /// The rows of tokens that see all others of their sequences, in rising order.
    sees_all: Vec<u32>,
}

impl<'a> Spans<'a> {
    pub fn of(sequences: &'a PackedSequences, device: &Device) -> Result<Self> {
        let attended = match sequences.attended() {
            Some((rows, boundaries)) => {
                let count = rows.len();
                Some((Tensor::from_vec(rows, count, device)?, boundaries))
            }
            None => None,
        };
        Ok(Self {
            boundaries: sequences.boundaries(),
            attended,
            sees_all: Vec::new(),
        })
    }

    /// Of sequences all of whose tokens are attended to.
    pub fn whole(boundaries: &'a [u32]) -> Self {
        Self {
            boundaries,
            attended: None,
            sees_all: Vec::new(),
        }
    }

    /// The same, with tokens that see all others.
    pub fn with_rows_that_see_all(self, sees_all: Vec<u32>) -> Self {
        Self { sees_all, ..self }
    }

    /// The rows of each sequence.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        ranges(self.boundaries)
    }

    /// The rows of each sequence among those that are attended to.
    pub fn attended_ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        ranges(match &self.attended {
            Some((_, boundaries)) => boundaries,
            None => self.boundaries,
        })
    }

    /// The rows of tokens of a sequence that see all others of it.
    pub fn rows_that_see_all(&self, range: &Range<usize>) -> Vec<usize> {
        let rows = self.sees_all.iter().map(|&row| row as usize);
        rows.filter(|row| range.contains(row)).collect()
    }

    pub fn has_rows_that_see_all(&self) -> bool {
        !self.sees_all.is_empty()
    }

    /// The row that stands so far behind (ahead where negative) each one in its sequence; zeros outside of the sequence.
    pub fn neighbours(&self, x: &Tensor, distance: isize) -> Result<Tensor> {
        if distance == 0 {
            return Ok(x.clone());
        }
        let tokens = x.dim(0)?;
        let mut rows = Vec::with_capacity(tokens);
        for range in self.ranges() {
            rows.extend(range.clone().map(|row| {
                let found = row.checked_add_signed(distance);
                let found = found.filter(|found| range.contains(found));
                found.unwrap_or(tokens) as u32
            }));
        }
        let mut shape = x.dims().to_vec();
        shape[0] = 1;
        let zeros = Tensor::zeros(shape, x.dtype(), x.device())?;
        let rows = Tensor::from_vec(rows, tokens, x.device())?;
        Ok(Tensor::cat(&[&x.contiguous()?, &zeros], 0)?.index_select(&rows, 0)?)
    }

    /// The length of the longest sequence.
    pub fn longest(&self) -> usize {
        self.ranges().map(|range| range.len()).max().unwrap_or(0)
    }

    /// The keys or values that are attended to, of those of all tokens.
    pub fn attended(&self, all: Tensor) -> Result<Tensor> {
        match &self.attended {
            Some((rows, _)) => Ok(all.contiguous()?.index_select(rows, 0)?),
            None => Ok(all),
        }
    }

    /// `k` and `v` are those that are attended to.
    pub fn attend(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        options: &AttentionOptions<'_>,
    ) -> Result<Tensor> {
        match &self.attended {
            Some((_, keys)) => {
                let options = AttentionOptions {
                    alignment: Alignment::First,
                    ..*options
                };
                attention(q, k, v, self.boundaries, keys, &options)
            }
            None => attention(q, k, v, self.boundaries, self.boundaries, options),
        }
    }
}

fn ranges(boundaries: &[u32]) -> impl Iterator<Item = Range<usize>> + '_ {
    boundaries
        .windows(2)
        .map(|pair| pair[0] as usize..pair[1] as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_stay_in_their_sequences() {
        let spans = Spans::whole(&[0, 2, 5]);
        let x = Tensor::arange(1f32, 6f32, &Device::Cpu).unwrap();
        let x = x.reshape((5, 1)).unwrap();
        let at = |distance: isize| -> Vec<f32> {
            let found = spans.neighbours(&x, distance).unwrap();
            found.flatten_all().unwrap().to_vec1().unwrap()
        };
        assert_eq!(at(1), [2.0, 0.0, 4.0, 5.0, 0.0]);
        assert_eq!(at(-2), [0.0, 0.0, 0.0, 0.0, 3.0]);
        assert_eq!(at(0), [1.0, 2.0, 3.0, 4.0, 5.0]);
    }
}
