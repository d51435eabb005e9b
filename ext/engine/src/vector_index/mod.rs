//! Vectors by id, searched exactly, every row being compared, by the kernels and over the pool; or along the links
//! of a graph, where one was built.
//!
//! Rows of a file stay in the file, which is mapped; rows that were added since are in memory behind them. A
//! row that was deleted stays where it is until the index is saved, and is passed over.

pub mod compact;
mod file;
mod fine;
pub mod fixed;
mod graph;
mod measure;
mod row;
mod terms;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::{CancelToken, Error, Result};
use base::runtime::bytes::Bytes;
use base::runtime::threads;
use fine::Fine;
use graph::Graph;
pub use graph::{Block, LINKS};
use kernels::tensor::nearest::{best, keep, parts, Found, Part};
pub use measure::Similarity;
pub use row::RowType;
use row::{Query, Rows};
pub use terms::{Bm25, TermIndex, Variant, WeightIndex};

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
    similarity: Similarity,
    dimension: usize,
    /// The file, as long as it was when it was opened.
    file: Option<(PathBuf, Bytes)>,
    /// The rows of the file, which come first.
    mapped: Option<Bytes>,
    added: Vec<u8>,
    /// Rows by which the best are compared once more.
    fine: Option<Fine>,
    ids: Vec<Id>,
    /// The length of each row.
    lengths: Vec<f32>,
    deleted: Vec<bool>,
    live: usize,
    /// The row of each id, once something asked for it.
    places: Option<HashMap<Id, usize>>,
    /// Over the first rows.
    graph: Option<Graph>,
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
            similarity: Similarity::Cosine,
            dimension,
            file: None,
            mapped: None,
            added: Vec::new(),
            fine: None,
            ids: Vec::new(),
            lengths: Vec::new(),
            deleted: Vec::new(),
            live: 0,
            places: Some(HashMap::new()),
            graph: None,
        })
    }

    /// The same, compared by something else than the cosine.
    pub fn compared_by(self, similarity: Similarity) -> Result<Self> {
        if self.row_type == RowType::Binary && similarity != Similarity::Cosine {
            return Err(Error::InvalidInput(format!(
                "binary rows are compared by their bits, not by {}: use f32 or int8",
                similarity.name()
            )));
        }
        Ok(Self { similarity, ..self })
    }

    /// What vectors are compared by.
    pub fn similarity(&self) -> Similarity {
        self.similarity
    }

    /// The same, with finer rows beside its bits, by which the best are compared once more.
    pub fn rescored_by(self, row_type: RowType) -> Result<Self> {
        if self.row_type != RowType::Binary || row_type == RowType::Binary {
            return Err(Error::InvalidInput(format!(
                "rows of {} can't be rescored by {}: rescoring is for binary rows, by int8 or f32",
                self.row_type.name(),
                row_type.name()
            )));
        }
        Ok(Self {
            fine: Some(Fine::new(row_type)),
            ..self
        })
    }

    /// The type of the rows by which the best are compared once more.
    pub fn fine_type(&self) -> Option<RowType> {
        self.fine.as_ref().map(|fine| fine.row_type)
    }

    /// Maps a file that `save` wrote; a small one is read, so that nothing that happens to it matters.
    pub fn open(path: &Path, cancel: &CancelToken) -> Result<Self> {
        let contents = file::read(path, cancel)?;
        let count = contents.ids.len();
        Ok(Self {
            file: Some((path.to_owned(), contents.file)),
            mapped: Some(contents.rows),
            fine: contents.fine,
            ids: contents.ids,
            lengths: contents.lengths,
            deleted: vec![false; count],
            live: count,
            places: None,
            graph: contents.graph,
            similarity: contents.similarity,
            ..Self::new(contents.dimension, contents.row_type)?
        })
    }

    /// That nobody shortened the file since it was opened: reading a mapping beyond its end would end the process.
    fn ensure_whole(&self) -> Result<()> {
        match &self.file {
            Some((path, file)) if !file.is_whole() => Err(Error::CorruptModel(format!(
                "{} was shortened while this index had it open: put the whole file back and open it again. Replace \
                 such a file by renaming another one, as save does",
                path.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Writes all rows but the deleted ones. The file is whole or as it was before, whatever happens.
    pub fn save(&self, path: &Path, cancel: &CancelToken) -> Result<()> {
        self.write(path, false, cancel)
    }

    /// `save`, where something else will be added to the file, which `open` passes over.
    pub fn save_before_more(&self, path: &Path, cancel: &CancelToken) -> Result<()> {
        self.write(path, true, cancel)
    }

    fn write(&self, path: &Path, followed: bool, cancel: &CancelToken) -> Result<()> {
        self.ensure_whole()?;
        let repaired = match &self.graph {
            Some(graph) if self.deleted[..graph.rows()].contains(&true) => {
                let rows = self.rows();
                Some(threads::install(|| {
                    graph.without(&rows, &self.deleted, cancel)
                })??)
            }
            _ => None,
        };
        file::write(
            self,
            repaired.as_ref().or(self.graph.as_ref()),
            (path, followed),
            cancel,
        )
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
        let graph = self.graph.as_ref().map_or(0, Graph::memory);
        let copied = self.file.as_ref().filter(|(_, file)| !file.is_mapped());
        let copied = copied.map_or(0, |(_, file)| file.len());
        let fine = self.fine.as_ref().map_or(0, |fine| fine.added.capacity());
        copied + fine + self.added.capacity() + self.ids.capacity() * each + graph
    }

    /// How many links a row of the graph may have, and how many rows are in it.
    pub fn graph(&self) -> Option<(usize, usize)> {
        let graph = self.graph.as_ref()?;
        Some((graph.links(), graph.rows()))
    }

    /// Begins a graph with so many links for each row; one that has as many is kept.
    pub fn start_graph(&mut self, links: usize) -> Result<()> {
        if !LINKS.contains(&links) {
            return Err(Error::InvalidInput(format!(
                "a graph has {} to {} links for each vector, not {links}",
                LINKS.start(),
                LINKS.end()
            )));
        }
        if self.graph.as_ref().map(Graph::links) != Some(links) {
            self.graph = Some(Graph::new(links));
        }
        Ok(())
    }

    /// What the graph gets next, if there are enough vectors that it has not: the best `effort` are looked at for
    /// each.
    pub fn build_graph(&self, effort: usize, cancel: &CancelToken) -> Result<Option<Block>> {
        let Some(graph) = &self.graph else {
            return Ok(None);
        };
        self.ensure_whole()?;
        let rows = self.rows();
        threads::install(|| graph.build(&rows, &self.deleted, effort.max(1), cancel))?
    }

    /// Installs what `build_graph` returned.
    pub fn grow_graph(&mut self, block: Block) -> Result<()> {
        self.ensure_whole()?;
        match &mut self.graph {
            Some(graph) => graph.take(block),
            None => Ok(()),
        }
    }

    /// Adds a vector, or puts it in place of the one that has the id. `bytes` are little-endian f32, or a row
    /// as this index stores it.
    pub fn add(&mut self, id: Id, bytes: &[u8]) -> Result<()> {
        let (row, length) =
            self.row_type
                .encode_for(self.similarity, bytes, self.dimension, &id)?;
        let fine = match &self.fine {
            Some(fine) => fine.encode(bytes, self.dimension, &id)?,
            None => Vec::new(),
        };
        let first_added = self.mapped_rows();
        let known = self.places()?.get(&id).copied();
        // Rows of the graph stay, and so do those that may be on their way into it.
        let built = self
            .graph
            .as_ref()
            .map_or(0, |graph| graph.rows() + graph::BLOCK);
        let changes = |&at: &usize| at >= first_added.max(built);
        if let Some(at) = known.filter(changes) {
            let start = (at - first_added) * row.len();
            self.added[start..start + row.len()].copy_from_slice(&row);
            self.lengths[at] = length;
            if let Some(own) = &mut self.fine {
                let start = (at - first_added) * fine.len();
                own.added[start..start + fine.len()].copy_from_slice(&fine);
            }
            return Ok(());
        }
        self.reserve(row.len(), fine.len())?;
        if let Some(at) = known {
            self.deleted[at] = true;
            self.live -= 1;
        }
        let at = self.ids.len();
        self.places()?.insert(id.clone(), at);
        self.added.extend_from_slice(&row);
        if let Some(own) = &mut self.fine {
            own.added.extend_from_slice(&fine);
        }
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

    /// Whether ids can be looked up; [`Self::index_ids`] sees to it.
    pub fn has_indexed_ids(&self) -> bool {
        self.places.is_some()
    }

    /// Makes it possible to look up ids, which opening a file leaves for later.
    pub fn index_ids(&mut self) -> Result<()> {
        self.places().map(|_| ())
    }

    /// Whether there is a vector of that id, once ids can be looked up.
    pub fn contains(&self, id: &Id) -> bool {
        let places = self.places.as_ref();
        places.is_some_and(|places| places.contains_key(id))
    }

    /// The `most` vectors with the greatest similarity, best first and the earlier one where they are equal; only
    /// those that `among` names, if it does. `bytes` are as `add` takes them. With an `effort`, so many of the
    /// best are kept while the graph is searched, if there is one and fewer rows are compared that way; without,
    /// every row is. Run it inside the pool.
    pub fn search(
        &self,
        bytes: &[u8],
        most: usize,
        among: Option<&[bool]>,
        effort: Option<usize>,
        cancel: &CancelToken,
    ) -> Result<Vec<(Id, f32)>> {
        self.search_again(bytes, (most, None), among, effort, cancel)
    }

    /// `search` where the index has finer rows, by which so many `candidates` are compared once more.
    pub fn search_again(
        &self,
        bytes: &[u8],
        (wanted_rows, candidates): (usize, Option<usize>),
        among: Option<&[bool]>,
        effort: Option<usize>,
        cancel: &CancelToken,
    ) -> Result<Vec<(Id, f32)>> {
        self.ensure_whole()?;
        let fine = self
            .fine
            .as_ref()
            .filter(|_| bytes.len() == 4 * self.dimension);
        let most = match fine {
            Some(_) if wanted_rows > 0 => Fine::candidates(wanted_rows, candidates),
            _ => wanted_rows,
        };
        let query = Query::by(self.similarity, self.row_type, bytes, self.dimension)?;
        let named = |row: usize| among.is_none_or(|rows| rows.get(row).copied().unwrap_or(false));
        let wanted = |row: usize| !self.deleted[row] && named(row);
        let rows = self.rows();
        let searched = self.graph.as_ref().zip(effort).filter(|(graph, effort)| {
            let left = match among {
                Some(_) => (0..graph.rows()).filter(|&row| wanted(row)).count(),
                None => self.live,
            };
            most > 0 && graph.is_shorter(left, most.max(*effort))
        });
        let mut found = match searched {
            Some((graph, effort)) => {
                graph.search(&rows, &query, most.max(effort), wanted, cancel)?
            }
            None => Vec::new(),
        };
        let first = searched.map_or(0, |(graph, _)| graph.rows());
        found.extend(compared(
            &rows,
            &query,
            first,
            most,
            (wanted, among.is_some()),
            cancel,
        )?);
        keep(&mut found, most);
        if let Some(fine) = fine {
            found = fine.rescore(bytes, self.dimension, found, wanted_rows)?;
        }
        Ok(found
            .into_iter()
            .map(|(row, score)| (self.ids[row].clone(), score))
            .collect())
    }

    /// Which rows have one of `ids`, for `search`, once ids can be looked up.
    pub fn rows_of(&self, ids: &[Id]) -> Vec<bool> {
        let mut rows = vec![false; self.ids.len()];
        for place in ids.iter().filter_map(|id| self.places.as_ref()?.get(id)) {
            rows[*place] = true;
        }
        rows
    }

    fn rows(&self) -> Rows<'_> {
        Rows {
            row_type: self.row_type,
            similarity: self.similarity,
            dimension: self.dimension,
            mapped: self.mapped.as_deref().unwrap_or_default(),
            added: &self.added,
            lengths: &self.lengths,
        }
    }

    fn mapped_rows(&self) -> usize {
        let mapped = self.mapped.as_deref().unwrap_or_default();
        mapped.len() / self.row_type.bytes(self.dimension)
    }

    fn reserve(&mut self, row_bytes: usize, fine_bytes: usize) -> Result<()> {
        let fine = self.fine.as_mut().map(|fine| &mut fine.added);
        let reserved = fine
            .map_or(Ok(()), |added| added.try_reserve(fine_bytes))
            .and_then(|()| self.added.try_reserve(row_bytes))
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
                        "this index has the id {id} twice, so it is damaged. Build it again"
                    )));
                }
            }
            self.places = Some(places);
        }
        Ok(self.places.get_or_insert_default())
    }
}

/// The best of the rows from `first` on that are wanted; where those are `few`, others aren't even read.
fn compared(
    rows: &Rows<'_>,
    query: &Query<'_>,
    first: usize,
    most: usize,
    (wanted, few): (impl Fn(usize) -> bool + Sync, bool),
    cancel: &CancelToken,
) -> Result<Vec<Found>> {
    let (mapped, added) = rows.starting_at(first);
    let row_bytes = rows.row_bytes();
    let split = first + mapped.len() / row_bytes;
    let all: Vec<Part<'_>> = parts(first, mapped, row_bytes)
        .chain(parts(split, added, row_bytes))
        .collect();
    best(&all, most, cancel, |part| {
        let numbers = part.first..part.first + part.rows.len() / row_bytes;
        let (numbers, scores): (Vec<usize>, Vec<f32>) = if few {
            let some: Vec<usize> = numbers.filter(|&row| wanted(row)).collect();
            let mut scores = Vec::new();
            rows.scores(query, some.iter().copied(), &mut scores)?;
            (some, scores)
        } else {
            let scores = query.scores(part.rows, &rows.lengths[part.first..])?;
            (numbers.collect(), scores)
        };
        // A damaged file may hold numbers that aren't any.
        Ok(numbers
            .into_iter()
            .zip(scores)
            .filter(|&(row, score)| wanted(row) && !score.is_nan())
            .collect())
    })
}
