//! The part of the zip format that PyTorch checkpoints use.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::DeflateDecoder;
use flate2::Crc;

use base::runtime::bytes::Bytes;

const END: &[u8] = b"PK\x05\x06";
const END_BYTES: usize = 22;
const WIDE_LOCATOR: &[u8] = b"PK\x06\x07";
const WIDE_LOCATOR_BYTES: usize = 20;
const WIDE_END: &[u8] = b"PK\x06\x06";
const CENTRAL: &[u8] = b"PK\x01\x02";
const CENTRAL_BYTES: usize = 46;
const LOCAL: &[u8] = b"PK\x03\x04";
const LOCAL_BYTES: usize = 30;
/// A comment after the end record has at most this length.
const MOST_COMMENT: usize = 65_535;
const MOST_MEMBERS: u64 = 262_144;
/// Marks a 32-bit size whose true value stands in the extra field.
const WIDE: u64 = 0xffff_ffff;

type Parsed<T> = std::result::Result<T, String>;

pub(super) struct Archive {
    file: Bytes,
    members: BTreeMap<String, Member>,
}

#[derive(Clone, Copy)]
struct Member {
    method: u64,
    checksum: u32,
    packed: usize,
    size: usize,
    header: usize,
}

impl Archive {
    /// Reads the central directory.
    pub fn open(file: Bytes) -> Parsed<Self> {
        let (count, mut position) = directory(&file)?;
        if count > MOST_MEMBERS {
            return Err(format!("it claims to hold {count} files"));
        }
        let mut members = BTreeMap::new();
        for _ in 0..count {
            let (name, member, next) = central_entry(&file, position)?;
            if members.insert(name.clone(), member).is_some() {
                return Err(format!("it holds {name:?} twice"));
            }
            position = next;
        }
        Ok(Self { file, members })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// A member's bytes: a part of the file where it is stored as it is, and unpacked within
    /// `budget` otherwise. `checked` also compares the checksum of a stored member.
    pub fn read(&self, name: &str, budget: &mut usize, checked: bool) -> Parsed<Bytes> {
        let member = self
            .members
            .get(name)
            .ok_or_else(|| format!("{name:?} is missing from it"))?;
        let packed = self
            .packed(member)
            .ok_or_else(|| format!("{name:?} lies beyond its end"))?;
        let bytes = match member.method {
            0 if member.packed == member.size => packed,
            0 => return Err(format!("{name:?} has two different sizes")),
            8 => Bytes::unpacked(inflate(name, member, &packed, budget)?),
            method => return Err(format!("{name:?} is packed by method {method}")),
        };
        if checked || !bytes.is_mapped() {
            let mut checksum = Crc::new();
            checksum.update(&bytes);
            if checksum.sum() != member.checksum {
                return Err(format!("the checksum of {name:?} is wrong"));
            }
        }
        Ok(bytes)
    }

    fn packed(&self, member: &Member) -> Option<Bytes> {
        let local = self.file.slice(member.header, LOCAL_BYTES)?;
        if !local.starts_with(LOCAL) {
            return None;
        }
        let names = number(&local, 26, 2)? + number(&local, 28, 2)?;
        let start = member.header + LOCAL_BYTES + names as usize;
        self.file.slice(start, member.packed)
    }
}

/// Grows with what is really there, whatever the archive claims.
fn inflate(name: &str, member: &Member, packed: &[u8], budget: &mut usize) -> Parsed<Vec<u8>> {
    let Some(left) = budget.checked_sub(member.size) else {
        return Err(format!(
            "{name:?} unpacks to {} bytes, out of all proportion to the file",
            member.size
        ));
    };
    *budget = left;
    let mut bytes = Vec::new();
    DeflateDecoder::new(packed)
        .take(member.size as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("{name:?} cannot be unpacked ({error})"))?;
    if bytes.len() != member.size {
        return Err(format!("{name:?} does not unpack to its size"));
    }
    Ok(bytes)
}

/// The number of members and the place of the first central entry.
fn directory(file: &[u8]) -> Parsed<(u64, usize)> {
    let window = file.len().saturating_sub(END_BYTES + MOST_COMMENT);
    let end = file
        .get(window..)
        .unwrap_or_default()
        .windows(END.len())
        .rposition(|bytes| bytes == END)
        .map(|position| window + position)
        .ok_or("its directory is missing (the file is truncated)")?;
    let cut = || "its directory is cut off".to_owned();
    let comment = number(file, end + 20, 2).ok_or_else(cut)?;
    if end + END_BYTES + comment as usize > file.len() {
        return Err(cut());
    }
    let count = number(file, end + 10, 2).ok_or_else(cut)?;
    let start = number(file, end + 16, 4).ok_or_else(cut)?;
    let (count, start) = match wide_directory(file, end) {
        Some(wide) => wide,
        None => (count, start),
    };
    let start = usize::try_from(start).map_err(|_| cut())?;
    Ok((count, start))
}

/// The 64-bit end record, where there is one.
fn wide_directory(file: &[u8], end: usize) -> Option<(u64, u64)> {
    let locator = end.checked_sub(WIDE_LOCATOR_BYTES)?;
    if !file.get(locator..)?.starts_with(WIDE_LOCATOR) {
        return None;
    }
    let record = usize::try_from(number(file, locator + 8, 8)?).ok()?;
    if !file.get(record..)?.starts_with(WIDE_END) {
        return None;
    }
    let field = |offset| number(file, record.checked_add(offset)?, 8);
    Some((field(32)?, field(48)?))
}

/// One central entry, and the place of the next.
fn central_entry(file: &[u8], position: usize) -> Parsed<(String, Member, usize)> {
    let cut = || "its directory is cut off".to_owned();
    let rest = file.get(position..).ok_or_else(cut)?;
    if !rest.starts_with(CENTRAL) || rest.len() < CENTRAL_BYTES {
        return Err("its directory is damaged".to_owned());
    }
    let field = |offset, size| number(rest, offset, size).unwrap_or_default();
    let (name_bytes, extra_bytes) = (field(28, 2) as usize, field(30, 2) as usize);
    let comment_bytes = field(32, 2) as usize;
    let name_end = CENTRAL_BYTES + name_bytes;
    let name = rest.get(CENTRAL_BYTES..name_end).ok_or_else(cut)?;
    let name = String::from_utf8_lossy(name).into_owned();
    let extra = rest.get(name_end..name_end + extra_bytes).ok_or_else(cut)?;
    if field(8, 2) & 1 == 1 {
        return Err(format!("{name:?} is encrypted"));
    }
    // The extra field has the wide values in this order, for those that are marked.
    let mut values = [field(24, 4), field(20, 4), field(42, 4)];
    let mut wide = wide_extra(extra).chunks_exact(8);
    for value in values.iter_mut().filter(|value| **value == WIDE) {
        let bytes = wide.next().ok_or_else(cut)?;
        *value = number(bytes, 0, 8).ok_or_else(cut)?;
    }
    let place = |value| usize::try_from(value).map_err(|_| cut());
    let [size, packed, header] = values;
    let member = Member {
        method: field(10, 2),
        checksum: field(16, 4) as u32,
        packed: place(packed)?,
        size: place(size)?,
        header: place(header)?,
    };
    if member.header > file.len() {
        return Err(format!("{name:?} lies beyond its end"));
    }
    Ok((
        name,
        member,
        position + name_end + extra_bytes + comment_bytes,
    ))
}

/// The contents of the extra field with 64-bit sizes, empty when there is none.
fn wide_extra(mut extra: &[u8]) -> &[u8] {
    while let (Some(id), Some(length)) = (number(extra, 0, 2), number(extra, 2, 2)) {
        let end = 4 + length as usize;
        if id == 1 {
            return extra.get(4..end).unwrap_or_default();
        }
        extra = extra.get(end..).unwrap_or_default();
    }
    &[]
}

/// A little-endian number of up to eight bytes.
fn number(bytes: &[u8], offset: usize, size: usize) -> Option<u64> {
    let field = bytes.get(offset..offset.checked_add(size)?)?;
    Some(field.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
}
