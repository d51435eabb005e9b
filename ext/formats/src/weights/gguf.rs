//! The GGUF format, versions 1 to 3: keys and values, then tensor descriptions, then their blocks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::coded::Coded;
use super::table::{Data, Entry, Table};
use super::{element_count, Array, Element, Metadata, Value};
use crate::files::gguf_choice::Split;
use crate::{Error, Result};
use base::quant::BlockType;
use base::runtime::bytes::Bytes;

const MAGIC: &[u8; 4] = b"GGUF";
const DEFAULT_ALIGNMENT: usize = 32;
const MOST_ALIGNMENT: usize = 1 << 16;
/// Far more than any model has; a count from the file is checked before anything is reserved.
const MOST_KEYS: u64 = 65_536;
const MOST_TENSORS: u64 = 262_144;
const MOST_NAME_BYTES: usize = 65_535;
const MOST_DIMENSIONS: u32 = 4;
const MOST_ARRAY_DEPTH: usize = 4;

/// The format's numbers for value types that are treated apart.
pub(super) const STRING: u32 = 8;
const ARRAY: u32 = 9;

pub(super) type Parsed<T> = std::result::Result<T, String>;

/// Opens one file and checks every count, size and offset in it.
pub(super) fn read(path: &Path) -> Result<Table> {
    let file = Bytes::map(path)?;
    let corrupt = |reason: String| Error::corrupt(path, reason);
    let mut cursor = Cursor::new(&file, false);
    cursor.narrow = version(path, &mut cursor)? == 1;
    let tensor_count = cursor.length().map_err(corrupt)?;
    let key_count = cursor.length().map_err(corrupt)?;
    let values = keys(&mut cursor, key_count).map_err(corrupt)?;
    let metadata = Metadata::new(path, values);
    let alignment = alignment(&metadata)?;
    let tensors = descriptions(path, &mut cursor, tensor_count)?;
    let start = cursor
        .position
        .checked_next_multiple_of(alignment)
        .unwrap_or(usize::MAX);
    let data = file
        .slice(start, file.len().saturating_sub(start))
        .or_else(|| tensors.is_empty().then(|| Bytes::unpacked(Vec::new())))
        .ok_or_else(|| corrupt("it ends before its tensors".to_owned()))?;
    check_layout(&tensors, alignment, data.len()).map_err(corrupt)?;
    let mut table = Table::new(path, metadata);
    for tensor in tensors {
        let (name, entry) = tensor.entry(&data).map_err(corrupt)?;
        table.insert(name, entry)?;
    }
    table.scale_coded()?;
    Ok(table)
}

/// The files of a model that was split: `name-00001-of-00003.gguf` and its fellows.
pub(super) fn parts(path: &Path) -> Result<Vec<PathBuf>> {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(split) = name.and_then(Split::parse) else {
        return Ok(vec![path.to_owned()]);
    };
    let parts: Vec<PathBuf> = split
        .parts()
        .map(|part| path.with_file_name(part))
        .collect();
    match parts.iter().find(|part| !part.is_file()) {
        None => Ok(parts),
        Some(missing) => Err(Error::ModelNotFound(format!(
            "{} is missing: the model is split into {} files, and all must be there",
            missing.display(),
            parts.len()
        ))),
    }
}

fn version(path: &Path, cursor: &mut Cursor<'_>) -> Result<u32> {
    let corrupt = |reason: String| Error::corrupt(path, reason);
    if cursor.take(MAGIC.len()).map_err(corrupt)? != MAGIC {
        return Err(Error::corrupt(path, "it does not start like a GGUF file"));
    }
    let version = cursor.u32().map_err(corrupt)?;
    match version {
        1..=3 => Ok(version),
        _ if (1..=3).contains(&version.swap_bytes()) => Err(Error::unsupported(
            path,
            "it is a big-endian GGUF file. Fetch the little-endian one",
        )),
        _ => Err(Error::unsupported(
            path,
            format!("GGUF version {version} is not known. Versions 1 to 3 are"),
        )),
    }
}

fn keys(cursor: &mut Cursor<'_>, count: u64) -> Parsed<BTreeMap<String, Value>> {
    if count > MOST_KEYS {
        return Err(format!("it claims to have {count} keys"));
    }
    let mut values = BTreeMap::new();
    for index in 0..count {
        let key = cursor
            .name()
            .map_err(|reason| format!("key number {index}: {reason}"))?;
        let value = cursor
            .u32()
            .and_then(|kind| cursor.value(kind))
            .map_err(|reason| format!("key {key:?}: {reason}"))?;
        if values.contains_key(&key) {
            return Err(format!("key {key:?} is there twice"));
        }
        values.insert(key, value);
    }
    Ok(values)
}

fn alignment(metadata: &Metadata) -> Result<usize> {
    let Some(alignment) = metadata.opt_u32("general.alignment")? else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let alignment = alignment as usize;
    if !alignment.is_power_of_two() || alignment > MOST_ALIGNMENT {
        return Err(Error::corrupt(
            metadata.file(),
            format!("its alignment is {alignment}, which is not a sensible power of two"),
        ));
    }
    Ok(alignment)
}

/// A tensor as the file describes it.
struct Description {
    name: String,
    /// Outermost first; the file has them the other way round.
    shape: Vec<usize>,
    storage: Storage,
    offset: usize,
    bytes: usize,
}

#[derive(Clone, Copy)]
pub(super) enum Storage {
    Dense(Element),
    Blocks(BlockType),
    Coded(Coded),
}

impl Storage {
    /// Of bytes that are known to be as many as there should be.
    pub fn data(self, bytes: Bytes) -> Data {
        match self {
            Self::Dense(element) => Data::Dense(element, bytes),
            Self::Blocks(kind) => Data::Quantized(kind, bytes),
            Self::Coded(kind) => Data::Coded(kind, bytes, Vec::new()),
        }
    }
}

fn descriptions(path: &Path, cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Description>> {
    if count > MOST_TENSORS {
        return Err(Error::corrupt(
            path,
            format!("it claims to have {count} tensors"),
        ));
    }
    let mut tensors = Vec::new();
    for index in 0..count {
        let name = cursor
            .name()
            .map_err(|reason| Error::corrupt(path, format!("tensor number {index}: {reason}")))?;
        let corrupt = |reason| Error::corrupt(path, format!("tensor {name:?}: {reason}"));
        let (shape, kind, offset) = description(cursor).map_err(corrupt)?;
        let storage = storage(kind).ok_or_else(|| unsupported_type(path, &name, kind))?;
        let bytes = size(&shape, storage).map_err(corrupt)?;
        tensors.push(Description {
            name,
            shape,
            storage,
            offset,
            bytes,
        });
    }
    Ok(tensors)
}

fn description(cursor: &mut Cursor<'_>) -> Parsed<(Vec<usize>, u32, usize)> {
    let dimensions = cursor.u32()?;
    if dimensions > MOST_DIMENSIONS {
        return Err(format!("it claims to have {dimensions} dimensions"));
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        let extent = cursor.length()?;
        shape.push(usize::try_from(extent).map_err(|_| format!("a dimension of {extent}"))?);
    }
    shape.reverse();
    let kind = cursor.u32()?;
    let offset = cursor.u64()?;
    let offset = usize::try_from(offset).map_err(|_| format!("an offset of {offset}"))?;
    Ok((shape, kind, offset))
}

pub(super) fn size(shape: &[usize], storage: Storage) -> Parsed<usize> {
    let (elements, bytes) = match storage {
        Storage::Dense(element) => (1, element.size()),
        Storage::Blocks(kind) => (kind.elements(), kind.bytes()),
        Storage::Coded(kind) => (kind.elements(), kind.bytes()),
    };
    let row = shape.last().copied().unwrap_or(1);
    if row % elements != 0 {
        return Err(format!(
            "rows of {row} elements are not whole blocks of {elements}"
        ));
    }
    element_count(shape)
        .and_then(|count| (count / elements).checked_mul(bytes))
        .ok_or_else(|| format!("the shape {shape:?} is absurd"))
}

impl Description {
    fn entry(self, data: &Bytes) -> Parsed<(String, Entry)> {
        let bytes = data
            .slice(self.offset, self.bytes)
            .ok_or_else(|| format!("tensor {:?} lies beyond the end of the file", self.name))?;
        let entry = Entry {
            shape: self.shape,
            data: self.storage.data(bytes),
            file: 0,
        };
        Ok((self.name, entry))
    }
}

/// Offsets aligned, inside the data, and no two tensors over the same bytes.
fn check_layout(tensors: &[Description], alignment: usize, length: usize) -> Parsed<()> {
    let mut order: Vec<&Description> = tensors.iter().filter(|t| t.bytes > 0).collect();
    order.sort_unstable_by_key(|tensor| tensor.offset);
    let mut previous: Option<&Description> = None;
    for tensor in order {
        let Description {
            name,
            offset,
            bytes,
            ..
        } = tensor;
        if offset % alignment != 0 {
            return Err(format!(
                "tensor {name:?} starts at {offset}, which is not a multiple of {alignment}"
            ));
        }
        if offset.checked_add(*bytes).is_none_or(|end| end > length) {
            return Err(format!(
                "tensor {name:?} lies beyond the end of the file: it needs {bytes} bytes at {offset} \
                 of {length} (the file is truncated)"
            ));
        }
        // Ends are inside the file, so that this sum is safe.
        if let Some(other) = previous.filter(|other| other.offset + other.bytes > *offset) {
            return Err(format!("tensors {:?} and {name:?} overlap", other.name));
        }
        previous = Some(tensor);
    }
    Ok(())
}

pub(super) fn storage(kind: u32) -> Option<Storage> {
    Some(match kind {
        0 => Storage::Dense(Element::F32),
        1 => Storage::Dense(Element::F16),
        2 => Storage::Blocks(BlockType::Q4_0),
        3 => Storage::Blocks(BlockType::Q4_1),
        6 => Storage::Blocks(BlockType::Q5_0),
        7 => Storage::Blocks(BlockType::Q5_1),
        8 => Storage::Blocks(BlockType::Q8_0),
        9 => Storage::Blocks(BlockType::Q8_1),
        10 => Storage::Blocks(BlockType::Q2K),
        11 => Storage::Blocks(BlockType::Q3K),
        12 => Storage::Blocks(BlockType::Q4K),
        13 => Storage::Blocks(BlockType::Q5K),
        14 => Storage::Blocks(BlockType::Q6K),
        15 => Storage::Blocks(BlockType::Q8K),
        20 => Storage::Blocks(BlockType::Iq4Nl),
        23 => Storage::Blocks(BlockType::Iq4Xs),
        24 => Storage::Dense(Element::I8),
        25 => Storage::Dense(Element::I16),
        26 => Storage::Dense(Element::I32),
        27 => Storage::Dense(Element::I64),
        28 => Storage::Dense(Element::F64),
        30 => Storage::Dense(Element::Bf16),
        _ => return Coded::of(kind).map(Storage::Coded),
    })
}

/// An unknown number is damage or the future.
pub(super) fn unsupported_type(path: &Path, name: &str, kind: u32) -> Error {
    Error::unsupported(
        path,
        format!(
            "tensor {name:?} has the type number {kind}, which is not supported. \
             Use a file with Q4_K_M, Q5_K_M, Q6_K, Q8_0, F16 or BF16 instead"
        ),
    )
}

/// A reader that never leaves its bytes.
pub(super) struct Cursor<'a> {
    bytes: &'a Bytes,
    position: usize,
    /// Whether lengths are 32 bits wide, as in version 1.
    narrow: bool,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a Bytes, narrow: bool) -> Self {
        Self {
            bytes,
            position: 0,
            narrow,
        }
    }

    pub fn position(&self) -> usize {
        self.position
    }

    /// Whether nothing is left.
    pub fn is_over(&self) -> bool {
        self.position >= self.bytes.len()
    }

    /// The bytes of so many strings, with their lengths.
    pub fn strings(&mut self, count: usize) -> Parsed<Bytes> {
        let start = self.position;
        for _ in 0..count {
            self.string()?;
        }
        let bytes = self.bytes.slice(start, self.position - start);
        bytes.ok_or_else(|| "it ends too early".to_owned())
    }

    pub fn take(&mut self, count: usize) -> Parsed<&'a [u8]> {
        let end = self.position.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.position..end));
        let taken = taken.ok_or_else(|| {
            let left = self.bytes.len().saturating_sub(self.position);
            format!("it ends too early: {count} bytes are wanted and {left} are left")
        })?;
        self.position += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub fn u32(&mut self) -> Parsed<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Parsed<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn length(&mut self) -> Parsed<u64> {
        if self.narrow {
            self.u32().map(u64::from)
        } else {
            self.u64()
        }
    }

    pub fn string(&mut self) -> Parsed<&'a [u8]> {
        let length = self.length()?;
        let length = usize::try_from(length).map_err(|_| format!("a string of {length} bytes"))?;
        self.take(length)
    }

    fn name(&mut self) -> Parsed<String> {
        let bytes = self.string()?;
        if bytes.len() > MOST_NAME_BYTES {
            return Err(format!("a name of {} bytes", bytes.len()));
        }
        String::from_utf8(bytes.to_vec()).map_err(|_| "its name is not UTF-8".to_owned())
    }

    pub fn value(&mut self, kind: u32) -> Parsed<Value> {
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(self.array::<1>()? != [0]),
            STRING => Value::String(String::from_utf8_lossy(self.string()?).into_owned()),
            ARRAY => Value::Array(self.lazy_array()?),
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            _ => return Err(format!("the value type {kind} is not known")),
        })
    }

    fn lazy_array(&mut self) -> Parsed<Array> {
        let mut elements = Cursor { ..*self };
        let (kind, length) = elements.array_header()?;
        let start = elements.position;
        elements.skip(kind, length, 1)?;
        self.position = elements.position;
        let bytes = self.bytes.slice(start, self.position - start);
        Ok(Array {
            kind,
            length,
            bytes: bytes.ok_or("it ends too early")?,
            narrow: self.narrow,
        })
    }

    fn array_header(&mut self) -> Parsed<(u32, usize)> {
        let kind = self.u32()?;
        let length = self.length()?;
        let length = usize::try_from(length).map_err(|_| format!("an array of {length}"))?;
        Ok((kind, length))
    }

    /// Skips the elements of an array, verifying that they are all there.
    fn skip(&mut self, kind: u32, length: usize, depth: usize) -> Parsed<()> {
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            STRING => {
                for _ in 0..length {
                    self.string()?;
                }
                return Ok(());
            }
            ARRAY if depth < MOST_ARRAY_DEPTH => {
                for _ in 0..length {
                    let (kind, length) = self.array_header()?;
                    self.skip(kind, length, depth + 1)?;
                }
                return Ok(());
            }
            ARRAY => return Err("arrays are nested too deeply".to_owned()),
            _ => return Err(format!("the value type {kind} is not known")),
        };
        let bytes = length.checked_mul(size);
        self.take(bytes.ok_or_else(|| format!("an array of {length}"))?)?;
        Ok(())
    }
}
