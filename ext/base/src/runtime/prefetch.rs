//! Reading ahead of a call: every token of a decoder takes the same matrices, in the same order. What one
//! call has read is kept, and threads that wait for their leader in the next one have what comes read into
//! their caches meanwhile. Nothing is wrong if it comes otherwise, or not at all: it is only asked for.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes of a cache line.
const LINE: usize = 64;
/// What is asked for between two looks for work.
const BITE: usize = 8 * LINE;
/// How much may wait in a cache to be used: half of a second-level cache.
const MOST: usize = 1 << 20;
/// The course is another than the last time.
const LOST: usize = usize::MAX;

/// Some memory, of which each thread reads its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: usize,
    bytes: usize,
}

impl Span {
    pub fn new(memory: &[u8]) -> Self {
        Self {
            start: memory.as_ptr() as usize,
            bytes: memory.len(),
        }
    }

    /// Both and what lies between, unless that is more than a gap.
    pub fn joined(self, next: Self) -> Option<Self> {
        let end = self.start + self.bytes;
        let adjacent = (end..end + LINE).contains(&next.start);
        adjacent.then(|| Self {
            start: self.start,
            bytes: next.start + next.bytes - self.start,
        })
    }

    /// The share of one of some threads.
    fn share(self, thread: usize, threads: usize) -> Self {
        let at = |thread: usize| self.bytes / LINE * thread / threads * LINE;
        Self {
            start: self.start + at(thread),
            bytes: at(thread + 1) - at(thread),
        }
    }
}

/// What the last call took that took anything.
static LAST: Mutex<Option<Arc<[Span]>>> = Mutex::new(None);

/// What a call takes, as the last one did.
pub struct Course {
    expected: Option<Arc<[Span]>>,
    /// The leader's alone.
    taken: UnsafeCell<Vec<Span>>,
    /// How many spans were taken, while they are those expected.
    count: AtomicUsize,
}

// SAFETY: `taken` is touched by the leader alone.
unsafe impl Sync for Course {}

/// How far a thread is ahead.
#[derive(Default)]
pub struct Prefetch {
    span: usize,
    bytes: usize,
}

impl Course {
    pub fn begin() -> Self {
        // A lock that is held, for ever in a process that was forked just then, is not waited for.
        let expected = LAST.try_lock().ok().and_then(|last| last.clone());
        Self {
            expected,
            taken: UnsafeCell::new(Vec::new()),
            count: AtomicUsize::new(0),
        }
    }

    /// # Safety
    /// No other thread calls this or `end` at the same time.
    pub unsafe fn take(&self, span: Span) {
        // SAFETY: the caller vouches for being the only one.
        let taken = unsafe { &mut *self.taken.get() };
        let expected = self.expected.as_deref().unwrap_or_default();
        let known = self.count.load(Ordering::Relaxed) != LOST;
        let count = if known && expected.get(taken.len()) == Some(&span) {
            taken.len() + 1
        } else {
            LOST
        };
        taken.push(span);
        self.count.store(count, Ordering::Relaxed);
    }

    /// Keeps what was taken for the next call.
    ///
    /// # Safety
    /// As `take`.
    pub unsafe fn end(&self) {
        // SAFETY: the caller vouches for being the only one.
        let taken = unsafe { &mut *self.taken.get() };
        let as_expected = self.expected.as_deref() == Some(taken.as_slice());
        if taken.is_empty() || as_expected {
            return;
        }
        if let Ok(mut last) = LAST.try_lock() {
            *last = Some(taken.as_slice().into());
        }
    }

    /// Asks for a bite of what this thread will take next; `false` where there is nothing to ask for.
    pub fn ask(&self, ahead: &mut Prefetch, thread: usize, threads: usize) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        let expected = self.expected.as_deref().unwrap_or_default();
        if count == LOST {
            return false;
        }
        if ahead.span < count {
            *ahead = Prefetch {
                span: count,
                bytes: 0,
            };
        }
        let share = |span: &Span| span.share(thread, threads);
        let Some(own) = expected.get(ahead.span).map(share) else {
            return false;
        };
        let before = expected[count..ahead.span].iter();
        let waiting: usize = before.map(|span| share(span).bytes).sum();
        let room = MOST.saturating_sub(waiting + ahead.bytes);
        if room == 0 {
            return false;
        }
        let bite = BITE.min(own.bytes - ahead.bytes).min(room);
        fetch(own.start + ahead.bytes, bite);
        ahead.bytes += bite;
        if ahead.bytes == own.bytes {
            *ahead = Prefetch {
                span: ahead.span + 1,
                bytes: 0,
            };
        }
        true
    }
}

/// Has some lines come into the second-level cache. They may be anybody's by now: nothing is read.
fn fetch(start: usize, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(LINE) {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T1};
        // SAFETY: a prefetch reads nothing and cannot fault; SSE belongs to every x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::without_provenance::<i8>(start + line)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(expected: &[Span]) -> Course {
        Course {
            expected: Some(expected.into()),
            taken: UnsafeCell::new(Vec::new()),
            count: AtomicUsize::new(0),
        }
    }

    /// What is asked for until there is nothing left.
    fn asked(course: &Course, ahead: &mut Prefetch) -> (usize, usize) {
        while course.ask(ahead, 1, 2) {}
        (ahead.span, ahead.bytes)
    }

    #[test]
    fn a_thread_asks_for_its_shares_of_what_comes_next_and_for_no_more_than_fits() {
        let span = |start, bytes| Span { start, bytes };
        let spans = [
            span(64, 4 * MOST),
            span(0, 0),
            span(640, 1280),
            span(64, 4 * MOST),
        ];
        let course = course(&spans);
        let mut ahead = Prefetch::default();
        // Half of the first is twice what may wait.
        assert_eq!(asked(&course, &mut ahead), (0, MOST));
        // SAFETY: `course` is a local value: no other thread takes from it at the same time.
        let take = |span: usize| unsafe { course.take(spans[span]) };
        take(0);
        assert_eq!(asked(&course, &mut ahead), (3, MOST - 640));
        take(1);
        take(2);
        assert_eq!(asked(&course, &mut ahead), (3, MOST));
        // Something else than the last time.
        take(1);
        assert!(!course.ask(&mut ahead, 1, 2));
        take(0);
        assert!(!course.ask(&mut ahead, 1, 2));
    }

    #[test]
    fn shares_cover_a_span_and_spans_that_touch_are_one() {
        let span = Span {
            start: 128,
            bytes: 64 * 7,
        };
        let shares: Vec<Span> = (0..3).map(|thread| span.share(thread, 3)).collect();
        assert_eq!(
            shares.iter().map(|share| share.bytes).sum::<usize>(),
            span.bytes
        );
        for pair in shares.windows(2) {
            assert_eq!(pair[0].start + pair[0].bytes, pair[1].start);
        }
        let after = |gap: usize| Span {
            start: 128 + 64 * 7 + gap,
            bytes: 10,
        };
        let joined = span.joined(after(63)).unwrap();
        assert_eq!((joined.start, joined.bytes), (128, 64 * 7 + 63 + 10));
        assert!(span.joined(after(64)).is_none());
        assert!(after(0).joined(span).is_none());
    }
}
