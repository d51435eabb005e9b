//! Threadgroup memory: what kernels declare, what the host adds, and who touched each byte of it.

use std::cell::{Cell, RefCell};

use super::Moment;
use crate::memory::{map, PAGE};
use crate::settings::settings;
use crate::shadow::Who;

/// What Apple's GPUs have for one threadgroup.
pub const THREADGROUP_BYTES: usize = 32 * 1024;
/// More than is allowed is reported, and must have a place all the same.
const ARENA_BYTES: usize = 16 * THREADGROUP_BYTES;
/// Between two variables, so that neither is reached from the other; only where accesses are watched.
const GAP: usize = 64;

const NEVER: Who = Who {
    epoch: 0,
    simd_epoch: 0,
    lane: 0,
};

#[derive(Clone, Copy)]
struct Watched {
    written: Who,
    read: Who,
    several_readers: bool,
}

pub struct Threadgroup {
    memory: *mut u8,
    cells: Vec<Cell<Watched>>,
    /// Where the next variable goes, and how much Metal would have used.
    next: Cell<usize>,
    used: Cell<usize>,
    /// Offset and length of each variable, by number; then those of the host's arguments.
    variables: RefCell<Vec<Option<(usize, usize)>>>,
    arguments: RefCell<Vec<(usize, usize)>>,
}

impl Threadgroup {
    pub fn new() -> Self {
        let memory = map(ARENA_BYTES + PAGE, libc::PROT_READ | libc::PROT_WRITE)
            .expect("threadgroup memory");
        // SAFETY: the last page, which nothing may touch.
        unsafe { libc::mprotect(memory.add(ARENA_BYTES).cast(), PAGE, libc::PROT_NONE) };
        let empty = Watched {
            written: NEVER,
            read: NEVER,
            several_readers: false,
        };
        let cells = if settings().check { ARENA_BYTES } else { 0 };
        Self {
            memory,
            cells: vec![Cell::new(empty); cells],
            next: Cell::new(0),
            used: Cell::new(0),
            variables: RefCell::default(),
            arguments: RefCell::default(),
        }
    }

    /// Prepares for a dispatch; returns where each of the host's arguments starts.
    pub fn lay_out(&self, lengths: &[usize]) -> Vec<*mut u8> {
        self.next.set(0);
        self.used.set(0);
        self.variables.borrow_mut().clear();
        let places: Vec<(usize, usize)> = lengths
            .iter()
            .filter_map(|&length| self.take(length, 16))
            .collect();
        let addresses = places
            .iter()
            .map(|&(offset, _)| self.memory.wrapping_add(offset))
            .collect();
        *self.arguments.borrow_mut() = places;
        addresses
    }

    /// Offset and length of new room; `None` where even the arena is full.
    fn take(&self, bytes: usize, alignment: usize) -> Option<(usize, usize)> {
        let alignment = alignment.max(16);
        let gap = if self.cells.is_empty() { 0 } else { GAP };
        let offset = self.next.get().next_multiple_of(alignment);
        if offset + bytes + gap > ARENA_BYTES {
            return None;
        }
        self.next.set(offset + bytes + gap);
        self.used
            .set(self.used.get().next_multiple_of(alignment) + bytes);
        Some((offset, bytes))
    }

    /// Where a kernel's variable is; the same for all lanes.
    pub fn variable(&self, id: usize, bytes: usize, alignment: usize) -> Option<*mut u8> {
        let mut variables = self.variables.borrow_mut();
        if variables.len() <= id {
            variables.resize(id + 1, None);
        }
        if variables[id].is_none() {
            variables[id] = self.take(bytes, alignment);
        }
        variables[id].map(|(offset, _)| self.memory.wrapping_add(offset))
    }

    pub fn used(&self) -> usize {
        self.used.get()
    }

    /// A new threadgroup finds NaNs.
    pub fn clear(&self) {
        // SAFETY: the bytes belong to the arena, and no lane runs.
        unsafe { std::ptr::write_bytes(self.memory, 0xff, self.next.get()) };
    }

    pub fn holds(&self, address: usize) -> bool {
        address.wrapping_sub(self.memory as usize) < ARENA_BYTES
    }

    /// What is wrong with a load or store in here.
    pub fn access(
        &self,
        address: usize,
        bytes: usize,
        write: bool,
        moment: &Moment,
    ) -> Option<String> {
        let offset = address - self.memory as usize;
        let verb = if write { "writes" } else { "reads" };
        let inside =
            |&(start, length): &(usize, usize)| offset >= start && offset + bytes <= start + length;
        let known = self.arguments.borrow().iter().any(inside)
            || self.variables.borrow().iter().flatten().any(inside);
        if !known {
            return Some(format!(
                "{verb} {bytes} bytes outside of its threadgroup variables"
            ));
        }
        let who = moment.in_threadgroup();
        let mut problem = None;
        for cell in &self.cells[offset..offset + bytes] {
            let mut watched = cell.get();
            let current = |touched: Who| touched.epoch >= moment.first_epoch;
            let races = |touched: Who, several| {
                current(touched) && who.races_with(touched, moment.first_epoch, several)
            };
            if !write && !current(watched.written) {
                problem = Some("threadgroup memory is read before it is written".to_string());
            } else if races(watched.written, false) {
                problem = Some(format!(
                    "race: a lane {verb} what another lane wrote in threadgroup memory"
                ));
            }
            if write {
                if races(watched.read, watched.several_readers) {
                    problem = Some(
                        "race: a lane writes what another lane read in threadgroup memory"
                            .to_string(),
                    );
                }
                watched.written = who;
            } else {
                let again =
                    watched.read.epoch == who.epoch && watched.read.simd_epoch == who.simd_epoch;
                watched.several_readers =
                    again && (watched.several_readers || watched.read.lane != who.lane);
                watched.read = who;
            }
            cell.set(watched);
        }
        problem
    }
}

impl Drop for Threadgroup {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped in `new`.
        unsafe { libc::munmap(self.memory.cast(), ARENA_BYTES + PAGE) };
    }
}
