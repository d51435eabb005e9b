//! What vectors are compared by, where it isn't the cosine.

use super::row::RowType;
use crate::Result;
use kernels::cpu::similarity;
use kernels::tensor::nearest::bytes_of;

/// As sentence-transformers names them: greater is nearer, so that distances are negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Similarity {
    #[default]
    Cosine,
    Dot,
    Euclidean,
    Manhattan,
}

impl Similarity {
    const ALL: [Self; 4] = [Self::Cosine, Self::Dot, Self::Euclidean, Self::Manhattan];

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Cosine => "cosine",
            Self::Dot => "dot",
            Self::Euclidean => "euclidean",
            Self::Manhattan => "manhattan",
        }
    }

    /// As files number them.
    pub fn number(self) -> u8 {
        self as u8
    }

    pub fn numbered(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.number() == number)
    }

    /// From this score on, two rows are the same but for rounding.
    pub fn equal(self) -> f32 {
        match self {
            Self::Cosine => 0.999_999,
            Self::Dot => f32::INFINITY,
            Self::Euclidean | Self::Manhattan => 0.0,
        }
    }
}

/// A vector to compare rows with, as numbers.
pub struct Measured {
    similarity: Similarity,
    row_type: RowType,
    numbers: Vec<f32>,
}

impl Measured {
    pub fn new(similarity: Similarity, row_type: RowType, numbers: Vec<f32>) -> Self {
        Self {
            similarity,
            row_type,
            numbers,
        }
    }

    pub fn row_bytes(&self) -> usize {
        self.row_type.bytes(self.numbers.len())
    }

    /// `lengths` are those of the rows.
    pub fn scores(&self, rows: &[u8], lengths: &[f32]) -> Result<Vec<f32>> {
        if (self.similarity, self.row_type) == (Similarity::Dot, RowType::F32) {
            let mut dots = vec![0.0; rows.len() / self.row_bytes()];
            similarity::dots(rows, bytes_of(&self.numbers), &mut dots)?;
            return Ok(dots);
        }
        let rows = rows.chunks_exact(self.row_bytes()).zip(lengths);
        Ok(rows.map(|(row, length)| self.score(row, *length)).collect())
    }

    pub fn score(&self, row: &[u8], length: f32) -> f32 {
        match self.row_type {
            RowType::F32 => {
                let words = row.as_chunks::<4>().0;
                self.compared(words.iter().map(|&word| f32::from_le_bytes(word)))
            }
            // Bytes are in proportion; the length tells how large they were.
            _ => {
                let scale = match length_of(row) {
                    0.0 => 0.0,
                    own => length / own,
                };
                self.compared(row.iter().map(|&byte| f32::from(byte as i8) * scale))
            }
        }
    }

    fn compared(&self, row: impl Iterator<Item = f32>) -> f32 {
        const LANES: usize = 8;
        let mut sums = [0f32; LANES];
        for (at, (own, other)) in self.numbers.iter().zip(row).enumerate() {
            sums[at % LANES] += match self.similarity {
                Similarity::Manhattan => (own - other).abs(),
                Similarity::Euclidean => (own - other) * (own - other),
                Similarity::Dot | Similarity::Cosine => own * other,
            };
        }
        let sum: f32 = sums.iter().sum();
        match self.similarity {
            Similarity::Manhattan => -sum,
            Similarity::Euclidean => -sum.sqrt(),
            Similarity::Dot | Similarity::Cosine => sum,
        }
    }
}

/// The length of a row of bytes.
pub fn length_of(row: &[u8]) -> f32 {
    let squares = row
        .iter()
        .map(|&value| i64::from(value as i8) * i64::from(value as i8));
    (squares.sum::<i64>() as f32).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_negative_and_products_are_sums() {
        let row = bytes_of(&[1.0, 2.0, -2.0]).to_vec();
        let by = |similarity| {
            Measured::new(similarity, RowType::F32, vec![1.0, 0.0, 2.0])
                .scores(&row, &[3.0])
                .unwrap()[0]
        };
        assert_eq!(by(Similarity::Dot), -3.0);
        assert_eq!(by(Similarity::Manhattan), -6.0);
        assert_eq!(by(Similarity::Euclidean), -(20f32.sqrt()));
    }

    #[test]
    fn bytes_are_as_large_as_their_length_says() {
        let query = Measured::new(Similarity::Dot, RowType::Int8, vec![2.0, 1.0]);
        let length = length_of(&[127, 0]) / 254.0;
        assert_eq!(query.score(&[127, 0], length), 1.0);
    }
}
