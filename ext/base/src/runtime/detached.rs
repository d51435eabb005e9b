//! Threads that nobody joins.

use std::io;
use std::thread::Builder;

/// Starts a thread that nobody joins.
///
/// On Unix it detaches itself. Dropping its handle would detach it from outside, and the C library reads the
/// thread's control block once more after that: if the thread ends at that moment and its stack is large, the
/// block is already unmapped, and the process dies.
pub fn detached(builder: Builder, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::thread::JoinHandleExt;
        let thread = builder.spawn(move || {
            // SAFETY: the thread that calls is alive, and nobody else joins or detaches it: its handle
            // is dropped below as a plain id.
            let status = unsafe { libc::pthread_detach(libc::pthread_self()) };
            debug_assert_eq!(status, 0);
            work();
        })?;
        let _ = thread.into_pthread_t();
    }
    #[cfg(not(unix))]
    drop(builder.spawn(work)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LARGE_STACK: usize = 256 << 20;

    #[test]
    fn threads_that_end_at_once_leave_neither_stacks_nor_a_crash() {
        let (sender, receiver) = mpsc::channel();
        for number in 0..4000 {
            let sender = sender.clone();
            let builder = Builder::new().stack_size(LARGE_STACK);
            detached(builder, move || sender.send(number).unwrap()).unwrap();
            assert_eq!(receiver.recv().unwrap(), number);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_detached_thread_frees_its_stack() {
        let reserved = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status
                .lines()
                .find(|line| line.starts_with("VmSize:"))
                .unwrap();
            line.split_whitespace()
                .nth(1)
                .unwrap()
                .parse::<usize>()
                .unwrap()
                * 1024
        };
        let before = reserved();
        for _ in 0..64 {
            let (sender, receiver) = mpsc::channel::<()>();
            detached(Builder::new().stack_size(LARGE_STACK), move || drop(sender)).unwrap();
            assert!(receiver.recv().is_err());
        }
        let kept = (reserved().saturating_sub(before)) / LARGE_STACK;
        assert!(kept < 32, "{kept} of 64 stacks are still reserved");
    }
}
