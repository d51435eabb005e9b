//! Huge pages under large buffers, on Linux: code that walks through megabytes then spends far less time
//! on finding pages, and filling a fresh buffer costs hundreds of page faults less. With
//! `CANDLE_HUGE_PAGES=0` the process stays as Ruby set it up, and no memory asks for any.

use std::sync::atomic::{AtomicBool, Ordering};

use super::switch::Switch;

/// Whether [`allow`] was called in this process or in the one that it was forked from.
static ALLOWED: AtomicBool = AtomicBool::new(false);
static OFF: Switch = Switch::new(c"CANDLE_HUGE_PAGES", c"0");

/// The size of a huge page, and where one may begin.
pub const SIZE: usize = 2 << 20;

/// Reads `CANDLE_HUGE_PAGES`, and changes nothing. To be called once, where nobody changes the
/// environment meanwhile.
pub fn init() {
    OFF.is_on();
}

/// Makes huge pages possible in a Ruby process, which forbids them at its start to keep its own heap
/// small after `fork`. Only memory that asks for them gets any: where the kernel can't tell the two
/// apart, Ruby's choice stands. This is a setting of the whole process, so it waits for the first
/// model or index; later calls do nothing.
pub fn allow() {
    if OFF.is_on() || ALLOWED.swap(true, Ordering::Relaxed) {
        return;
    }
    #[cfg(target_os = "linux")]
    linux::allow();
}

/// Asks for huge pages under a fresh buffer.
pub fn prefer(start: *mut u8, bytes: usize) {
    if OFF.is_on() {
        return;
    }
    #[cfg(target_os = "linux")]
    {
        let first = (start as usize).next_multiple_of(SIZE);
        let last = (start as usize + bytes) / SIZE * SIZE;
        if first < last {
            let start = first as *mut libc::c_void;
            // SAFETY: the range lies within the buffer; this is advice and changes no contents.
            unsafe { libc::madvise(start, last - first, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}

#[cfg(target_os = "linux")]
mod linux {
    use libc::{c_ulong, prctl, PR_GET_THP_DISABLE, PR_SET_THP_DISABLE};

    /// Forbidden but where memory asks for them; known to Linux 6.18 and later.
    const EXCEPT_ADVISED: c_ulong = 2;
    const NONE: c_ulong = 0;

    pub fn allow() {
        // SAFETY: these calls take numbers and change nothing but this setting of the process.
        unsafe {
            let forbidden = prctl(PR_GET_THP_DISABLE, NONE, NONE, NONE, NONE) == 1;
            if !forbidden {
                return;
            }
            let yes: c_ulong = 1;
            let refused = prctl(PR_SET_THP_DISABLE, yes, EXCEPT_ADVISED, NONE, NONE) != 0;
            if refused && only_on_request() {
                prctl(PR_SET_THP_DISABLE, NONE, NONE, NONE, NONE);
            }
        }
    }

    /// Whether the machine's own setting keeps huge pages to memory that asks for them.
    fn only_on_request() -> bool {
        std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
            .is_ok_and(|setting| setting.contains("[madvise]"))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::alloc::{alloc, Layout};

    /// The kilobytes of this process that lie on huge pages.
    fn huge_kilobytes() -> usize {
        let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("AnonHugePages:"));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number.map_or(0, |number| number.parse().unwrap())
    }

    /// How many kilobytes of huge pages 16 MiB get that ask for them, where huge pages were forbidden
    /// as Ruby forbids them.
    fn gained(allow: impl Fn()) -> usize {
        let layout = Layout::from_size_align(16 << 20, super::SIZE).unwrap();
        // SAFETY: the child only uses memory of its own and leaves through _exit.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(10);
                libc::prctl(libc::PR_SET_THP_DISABLE, 1u64, 0u64, 0u64, 0u64);
                allow();
                let before = huge_kilobytes();
                let start = alloc(layout);
                super::prefer(start, layout.size());
                start.write_bytes(1, layout.size());
                libc::_exit(((huge_kilobytes() - before) / 2048) as i32);
            }
            let mut status = -1;
            libc::waitpid(child, &mut status, 0);
            assert!(libc::WIFEXITED(status), "{status}");
            libc::WEXITSTATUS(status) as usize * 2048
        }
    }

    #[test]
    fn memory_that_asks_gets_huge_pages_where_ruby_forbade_them() {
        assert_eq!(gained(|| {}), 0);
        let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        if setting.is_ok_and(|setting| setting.contains("[madvise]")) {
            assert!(gained(super::allow) >= 8 << 10);
        }
    }
}
