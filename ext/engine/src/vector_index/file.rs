//! The file of an index.
//!
//! ```text
//! 0   8  magic              24  8  rows             rows, each of the same size
//! 8   1  type of rows       32  8  bytes of ids     finer rows, if there are any, each of the same size
//! 9   3  similarity         40  8  checksum         lengths: f32 for each row
//! 12  4  type of finer      48  8  end              ids: u32 length and UTF-8, or u32::MAX and i64
//!        rows + 1, or 0     56  8  0                graph, if there is one
//! 16  8  dimension
//!
//! graph:  8  links   8  layers   8 × layers  rows of each
//!         for each layer: its rows, but for the first, which has all; their links, the rest being u32::MAX
//! ```
//!
//! `end` is where this ends and something else follows, which is not read here; 0 where the file ends with it.
//!
//! All numbers are little-endian. The checksum covers all but the rows, which are read when they are searched.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::fine::Fine;
use super::graph::Graph;
use super::measure::Similarity;
use super::{Id, RowType, VectorIndex, MOST_DIMENSIONS};
use crate::{CancelToken, Error, Result};
use base::runtime::bytes::{unreadable, Bytes};
use base::runtime::memory;
use formats::files::replace::replace;

const MAGIC: &[u8; 8] = b"RCINDEX1";
const HEADER: usize = 64;
/// Where the checksum stands.
const CHECKSUM: std::ops::Range<usize> = 40..48;
/// Where it says where it ends.
const END: std::ops::Range<usize> = 48..56;
/// In place of a text's length.
const INTEGER: u32 = u32::MAX;
/// Rows between two looks at the cancel token.
const ROWS: usize = 1 << 10;
/// Bytes between two looks at it.
const PIECE: usize = 1 << 24;

/// Files up to this size are read: a mapping saves them little, and one that is shortened ends the process.
const COPIED: u64 = 8 << 20;

pub struct Contents {
    pub file: Bytes,
    pub row_type: RowType,
    pub similarity: Similarity,
    pub dimension: usize,
    pub rows: Bytes,
    pub fine: Option<Fine>,
    pub lengths: Vec<f32>,
    pub ids: Vec<Id>,
    pub graph: Option<Graph>,
}

pub fn read(path: &Path, cancel: &CancelToken) -> Result<Contents> {
    if !path.is_file() {
        return Err(Error::InvalidInput(format!(
            "there is no index {}: make one with Candle::Index.new and save it",
            path.display()
        )));
    }
    let wrong = |reason: &str| {
        Error::CorruptModel(format!(
            "{} is not a sound index: {reason}. Build it again",
            path.display()
        ))
    };
    let file = contents(path)?;
    let header = file
        .get(..HEADER)
        .filter(|header| header.starts_with(MAGIC))
        .ok_or_else(|| wrong("it does not begin as one"))?;
    let layout = Layout::parse(header, file.len()).map_err(wrong)?;
    let rest = &file[layout.lengths..layout.whole];
    if checksum(&header[..CHECKSUM.start], &[rest], cancel)? != header[CHECKSUM] {
        return Err(wrong("its checksum is another"));
    }
    memory::ensure_elements(
        &[layout.count],
        size_of::<Id>() + size_of::<f32>() + size_of::<bool>(),
        format_args!("the {} ids of an index", layout.count),
    )?;
    let (lengths, ids) = rest.split_at(4 * layout.count);
    let ids = &ids[..layout.id_bytes];
    let graph = file
        .slice(layout.end, layout.whole - layout.end)
        .filter(|graph| !graph.is_empty());
    let lengths = lengths
        .chunks_exact(4)
        .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    if !file.is_whole() {
        return Err(wrong("it was shortened while it was opened"));
    }
    Ok(Contents {
        file: file.clone(),
        row_type: layout.row_type,
        similarity: layout.similarity,
        dimension: layout.dimension,
        lengths: lengths.collect(),
        ids: read_ids(ids, layout.count, cancel)?.ok_or_else(|| wrong("its ids can't be read"))?,
        rows: file
            .slice(HEADER, layout.fine - HEADER)
            .ok_or_else(|| wrong("it is cut short"))?,
        fine: layout
            .fine_type
            .map(|row_type| {
                let rows = file.slice(layout.fine, layout.lengths - layout.fine);
                let rows = rows.ok_or_else(|| wrong("it is cut short"))?;
                Ok::<_, Error>(Fine {
                    mapped: Some(rows),
                    ..Fine::new(row_type)
                })
            })
            .transpose()?,
        graph: graph
            .map(|graph| Graph::parse(&graph, layout.count).map_err(wrong))
            .transpose()?,
    })
}

fn contents(path: &Path) -> Result<Bytes> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() <= COPIED => fs::read(path)
            .map(Bytes::unpacked)
            .map_err(|error| unreadable(path, &error)),
        _ => Bytes::map(path),
    }
}

struct Layout {
    row_type: RowType,
    similarity: Similarity,
    fine_type: Option<RowType>,
    dimension: usize,
    count: usize,
    /// Where finer rows begin.
    fine: usize,
    /// Where lengths begin.
    lengths: usize,
    id_bytes: usize,
    /// Where ids end.
    end: usize,
    /// Where all of it ends.
    whole: usize,
}

impl Layout {
    /// Sizes are believed when there is room for them in the file.
    fn parse(header: &[u8], size: usize) -> std::result::Result<Self, &'static str> {
        let number = |at: usize| -> Option<usize> {
            let bytes = header.get(at..at + 8)?.try_into().ok()?;
            usize::try_from(u64::from_le_bytes(bytes)).ok()
        };
        let (row_type, fine_type) = match [header[8], header[12]] {
            [0, 0] => (RowType::F32, None),
            [1, 0] => (RowType::Int8, None),
            [2, 0] => (RowType::Binary, None),
            [2, 1] => (RowType::Binary, Some(RowType::F32)),
            [2, 2] => (RowType::Binary, Some(RowType::Int8)),
            _ => return Err("its rows are of a type that this version does not know"),
        };
        let similarity = Similarity::numbered(header[9])
            .filter(|&one| one == Similarity::Cosine || row_type != RowType::Binary)
            .filter(|_| header[10..12] == [0; 2] && header[13..16] == [0; 3])
            .ok_or("its rows are compared by what this version does not know")?;
        let too_large = "its sizes can't be right";
        let dimension = number(16)
            .filter(|dimension| (1..=MOST_DIMENSIONS).contains(dimension))
            .ok_or("it has no or too many components")?;
        let count = number(24).ok_or(too_large)?;
        let fine = count
            .checked_mul(row_type.bytes(dimension))
            .and_then(|rows| rows.checked_add(HEADER))
            .ok_or(too_large)?;
        let lengths = count
            .checked_mul(fine_type.map_or(0, |row_type| row_type.bytes(dimension)))
            .and_then(|rows| rows.checked_add(fine))
            .ok_or(too_large)?;
        let id_bytes = number(32).ok_or(too_large)?;
        let end = count
            .checked_mul(4)
            .and_then(|bytes| bytes.checked_add(lengths))
            .and_then(|bytes| bytes.checked_add(id_bytes))
            .ok_or(too_large)?;
        let whole = match number(48).ok_or(too_large)? {
            0 => size,
            whole => whole,
        };
        if end > whole || whole > size {
            return Err("its size is not what its beginning says");
        }
        Ok(Self {
            row_type,
            similarity,
            fine_type,
            dimension,
            count,
            fine,
            lengths,
            id_bytes,
            end,
            whole,
        })
    }
}

fn read_ids(mut bytes: &[u8], count: usize, cancel: &CancelToken) -> Result<Option<Vec<Id>>> {
    let mut ids = Vec::new();
    if ids.try_reserve_exact(count).is_err() {
        return Err(Error::OutOfMemory(format!(
            "there is no memory for the {count} ids of an index"
        )));
    }
    for at in 0..count {
        if at % ROWS == 0 {
            cancel.check()?;
        }
        let Some((id, rest)) = read_id(bytes) else {
            return Ok(None);
        };
        ids.push(id);
        bytes = rest;
    }
    Ok(bytes.is_empty().then_some(ids))
}

fn read_id(bytes: &[u8]) -> Option<(Id, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length);
    if length == INTEGER {
        let (number, rest) = rest.split_first_chunk::<8>()?;
        return Some((Id::Integer(i64::from_le_bytes(*number)), rest));
    }
    let (text, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    Some((Id::Text(std::str::from_utf8(text).ok()?.into()), rest))
}

/// The old file stays until the new one is whole. `followed`: something else will be added to the file.
pub fn write(
    index: &VectorIndex,
    graph: Option<&Graph>,
    (path, followed): (&Path, bool),
    cancel: &CancelToken,
) -> Result<()> {
    replace(path, "the index", |file, failed| {
        write_to(index, graph, (file, followed), failed, cancel)
    })
}

fn write_to(
    index: &VectorIndex,
    graph: Option<&Graph>,
    (file, followed): (&File, bool),
    failed: &dyn Fn(io::Error) -> Error,
    cancel: &CancelToken,
) -> Result<()> {
    let live = || (0..index.ids.len()).filter(|&row| !index.deleted[row]);
    let mut ids = Vec::new();
    let mut lengths = Vec::with_capacity(4 * index.live);
    for row in live() {
        write_id(&index.ids[row], &mut ids)?;
        lengths.extend_from_slice(&index.lengths[row].to_le_bytes());
    }
    let graph = graph.map(Graph::parts).unwrap_or_default();
    let mut rest: Vec<&[u8]> = vec![&lengths, &ids];
    rest.extend(graph.iter().map(|part| &**part));
    let mut header = header(index, ids.len(), &rest, cancel)?;
    if followed {
        let fine = index
            .fine_type()
            .map_or(0, |fine| fine.bytes(index.dimension));
        let rows = index.live * (index.row_type.bytes(index.dimension) + fine);
        let rest: usize = rest.iter().map(|part| part.len()).sum();
        header[END].copy_from_slice(&((HEADER + rows + rest) as u64).to_le_bytes());
    }
    let mut file = BufWriter::with_capacity(1 << 20, file);
    file.write_all(&header).map_err(failed)?;
    let row_bytes = index.row_type.bytes(index.dimension);
    let mapped = index.mapped.as_deref().unwrap_or_default();
    let rows = mapped
        .chunks_exact(row_bytes)
        .chain(index.added.chunks_exact(row_bytes));
    let fine = index
        .fine
        .iter()
        .flat_map(|fine| fine.rows(index.dimension));
    for (row, bytes) in rows.enumerate().chain(fine.enumerate()) {
        if row % ROWS == 0 {
            cancel.check()?;
        }
        if !index.deleted[row] {
            file.write_all(bytes).map_err(failed)?;
        }
    }
    for part in rest.iter().flat_map(|part| part.chunks(PIECE)) {
        cancel.check()?;
        file.write_all(part).map_err(failed)?;
    }
    file.flush().map_err(failed)
}

fn header(
    index: &VectorIndex,
    id_bytes: usize,
    rest: &[&[u8]],
    cancel: &CancelToken,
) -> Result<Vec<u8>> {
    let number = |row_type: RowType| -> u64 {
        match row_type {
            RowType::F32 => 0,
            RowType::Int8 => 1,
            RowType::Binary => 2,
        }
    };
    let fine = index.fine_type().map_or(0, |fine| number(fine) + 1);
    let similarity = u64::from(index.similarity.number());
    let row_type = number(index.row_type) | (similarity << 8) | (fine << 32);
    let numbers = [
        row_type,
        index.dimension as u64,
        index.live as u64,
        id_bytes as u64,
    ];
    let mut header = MAGIC.to_vec();
    header.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    let checksum = checksum(&header, rest, cancel)?;
    header.extend_from_slice(&checksum);
    header.resize(HEADER, 0);
    Ok(header)
}

fn write_id(id: &Id, ids: &mut Vec<u8>) -> Result<()> {
    match id {
        Id::Integer(number) => {
            ids.extend_from_slice(&INTEGER.to_le_bytes());
            ids.extend_from_slice(&number.to_le_bytes());
        }
        Id::Text(text) => {
            let length = u32::try_from(text.len())
                .ok()
                .filter(|&length| length != INTEGER);
            let length = length.ok_or_else(|| {
                Error::InvalidInput("an id of an index must be shorter than 4 GiB".to_owned())
            })?;
            ids.extend_from_slice(&length.to_le_bytes());
            ids.extend_from_slice(text.as_bytes());
        }
    }
    Ok(())
}

fn checksum(header: &[u8], rest: &[&[u8]], cancel: &CancelToken) -> Result<[u8; 8]> {
    let mut hash = Sha256::new();
    hash.update(header);
    for bytes in rest.iter().flat_map(|part| part.chunks(PIECE)) {
        cancel.check()?;
        hash.update(bytes);
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hash.finalize()[..8]);
    Ok(first)
}
