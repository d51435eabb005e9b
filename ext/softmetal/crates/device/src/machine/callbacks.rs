//! What the kernels call.

use std::ffi::c_void;

use super::{machine, Exchange, Site, State, SIMD_WIDTH, SLOT_BYTES, THREADGROUP_BYTES};
use crate::shadow;

/// As `mem_flags` has them.
pub const MEM_DEVICE: u32 = 1;
pub const MEM_THREADGROUP: u32 = 2;

/// Laid out as in `runtime.hpp`.
#[repr(C)]
pub struct Callbacks {
    barrier: extern "C" fn(u32, Site),
    exchange: extern "C" fn(*const c_void, usize, Site) -> *const c_void,
    simdgroup_barrier: extern "C" fn(Site),
    threadgroup_variable: extern "C" fn(u32, usize, usize) -> *mut c_void,
    access: extern "C" fn(usize, usize, bool),
    lane: extern "C" fn() -> u32,
}

pub static CALLBACKS: Callbacks = Callbacks {
    barrier,
    exchange,
    simdgroup_barrier,
    threadgroup_variable,
    access,
    lane,
};

extern "C" fn barrier(flags: u32, site: Site) {
    // SAFETY: kernels call it.
    let machine = unsafe { machine() };
    machine.barrier_flags.set(flags);
    machine.wait(State::AtBarrier, site as usize);
}

extern "C" fn lane() -> u32 {
    // SAFETY: kernels call it.
    (unsafe { machine() }.current_lane() % SIMD_WIDTH) as u32
}

/// Publishes the lane's value and waits for the others that come here.
extern "C" fn exchange(value: *const c_void, bytes: usize, site: Site) -> *const c_void {
    assert!(bytes <= SLOT_BYTES, "a simdgroup function of {bytes} bytes");
    // SAFETY: kernels call it.
    let machine = unsafe { machine() };
    let lane = machine.current_lane();
    let simdgroup = lane / SIMD_WIDTH;
    let parity = machine.generation[simdgroup].get() % 2;
    let exchange: *mut Exchange = machine.exchanges[simdgroup][parity].get();
    // SAFETY: the slot is this lane's, and the kernel lends so many bytes.
    unsafe {
        let slot = (&raw mut (*exchange).slots[lane % SIMD_WIDTH]).cast::<u8>();
        std::ptr::copy_nonoverlapping(value.cast::<u8>(), slot, bytes);
    }
    machine.lanes[lane].parity.set(parity);
    machine.wait(State::InSimdFunction, site as usize);
    exchange.cast_const().cast()
}

extern "C" fn simdgroup_barrier(site: Site) {
    let nothing = 0u8;
    exchange((&raw const nothing).cast(), 0, site);
    // SAFETY: kernels call it.
    let machine = unsafe { machine() };
    let simdgroup = machine.current_lane() / SIMD_WIDTH;
    // The first lane to go on says that all have passed; none has touched anything since it came.
    let generation = machine.generation[simdgroup].get();
    machine.simd_epochs[simdgroup].set(generation as u16);
}

extern "C" fn threadgroup_variable(id: u32, bytes: usize, alignment: usize) -> *mut c_void {
    // SAFETY: kernels call it.
    let machine = unsafe { machine() };
    let Some(address) = machine.threadgroup.variable(id as usize, bytes, alignment) else {
        eprintln!(
            "softmetal: {}: threadgroup memory is exhausted",
            machine.describe()
        );
        std::process::abort();
    };
    let used = machine.threadgroup.used();
    if used > THREADGROUP_BYTES {
        machine.complain(&format!(
            "more than {THREADGROUP_BYTES} bytes of threadgroup memory"
        ));
    }
    address.cast()
}

extern "C" fn access(address: usize, bytes: usize, write: bool) {
    // SAFETY: kernels call it.
    let machine = unsafe { machine() };
    let moment = machine.moment();
    if !machine.threadgroup.holds(address) {
        return shadow::access(address, bytes, write, &moment);
    }
    if let Some(problem) = machine.threadgroup.access(address, bytes, write, &moment) {
        machine.complain(&problem);
    }
}
