//! Merges of neighbouring tokens by rank: the lowest first, of several the leftmost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::table::Pairs;

/// What two tokens lead to that do not merge.
pub(super) const NEVER: u64 = u64::MAX;

/// Stands for a byte without a token.
pub(super) const NO_TOKEN: u32 = u32::MAX;

/// Up to here a word is searched for its lowest rank again and again; longer ones have a heap.
const FEW: usize = 48;

#[inline]
pub(super) fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Memory that the words of a text share.
#[derive(Debug, Default)]
pub(super) struct Merging {
    ids: Vec<u32>,
    /// What a token and the next one lead to: their rank above the token that they become, or [`NEVER`].
    links: Vec<u64>,
    /// The next token of each, and the one before; of words that have a heap.
    next: Vec<usize>,
    before: Vec<usize>,
    heap: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Merging {
    /// The tokens that a word consists of; `None` where a byte has no token, which is [`NO_TOKEN`].
    pub fn run(&mut self, word: &[u8], bytes: &[u32; 256], pairs: &Pairs) -> Option<&[u32]> {
        self.ids.clear();
        let ids = word.iter().map(|&byte| bytes[usize::from(byte)]);
        self.ids.extend(ids);
        if self.ids.contains(&NO_TOKEN) {
            return None;
        }
        self.links.clear();
        let neighbours = self.ids.windows(2);
        let links = neighbours.map(|two| pairs.get(key(two[0], two[1])).unwrap_or(NEVER));
        self.links.extend(links);
        if word.len() <= FEW {
            self.search(pairs);
        } else {
            self.sort(pairs);
        }
        Some(&self.ids)
    }

    fn search(&mut self, pairs: &Pairs) {
        loop {
            let (mut best, mut at) = (NEVER, 0);
            for (place, &link) in self.links.iter().enumerate() {
                if link < best {
                    (best, at) = (link, place);
                }
            }
            if best == NEVER {
                return;
            }
            self.ids[at] = best as u32;
            self.ids.remove(at + 1);
            self.links.remove(at);
            let link =
                |ids: &[u32], at: usize| pairs.get(key(ids[at], ids[at + 1])).unwrap_or(NEVER);
            if at < self.links.len() {
                self.links[at] = link(&self.ids, at);
            }
            if at > 0 {
                self.links[at - 1] = link(&self.ids, at - 1);
            }
        }
    }

    fn sort(&mut self, pairs: &Pairs) {
        let count = self.ids.len();
        // The last token has nothing behind it.
        self.links.push(NEVER);
        self.next.clear();
        self.next.extend(1..=count);
        self.before.clear();
        self.before.extend((0..count).map(|at| at.wrapping_sub(1)));
        self.heap.clear();
        let links = self.links.iter().zip(0..);
        let merging = links.filter(|(link, _)| **link != NEVER);
        self.heap
            .extend(merging.map(|(&link, at)| Reverse((link, at))));
        while let Some(Reverse((link, at))) = self.heap.pop() {
            // Tokens that were merged meanwhile lead to something else.
            if self.links[at] != link {
                continue;
            }
            let gone = self.next[at];
            let behind = self.next[gone];
            self.ids[at] = link as u32;
            self.links[gone] = NEVER;
            self.next[at] = behind;
            if behind < count {
                self.before[behind] = at;
            }
            self.join(at, behind, pairs);
            let before = self.before[at];
            if before < count {
                self.join(before, at, pairs);
            }
        }
        let (mut at, mut kept) = (0, 0);
        while at < count {
            self.ids[kept] = self.ids[at];
            (at, kept) = (self.next[at], kept + 1);
        }
        self.ids.truncate(kept);
    }

    /// Finds out what a token and the one behind it lead to.
    fn join(&mut self, at: usize, behind: usize, pairs: &Pairs) {
        let ids = &self.ids;
        let right = ids.get(behind);
        let found = right.and_then(|&right| pairs.get(key(ids[at], right)));
        self.links[at] = found.unwrap_or(NEVER);
        self.heap.extend(found.map(|link| Reverse((link, at))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_merge_alike() {
        let mut bytes = [0; 256];
        for (id, byte) in bytes.iter_mut().zip(0u32..) {
            *id = byte;
        }
        let mut pairs = Pairs::with_capacity(16);
        let letters = [b'a', b'b', b'c'].map(u32::from);
        let (mut tokens, mut rank) = (letters.to_vec(), 0u64);
        for round in 0..40usize {
            let (left, right) = (
                tokens[round * 7 % tokens.len()],
                tokens[round * 5 % tokens.len()],
            );
            if pairs.get(key(left, right)).is_none() {
                let token = 1000 + rank as u32;
                pairs.set(key(left, right), rank << 32 | u64::from(token));
                tokens.push(token);
                rank += 1;
            }
        }
        let mut state = 1u64;
        for length in 1..200usize {
            let word: Vec<u8> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                    b"abc"[(state >> 33) as usize % 3]
                })
                .collect();
            let prepare = || {
                let ids: Vec<u32> = word.iter().map(|&byte| bytes[usize::from(byte)]).collect();
                let link = |two: &[u32]| pairs.get(key(two[0], two[1])).unwrap_or(NEVER);
                let links = ids.windows(2).map(link).collect();
                Merging {
                    ids,
                    links,
                    ..Merging::default()
                }
            };
            let (mut searched, mut sorted) = (prepare(), prepare());
            let mut merging = Merging::default();
            searched.search(&pairs);
            sorted.sort(&pairs);
            assert_eq!(searched.ids, sorted.ids);
            assert_eq!(merging.run(&word, &bytes, &pairs).unwrap(), searched.ids);
        }
    }
}
