//! Refusing allocations that cannot succeed, since a failed one would abort the process.

use std::sync::OnceLock;

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

/// `ensure_available` for `count` elements of `size` bytes, whose product may not even fit a `usize`.
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

/// An empty vector with room for so many elements, or an `OutOfMemory` error.
pub fn vector<T>(count: &[usize], what: impl std::fmt::Display) -> Result<Vec<T>> {
    ensure_elements(count, size_of::<T>(), &what)?;
    let mut values = Vec::new();
    let reserved = values.try_reserve_exact(count.iter().product());
    reserved.map_err(|_| Error::OutOfMemory(format!("not enough memory for {what}")))?;
    Ok(values)
}

/// Appends to a vector whose length a text or a file decides; an `OutOfMemory` error where it can't grow.
pub fn push<T>(values: &mut Vec<T>, value: T, what: impl std::fmt::Display) -> Result<()> {
    if values.len() == values.capacity() {
        // Growing doubles it, beside what it was.
        ensure_elements(&[values.len(), 2], size_of::<T>(), what)?;
    }
    values.push(value);
    Ok(())
}

/// Whether the system gives out that much, past the allocator that would keep it. A mapping is asked
/// for, since the compiler removes an allocation that is never used.
#[cfg(unix)]
fn is_obtainable(bytes: usize) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANON;
    // SAFETY: a new private mapping, at an address of the kernel's choice, which nothing uses.
    unsafe {
        let block = libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0);
        block != libc::MAP_FAILED && libc::munmap(block, bytes) == 0
    }
}

#[cfg(not(unix))]
fn is_obtainable(bytes: usize) -> bool {
    let mut block = Vec::<u8>::new();
    let reserved = block.try_reserve_exact(bytes).is_ok();
    std::hint::black_box(&mut block);
    reserved
}

static RELEASE: OnceLock<fn()> = OnceLock::new();

/// What else [`trim`] does: the process's allocator keeps buffers of its own.
pub fn on_trim(release: fn()) {
    let _ = RELEASE.set(release);
}

/// Gives free memory of the allocators back to the system: for after a burst of allocations, such as reading a
/// vocabulary, whose holes would stay as long as the process.
pub fn trim() {
    if let Some(release) = RELEASE.get() {
        release();
    }
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

/// What the machine has left, or the container, or the limit of this process's addresses.
#[cfg(target_os = "linux")]
pub fn available_bytes() -> usize {
    let machine = std::fs::read_to_string("/proc/meminfo").map_or(usize::MAX, |text| {
        field(&text, "MemAvailable:").map_or(usize::MAX, |kib| kib.saturating_mul(1024))
    });
    machine.min(limits::container()).min(limits::addresses())
}

/// The number after a word at the beginning of a line.
#[cfg(target_os = "linux")]
fn field(text: &str, name: &str) -> Option<usize> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Limits below what the machine has.
#[cfg(target_os = "linux")]
mod limits {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::field;

    /// What is left of the address space that `ulimit -v` allows.
    pub fn addresses() -> usize {
        // SAFETY: an all-zero rlimit is a valid value that getrlimit overwrites.
        let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a live value.
        let failed = unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) } != 0;
        if failed || limit.rlim_cur == libc::RLIM_INFINITY {
            return usize::MAX;
        }
        let pages = fs::read_to_string("/proc/self/statm")
            .ok()
            .and_then(|text| text.split_whitespace().next()?.parse::<usize>().ok());
        // SAFETY: sysconf takes no pointers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let used = pages.unwrap_or(0).saturating_mul(page.max(0) as usize);
        usize::try_from(limit.rlim_cur).map_or(usize::MAX, |limit| limit.saturating_sub(used))
    }

    /// What is left to the control group of this process and to those it is part of.
    pub fn container() -> usize {
        let Ok(groups) = fs::read_to_string("/proc/self/cgroup") else {
            return usize::MAX;
        };
        groups
            .lines()
            .filter_map(|line| group_left(line, Path::new("/sys/fs/cgroup")))
            .min()
            .unwrap_or(usize::MAX)
    }

    /// What a line like `0::/user.slice` or `4:memory:/docker/1` leaves, where it limits memory.
    pub fn group_left(line: &str, mount: &Path) -> Option<usize> {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (root, names) = if controllers.is_empty() {
            (mount.to_owned(), ["memory.max", "memory.current"])
        } else if controllers.split(',').any(|name| name == "memory") {
            let names = ["memory.limit_in_bytes", "memory.usage_in_bytes"];
            (mount.join("memory"), names)
        } else {
            return None;
        };
        // Inside of a container the path may be the host's, and the files lie at the root.
        let inner = root.join(path.trim_start_matches('/'));
        let folders: Vec<PathBuf> = inner
            .ancestors()
            .take_while(|folder| folder.starts_with(&root))
            .map(Path::to_owned)
            .collect();
        let left = folders
            .iter()
            .filter_map(|folder| folder_left(folder, names));
        left.min()
    }

    fn folder_left(folder: &Path, [limit, used]: [&str; 2]) -> Option<usize> {
        let number = |name: &str| {
            let text = fs::read_to_string(folder.join(name)).ok()?;
            text.trim().parse::<usize>().ok()
        };
        let (limit, used) = (number(limit)?, number(used)?);
        // Files in the page cache count as used, and go when memory is wanted.
        let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let cached = ["inactive_file ", "active_file "]
            .iter()
            .filter_map(|name| field(&statistics, name));
        Some(limit.saturating_sub(used.saturating_sub(cached.sum())))
    }
}

/// Physical memory; macOS compresses and swaps, so what is free now says little.
#[cfg(not(target_os = "linux"))]
pub fn available_bytes() -> usize {
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
        assert!(vector::<f32>(&[1 << 40, 64], "a test").is_err());
        assert!(vector::<f32>(&[3, 4], "a test").unwrap().capacity() >= 12);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_limits_of_containers_are_seen() {
        let folder = std::env::temp_dir().join(format!("red-candle-cgroup-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = folder.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("memory.max", "max\n");
        write("memory.current", "5\n");
        write("app/memory.max", "1000\n");
        write("app/memory.current", "900\n");
        write(
            "app/memory.stat",
            "anon 100\ninactive_file 300\nactive_file 50\n",
        );
        write("app/part/memory.max", "max\n");
        write("app/part/memory.current", "700\n");
        write("memory/docker/memory.limit_in_bytes", "4096\n");
        write("memory/docker/memory.usage_in_bytes", "96\n");
        let left = |line: &str| limits::group_left(line, &folder);
        assert_eq!(left("0::/app/part"), Some(450));
        assert_eq!(left("0::/"), None);
        assert_eq!(left("4:cpu,memory:/docker"), Some(4000));
        assert_eq!(left("3:cpu:/docker"), None);
        assert_eq!(left("nonsense"), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    #[cfg(unix)]
    fn what_the_system_does_not_give_is_refused() {
        assert!(is_obtainable(1 << 20));
        assert!(!is_obtainable(usize::MAX / 2));
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(format_bytes(512), "512 B");
        assert_eq!(format_bytes(3 << 29), "1.5 GiB");
    }
}
