//! What one rendering may take: steps, memory, depth, and the user's patience.

use std::cell::Cell;

use super::failure::{Cause, Failure, Outcome};
use base::runtime::cancel::CancelToken;
use base::runtime::memory;

/// Steps per rendering: thousands of times what real templates take, about a second.
const MOST_STEPS: u64 = 20_000_000;
/// Bytes that a rendering may ask for in all, freed or not: more than any prompt needs.
const MOST_BYTES: u64 = 256 << 20;
/// Nested expressions, statements and macros, of which recursive macros are a part.
pub const DEEPEST_CALL: usize = 800;
/// How many steps pass between two looks at the token.
const STEPS_PER_LOOK: u64 = 4096;
/// Bytes of text that are looked at in one step.
const BYTES_PER_STEP: usize = 64;

pub struct Budget<'a> {
    steps: Cell<u64>,
    next_look: Cell<u64>,
    bytes: Cell<u64>,
    depth: Cell<usize>,
    cancel: &'a CancelToken,
}

impl<'a> Budget<'a> {
    pub fn new(cancel: &'a CancelToken) -> Self {
        Self {
            steps: Cell::new(0),
            next_look: Cell::new(0),
            bytes: Cell::new(0),
            depth: Cell::new(0),
            cancel,
        }
    }

    /// Takes note of that much work.
    pub fn steps(&self, count: usize) -> Outcome<()> {
        let steps = self.steps.get().saturating_add(count as u64);
        self.steps.set(steps);
        if steps < self.next_look.get() {
            return Ok(());
        }
        self.next_look.set(steps.saturating_add(STEPS_PER_LOOK));
        if self.cancel.is_cancelled() {
            return Err(Cause::Interrupted.into());
        }
        if steps > MOST_STEPS {
            return Err(exhausted("takes too long"));
        }
        Ok(())
    }

    /// Takes note of work on a text of that length.
    pub fn text(&self, length: usize) -> Outcome<()> {
        self.steps(1 + length / BYTES_PER_STEP)
    }

    /// Takes note of a new block of memory, before it is asked for.
    pub fn memory(&self, bytes: usize) -> Outcome<()> {
        let total = self.bytes.get().saturating_add(bytes as u64);
        if total > MOST_BYTES {
            return Err(exhausted("takes too much memory"));
        }
        self.bytes.set(total);
        memory::ensure_available(bytes, "what the chat template makes")
            .map_err(|_| exhausted("takes more memory than there is"))?;
        self.text(bytes)
    }

    /// Runs `work` one level deeper.
    pub fn deeper<T>(&self, work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        self.steps(1)?;
        let depth = self.depth.get();
        if depth >= DEEPEST_CALL {
            return Err(exhausted("calls itself too deeply"));
        }
        self.depth.set(depth + 1);
        let result = work();
        self.depth.set(depth);
        result
    }
}

fn exhausted(what: &'static str) -> Failure {
    Cause::Exhausted(what).into()
}
