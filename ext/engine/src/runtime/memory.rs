//! Refusing allocations that cannot succeed, since a failed one would abort the process.

use std::alloc::{GlobalAlloc, Layout, System};

use crate::{Error, Result};

/// Below this size the check costs more than it protects.
const UNCHECKED_BYTES: usize = 16 << 20;

/// An `OutOfMemory` error unless `bytes` more can be had; `what` completes "not enough memory for".
pub fn ensure_available(bytes: usize, what: impl std::fmt::Display) -> Result<()> {
    if bytes <= UNCHECKED_BYTES {
        return Ok(());
    }
    if bytes > available_bytes() || !is_obtainable(bytes) {
        return Err(Error::OutOfMemory(format!(
            "not enough memory for {what}: {} needed. Use smaller inputs, a smaller dtype, or free other objects",
            format_bytes(bytes)
        )));
    }
    Ok(())
}

/// The same for `count` elements of `size` bytes, whose product may not even fit a `usize`.
pub fn ensure_elements(count: &[usize], size: usize, what: impl std::fmt::Display) -> Result<()> {
    let bytes = count
        .iter()
        .try_fold(size, |bytes, &dim| bytes.checked_mul(dim));
    let zero = count.contains(&0);
    match bytes {
        _ if zero => Ok(()),
        Some(bytes) => ensure_available(bytes, what),
        None => Err(Error::OutOfMemory(format!(
            "not enough memory for {what}: more than the address space needed"
        ))),
    }
}

/// Whether the system gives out that much, past the allocator that would keep it.
fn is_obtainable(bytes: usize) -> bool {
    let Ok(layout) = Layout::from_size_align(bytes, 1) else {
        return false;
    };
    // SAFETY: the layout has a size, since `bytes` is large; the block goes back as it came.
    unsafe {
        let block = System.alloc(layout);
        if !block.is_null() {
            System.dealloc(block, layout);
        }
        !block.is_null()
    }
}

/// Gives free memory inside the allocator's heaps back to the system: for after a burst of small
/// allocations, such as reading a vocabulary, whose holes would stay as long as the process.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes the allocator's own locks, and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

pub fn format_bytes(bytes: usize) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(target_os = "linux")]
fn available_bytes() -> usize {
    let Ok(text) = std::fs::read_to_string("/proc/meminfo") else {
        return usize::MAX;
    };
    text.lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| {
            rest.trim()
                .trim_end_matches("kB")
                .trim()
                .parse::<usize>()
                .ok()
        })
        .map_or(usize::MAX, |kib| kib.saturating_mul(1024))
}

/// Physical memory; macOS compresses and swaps, so what is free now says little.
#[cfg(not(target_os = "linux"))]
fn available_bytes() -> usize {
    // SAFETY: sysconf takes no pointers.
    let (pages, size) = unsafe {
        (
            libc::sysconf(libc::_SC_PHYS_PAGES),
            libc::sysconf(libc::_SC_PAGESIZE),
        )
    };
    match (usize::try_from(pages), usize::try_from(size)) {
        (Ok(pages), Ok(size)) => pages.saturating_mul(size),
        _ => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_sizes_are_refused_and_small_ones_pass() {
        assert!(ensure_available(1 << 50, "a test").is_err());
        assert!(ensure_elements(&[usize::MAX, 2], 4, "a test").is_err());
        assert!(ensure_elements(&[usize::MAX, 0], 4, "a test").is_ok());
        assert!(ensure_available(100 << 20, "a test").is_ok());
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(format_bytes(512), "512 B");
        assert_eq!(format_bytes(3 << 29), "1.5 GiB");
    }
}
