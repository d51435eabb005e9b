//! Memory for the panels of matrices. Those of a model lie side by side in large chunks, since a huge
//! page, which spares a lone text and a generated token thousands of page walks, is larger than most.
//! Models that are loaded one after the other share a chunk; each piece of it goes back to the system
//! with the last matrix that reaches into it.

use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::cpu::Output;
use crate::{Error, Result};
use base::runtime::{huge_pages, mapping, memory};

/// Bytes of a cache line, at which panels begin.
const LINE: usize = 64;
/// In miri, which takes seconds for a megabyte, all of it is smaller.
const PARTS: usize = if cfg!(miri) { 256 } else { 1 };
/// Bytes of a chunk that matrices share.
const CHUNK: usize = (32 << 20) / PARTS;
/// What goes back by itself: no huge page is ever torn apart.
const PIECE: usize = huge_pages::SIZE / PARTS;

struct Chunk {
    start: *mut u8,
    bytes: usize,
    /// For each piece how many matrices reach into it, and one more while others still may. Who brings it to 0
    /// vacates the piece, which nobody enters again.
    pieces: Vec<AtomicUsize>,
}
// SAFETY: a chunk is plain bytes; each part is written before it is shared, by who got it.
unsafe impl Send for Chunk {}
// SAFETY: as for `Send`.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn new(bytes: usize) -> Result<Self> {
        let bytes = bytes
            .max(1)
            .checked_next_multiple_of(mapping::PAGE)
            .unwrap_or(usize::MAX);
        memory::ensure_available(bytes, "a model's weights")?;
        let start = mapping::fresh(bytes);
        if start.is_null() {
            return Err(Error::OutOfMemory(format!(
                "not enough memory for a model's weights: {} needed",
                memory::format_bytes(bytes)
            )));
        }
        let pieces = (0..bytes.div_ceil(PIECE)).map(|_| AtomicUsize::new(1));
        Ok(Self {
            start,
            bytes,
            pieces: pieces.collect(),
        })
    }

    fn enter(&self, part: &Range<usize>) {
        for piece in &self.pieces[pieces(part)] {
            piece.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn leave(&self, pieces: Range<usize>) {
        for number in pieces {
            if self.pieces[number].fetch_sub(1, Ordering::AcqRel) == 1 {
                // SAFETY: a piece lies in the chunk, at whole pages; nobody is in it, and nobody will be.
                unsafe { mapping::vacate(self.start.add(number * PIECE), PIECE) };
            }
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: it came with as many bytes, and nobody else has it.
        unsafe { mapping::give_back(self.start, self.bytes) };
    }
}

/// The pieces that some bytes of a chunk reach into.
fn pieces(part: &Range<usize>) -> Range<usize> {
    if part.is_empty() {
        0..0
    } else {
        part.start / PIECE..part.end.div_ceil(PIECE)
    }
}

/// Some bytes of a chunk, which are their owner's alone.
struct Part {
    chunk: Arc<Chunk>,
    bytes: Range<usize>,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.chunk.leave(pieces(&self.bytes));
    }
}

/// The latest chunk, and how much of it is taken.
static LATEST: Mutex<(Weak<Chunk>, usize)> = Mutex::new((Weak::new(), 0));

/// Plain numbers in some part of a chunk.
#[derive(Clone)]
pub(super) struct Panels<N> {
    part: Arc<Part>,
    count: usize,
    numbers: PhantomData<N>,
}

impl<N> Panels<N> {
    fn start(&self) -> *mut N {
        // SAFETY: the part lies in the chunk.
        unsafe { self.part.chunk.start.add(self.part.bytes.start) }.cast()
    }
}

impl<N: Copy> Panels<N> {
    /// # Safety
    /// `fill` writes all the numbers.
    pub unsafe fn build(count: usize, fill: impl FnOnce(Output<N>)) -> Result<Self> {
        const { assert!(align_of::<N>() <= LINE) };
        let panels = Self {
            part: Arc::new(reserve(count.saturating_mul(size_of::<N>()))?),
            count,
            numbers: PhantomData,
        };
        fill(Output(panels.start()));
        Ok(panels)
    }
}

impl<N> Deref for Panels<N> {
    type Target = [N];

    fn deref(&self) -> &[N] {
        // SAFETY: `build` wrote the numbers, and they are not written again.
        unsafe { std::slice::from_raw_parts(self.start(), self.count) }
    }
}

/// `bytes` of some chunk, for the caller alone.
fn reserve(bytes: usize) -> Result<Part> {
    // A lock that is held, for ever in a process that was forked just then, is not waited for.
    let latest = LATEST.try_lock().ok().filter(|_| bytes <= CHUNK / 4);
    let Some(mut latest) = latest else {
        let chunk = Arc::new(Chunk::new(bytes)?);
        let bytes = 0..bytes;
        // Nothing of it goes before all of it does.
        chunk.enter(&bytes);
        return Ok(Part { chunk, bytes });
    };
    let (chunk, taken) = match latest.0.upgrade() {
        Some(chunk) if latest.1 + bytes <= CHUNK => (chunk, latest.1),
        full => {
            let chunk = Arc::new(Chunk::new(CHUNK)?);
            if let Some(full) = full {
                full.leave(latest.1 / PIECE..CHUNK / PIECE);
            }
            (chunk, 0)
        }
    };
    let part = taken..taken + bytes;
    chunk.enter(&part);
    let next = part.end.next_multiple_of(LINE);
    *latest = (Arc::downgrade(&chunk), next);
    // Where the next part begins, others still may enter.
    chunk.leave(taken / PIECE..next / PIECE);
    Ok(Part { chunk, bytes: part })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(count: usize, value: u32) -> Panels<u32> {
        // SAFETY: all numbers are written.
        unsafe {
            Panels::build(count, |out: Output<u32>| {
                for i in 0..count {
                    out.at(i).write(value);
                }
            })
        }
        .unwrap()
    }

    #[test]
    fn panels_keep_apart_and_outlive_their_neighbours() {
        const QUARTER: usize = CHUNK / 4 / size_of::<u32>();
        let sizes = [
            1,
            700,
            QUARTER,
            QUARTER,
            QUARTER,
            QUARTER,
            0,
            4 * QUARTER + 1,
        ];
        let mut panels: Vec<_> = (1..)
            .zip(sizes)
            .map(|(value, size)| (value, filled(size, value)))
            .collect();
        panels.remove(2);
        panels.remove(0);
        for (value, panels) in panels {
            assert!(panels.iter().all(|&number| number == value));
            assert!((panels.as_ptr() as usize).is_multiple_of(LINE));
        }
    }

    /// Whether any page of these bytes takes memory.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn is_resident(start: usize, bytes: usize) -> bool {
        // SAFETY: it takes no pointers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let mut pages = vec![0u8; bytes / page];
        // SAFETY: there is a byte for every page.
        let found = unsafe { libc::mincore(start as *mut _, bytes, pages.as_mut_ptr()) };
        assert_eq!(found, 0, "{}", std::io::Error::last_os_error());
        pages.iter().any(|page| page & 1 == 1)
    }

    /// Two neighbours in one chunk, the first of several pieces; other tests may take from it at the same time.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn neighbours() -> (Panels<u32>, Panels<u32>) {
        loop {
            let pair = (filled(CHUNK / 4 / 4, 1), filled(10, 2));
            if Arc::ptr_eq(&pair.0.part.chunk, &pair.1.part.chunk) {
                return pair;
            }
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn what_one_model_leaves_of_a_shared_chunk_goes_back_at_once() {
        let (large, small) = neighbours();
        let first = (large.as_ptr() as usize).next_multiple_of(PIECE);
        let last = (large.as_ptr() as usize + large.len() * 4) / PIECE * PIECE;
        assert!(first < last && is_resident(first, last - first));
        let copy = large.clone();
        drop(large);
        assert!(copy.iter().all(|&number| number == 1));
        drop(copy);
        assert!(!is_resident(first, last - first));
        assert!(small.iter().all(|&number| number == 2));
    }
}
