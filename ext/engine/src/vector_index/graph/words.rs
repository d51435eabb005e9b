//! Numbers of a graph: in a file, which is mapped, until something changes, and in memory from then on.

use crate::{Error, Result};
use base::runtime::bytes::Bytes;
use base::runtime::memory;

/// Little-endian u32.
pub enum Words {
    Mapped(Bytes),
    Owned(Vec<u8>),
}

impl Default for Words {
    fn default() -> Self {
        Self::Owned(Vec::new())
    }
}

fn number(word: &[u8]) -> u32 {
    u32::from_le_bytes([word[0], word[1], word[2], word[3]])
}

impl Words {
    /// In place of a row where there is none.
    pub const NONE: u32 = u32::MAX;

    pub fn mapped(bytes: Bytes) -> Self {
        Self::Mapped(bytes)
    }

    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }

    pub fn len(&self) -> usize {
        self.as_bytes().len() / 4
    }

    pub fn memory(&self) -> usize {
        match self {
            Self::Mapped(_) => 0,
            Self::Owned(bytes) => bytes.capacity(),
        }
    }

    pub fn get(&self, at: usize) -> Option<u32> {
        let start = at.checked_mul(4)?;
        self.as_bytes()
            .get(start..start.checked_add(4)?)
            .map(number)
    }

    /// Where `value` stands among ascending ones.
    pub fn position(&self, value: u32) -> Option<usize> {
        let (words, _) = self.as_bytes().as_chunks::<4>();
        words
            .binary_search_by_key(&value, |word| u32::from_le_bytes(*word))
            .ok()
    }

    /// The list at `at`, of those that have room for `width` each.
    pub fn list(&self, at: usize, width: usize) -> impl Iterator<Item = u32> + '_ {
        let start = at.saturating_mul(4 * width);
        let bytes = self.as_bytes().get(start..start.saturating_add(4 * width));
        let numbers = bytes.unwrap_or_default().chunks_exact(4).map(number);
        numbers.take_while(|&number| number != Self::NONE)
    }

    pub fn all(&self, holds: impl Fn(u32) -> bool) -> bool {
        self.as_bytes().chunks_exact(4).map(number).all(holds)
    }

    /// An empty list with room for so many numbers.
    pub fn room(count: usize) -> Result<Vec<u32>> {
        memory::vector(&[count], "the graph of an index")
    }

    /// Reserves memory for so many more.
    pub fn reserve(&mut self, more: usize) -> Result<()> {
        if let Self::Mapped(mapped) = self {
            let mut bytes = memory::vector(&[mapped.len()], "the graph of an index")?;
            bytes.extend_from_slice(mapped);
            *self = Self::Owned(bytes);
        }
        let Self::Owned(bytes) = self else {
            return Ok(());
        };
        bytes.try_reserve(4 * more).map_err(|_| {
            Error::OutOfMemory("not enough memory for the graph of an index".to_owned())
        })
    }

    /// After `reserve`.
    pub fn push(&mut self, value: u32) {
        if let Self::Owned(bytes) = self {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// After `reserve`.
    pub fn push_list(&mut self, list: &[u32], width: usize) {
        let rest = std::iter::repeat(&Self::NONE);
        for value in list.iter().chain(rest).take(width) {
            self.push(*value);
        }
    }

    /// After `reserve`.
    pub fn set_list(&mut self, at: usize, list: &[u32], width: usize) {
        let Self::Owned(bytes) = self else {
            return;
        };
        let Some(place) = bytes.get_mut(4 * at * width..4 * (at + 1) * width) else {
            return;
        };
        let values = list.iter().chain(std::iter::repeat(&Self::NONE));
        for (word, value) in place.chunks_exact_mut(4).zip(values) {
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
}
