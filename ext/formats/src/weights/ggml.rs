//! whisper.cpp's files: sizes, mel filters and a vocabulary, then tensors, one right after the other.

use std::collections::BTreeMap;
use std::path::Path;

use super::gguf::{self, Cursor, Parsed, STRING};
use super::table::{Entry, Table};
use super::{Array, Metadata, Value};
use crate::files::weight_files::GGML_MAGIC;
use crate::{Error, Result};
use base::runtime::bytes::Bytes;

/// The sizes of a model, in the file's order and by OpenAI's names.
pub(super) const SIZES: [&str; 10] = [
    "n_vocab",
    "n_audio_ctx",
    "n_audio_state",
    "n_audio_head",
    "n_audio_layer",
    "n_text_ctx",
    "n_text_state",
    "n_text_head",
    "n_text_layer",
    "n_mels",
];
/// Far more than any model has.
const MOST_TENSORS: usize = 65_536;
const MOST_TOKENS: u32 = 1 << 20;
const MOST_DIMENSIONS: u32 = 4;
/// Kernels read blocks from places that are multiples of this.
const ALIGNMENT: usize = 32;

/// Opens one file and checks every count and size in it.
pub(super) fn read(path: &Path) -> Result<Table> {
    let file = Bytes::map(path)?;
    let corrupt = |reason: String| Error::corrupt(path, reason);
    let mut cursor = Cursor::new(&file, true);
    if cursor.take(GGML_MAGIC.len()).map_err(corrupt)? != GGML_MAGIC {
        return Err(corrupt(
            "it does not start like a file of whisper.cpp".to_owned(),
        ));
    }
    let values = values(&mut cursor).map_err(corrupt)?;
    let mut table = Table::new(path, Metadata::new(path, values));
    for number in 0.. {
        if cursor.is_over() {
            break;
        }
        if number == MOST_TENSORS {
            return Err(corrupt(format!("it has more than {MOST_TENSORS} tensors")));
        }
        let (name, kind, shape) = description(&mut cursor)
            .map_err(|reason| corrupt(format!("tensor number {number}: {reason}")))?;
        let storage =
            gguf::storage(kind).ok_or_else(|| gguf::unsupported_type(path, &name, kind))?;
        let bytes = gguf::size(&shape, storage)
            .and_then(|bytes| aligned(&file, &mut cursor, bytes))
            .map_err(|reason| corrupt(format!("tensor {name:?}: {reason}")))?;
        let entry = Entry {
            shape,
            data: storage.data(bytes),
            file: 0,
        };
        table.insert(name, entry)?;
    }
    Ok(table)
}

fn values(cursor: &mut Cursor<'_>) -> Parsed<BTreeMap<String, Value>> {
    let mut values = BTreeMap::new();
    for name in SIZES {
        let size = cursor.u32()?;
        values.insert(format!("whisper.{name}"), Value::Unsigned(size.into()));
    }
    // How most tensors are stored, which each of them says too.
    cursor.u32()?;
    let (bands, frequencies) = (cursor.u32()?, cursor.u32()?);
    let filters = (bands as usize)
        .checked_mul(frequencies as usize)
        .and_then(|count| count.checked_mul(4))
        .ok_or_else(|| format!("mel filters of {bands} times {frequencies} numbers"))?;
    cursor.take(filters)?;
    let count = cursor.u32()?;
    if count > MOST_TOKENS {
        return Err(format!("it claims to have {count} tokens"));
    }
    let tokens = cursor.strings(count as usize)?;
    let array = Array {
        kind: STRING,
        length: count as usize,
        bytes: tokens,
        narrow: true,
    };
    values.insert("whisper.tokens".to_owned(), Value::Array(array));
    values.insert(
        "general.architecture".to_owned(),
        Value::String("whisper".to_owned()),
    );
    Ok(values)
}

/// Name, type and shape, outermost dimension first.
fn description(cursor: &mut Cursor<'_>) -> Parsed<(String, u32, Vec<usize>)> {
    let (dimensions, length, kind) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
    if dimensions > MOST_DIMENSIONS {
        return Err(format!("it claims to have {dimensions} dimensions"));
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        shape.push(cursor.u32()? as usize);
    }
    shape.reverse();
    let name = cursor.take(length as usize)?;
    let name = String::from_utf8(name.to_vec()).map_err(|_| "its name is not UTF-8".to_owned())?;
    // The biases of convolutions are columns.
    if name.ends_with(".bias") && shape.last() == Some(&1) && shape.len() == 2 {
        shape.pop();
    }
    Ok((name, kind, shape))
}

/// The next bytes, copied where kernels could not read them in place.
fn aligned(file: &Bytes, cursor: &mut Cursor<'_>, count: usize) -> Parsed<Bytes> {
    let start = cursor.position();
    let bytes = cursor.take(count)?;
    if start.is_multiple_of(ALIGNMENT) {
        return file
            .slice(start, count)
            .ok_or_else(|| "it ends too early".to_owned());
    }
    Ok(Bytes::unpacked(bytes.to_vec()))
}
