//! Rows of a finer type beside those that are scanned: the best of a scan are compared once more by them.

use super::row::{numbers_of, Query, RowType};
use super::Id;
use crate::Result;
use base::runtime::bytes::Bytes;
use kernels::tensor::nearest::{keep, Found};

/// As many of the best by the scanned rows are compared once more, for each one that is wanted.
const TIMES: usize = 8;
/// And so many at least.
const LEAST: usize = 100;

pub struct Fine {
    pub row_type: RowType,
    /// The rows of the file, which come first.
    pub mapped: Option<Bytes>,
    pub added: Vec<u8>,
}

impl Fine {
    pub fn new(row_type: RowType) -> Self {
        Self {
            row_type,
            mapped: None,
            added: Vec::new(),
        }
    }

    /// How many rows to scan for, of which `most` are wanted.
    pub fn candidates(most: usize, asked: Option<usize>) -> usize {
        let usual = most.saturating_mul(TIMES).max(LEAST);
        asked.unwrap_or(usual).max(most)
    }

    /// The row for a vector that is given as numbers.
    pub fn encode(&self, bytes: &[u8], dimension: usize, id: &Id) -> Result<Vec<u8>> {
        numbers_of(bytes, dimension)?;
        Ok(self.row_type.encode(bytes, dimension, id)?.0)
    }

    /// All rows, those of the file first.
    pub fn rows(&self, dimension: usize) -> impl Iterator<Item = &[u8]> {
        let size = self.row_type.bytes(dimension);
        let mapped = self.mapped.as_deref().unwrap_or_default();
        mapped
            .chunks_exact(size)
            .chain(self.added.chunks_exact(size))
    }

    fn row(&self, row: usize, dimension: usize) -> Option<&[u8]> {
        let size = self.row_type.bytes(dimension);
        let mapped = self.mapped.as_deref().unwrap_or_default();
        let start = row.checked_mul(size)?;
        match start.checked_sub(mapped.len()) {
            None => mapped.get(start..start + size),
            Some(start) => self.added.get(start..start + size),
        }
    }

    /// The best of what a scan found, compared with the vector itself.
    pub fn rescore(
        &self,
        bytes: &[u8],
        dimension: usize,
        found: Vec<Found>,
        most: usize,
    ) -> Result<Vec<Found>> {
        let query = Query::new(self.row_type, bytes, dimension)?;
        let mut again = Vec::with_capacity(found.len());
        for (place, _) in found {
            let Some(row) = self.row(place, dimension) else {
                continue;
            };
            let length = self.row_type.length_of(row)?;
            let score = query.scores(row, &[length])?;
            // A damaged file may hold numbers that aren't any.
            again.extend(
                score
                    .into_iter()
                    .filter(|score| !score.is_nan())
                    .map(|score| (place, score)),
            );
        }
        keep(&mut again, most);
        Ok(again)
    }
}
