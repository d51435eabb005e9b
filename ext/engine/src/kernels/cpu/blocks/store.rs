//! Memory for panels. The matrices of a model lie side by side in large chunks, since a huge page, which
//! spares a generated token thousands of page walks, is larger than most of them.

use std::alloc::{alloc, dealloc, handle_alloc_error, Layout};
use std::sync::{Arc, Mutex, Weak};

use super::super::{prefer_huge_pages, Output};
use crate::{memory, Error, Result};

/// A cache line, at whose size panels are aligned.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct Line(pub [u8; 64]);

/// Lines of a chunk, 32 MiB.
const CHUNK: usize = (32 << 20) / size_of::<Line>();
const HUGE_PAGE: usize = 2 << 20;

struct Chunk {
    start: *mut Line,
    layout: Layout,
}
// SAFETY: lines are plain bytes; each part is written before it is shared, by who got it.
unsafe impl Send for Chunk {}
unsafe impl Sync for Chunk {}

impl Chunk {
    fn new(lines: usize) -> Result<Self> {
        let bytes = lines.saturating_mul(size_of::<Line>()).max(1);
        memory::ensure_available(bytes, "a model's weights")?;
        let layout = Layout::from_size_align(bytes, HUGE_PAGE)
            .map_err(|error| Error::OutOfMemory(format!("not enough memory: {error}")))?;
        // SAFETY: the layout has a size.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        prefer_huge_pages(start, bytes);
        let start = start.cast();
        Ok(Self { start, layout })
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nobody else has it.
        unsafe { dealloc(self.start.cast(), self.layout) };
    }
}

/// The latest chunk, and how much of it is taken.
static LATEST: Mutex<(Weak<Chunk>, usize)> = Mutex::new((Weak::new(), 0));

/// Some lines of a chunk.
#[derive(Clone)]
pub(super) struct Panels {
    chunk: Arc<Chunk>,
    first: usize,
    count: usize,
}

impl Panels {
    /// # Safety
    /// `fill` writes all the lines.
    pub unsafe fn build(count: usize, fill: impl FnOnce(Output<Line>)) -> Result<Self> {
        let (chunk, first) = Self::reserve(count)?;
        // SAFETY: the range lies in the chunk.
        fill(Output(unsafe { chunk.start.add(first) }));
        Ok(Self {
            chunk,
            first,
            count,
        })
    }

    fn reserve(count: usize) -> Result<(Arc<Chunk>, usize)> {
        // A lock that is held, for ever in a process that was forked just then, is not waited for.
        let latest = LATEST.try_lock().ok().filter(|_| count <= CHUNK / 4);
        let Some(mut latest) = latest else {
            return Ok((Arc::new(Chunk::new(count)?), 0));
        };
        let (chunk, first) = match latest.0.upgrade() {
            Some(chunk) if latest.1 + count <= CHUNK => (chunk, latest.1),
            _ => (Arc::new(Chunk::new(CHUNK)?), 0),
        };
        *latest = (Arc::downgrade(&chunk), first + count);
        Ok((chunk, first))
    }

    pub fn lines(&self) -> &[Line] {
        // SAFETY: `build` wrote the lines, and they are not written again.
        unsafe { std::slice::from_raw_parts(self.chunk.start.add(self.first), self.count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(count: usize, value: u8) -> Panels {
        // SAFETY: all lines are written.
        unsafe {
            Panels::build(count, |out| {
                for i in 0..count {
                    out.at(i).write(Line([value; 64]));
                }
            })
        }
        .unwrap()
    }

    #[test]
    fn panels_keep_apart_and_outlive_their_neighbours() {
        let sizes = [
            1,
            700,
            CHUNK / 4,
            CHUNK / 4,
            CHUNK / 4,
            CHUNK / 4,
            0,
            CHUNK + 1,
        ];
        let mut panels: Vec<_> = (1..)
            .zip(sizes)
            .map(|(value, size)| (value, filled(size, value)))
            .collect();
        panels.remove(2);
        panels.remove(0);
        for (value, panels) in panels {
            assert!(panels.lines().iter().all(|line| line.0 == [value; 64]));
        }
    }
}
