//! An allocator that keeps a few large buffers for the next layer.
//!
//! A forward asks for the same handful of sizes again and again, and the system's allocator gives
//! memory of that size back to the kernel again and again: every layer would then pay for fresh, zeroed
//! pages. What is kept is bounded, and a buffer serves requests of its own size class only. Smaller
//! buffers come from the system, but begin with a cache line: of vectors and tiles that straddle two
//! lines each costs twice. Larger ones, such as tables of embeddings, are the system's on huge pages.
//! With `CANDLE_ALLOCATOR=system` everything goes to the system's allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::runtime::mapping::{fresh, give_back, large};
use crate::runtime::switch::Switch;

/// Smaller requests are not kept.
const LEAST: usize = 256 << 10;
/// Larger ones too.
const MOST: usize = 32 << 20;
/// How much may be kept in all.
const KEPT: usize = 64 << 20;
const SLOTS: usize = 96;
/// Requests of a larger alignment go to the system.
const ALIGNMENT: usize = 16;
/// Requests from this size on begin with a cache line.
const IN_LINES: usize = 4 << 10;
const CACHE_LINE: usize = 64;
/// One answer for all allocators of the process: a block must go back where it came from.
static SYSTEM_ONLY: Switch = Switch::new(c"CANDLE_ALLOCATOR", c"system");

/// The allocator of the gem's library and of its benches: `#[global_allocator]` wants a static.
pub struct Reusing {
    busy: AtomicBool,
    shelf: UnsafeCell<Shelf>,
}

struct Shelf {
    /// (address, size class), oldest first; the first `count` are in use.
    buffers: [(usize, usize); SLOTS],
    count: usize,
    bytes: usize,
}

// SAFETY: the shelf is only touched by the thread that set `busy`.
unsafe impl Sync for Reusing {}

/// Reads `CANDLE_ALLOCATOR`. To be called once, where nobody changes the environment meanwhile.
pub fn init() {
    SYSTEM_ONLY.is_on();
}

/// Lets all threads share so many arenas of the system's allocator, where it has arenas; `false` where it
/// does not. Those that exist stay.
pub fn limit_arenas(count: u8) -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes two numbers, and may be called at any time.
    return unsafe { libc::mallopt(libc::M_ARENA_MAX, libc::c_int::from(count)) == 1 };
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        let _ = count;
        false
    }
}

impl Default for Reusing {
    fn default() -> Self {
        Self::new()
    }
}

/// What a request of this size takes: an eighth too much at most, so that sizes meet again.
fn class(size: usize) -> usize {
    size.next_multiple_of(size.next_power_of_two() / 16)
}

/// Where the memory of a request comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// This allocator's shelf, or the kernel.
    Shelf,
    /// The system's allocator, with this layout in place of the request's.
    System(Layout),
}

impl Source {
    fn of(layout: Layout) -> Self {
        let size = layout.size();
        if !(IN_LINES..=MOST).contains(&size) || layout.align() > ALIGNMENT || SYSTEM_ONLY.is_on() {
            return Self::System(layout);
        }
        if size >= LEAST {
            return Self::Shelf;
        }
        // SAFETY: the alignment is a power of two, and a small size can be rounded up to it.
        Self::System(unsafe { Layout::from_size_align_unchecked(size, CACHE_LINE) })
    }
}

impl Reusing {
    pub const fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            shelf: UnsafeCell::new(Shelf {
                buffers: [(0, 0); SLOTS],
                count: 0,
                bytes: 0,
            }),
        }
    }

    /// How many bytes lie ready for the next requests.
    pub fn kept_bytes(&self) -> usize {
        self.with_shelf(|shelf| shelf.bytes).unwrap_or(0)
    }

    /// Gives all of them back to the system: for after a model was closed, whose buffers nobody may want again.
    pub fn clear(&self) {
        let oldest = |shelf: &mut Shelf| (shelf.count > 0).then(|| shelf.remove(0));
        while let Some((address, class)) = self.with_shelf(oldest).flatten() {
            // SAFETY: what left the shelf is `fresh` memory of its class.
            unsafe { give_back(address as *mut u8, class) };
        }
    }

    /// Never waits: a thread that finds the shelf taken goes to the system. So a child that was forked
    /// while it was taken keeps working.
    fn with_shelf<R>(&self, work: impl FnOnce(&mut Shelf) -> R) -> Option<R> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: `busy` was not set, so nobody else is here.
        let result = work(unsafe { &mut *self.shelf.get() });
        self.busy.store(false, Ordering::Release);
        Some(result)
    }
}

impl Shelf {
    /// A buffer of this class, the one used last.
    fn take(&mut self, class: usize) -> Option<usize> {
        let at = (0..self.count)
            .rev()
            .find(|&at| self.buffers[at].1 == class)?;
        Some(self.remove(at).0)
    }

    fn remove(&mut self, at: usize) -> (usize, usize) {
        let buffer = self.buffers[at];
        self.buffers.copy_within(at + 1..self.count, at);
        self.count -= 1;
        self.bytes -= buffer.1;
        buffer
    }

    fn has_room(&self, class: usize) -> bool {
        self.count < SLOTS && self.bytes + class <= KEPT
    }

    fn put(&mut self, address: usize, class: usize) {
        self.buffers[self.count] = (address, class);
        self.count += 1;
        self.bytes += class;
    }
}

// SAFETY: a block of the shelf's sizes is `fresh` memory of its class, which goes back as the
// same class or lies on the shelf, where nobody else has it. All others are the system's, with layouts that
// are at least as strict.
unsafe impl GlobalAlloc for Reusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Source::System(layout) = Source::of(layout) {
            // SAFETY: `layout` has a size above 0, as the caller of `GlobalAlloc::alloc` promises.
            let block = unsafe { System.alloc(layout) };
            if layout.size() > MOST && !block.is_null() && !SYSTEM_ONLY.is_on() {
                large(block, layout.size());
            }
            return block;
        }
        let class = class(layout.size());
        match self.with_shelf(|shelf| shelf.take(class)) {
            Some(Some(address)) => address as *mut u8,
            _ => fresh(class),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if let Source::System(layout) = Source::of(layout) {
            // SAFETY: `layout` has a size above 0, as the caller of `GlobalAlloc::alloc_zeroed` promises.
            return unsafe { System.alloc_zeroed(layout) };
        }
        let class = class(layout.size());
        match self.with_shelf(|shelf| shelf.take(class)) {
            Some(Some(address)) => {
                let block = address as *mut u8;
                // SAFETY: a block of this class is as long, and nobody else has it.
                unsafe { block.write_bytes(0, layout.size()) };
                block
            }
            _ => fresh(class),
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if let Source::System(layout) = Source::of(layout) {
            // SAFETY: the caller promises that `pointer` came from `alloc` with this layout; `Source::of` gives
            // such a layout to the system both times.
            return unsafe { System.dealloc(pointer, layout) };
        }
        let class = class(layout.size());
        loop {
            let evicted = self.with_shelf(|shelf| {
                if shelf.has_room(class) {
                    shelf.put(pointer as usize, class);
                    return None;
                }
                Some(shelf.remove(0))
            });
            match evicted {
                Some(None) => return,
                // SAFETY: what left the shelf is `fresh` memory of its class, and nobody has it.
                Some(Some((address, class))) => unsafe { give_back(address as *mut u8, class) },
                // SAFETY: the block is `fresh` memory of this class, which the caller releases.
                None => return unsafe { give_back(pointer, class) },
            }
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller vouches for the new size.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (Source::of(layout), Source::of(wanted)) {
            (Source::System(given), Source::System(wanted)) if given.align() == wanted.align() => {
                // SAFETY: the caller promises that `pointer` came from `alloc` with `layout`, whose blocks
                // `Source::of` takes from the system with `given`; `size` is above 0.
                return unsafe { System.realloc(pointer, given, size) };
            }
            (Source::Shelf, Source::Shelf) if class(layout.size()) == class(size) => {
                return pointer
            }
            _ => {}
        }
        // SAFETY: both blocks are valid for the smaller of the two sizes and do not overlap.
        unsafe {
            let fresh = self.alloc(wanted);
            if !fresh.is_null() {
                ptr::copy_nonoverlapping(pointer, fresh, layout.size().min(size));
                self.dealloc(pointer, layout);
            }
            fresh
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 4).unwrap()
    }

    #[test]
    fn a_class_holds_its_sizes_and_little_more() {
        for size in [LEAST, LEAST + 1, 3 << 20, 12_345_678, MOST] {
            let class = class(size);
            assert!(class >= size && class <= size + size / 8 + 1, "{size}");
            assert_eq!(super::class(class), class);
        }
    }

    #[test]
    fn a_freed_buffer_serves_the_next_request_of_its_class() {
        let allocator = Reusing::new();
        // SAFETY: the layouts are not empty, and blocks are freed with the layouts they came with.
        unsafe {
            let first = allocator.alloc(layout(3 << 20));
            allocator.dealloc(first, layout(3 << 20));
            let other = allocator.alloc(layout(8 << 20));
            let second = allocator.alloc(layout((3 << 20) - 100));
            assert_eq!(first, second);
            assert_ne!(first, other);
            allocator.dealloc(second, layout((3 << 20) - 100));
            allocator.dealloc(other, layout(8 << 20));
        }
    }

    #[test]
    fn what_is_kept_is_bounded_and_contents_survive_growth() {
        let allocator = Reusing::new();
        // SAFETY: as above; growth keeps the first bytes.
        unsafe {
            let blocks: Vec<_> = (0..20).map(|_| allocator.alloc(layout(MOST / 4))).collect();
            for block in blocks {
                allocator.dealloc(block, layout(MOST / 4));
            }
            assert!((1..=KEPT).contains(&allocator.kept_bytes()));
            allocator.clear();
            assert_eq!(allocator.kept_bytes(), 0);
            let small = allocator.alloc(layout(1000));
            small.write_bytes(7, 1000);
            let large = allocator.realloc(small, layout(1000), 5 << 20);
            assert!((0..1000).all(|i| *large.add(i) == 7));
            let zeroed = allocator.alloc_zeroed(layout(5 << 20));
            assert!((0..5 << 20).step_by(4096).all(|i| *zeroed.add(i) == 0));
            allocator.dealloc(large, layout(5 << 20));
            allocator.dealloc(zeroed, layout(5 << 20));
        }
    }

    #[test]
    fn a_buffer_begins_with_a_cache_line_and_keeps_its_contents_when_it_grows() {
        let allocator = Reusing::new();
        // SAFETY: every pointer comes from this allocator, is used within its size, and is freed once with the
        // layout that it has then.
        unsafe {
            let mut size = IN_LINES / 2;
            let mut block = allocator.alloc(layout(size));
            block.write_bytes(7, size);
            for wanted in [IN_LINES, 3 * IN_LINES + 5, LEAST - 1, LEAST, 100, IN_LINES] {
                block = allocator.realloc(block, layout(size), wanted);
                assert!(wanted < IN_LINES || (block as usize).is_multiple_of(CACHE_LINE));
                assert!((0..100).all(|i| *block.add(i) == 7), "{size} to {wanted}");
                size = wanted;
            }
            allocator.dealloc(block, layout(size));
            let zeroed = allocator.alloc_zeroed(layout(IN_LINES));
            assert!((zeroed as usize).is_multiple_of(CACHE_LINE));
            assert!((0..IN_LINES).all(|i| *zeroed.add(i) == 0));
            allocator.dealloc(zeroed, layout(IN_LINES));
        }
    }

    /// What the kernel says of the memory at an address.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn flags(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut here = false;
        for line in maps.lines() {
            let range = line.split(' ').next().unwrap().split_once('-');
            let number = |text: &str| usize::from_str_radix(text, 16).ok();
            if let Some((Some(start), Some(end))) = range.map(|(a, b)| (number(a), number(b))) {
                here = (start..end).contains(&address);
            }
            if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| here) {
                return flags.to_owned();
            }
        }
        panic!("nothing lies at {address:x}");
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn what_is_too_large_to_be_kept_asks_for_huge_pages() {
        let allocator = Reusing::new();
        // SAFETY: every pointer comes from this allocator, is used within its size, and is freed once with the
        // layout that it has then.
        unsafe {
            let block = allocator.alloc(layout(MOST + 1));
            let flags = flags(block as usize + MOST / 2);
            allocator.dealloc(block, layout(MOST + 1));
            let has = |wanted: &str| flags.split(' ').any(|flag| flag == wanted);
            assert!(has("hg"), "{flags}");
        }
        assert_eq!(allocator.kept_bytes(), 0);
    }

    #[test]
    fn a_taken_shelf_is_never_waited_for() {
        let allocator = Reusing::new();
        allocator.busy.store(true, Ordering::Release);
        // SAFETY: every pointer comes from this allocator, is used within its size, and is freed once with the
        // layout that it has then.
        unsafe {
            let block = allocator.alloc(layout(2 << 20));
            assert!(!block.is_null());
            allocator.dealloc(block, layout(2 << 20));
        }
    }
}
