//! What a row holds, and what a query makes of rows.

use std::borrow::Cow;

use super::compact;
use super::measure::{length_of as int8_length, Measured, Similarity};
use super::Id;
use crate::{Error, Result};
use kernels::cpu::similarity;
use kernels::tensor::nearest::{bytes_of, cosine, f32_cosine, is_moderate, length, moderate};

/// Rows anywhere that are compared in one call.
const AT_ONCE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowType {
    /// Little-endian numbers.
    F32,
    /// Signed bytes, the greatest magnitude being 127.
    Int8,
    /// A bit for each component, set where it is positive.
    Binary,
}

impl RowType {
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "f32" => Some(Self::F32),
            "int8" => Some(Self::Int8),
            "binary" => Some(Self::Binary),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Int8 => "int8",
            Self::Binary => "binary",
        }
    }

    /// The bytes of one row.
    pub fn bytes(self, dimension: usize) -> usize {
        match self {
            Self::F32 => 4 * dimension,
            Self::Int8 => dimension,
            Self::Binary => dimension.div_ceil(8),
        }
    }

    /// `encode` where rows are compared by something else than the cosine: the length of a vector is kept, which bytes
    /// alone do not tell.
    pub fn encode_for(
        self,
        similarity: Similarity,
        bytes: &[u8],
        dimension: usize,
        id: &Id,
    ) -> Result<(Vec<u8>, f32)> {
        let (row, own) = self.encode(bytes, dimension, id)?;
        let given = self == Self::Int8 && similarity != Similarity::Cosine;
        match self.given(bytes, dimension)? {
            Given::Numbers(numbers) if given => Ok((row, length(&numbers)?)),
            _ => Ok((row, own)),
        }
    }

    /// The row for a vector, and its length.
    pub fn encode(self, bytes: &[u8], dimension: usize, id: &Id) -> Result<(Vec<u8>, f32)> {
        match self.given(bytes, dimension)? {
            Given::Row(row) => {
                let mut row = row.to_vec();
                if self == Self::Binary && !dimension.is_multiple_of(8) {
                    if let Some(last) = row.last_mut() {
                        *last &= 0xff << (8 - dimension % 8);
                    }
                }
                let length = match self {
                    Self::Int8 => int8_length(&row),
                    _ => 1.0,
                };
                Ok((row, length))
            }
            Given::Numbers(numbers) => {
                if let Some(at) = numbers.iter().position(|number| !number.is_finite()) {
                    return Err(Error::InvalidInput(format!(
                        "the vector of {id} has {} as its component {at}: an index takes finite numbers only",
                        numbers[at]
                    )));
                }
                Ok(match self {
                    Self::F32 => (bytes_of(&numbers).to_vec(), length(&numbers)?),
                    Self::Int8 => {
                        let row: Vec<u8> = compact::to_int8(&numbers)
                            .iter()
                            .map(|&value| value as u8)
                            .collect();
                        let length = int8_length(&row);
                        (row, length)
                    }
                    Self::Binary => (compact::to_bits(&numbers), 1.0),
                })
            }
        }
    }

    /// The length of a row that lies in a file.
    pub fn length_of(self, row: &[u8]) -> Result<f32> {
        match self {
            Self::F32 => length(&numbers(row)),
            Self::Int8 => Ok(int8_length(row)),
            Self::Binary => Ok(1.0),
        }
    }

    /// A vector as numbers, or as a row of this type where its size is that.
    fn given(self, bytes: &[u8], dimension: usize) -> Result<Given<'_>> {
        if bytes.len() == 4 * dimension {
            return Ok(Given::Numbers(numbers(bytes)));
        }
        if bytes.len() == self.bytes(dimension) {
            return Ok(Given::Row(bytes));
        }
        let own = match self {
            Self::F32 => String::new(),
            _ => format!(", or {} as {}", self.bytes(dimension), self.name()),
        };
        Err(Error::InvalidInput(format!(
            "a vector of this index has {dimension} components, which take {} bytes as f32{own}, not {}",
            4 * dimension,
            bytes.len()
        )))
    }
}

/// A vector that must be given as numbers.
pub fn numbers_of(bytes: &[u8], dimension: usize) -> Result<Vec<f32>> {
    if bytes.len() == 4 * dimension {
        return Ok(numbers(bytes));
    }
    Err(Error::InvalidInput(format!(
        "a vector of this index, which keeps finer rows beside bits, has {dimension} components, which take {} bytes \
         as f32, not {}",
        4 * dimension,
        bytes.len()
    )))
}

enum Given<'a> {
    Numbers(Vec<f32>),
    Row(&'a [u8]),
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks::<4>().0;
    words.iter().map(|&word| f32::from_le_bytes(word)).collect()
}

/// A vector to compare rows with.
pub enum Query<'a> {
    /// Little-endian numbers.
    F32 { vector: Cow<'a, [u8]>, length: f32 },
    /// Signed bytes, as a row is.
    Row { row: &'a [u8], length: f32 },
    /// With more steps than a row's, as many as sums of products leave room for.
    Int8 { vector: Vec<i16>, length: f32 },
    Binary {
        bits: Cow<'a, [u8]>,
        dimension: usize,
    },
    /// By something else than the cosine.
    Measured(Measured),
}

impl<'a> Query<'a> {
    /// Compared by `similarity`, unless rows are bits.
    pub fn by(
        similarity: Similarity,
        row_type: RowType,
        bytes: &'a [u8],
        dimension: usize,
    ) -> Result<Self> {
        // What is wrong with a vector is found there.
        let query = Self::new(row_type, bytes, dimension)?;
        if similarity == Similarity::Cosine || row_type == RowType::Binary {
            return Ok(query);
        }
        let numbers = match row_type.given(bytes, dimension)? {
            Given::Numbers(numbers) => numbers,
            Given::Row(row) => row.iter().map(|&value| f32::from(value as i8)).collect(),
        };
        Ok(Self::Measured(Measured::new(similarity, row_type, numbers)))
    }

    pub fn new(row_type: RowType, bytes: &'a [u8], dimension: usize) -> Result<Self> {
        let given = row_type.given(bytes, dimension)?;
        if let Given::Numbers(numbers) = &given {
            if let Some(at) = numbers.iter().position(|number| !number.is_finite()) {
                return Err(Error::InvalidInput(format!(
                    "the vector to search for has {} as its component {at}",
                    numbers[at]
                )));
            }
        }
        Ok(match (row_type, given) {
            (RowType::Int8, Given::Row(row)) => Self::Row {
                row,
                length: int8_length(row),
            },
            (RowType::Int8, Given::Numbers(numbers)) => {
                let greatest = (i32::MAX / (128 * dimension as i32)).min(i32::from(i16::MAX));
                let vector = steps(&numbers, greatest as f32);
                let squares = vector.iter().map(|&step| f64::from(step) * f64::from(step));
                let length = squares.sum::<f64>().sqrt() as f32;
                Self::Int8 { vector, length }
            }
            (RowType::Binary, Given::Row(row)) => Self::Binary {
                bits: row.into(),
                dimension,
            },
            (RowType::Binary, Given::Numbers(numbers)) => Self::Binary {
                bits: compact::to_bits(&numbers).into(),
                dimension,
            },
            (_, Given::Numbers(numbers)) => Self::of_numbers(bytes, &numbers)?,
            (RowType::F32, Given::Row(_)) => {
                return Err(Error::Internal("a row of numbers is numbers".to_owned()))
            }
        })
    }

    fn of_numbers(bytes: &'a [u8], numbers: &[f32]) -> Result<Self> {
        let (vector, length) = moderate(numbers)?;
        let vector = match vector {
            Cow::Borrowed(_) => bytes.into(),
            Cow::Owned(scaled) => bytes_of(&scaled).to_vec().into(),
        };
        Ok(Self::F32 { vector, length })
    }

    /// The cosine with each row, or what else it is compared by; `lengths` are at least those of the rows.
    pub fn scores(&self, rows: &[u8], lengths: &[f32]) -> Result<Vec<f32>> {
        match self {
            Self::F32 { vector, length } => {
                let mut dots = vec![0.0; rows.len() / vector.len()];
                similarity::dots(rows, vector, &mut dots)?;
                let rows = rows.chunks_exact(vector.len()).zip(lengths);
                Ok(rows
                    .zip(dots)
                    .map(|((row, &other), dot)| f32_cosine(dot, (row, other), (vector, *length)))
                    .collect())
            }
            Self::Row { row, .. } => {
                let mut scores = Vec::with_capacity(rows.len() / row.len());
                let parts = rows.chunks(AT_ONCE * row.len());
                for (part, lengths) in parts.zip(lengths.chunks(AT_ONCE)) {
                    let part: Vec<&[u8]> = part.chunks_exact(row.len()).collect();
                    self.scattered_scores(&part, lengths, &mut scores)?;
                }
                Ok(scores)
            }
            Self::Int8 { vector, length } => {
                let mut dots = vec![0; rows.len() / vector.len()];
                similarity::byte_dots(rows, vector, &mut dots)?;
                let pairs = dots.iter().zip(lengths);
                Ok(pairs
                    .map(|(&dot, other)| cosine(dot as f32, length * other))
                    .collect())
            }
            Self::Binary { bits, dimension } => {
                let mut differing = vec![0; rows.len() / bits.len()];
                similarity::bit_differences(rows, bits, &mut differing)?;
                let share = 2.0 / *dimension as f32;
                Ok(differing
                    .iter()
                    .map(|&bits| 1.0 - share * bits as f32)
                    .collect())
            }
            Self::Measured(query) => query.scores(rows, lengths),
        }
    }

    /// `scores` of up to `AT_ONCE` rows that lie anywhere, added to `scores`.
    fn scattered_scores(
        &self,
        rows: &[&[u8]],
        lengths: &[f32],
        scores: &mut Vec<f32>,
    ) -> Result<()> {
        match self {
            Self::F32 { vector, length } => {
                let mut dots = [0.0; AT_ONCE];
                similarity::scattered_dots(rows, vector, &mut dots)?;
                let rows = rows.iter().zip(lengths).zip(dots);
                scores.extend(
                    rows.map(|((row, &other), dot)| {
                        f32_cosine(dot, (row, other), (vector, *length))
                    }),
                );
            }
            Self::Row { row, length } => {
                let mut dots = [0; AT_ONCE];
                similarity::scattered_row_dots(rows, row, &mut dots)?;
                let pairs = dots.iter().zip(lengths);
                scores.extend(pairs.map(|(&dot, other)| cosine(dot as f32, length * other)));
            }
            Self::Int8 { vector, length } => {
                let mut dots = [0; AT_ONCE];
                similarity::scattered_byte_dots(rows, vector, &mut dots)?;
                let pairs = dots.iter().zip(lengths);
                scores.extend(pairs.map(|(&dot, other)| cosine(dot as f32, length * other)));
            }
            Self::Binary { bits, dimension } => {
                let mut differing = [0; AT_ONCE];
                similarity::scattered_bit_differences(rows, bits, &mut differing)?;
                let share = 2.0 / *dimension as f32;
                let counts = differing.iter().take(rows.len());
                scores.extend(counts.map(|&bits| 1.0 - share * bits as f32));
            }
            Self::Measured(query) => {
                let rows = rows.iter().zip(lengths);
                scores.extend(rows.map(|(row, length)| query.score(row, *length)));
            }
        }
        Ok(())
    }
}

/// All rows of an index, those of its file first.
pub struct Rows<'a> {
    pub row_type: RowType,
    pub similarity: Similarity,
    pub dimension: usize,
    pub mapped: &'a [u8],
    pub added: &'a [u8],
    pub lengths: &'a [f32],
}

impl<'a> Rows<'a> {
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    pub fn row_bytes(&self) -> usize {
        self.row_type.bytes(self.dimension)
    }

    /// The rows from `first` on: those of the file, and the others.
    pub fn starting_at(&self, first: usize) -> (&'a [u8], &'a [u8]) {
        let start = first * self.row_bytes();
        let added = start.saturating_sub(self.mapped.len());
        let mapped = start.min(self.mapped.len());
        (&self.mapped[mapped..], &self.added[added..])
    }

    fn get(&self, row: usize) -> &'a [u8] {
        let bytes = self.row_bytes();
        let start = row * bytes;
        match start.checked_sub(self.mapped.len()) {
            None => &self.mapped[start..start + bytes],
            Some(start) => &self.added[start..start + bytes],
        }
    }

    /// A row as what others are compared with.
    pub fn query(&self, row: usize) -> Result<Query<'a>> {
        let (bytes, length) = (self.get(row), self.lengths[row]);
        if self.similarity != Similarity::Cosine && self.row_type != RowType::Binary {
            return Ok(Query::Measured(Measured::new(
                self.similarity,
                self.row_type,
                self.numbers(bytes, length),
            )));
        }
        Ok(match self.row_type {
            RowType::F32 if is_moderate(length) => Query::F32 {
                vector: bytes.into(),
                length,
            },
            RowType::F32 => Query::of_numbers(bytes, &numbers(bytes))?,
            RowType::Int8 => Query::Row { row: bytes, length },
            RowType::Binary => Query::Binary {
                bits: bytes.into(),
                dimension: self.dimension,
            },
        })
    }

    /// A row as the numbers that it stands for.
    fn numbers(&self, bytes: &[u8], length: f32) -> Vec<f32> {
        if self.row_type == RowType::F32 {
            return numbers(bytes);
        }
        let scale = match int8_length(bytes) {
            0.0 => 0.0,
            own => length / own,
        };
        let each = bytes.iter();
        each.map(|&value| f32::from(value as i8) * scale).collect()
    }

    /// The cosine of `query` with some rows, in place of what `scores` has.
    pub fn scores(
        &self,
        query: &Query<'_>,
        some: impl IntoIterator<Item = usize>,
        scores: &mut Vec<f32>,
    ) -> Result<()> {
        scores.clear();
        let mut some = some.into_iter();
        let (mut rows, mut lengths) = ([&[][..]; AT_ONCE], [0.0; AT_ONCE]);
        loop {
            let mut count = 0;
            for row in some.by_ref().take(AT_ONCE) {
                (rows[count], lengths[count]) = (self.get(row), self.lengths[row]);
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            query.scattered_scores(&rows[..count], &lengths[..count], scores)?;
        }
    }
}

/// Whole numbers in proportion, the greatest magnitude being `greatest`.
fn steps(numbers: &[f32], greatest: f32) -> Vec<i16> {
    let most = numbers
        .iter()
        .fold(0f32, |most, number| most.max(number.abs()));
    let scale = if most == 0.0 { 0.0 } else { greatest / most };
    // A cast of a float saturates, and takes NaN for 0.
    numbers
        .iter()
        .map(|number| (number * scale).round() as i16)
        .collect()
}
