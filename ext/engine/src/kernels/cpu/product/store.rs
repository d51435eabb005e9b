//! Memory for the panels of matrices. Those of a model lie side by side in large chunks, since a huge
//! page, which spares a lone text and a generated token thousands of page walks, is larger than most.

use std::alloc::{alloc, dealloc, Layout};
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::{Arc, Mutex, Weak};

use crate::kernels::cpu::Output;
use crate::{
    runtime::{huge_pages, memory},
    Error, Result,
};

/// Bytes of a cache line, at which panels begin.
const LINE: usize = 64;
/// Bytes of a chunk.
const CHUNK: usize = 32 << 20;

struct Chunk {
    start: *mut u8,
    layout: Layout,
}
// SAFETY: a chunk is plain bytes; each part is written before it is shared, by who got it.
unsafe impl Send for Chunk {}
unsafe impl Sync for Chunk {}

impl Chunk {
    fn new(bytes: usize) -> Result<Self> {
        let bytes = bytes.max(1);
        memory::ensure_available(bytes, "a model's weights")?;
        let layout = Layout::from_size_align(bytes, huge_pages::SIZE)
            .map_err(|error| Error::OutOfMemory(format!("not enough memory: {error}")))?;
        // SAFETY: the layout has a size.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return Err(Error::OutOfMemory(format!(
                "not enough memory for a model's weights: {} needed",
                memory::format_bytes(bytes)
            )));
        }
        huge_pages::prefer(start, bytes);
        Ok(Self { start, layout })
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nobody else has it.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// The latest chunk, and how much of it is taken.
static LATEST: Mutex<(Weak<Chunk>, usize)> = Mutex::new((Weak::new(), 0));

/// Plain numbers in some part of a chunk.
#[derive(Clone)]
pub(super) struct Panels<N> {
    chunk: Arc<Chunk>,
    /// In bytes.
    first: usize,
    /// In numbers.
    count: usize,
    numbers: PhantomData<N>,
}

impl<N: Copy> Panels<N> {
    /// # Safety
    /// `fill` writes all the numbers.
    pub unsafe fn build(count: usize, fill: impl FnOnce(Output<N>)) -> Result<Self> {
        const { assert!(align_of::<N>() <= LINE) };
        let (chunk, first) = reserve(count.saturating_mul(size_of::<N>()))?;
        // SAFETY: the part lies in the chunk, and begins at a line.
        fill(Output(unsafe { chunk.start.add(first) }.cast()));
        Ok(Self {
            chunk,
            first,
            count,
            numbers: PhantomData,
        })
    }
}

impl<N> Deref for Panels<N> {
    type Target = [N];

    fn deref(&self) -> &[N] {
        // SAFETY: `build` wrote the numbers, and they are not written again.
        unsafe {
            let start = self.chunk.start.add(self.first).cast();
            std::slice::from_raw_parts(start, self.count)
        }
    }
}

/// A chunk, and where in it there are `bytes` for the caller alone.
fn reserve(bytes: usize) -> Result<(Arc<Chunk>, usize)> {
    // A lock that is held, for ever in a process that was forked just then, is not waited for.
    let latest = LATEST.try_lock().ok().filter(|_| bytes <= CHUNK / 4);
    let Some(mut latest) = latest else {
        return Ok((Arc::new(Chunk::new(bytes)?), 0));
    };
    let (chunk, first) = match latest.0.upgrade() {
        Some(chunk) if latest.1 + bytes <= CHUNK => (chunk, latest.1),
        _ => (Arc::new(Chunk::new(CHUNK)?), 0),
    };
    *latest = (
        Arc::downgrade(&chunk),
        (first + bytes).next_multiple_of(LINE),
    );
    Ok((chunk, first))
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
}
