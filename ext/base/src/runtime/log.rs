//! What the engine wants to tell the user; the binding forwards it to the logger in force.
//!
//! Messages are kept without a lock: a process may fork while another thread logs, and the child would
//! find a lock that nobody gives back.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Debug,
    Info,
    Warn,
}

/// More than any single call says; a runaway loop cannot fill memory.
const CAPACITY: usize = 1000;

static PENDING: Queue = Queue::new();

pub fn debug(message: impl Into<String>) {
    PENDING.push(Level::Debug, message.into());
}

pub fn info(message: impl Into<String>) {
    PENDING.push(Level::Info, message.into());
}

pub fn warn(message: impl Into<String>) {
    PENDING.push(Level::Warn, message.into());
}

/// Takes all messages, oldest first.
pub fn drain() -> Vec<(Level, String)> {
    PENDING.drain()
}

struct Queue {
    /// The latest message, which leads to those before it.
    latest: AtomicPtr<Message>,
    count: AtomicUsize,
}

struct Message {
    level: Level,
    text: String,
    before: *mut Message,
}

impl Queue {
    const fn new() -> Self {
        Self {
            latest: AtomicPtr::new(ptr::null_mut()),
            count: AtomicUsize::new(0),
        }
    }

    fn push(&self, level: Level, text: String) {
        if self.count.fetch_add(1, Ordering::Relaxed) >= CAPACITY {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let message = Box::into_raw(Box::new(Message {
            level,
            text,
            before: ptr::null_mut(),
        }));
        let mut latest = self.latest.load(Ordering::Relaxed);
        loop {
            // SAFETY: nobody else knows the message before it is in the queue.
            unsafe { (*message).before = latest };
            let order = (Ordering::Release, Ordering::Relaxed);
            let pushed = self
                .latest
                .compare_exchange_weak(latest, message, order.0, order.1);
            match pushed {
                Ok(_) => return,
                Err(found) => latest = found,
            }
        }
    }

    fn drain(&self) -> Vec<(Level, String)> {
        if self.latest.load(Ordering::Relaxed).is_null() {
            return Vec::new();
        }
        let mut latest = self.latest.swap(ptr::null_mut(), Ordering::Acquire);
        let mut messages = Vec::new();
        while !latest.is_null() {
            // SAFETY: it came out of a Box, and this thread alone took it out of the queue.
            let message = unsafe { Box::from_raw(latest) };
            latest = message.before;
            messages.push((message.level, message.text));
        }
        self.count.fetch_sub(messages.len(), Ordering::Relaxed);
        messages.reverse();
        messages
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    #[cfg(unix)]
    fn a_forked_child_logs_although_threads_of_its_parent_did() {
        let over = AtomicBool::new(false);
        let children = std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        info("busy");
                        drain();
                    }
                });
            }
            let children: Vec<i32> = (0..200).map(|_| child_that_logs()).collect();
            over.store(true, Ordering::Relaxed);
            children
        });
        assert_eq!(children, [0; 200]);
    }

    /// How a child ended that logs, and reads what it logged.
    #[cfg(unix)]
    fn child_that_logs() -> i32 {
        let mut status = -1;
        // SAFETY: the child only logs and leaves through _exit, or by the alarm.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(5);
                (0..3).for_each(|_| warn("child"));
                let found = drain().iter().filter(|(_, text)| text == "child").count();
                libc::_exit(i32::from(found != 3));
            }
            libc::waitpid(child, &mut status, 0);
        }
        status
    }

    #[test]
    fn messages_of_each_thread_come_in_their_order() {
        let (queue, mut found) = (Queue::new(), Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let queue = &queue;
                scope.spawn(move || {
                    (0..200).for_each(|at| queue.push(Level::Info, format!("{thread} {at:03}")));
                });
            }
            while found.len() < 800 {
                found.extend(queue.drain().into_iter().map(|(_, text)| text));
            }
        });
        for thread in 0..4 {
            let prefix = format!("{thread} ");
            let own: Vec<_> = found
                .iter()
                .filter(|text| text.starts_with(&prefix))
                .collect();
            assert_eq!(own.len(), 200);
            assert!(own.is_sorted());
        }
    }

    #[test]
    fn a_runaway_loop_fills_no_memory() {
        let queue = Queue::new();
        (0..2 * CAPACITY).for_each(|at| queue.push(Level::Debug, at.to_string()));
        let found = queue.drain();
        assert_eq!(found.len(), CAPACITY);
        assert_eq!(found[0], (Level::Debug, "0".to_owned()));
        queue.push(Level::Warn, "again".to_owned());
        assert_eq!(queue.drain().len(), 1);
    }
}
