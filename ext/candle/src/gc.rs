//! Native memory that Ruby's collector should know of.

use std::sync::Arc;

use magnus::Ruby;

/// Reports `bytes` to the collector for as long as any clone lives. Clones belong to Ruby objects
/// that share one piece of memory, such as a tensor and its views.
#[derive(Clone)]
pub struct Tracked(#[allow(dead_code, reason = "held for its Drop")] Arc<Bytes>);

struct Bytes(usize);

impl Tracked {
    pub fn new(ruby: &Ruby, bytes: usize) -> Self {
        ruby.gc_adjust_memory_usage(signed(bytes));
        Self(Arc::new(Bytes(bytes)))
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // A value dropped off a Ruby thread can't reach the collector's counter; that errs towards
        // collecting early.
        if let Ok(ruby) = Ruby::get() {
            ruby.gc_adjust_memory_usage(-signed(self.0));
        }
    }
}

fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}
