//! The safetensors format: a JSON header with offsets into one block of bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::Deserialize;

use super::table::{Data, Entry, Table};
use super::{element_count, Element, Metadata, Value};
use crate::{Error, Result};
use base::runtime::bytes::Bytes;
use base::runtime::memory;

/// The format's own limit.
const MOST_HEADER_BYTES: u64 = 100_000_000;
const LENGTH_BYTES: usize = 8;
const MOST_DIMENSIONS: usize = 16;

/// Opens one file and checks every offset in it.
pub(super) fn read(path: &Path) -> Result<Table> {
    let file = Bytes::map(path)?;
    let (header, data) = split(&file).map_err(|reason| Error::corrupt(path, reason))?;
    let header: Header = serde_json::from_slice(&header)
        .map_err(|error| Error::corrupt(path, format!("its header is malformed ({error})")))?;
    let corrupt = |reason: String| Error::corrupt(path, reason);
    let end = check_layout(&header.tensors, data.len()).map_err(corrupt)?;
    let metadata = header
        .metadata
        .into_iter()
        .map(|(k, v)| (k, Value::String(v)));
    let mut table = Table::new(path, Metadata::new(path, metadata.collect()));
    for (name, tensor) in header.tensors {
        let element = element(&tensor.dtype).ok_or_else(|| {
            Error::unsupported(
                path,
                format!(
                    "tensor {name:?} has the element type {:?}, which is not supported. \
                     Convert the model to F32, F16 or BF16",
                    tensor.dtype
                ),
            )
        })?;
        let bytes = tensor.bytes(&name, element, &data).map_err(corrupt)?;
        let entry = Entry {
            shape: tensor.shape,
            data: Data::Dense(element, bytes),
            file: 0,
        };
        table.insert(name, entry)?;
    }
    if end != data.len() {
        return Err(corrupt(format!(
            "its header speaks of {end} bytes of tensors, and {} follow it",
            data.len()
        )));
    }
    Ok(table)
}

/// The header and the data after it.
fn split(file: &Bytes) -> std::result::Result<(Bytes, Bytes), String> {
    let too_short = || format!("it ends within the header, at {} bytes", file.len());
    let length = file
        .get(..LENGTH_BYTES)
        .and_then(|bytes| bytes.try_into().ok())
        .map(u64::from_le_bytes)
        .ok_or_else(too_short)?;
    if length > MOST_HEADER_BYTES {
        return Err(format!("its header claims to be {length} bytes long"));
    }
    // Both fit: the header is at most 100 MB, and slicing checks against the file.
    let header = file
        .slice(LENGTH_BYTES, length as usize)
        .ok_or_else(too_short)?;
    let start = LENGTH_BYTES + header.len();
    let data = file
        .slice(start, file.len() - start)
        .ok_or_else(too_short)?;
    Ok((header, data))
}

struct Header {
    tensors: BTreeMap<String, HeaderTensor>,
    metadata: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct HeaderTensor {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Header, A::Error> {
                let mut header = Header {
                    tensors: BTreeMap::new(),
                    metadata: BTreeMap::new(),
                };
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        header.metadata = map.next_value()?;
                        continue;
                    }
                    let tensor = map.next_value()?;
                    if header.tensors.contains_key(&name) {
                        let twice = format_args!("tensor {name:?} is defined twice").to_string();
                        return Err(serde::de::Error::custom(twice));
                    }
                    header.tensors.insert(name, tensor);
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl HeaderTensor {
    fn bytes(
        &self,
        name: &str,
        element: Element,
        data: &Bytes,
    ) -> std::result::Result<Bytes, String> {
        if self.shape.len() > MOST_DIMENSIONS {
            return Err(format!(
                "tensor {name:?} has {} dimensions",
                self.shape.len()
            ));
        }
        let (start, end) = self.data_offsets;
        let needed = element_count(&self.shape).and_then(|n| n.checked_mul(element.size()));
        let given = end.saturating_sub(start);
        if needed != Some(given) {
            return Err(format!(
                "tensor {name:?} of shape {:?} and type {} does not fit its {}",
                self.shape,
                self.dtype,
                memory::format_bytes(given)
            ));
        }
        data.slice(start, given)
            .ok_or_else(|| format!("tensor {name:?} lies beyond the end of the file"))
    }
}

/// One tensor after the other inside the data, with nothing between them; where the last one ends.
fn check_layout(
    tensors: &BTreeMap<String, HeaderTensor>,
    length: usize,
) -> std::result::Result<usize, String> {
    let mut order: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (tensor.data_offsets, name))
        .collect();
    order.sort_unstable();
    let (mut covered, mut previous): (usize, Option<&String>) = (0, None);
    for ((start, end), name) in order {
        if start > end {
            return Err(format!("tensor {name:?} ends before it starts"));
        }
        if end > length {
            return Err(format!(
                "tensor {name:?} lies beyond the end of the file: it ends at byte {end} of the data, \
                 which has {length} (the file is truncated)"
            ));
        }
        if let (true, Some(other)) = (start < covered, previous) {
            return Err(format!("tensors {other:?} and {name:?} overlap"));
        }
        if start > covered {
            return Err(format!(
                "tensor {name:?} starts at byte {start} of the data, and what is before it ends at {covered}"
            ));
        }
        (covered, previous) = (end, Some(name));
    }
    Ok(covered)
}

fn element(name: &str) -> Option<Element> {
    Some(match name {
        "F64" => Element::F64,
        "F32" => Element::F32,
        "F16" => Element::F16,
        "BF16" => Element::Bf16,
        "F8_E4M3" => Element::F8E4M3,
        "F8_E5M2" => Element::F8E5M2,
        "F8_E8M0" => Element::F8E8M0,
        "I64" => Element::I64,
        "I32" => Element::I32,
        "I16" => Element::I16,
        "I8" => Element::I8,
        "U64" => Element::U64,
        "U32" => Element::U32,
        "U16" => Element::U16,
        "U8" => Element::U8,
        "BOOL" => Element::Bool,
        _ => return None,
    })
}
