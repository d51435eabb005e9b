//! Vectors by id, searched exactly: every row is compared, by the kernels and over the pool.
//!
//! Rows of a file stay in the file, which is mapped; rows that were added since are in memory behind them. A
//! row that was deleted stays where it is until the index is saved, and is passed over.

mod file;
mod row;

use std::collections::HashMap;
use std::path::Path;

use crate::runtime::bytes::Bytes;
use crate::tensor::nearest::{best, parts, Part};
use crate::{CancelToken, Error, Result};
use row::Query;
pub use row::RowType;

/// More components than any model gives.
pub const MOST_DIMENSIONS: usize = 1 << 16;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Id {
    Integer(i64),
    Text(Box<str>),
}

impl std::fmt::Display for Id {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Integer(number) => number.fmt(formatter),
            Self::Text(text) => write!(formatter, "{text:?}"),
        }
    }
}

pub struct VectorIndex {
    row_type: RowType,
    dimension: usize,
    /// The rows of the file, which come first.
    mapped: Option<Bytes>,
    added: Vec<u8>,
    ids: Vec<Id>,
    /// The length of each row.
    lengths: Vec<f32>,
    deleted: Vec<bool>,
    live: usize,
    /// The row of each id, once something asked for it.
    places: Option<HashMap<Id, usize>>,
}

impl VectorIndex {
    pub fn new(dimension: usize, row_type: RowType) -> Result<Self> {
        if !(1..=MOST_DIMENSIONS).contains(&dimension) {
            return Err(Error::InvalidInput(format!(
                "an index takes vectors of 1 to {MOST_DIMENSIONS} components, not {dimension}"
            )));
        }
        Ok(Self {
            row_type,
            dimension,
            mapped: None,
            added: Vec::new(),
            ids: Vec::new(),
            lengths: Vec::new(),
            deleted: Vec::new(),
            live: 0,
            places: Some(HashMap::new()),
        })
    }

    /// Maps a file that `save` wrote.
    pub fn open(path: &Path, cancel: &CancelToken) -> Result<Self> {
        let contents = file::read(path, cancel)?;
        let count = contents.ids.len();
        Ok(Self {
            mapped: Some(contents.rows),
            ids: contents.ids,
            lengths: contents.lengths,
            deleted: vec![false; count],
            live: count,
            places: None,
            ..Self::new(contents.dimension, contents.row_type)?
        })
    }

    /// Writes all rows but the deleted ones. The file is whole or as it was before, whatever happens.
    pub fn save(&self, path: &Path, cancel: &CancelToken) -> Result<()> {
        file::write(self, path, cancel)
    }

    pub fn dimension(&self) -> usize {
        self.dimension
    }

    pub fn row_type(&self) -> RowType {
        self.row_type
    }

    /// How many vectors there are.
    pub fn len(&self) -> usize {
        self.live
    }

    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// What it takes of this process's memory, without the file.
    pub fn memory(&self) -> usize {
        let each = size_of::<Id>() + size_of::<f32>() + size_of::<bool>();
        self.added.capacity() + self.ids.capacity() * each
    }

    /// Adds a vector, or puts it in place of the one that has the id. `bytes` are little-endian f32, or a row
    /// as this index stores it.
    pub fn add(&mut self, id: Id, bytes: &[u8]) -> Result<()> {
        let (row, length) = self.row_type.encode(bytes, self.dimension, &id)?;
        let first_added = self.mapped_rows();
        let known = self.places()?.get(&id).copied();
        if let Some(at) = known.filter(|&at| at >= first_added) {
            let start = (at - first_added) * row.len();
            self.added[start..start + row.len()].copy_from_slice(&row);
            self.lengths[at] = length;
            return Ok(());
        }
        self.reserve(row.len())?;
        if let Some(at) = known {
            self.deleted[at] = true;
            self.live -= 1;
        }
        let at = self.ids.len();
        self.places()?.insert(id.clone(), at);
        self.added.extend_from_slice(&row);
        self.ids.push(id);
        self.lengths.push(length);
        self.deleted.push(false);
        self.live += 1;
        Ok(())
    }

    /// Whether there was such a vector.
    pub fn delete(&mut self, id: &Id) -> Result<bool> {
        let Some(at) = self.places()?.remove(id) else {
            return Ok(false);
        };
        self.deleted[at] = true;
        self.live -= 1;
        Ok(true)
    }

    pub fn contains(&mut self, id: &Id) -> Result<bool> {
        Ok(self.places()?.contains_key(id))
    }

    /// The `most` vectors with the greatest cosine, best first and the earlier one where they are equal; only
    /// those that `rows` names, if it does. `bytes` are as `add` takes them. Run it inside the pool.
    pub fn search(
        &self,
        bytes: &[u8],
        most: usize,
        rows: Option<&[bool]>,
        cancel: &CancelToken,
    ) -> Result<Vec<(Id, f32)>> {
        let query = Query::new(self.row_type, bytes, self.dimension)?;
        let row_bytes = self.row_type.bytes(self.dimension);
        let mapped = self.mapped.as_deref().unwrap_or_default();
        let all: Vec<Part<'_>> = parts(0, mapped, row_bytes)
            .chain(parts(self.mapped_rows(), &self.added, row_bytes))
            .collect();
        let wanted = |row: usize| {
            !self.deleted[row] && rows.is_none_or(|rows| rows.get(row).copied().unwrap_or(false))
        };
        let found = best(&all, most, cancel, |part| {
            let scores = query.scores(part.rows, &self.lengths[part.first..])?;
            let numbered = scores.into_iter().enumerate();
            // A damaged file may hold numbers that aren't any.
            Ok(numbered
                .map(|(row, score)| (part.first + row, score))
                .filter(|&(row, score)| wanted(row) && !score.is_nan())
                .collect())
        })?;
        Ok(found
            .into_iter()
            .map(|(row, score)| (self.ids[row].clone(), score))
            .collect())
    }

    /// Which rows have one of `ids`, for `search`.
    pub fn rows_of(&mut self, ids: &[Id]) -> Result<Vec<bool>> {
        let mut rows = vec![false; self.ids.len()];
        let places = self.places()?;
        for id in ids {
            if let Some(&at) = places.get(id) {
                rows[at] = true;
            }
        }
        Ok(rows)
    }

    fn mapped_rows(&self) -> usize {
        let mapped = self.mapped.as_deref().unwrap_or_default();
        mapped.len() / self.row_type.bytes(self.dimension)
    }

    fn reserve(&mut self, row_bytes: usize) -> Result<()> {
        let reserved = self
            .added
            .try_reserve(row_bytes)
            .and_then(|()| self.ids.try_reserve(1))
            .and_then(|()| self.lengths.try_reserve(1))
            .and_then(|()| self.deleted.try_reserve(1));
        reserved.map_err(|_| {
            Error::OutOfMemory(format!(
                "there is no memory for vector {} of an index: save it and open the file, which is mapped, or use \
                 dtype: :int8 or :binary",
                self.ids.len()
            ))
        })
    }

    fn places(&mut self) -> Result<&mut HashMap<Id, usize>> {
        if self.places.is_none() {
            let mut places = HashMap::new();
            places.try_reserve(self.live).map_err(|_| {
                Error::OutOfMemory(format!(
                    "there is no memory to look up the {} ids of an index",
                    self.live
                ))
            })?;
            for (at, id) in self.ids.iter().enumerate() {
                if places.insert(id.clone(), at).is_some() {
                    return Err(Error::CorruptModel(format!(
                        "this index has the id {id} twice, so it is damaged. Build it anew"
                    )));
                }
            }
            self.places = Some(places);
        }
        Ok(self.places.get_or_insert_default())
    }
}
