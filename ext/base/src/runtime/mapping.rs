//! Large pieces of memory, straight from the kernel and back to it.

use std::ptr;

#[cfg(all(unix, not(miri)))]
use crate::runtime::huge_pages;

/// A multiple of every page size that there is, huge pages left out.
pub const PAGE: usize = 1 << 16;

/// Memory that is zeroed and not touched yet, on huge pages where there are any; null when there is none. `bytes` is a
/// multiple of [`PAGE`], and on Unix the memory begins where a huge page may.
#[cfg(all(unix, not(miri)))]
pub fn fresh(bytes: usize) -> *mut u8 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANON;
    let Some(length) = bytes.checked_add(huge_pages::SIZE) else {
        return ptr::null_mut();
    };
    // SAFETY: a new private mapping, at an address of the kernel's choice.
    let start = unsafe { libc::mmap(ptr::null_mut(), length, access, kind, -1, 0) };
    if start == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    let start: *mut u8 = start.cast();
    let before = start.align_offset(huge_pages::SIZE);
    let after = huge_pages::SIZE - before;
    // SAFETY: what is given back lies within the mapping, at whole pages, and was not used.
    unsafe {
        let first = start.add(before);
        if before > 0 {
            give_back(start, before);
        }
        if after > 0 {
            give_back(first.add(bytes), after);
        }
        huge_pages::prefer(first, bytes);
        first
    }
}

/// Asks for huge pages under somebody else's fresh memory that will be filled.
pub fn large(start: *mut u8, bytes: usize) {
    #[cfg(all(unix, not(miri)))]
    huge_pages::prefer(start, bytes);
    #[cfg(any(not(unix), miri))]
    let _ = (start, bytes);
}

/// # Safety
/// `start` came from `fresh` with as many bytes, and nothing uses it any more.
#[cfg(all(unix, not(miri)))]
pub unsafe fn give_back(start: *mut u8, bytes: usize) {
    // SAFETY: the caller promises that `fresh` mapped `bytes` bytes at `start`, and that nothing refers to them.
    unsafe { libc::munmap(start.cast(), bytes) };
}

/// Gives the pages of a part back, which stays mapped: it is zeroed again, or as it was.
///
/// # Safety
/// The part lies in memory from `fresh`, at whole pages, and nothing uses its contents any more.
pub unsafe fn vacate(start: *mut u8, bytes: usize) {
    #[cfg(all(unix, not(miri)))]
    {
        let advice = if cfg!(target_os = "linux") {
            libc::MADV_DONTNEED
        } else {
            libc::MADV_FREE
        };
        // SAFETY: the caller vouches for the part; where the kernel refuses, the part stays as it is.
        unsafe { libc::madvise(start.cast(), bytes, advice) };
    }
    #[cfg(any(not(unix), miri))]
    let _ = (start, bytes);
}

#[cfg(any(not(unix), miri))]
use std::alloc::{GlobalAlloc, Layout, System};

#[cfg(any(not(unix), miri))]
const LINE: usize = 64;

#[cfg(any(not(unix), miri))]
pub fn fresh(bytes: usize) -> *mut u8 {
    match Layout::from_size_align(bytes.max(1), LINE) {
        // SAFETY: the layout's size is at least 1.
        Ok(layout) => unsafe { System.alloc_zeroed(layout) },
        Err(_) => ptr::null_mut(),
    }
}

/// # Safety
/// `start` came from `fresh` with as many bytes, and nothing uses it any more.
#[cfg(any(not(unix), miri))]
pub unsafe fn give_back(start: *mut u8, bytes: usize) {
    // SAFETY: the caller vouches for the block, whose layout was a valid one.
    unsafe { System.dealloc(start, Layout::from_size_align_unchecked(bytes.max(1), LINE)) };
}
