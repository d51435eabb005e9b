//! `pytorch_model.bin`: a zip archive with one pickle and one member per storage.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::archive::Archive;
use super::pickle::{self, Fault, Storage, View};
use super::table::{Data, Entry, Table};
use super::{element_count, ggml, Metadata, Value};
use crate::{Error, Result};
use base::runtime::bytes::Bytes;

const MOST_PICKLE_BYTES: usize = 32 << 20;
/// torch.save never packs; for archives packed by other tools, this is more than weights shrink.
const MOST_UNPACKING: usize = 16;
const UNPACKING_ALLOWANCE: usize = 16 << 20;
/// Pickled numbers that begin files of PyTorch before 1.6.
const OLD_FORMAT: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

/// Opens one file and checks every tensor in it against its storage. No code in it is run.
pub(super) fn read(path: &Path) -> Result<Table> {
    let file = Bytes::map(path)?;
    check_kind(path, &file)?;
    let corrupt = |reason: String| Error::corrupt(path, reason);
    let mut budget = file
        .len()
        .saturating_mul(MOST_UNPACKING)
        .saturating_add(UNPACKING_ALLOWANCE);
    let archive = Archive::open(file).map_err(corrupt)?;
    let folder = folder(&archive).ok_or_else(|| {
        corrupt("it is an archive without a data.pkl, so not a PyTorch checkpoint".to_owned())
    })?;
    check_byte_order(path, &archive, &folder, &mut budget)?;
    let program = archive
        .read(&format!("{folder}data.pkl"), &mut budget, true)
        .map_err(corrupt)?;
    if program.len() > MOST_PICKLE_BYTES {
        return Err(corrupt(format!("its pickle has {} bytes", program.len())));
    }
    let found = pickle::state_dict(&program).map_err(|fault| refusal(path, fault))?;
    let mut storages = HashMap::new();
    let mut table = Table::new(path, metadata(path, &found.sizes));
    for (name, view) in found.tensors {
        let bytes = match storages.get(&view.storage.key) {
            Some(bytes) => Bytes::clone(bytes),
            None => {
                let member = format!("{folder}data/{}", view.storage.key);
                let bytes = archive
                    .read(&member, &mut budget, false)
                    .map_err(|reason| corrupt(format!("tensor {name:?}: {reason}")))?;
                storages.insert(view.storage.key.clone(), bytes.clone());
                bytes
            }
        };
        let entry =
            entry(&bytes, view).map_err(|reason| corrupt(format!("tensor {name:?} {reason}")))?;
        table.insert(name, entry)?;
    }
    Ok(table)
}

/// The sizes of a Whisper, under the keys that files of whisper.cpp get.
fn metadata(path: &Path, sizes: &[(String, i64)]) -> Metadata {
    let known = sizes
        .iter()
        .filter(|(name, _)| ggml::SIZES.contains(&name.as_str()));
    let mut values: BTreeMap<String, Value> = known
        .map(|(name, size)| (format!("whisper.{name}"), Value::Signed(*size)))
        .collect();
    if values.is_empty() {
        return Metadata::default();
    }
    let family = Value::String("whisper".to_owned());
    values.insert("general.architecture".to_owned(), family);
    Metadata::new(path, values)
}

fn check_kind(path: &Path, file: &[u8]) -> Result<()> {
    if file.starts_with(b"PK") {
        return Ok(());
    }
    if file.starts_with(OLD_FORMAT) {
        return Err(Error::unsupported(
            path,
            "it was written by PyTorch before 1.6. Load it in Python and save it again, \
             best with safetensors.torch.save_file",
        ));
    }
    if file.starts_with(b"\x80") {
        return Err(Error::corrupt(
            path,
            "it is a bare pickle and not a PyTorch checkpoint (nothing in it was run)",
        ));
    }
    Err(Error::corrupt(path, "it is not a PyTorch checkpoint"))
}

/// The one folder that everything in the archive is in, with its slash.
fn folder(archive: &Archive) -> Option<String> {
    let mut folders = archive.names().filter_map(|name| {
        let folder = name.strip_suffix("data.pkl")?;
        let plain = folder.is_empty() || folder.find('/') == Some(folder.len() - 1);
        plain.then(|| folder.to_owned())
    });
    folders.next()
}

fn check_byte_order(
    path: &Path,
    archive: &Archive,
    folder: &str,
    budget: &mut usize,
) -> Result<()> {
    let member = format!("{folder}byteorder");
    if !archive.names().any(|name| name == member) {
        return Ok(());
    }
    let order = archive
        .read(&member, budget, false)
        .map_err(|reason| Error::corrupt(path, reason))?;
    if &*order == b"big" {
        return Err(Error::unsupported(path, "its numbers are big-endian"));
    }
    Ok(())
}

fn refusal(path: &Path, fault: Fault) -> Error {
    match fault {
        Fault::Damaged(reason) => Error::corrupt(path, reason),
        Fault::Unsupported(reason) => Error::unsupported(path, reason),
        Fault::Code(name) => Error::CorruptModel(format!(
            "{} contains code ({name}), which was not run. Weights need none: \
             use the safetensors version of this model, or one from a source that you trust",
            path.display()
        )),
    }
}

/// A view whose every element is inside its storage.
fn entry(bytes: &Bytes, view: View) -> std::result::Result<Entry, String> {
    let Storage {
        element, elements, ..
    } = view.storage;
    let size = element.size();
    let stored = elements.checked_mul(size);
    if stored.is_none_or(|stored| stored > bytes.len()) {
        return Err(format!(
            "has a storage of {elements} elements in {} bytes",
            bytes.len()
        ));
    }
    let Some((count, last)) = extent(&view) else {
        return Err(format!("has the absurd shape {:?}", view.shape));
    };
    // A view that repeats elements could be of any size.
    if count > 0 && (last >= elements || count > elements) {
        return Err(format!(
            "of shape {:?} reaches beyond its storage of {elements} elements",
            view.shape
        ));
    }
    let start = if count == 0 { 0 } else { view.offset * size };
    let contiguous = count == 0 || is_contiguous(&view);
    let length = if contiguous {
        count * size
    } else {
        (last - view.offset + 1) * size
    };
    let part = bytes
        .slice(start, length)
        .ok_or("lies beyond its storage")?;
    let data = if contiguous {
        Data::Dense(element, part)
    } else {
        Data::Strided(element, part, view.strides)
    };
    Ok(Entry {
        shape: view.shape,
        data,
        file: 0,
    })
}

/// The number of elements and the index of the last one in the storage; `None` when either is
/// beyond all numbers.
fn extent(view: &View) -> Option<(usize, usize)> {
    if view.shape.len() != view.strides.len() {
        return None;
    }
    let count = element_count(&view.shape)?;
    let mut last = view.offset;
    for (&extent, &stride) in view.shape.iter().zip(&view.strides) {
        last = last.checked_add(extent.saturating_sub(1).checked_mul(stride)?)?;
    }
    Some((count, last))
}

/// For views with elements: the product of their extents is known to fit.
fn is_contiguous(view: &View) -> bool {
    let mut expected = 1;
    for (&extent, &stride) in view.shape.iter().zip(&view.strides).rev() {
        if extent != 1 && stride != expected {
            return false;
        }
        expected *= extent;
    }
    true
}
