//! Numbers by which what is loaded is told apart, where an address may be used again after it is freed.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A number that nothing else of this process has had; never 0.
pub fn next() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_number_comes_twice() {
        let (one, two) = (super::next(), super::next());
        assert!(one != two && one > 0 && two > 0);
    }
}
