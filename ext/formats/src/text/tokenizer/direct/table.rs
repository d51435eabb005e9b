//! Tables that never change once they are built: texts to ids, and pairs of numbers to numbers.
//!
//! The hash is keyed by a number of the process, so that no file can choose a vocabulary whose entries collide.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0u8));

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Both halves of a product of 128 bits, mixed.
#[inline]
fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    product as u64 ^ (product >> 64) as u64
}

#[inline]
fn eight(bytes: &[u8], at: usize) -> u64 {
    let mut part = [0; 8];
    part.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(part)
}

#[inline]
fn four(bytes: &[u8], at: usize) -> u64 {
    let mut part = [0; 4];
    part.copy_from_slice(&bytes[at..at + 4]);
    u64::from(u32::from_le_bytes(part))
}

#[inline]
pub(super) fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let length = bytes.len();
    let mut state = seed ^ (length as u64).wrapping_mul(FACTOR);
    let last = match length {
        0 => 0,
        1..=3 => {
            let middle = u64::from(bytes[length / 2]) << 8;
            u64::from(bytes[0]) | middle | u64::from(bytes[length - 1]) << 16
        }
        4..=7 => four(bytes, 0) | four(bytes, length - 4) << 32,
        _ => {
            let mut at = 0;
            while at + 8 < length {
                state = fold(state ^ eight(bytes, at), FACTOR);
                at += 8;
            }
            eight(bytes, length - 8)
        }
    };
    fold(state ^ last, seed | 1)
}

/// A power of two with room to spare, so that searches end soon.
fn capacity(entries: usize) -> usize {
    (entries.max(4) * 2).next_power_of_two()
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The upper half of the hash.
    tag: u32,
    id: u32,
    start: u32,
    /// [`FREE`] where there is no entry.
    length: u32,
}

const FREE: u32 = u32::MAX;

/// Texts to ids.
#[derive(Debug)]
pub(super) struct Words {
    slots: Vec<Slot>,
    bytes: Vec<u8>,
    entries: usize,
    seed: u64,
}

impl Words {
    pub fn with_capacity(entries: usize) -> Self {
        let free = Slot {
            tag: 0,
            id: 0,
            start: 0,
            length: FREE,
        };
        Self {
            slots: vec![free; capacity(entries)],
            bytes: Vec::new(),
            entries: 0,
            seed: *SEED,
        }
    }

    /// Adds a text that is not there yet. `None` for more entries than there is room for, or if the texts together are
    /// too long for this table.
    pub fn insert(&mut self, text: &[u8], id: u32) -> Option<()> {
        let start = u32::try_from(self.bytes.len()).ok()?;
        let length = u32::try_from(text.len()).ok().filter(|&it| it != FREE)?;
        self.entries += 1;
        if 2 * self.entries > self.slots.len() {
            return None;
        }
        let hash = hash(self.seed, text);
        let mut at = hash as usize & (self.slots.len() - 1);
        while self.slots[at].length != FREE {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.bytes.extend_from_slice(text);
        self.slots[at] = Slot {
            tag: (hash >> 32) as u32,
            id,
            start,
            length,
        };
        Some(())
    }

    /// How many places there are, of which each entry has one.
    pub fn places(&self) -> usize {
        self.slots.len()
    }

    /// The id of a text, and its place.
    #[inline]
    pub fn get(&self, text: &[u8]) -> Option<(u32, usize)> {
        let hash = hash(self.seed, text);
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot.length == FREE {
                return None;
            }
            if slot.tag == (hash >> 32) as u32 && slot.length as usize == text.len() {
                let start = slot.start as usize;
                if &self.bytes[start..start + text.len()] == text {
                    return Some((slot.id, at));
                }
            }
            at = (at + 1) & mask;
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>() + self.bytes.len()
    }
}

/// No pair of ids, and no pair of a node and a byte.
const NO_KEY: u64 = u64::MAX;

/// Numbers to numbers. [`u64::MAX`] is not a key.
#[derive(Debug)]
pub(super) struct Pairs {
    slots: Vec<(u64, u64)>,
    entries: usize,
    seed: u64,
}

impl Pairs {
    pub fn with_capacity(entries: usize) -> Self {
        Self {
            slots: vec![(NO_KEY, 0); capacity(entries)],
            entries: 0,
            seed: *SEED | 1,
        }
    }

    #[inline]
    fn place(&self, key: u64) -> usize {
        fold(key ^ FACTOR, self.seed) as usize & (self.slots.len() - 1)
    }

    #[inline]
    pub fn get(&self, key: u64) -> Option<u64> {
        let mut at = self.place(key);
        loop {
            let (found, value) = self.slots[at];
            if found == key {
                return Some(value);
            }
            if found == NO_KEY {
                return None;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    /// Sets what a key stands for, in place of what it stood for.
    pub fn set(&mut self, key: u64, value: u64) {
        if 2 * (self.entries + 1) > self.slots.len() {
            self.grow();
        }
        let mut at = self.place(key);
        while self.slots[at].0 != NO_KEY && self.slots[at].0 != key {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.entries += usize::from(self.slots[at].0 == NO_KEY);
        self.slots[at] = (key, value);
    }

    fn grow(&mut self) {
        let larger = vec![(NO_KEY, 0); self.slots.len() * 2];
        let old = std::mem::replace(&mut self.slots, larger);
        self.entries = 0;
        for (key, value) in old {
            if key != NO_KEY {
                self.set(key, value);
            }
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.slots.len() * size_of::<(u64, u64)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_every_length_are_found_and_no_others() {
        let texts: Vec<Vec<u8>> = (0..2000u32)
            .map(|number| format!("{}{number}", "x".repeat(number as usize % 23)).into_bytes())
            .collect();
        let mut table = Words::with_capacity(texts.len());
        for (text, id) in texts.iter().zip(0..) {
            table.insert(text, id).unwrap();
        }
        for (text, id) in texts.iter().zip(0..) {
            assert_eq!(table.get(text).map(|(id, _)| id), Some(id));
            let longer = [text.as_slice(), b"y"].concat();
            assert_eq!(table.get(&longer), None);
        }
        assert_eq!(table.get(b""), None);
        assert!((0..5000u32).any(|id| table.insert(&id.to_le_bytes(), id).is_none()));
    }

    #[test]
    fn pairs_grow_and_replace() {
        let mut table = Pairs::with_capacity(1);
        for key in 0..5000 {
            table.set(key * 7, key);
        }
        table.set(0, 9);
        assert_eq!(table.get(0), Some(9));
        assert!((1..5000).all(|key| table.get(key * 7) == Some(key)));
        assert_eq!(table.get(3), None);
    }
}
