//! Stacks to run lanes on, and the switch between them.

use std::cell::Cell;

use crate::memory::{map, PAGE};

const STACK_BYTES: usize = 256 * 1024;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the software device switches stacks on x86-64 only");

std::arch::global_asm!(
    ".global softmetal_switch",
    "softmetal_switch:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rdi], rsp",
    "mov rsp, rsi",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
);

extern "C" {
    /// Saves the registers that a call keeps and the stack's pointer, and goes on where another stack was left.
    fn softmetal_switch(save: *mut *mut u8, to: *mut u8);
}

/// The scheduler's stack and one for each lane that has to wait. All of it is behind shared references, since every
/// stack sees it while another runs.
pub struct Fibers {
    memory: *mut u8,
    scheduler: Cell<*mut u8>,
    /// Where each fiber was left; null before it first ran.
    pointers: Box<[Cell<*mut u8>]>,
    main: extern "C" fn() -> !,
}

impl Fibers {
    pub fn new(count: usize, main: extern "C" fn() -> !) -> Self {
        let memory = map(STACK_BYTES * count, libc::PROT_READ | libc::PROT_WRITE)
            .expect("memory for stacks");
        Self {
            memory,
            scheduler: Cell::new(std::ptr::null_mut()),
            pointers: (0..count)
                .map(|_| Cell::new(std::ptr::null_mut()))
                .collect(),
            main,
        }
    }

    /// Runs a fiber until it leaves. Called by the scheduler only.
    pub fn enter(&self, fiber: usize) {
        if self.pointers[fiber].get().is_null() {
            self.pointers[fiber].set(self.fresh(fiber));
        }
        // SAFETY: the fiber is left or fresh, so its stack holds what the switch pops.
        unsafe { softmetal_switch(self.scheduler.as_ptr(), self.pointers[fiber].get()) };
    }

    /// Goes back to the scheduler. Called by that fiber only.
    pub fn leave(&self, fiber: usize) {
        // SAFETY: the scheduler waits in `enter`.
        unsafe { softmetal_switch(self.pointers[fiber].as_ptr(), self.scheduler.get()) };
    }

    /// A stack that begins in `main`, above a page that catches its overflow.
    fn fresh(&self, fiber: usize) -> *mut u8 {
        // SAFETY: the stack is this fiber's part of the memory. The switch pops six registers and returns to `main`,
        // which then finds the stack aligned as after a call.
        unsafe {
            let bottom = self.memory.add(STACK_BYTES * fiber);
            libc::mprotect(bottom.cast(), PAGE, libc::PROT_NONE);
            let top = bottom.add(STACK_BYTES).cast::<usize>();
            top.sub(1).write(0);
            top.sub(2).write(self.main as *const () as usize);
            for register in 3..=8 {
                top.sub(register).write(0);
            }
            top.sub(8).cast()
        }
    }
}

impl Drop for Fibers {
    fn drop(&mut self) {
        // SAFETY: nothing that lives on the stacks is left to be dropped: a fiber waits at the end of its loop.
        unsafe { libc::munmap(self.memory.cast(), STACK_BYTES * self.pointers.len()) };
    }
}
