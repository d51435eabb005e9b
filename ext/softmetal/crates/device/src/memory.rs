//! Device memory: every allocation ends against a page nobody may touch and starts behind another.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::settings::settings;
use crate::{lock, report, shadow};

pub const PAGE: usize = 4096;
const ALIGNMENT: usize = 16;

pub struct Allocation {
    region: *mut u8,
    region_bytes: usize,
    address: *mut u8,
    length: usize,
    private: bool,
}

// SAFETY: the memory is the allocation's own; who may touch it when is the host's affair, as on a GPU.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

/// Living allocations by address: length and number.
static REGISTRY: Mutex<BTreeMap<usize, (usize, u64)>> = Mutex::new(BTreeMap::new());

pub fn allocated() -> usize {
    ALLOCATED.load(Ordering::Relaxed)
}

impl Allocation {
    /// `None` for no bytes and for more than there are, as Metal.
    pub fn new(length: usize, private: bool) -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let most = settings().memory.checked_sub(allocated())?;
        if length == 0 || length > most {
            return None;
        }
        let padded = length.next_multiple_of(ALIGNMENT);
        let body = padded.next_multiple_of(PAGE);
        let region_bytes = body + 2 * PAGE;
        let region = reserve(region_bytes)?;
        // SAFETY: the region has a page before and a page after the body.
        let address = unsafe {
            let start = region.add(PAGE);
            if libc::mprotect(start.cast(), body, libc::PROT_READ | libc::PROT_WRITE) != 0 {
                give_back(region, region_bytes);
                return None;
            }
            // Metal clears a new buffer, but candle's pool hands out used ones: nobody may rely on zeros. All ones
            // are a NaN in every float format.
            std::ptr::write_bytes(start, 0xff, body);
            start.add(body - padded)
        };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        ALLOCATED.fetch_add(length, Ordering::Relaxed);
        lock(&REGISTRY).insert(address as usize, (length, number));
        Some(Self {
            region,
            region_bytes,
            address,
            length,
            private,
        })
    }

    pub fn with_bytes(bytes: &[u8]) -> Option<Self> {
        let allocation = Self::new(bytes.len(), false)?;
        // SAFETY: the allocation has so many bytes, and nobody else knows it yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), allocation.address, bytes.len()) };
        shadow::host_wrote(allocation.range());
        Some(allocation)
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// Where it starts; writing through it follows the commands' order.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// For the host, which may write through it; null for a private buffer.
    pub fn contents(&self) -> *mut u8 {
        if self.private {
            report::finding("the host asks for the contents of a private buffer".to_string());
            return std::ptr::null_mut();
        }
        shadow::host_wrote(self.range());
        self.address
    }

    /// Address and length.
    pub fn range(&self) -> (usize, usize) {
        (self.address as usize, self.length)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        lock(&REGISTRY).remove(&(self.address as usize));
        ALLOCATED.fetch_sub(self.length, Ordering::Relaxed);
        shadow::forget(self.range());
        // SAFETY: the region is this allocation's, and nothing refers to it any more.
        unsafe { give_back(self.region, self.region_bytes) };
    }
}

/// Address space that can't be touched yet.
fn reserve(bytes: usize) -> Option<*mut u8> {
    if settings().check {
        return shadow::reserve(bytes);
    }
    map(bytes, libc::PROT_NONE)
}

pub fn map(bytes: usize, protection: i32) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: asks for fresh memory.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory.cast())
}

/// # Safety
/// The region came from `reserve`, and nobody uses it any more.
unsafe fn give_back(region: *mut u8, bytes: usize) {
    // SAFETY: as promised above.
    unsafe {
        if settings().check {
            // The address space stays taken, so that a use after the release faults.
            libc::madvise(region.cast(), bytes, libc::MADV_DONTNEED);
            libc::mprotect(region.cast(), bytes, libc::PROT_NONE);
        } else {
            libc::munmap(region.cast(), bytes);
        }
    }
}

/// Says which allocation an address is in or next to. Takes no lock that somebody holds: a signal's handler asks.
pub fn describe(address: usize) -> String {
    let Ok(registry) = REGISTRY.try_lock() else {
        return format!("address {address:#x}");
    };
    let before = registry.range(..=address).next_back();
    let after = registry.range(address..).next();
    match (before, after) {
        (Some((start, (length, number))), _) if address < start + length + 2 * PAGE => {
            format!(
                "byte {} of buffer {number}, which has {length}",
                address - start
            )
        }
        (_, Some((start, (length, number)))) if start - address < 2 * PAGE => {
            format!(
                "{} bytes before buffer {number}, which has {length}",
                start - address
            )
        }
        _ => format!("address {address:#x}, in no buffer"),
    }
}

/// What an argument nobody set points to: bytes that can be read, and are NaNs, but not written. candle's kernels read
/// through arguments that a function constant removed, and rely on the compiler to drop the unused value.
pub fn nothing() -> *mut u8 {
    static NOTHING: OnceLock<usize> = OnceLock::new();
    let address = NOTHING.get_or_init(|| {
        let bytes = 16 * PAGE;
        let memory = map(bytes, libc::PROT_READ | libc::PROT_WRITE).expect("memory for nothing");
        // SAFETY: the memory was just mapped.
        unsafe {
            std::ptr::write_bytes(memory, 0xff, bytes);
            libc::mprotect(memory.cast(), bytes, libc::PROT_READ);
        }
        memory as usize
    });
    *address as *mut u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_what_was_asked_for_and_end_at_a_page() {
        for length in [1, 15, 16, 4096, 5000] {
            let allocation = Allocation::new(length, false).expect("memory");
            assert_eq!(allocation.length(), length);
            let end = allocation.address() as usize + length.next_multiple_of(ALIGNMENT);
            assert_eq!(end % PAGE, 0);
            // SAFETY: the last byte belongs to it.
            assert_eq!(unsafe { *allocation.address().add(length - 1) }, 0xff);
        }
    }

    #[test]
    fn no_bytes_and_too_many_are_nil() {
        assert!(Allocation::new(0, false).is_none());
        assert!(Allocation::new(1 << 50, false).is_none());
        assert!(Allocation::new(usize::MAX, true).is_none());
    }

    #[test]
    fn addresses_are_told_apart() {
        let allocation = Allocation::new(100, false).expect("memory");
        let start = allocation.address() as usize;
        // Other tests hold the lock now and then.
        let told = |address| loop {
            let told = describe(address);
            if told.contains("buffer") {
                return told;
            }
            std::thread::yield_now();
        };
        assert!(told(start + 100).starts_with("byte 100 of buffer"));
        assert!(told(start - 1).contains("1 bytes before buffer"));
        assert!(told(16).contains("in no buffer"));
    }
}
