//! A fault inside a kernel says where it was before the process dies.

use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::OnceLock;

use super::CURRENT;
use crate::{memory, report};

/// The thread that runs a grid; 0 where none does.
static RUNNING: AtomicI32 = AtomicI32::new(0);

const SIGNALS: [i32; 3] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL];

static EARLIER: OnceLock<Vec<(i32, libc::sigaction)>> = OnceLock::new();

fn this_thread() -> i32 {
    // SAFETY: asks for a number.
    unsafe { libc::gettid() }
}

pub fn running(on: bool) {
    RUNNING.store(if on { this_thread() } else { 0 }, Ordering::Relaxed);
}

unsafe extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, _context: *mut c_void) {
    if RUNNING.load(Ordering::Relaxed) == this_thread() {
        // SAFETY: a grid runs on this thread, so its machine lives, and the system gave the information.
        let (lane, address) = unsafe {
            (
                (*CURRENT.load(Ordering::Relaxed)).describe(),
                (*info).si_addr() as usize,
            )
        };
        report::finding(match signal {
            libc::SIGILL => {
                format!("{lane} uses a vector at an address that is no multiple of its alignment")
            }
            _ => format!("{lane} touches {}", memory::describe(address)),
        });
    }
    // The instruction comes again, and the handler of before deals with it.
    for (number, action) in EARLIER.get().into_iter().flatten() {
        if *number == signal {
            // SAFETY: puts back what the system gave.
            unsafe { libc::sigaction(signal, action, std::ptr::null_mut()) };
        }
    }
}

/// Installs the handler, on a stack of its own: the lane that failed may have none left.
pub fn report_faults() {
    EARLIER.get_or_init(|| {
        SIGNALS
            .iter()
            .map(|&signal| {
                // SAFETY: zeroes are an action, and the handler keeps to what a signal's may do as far as a dying
                // process has to.
                unsafe {
                    let mut action: libc::sigaction = std::mem::zeroed();
                    let mut earlier: libc::sigaction = std::mem::zeroed();
                    action.sa_sigaction = handle as *const () as usize;
                    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
                    libc::sigaction(signal, &action, &mut earlier);
                    (signal, earlier)
                }
            })
            .collect()
    });
}
