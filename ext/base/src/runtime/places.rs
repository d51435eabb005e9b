//! Keeps threads that work together from sharing a processor. A thread that wakes another may find it on its own
//! processor while others are idle, and the system leaves both there for milliseconds, since each runs all the time.

use std::sync::atomic::{AtomicUsize, Ordering};

const NOWHERE: usize = usize::MAX;

/// The processors of threads that work together.
pub(super) struct Places(Box<[AtomicUsize]>);

impl Places {
    pub fn new(threads: usize) -> Self {
        Self((0..threads).map(|_| AtomicUsize::new(NOWHERE)).collect())
    }

    /// Notes where the calling thread runs. It is moved first if another one was noted there and the thread may run
    /// on a processor where none was.
    pub fn settle(&self, thread: usize) {
        let Some(place) = self.0.get(thread) else {
            return;
        };
        let taken = || {
            let others = self.0.iter().enumerate();
            let others = others.filter(move |&(other, _)| other != thread);
            others.map(|(_, place)| place.load(Ordering::Relaxed))
        };
        let mut here = system::processor();
        if here.is_some_and(|here| taken().any(|other| other == here)) {
            system::avoid(taken());
            here = system::processor();
        }
        place.store(here.unwrap_or(NOWHERE), Ordering::Relaxed);
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::mem::{size_of, zeroed};

    pub fn processor() -> Option<usize> {
        // SAFETY: it takes nothing and says where the thread runs.
        usize::try_from(unsafe { libc::sched_getcpu() }).ok()
    }

    /// The processors that the calling thread may run on.
    pub(super) fn permitted() -> Option<libc::cpu_set_t> {
        // SAFETY: a set of bits, for which zeros are a value; the system writes as many bytes as it is told.
        unsafe {
            let mut set: libc::cpu_set_t = zeroed();
            let size = size_of::<libc::cpu_set_t>();
            (libc::sched_getaffinity(0, size, &mut set) == 0).then_some(set)
        }
    }

    pub(super) fn permit(set: &libc::cpu_set_t) -> bool {
        // SAFETY: the set is a whole one, and its size is said.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) == 0 }
    }

    /// Moves the calling thread away from some processors, if it may run on others; afterwards it may run where it
    /// might before.
    pub fn avoid(taken: impl Iterator<Item = usize>) {
        let Some(before) = permitted() else {
            return;
        };
        let mut others = before;
        for processor in taken.filter(|&taken| taken < libc::CPU_SETSIZE as usize) {
            // SAFETY: the set has room for the processor.
            unsafe { libc::CPU_CLR(processor, &mut others) };
        }
        // SAFETY: the set is a whole one.
        if unsafe { libc::CPU_COUNT(&others) } > 0 && permit(&others) {
            permit(&before);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    /// Other systems do not say.
    pub fn processor() -> Option<usize> {
        None
    }

    pub fn avoid(_taken: impl Iterator<Item = usize>) {}
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    /// Runs on a thread of its own, which may run anywhere, but begins on a processor of the caller's choice.
    fn beginning_on(processor: usize, work: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let before = system::permitted().unwrap();
                let mut one = before;
                for other in (0..libc::CPU_SETSIZE as usize).filter(|&other| other != processor) {
                    // SAFETY: the set has room for the processor.
                    unsafe { libc::CPU_CLR(other, &mut one) };
                }
                assert!(system::permit(&one));
                assert!(system::permit(&before));
                work();
            });
        });
    }

    fn count(set: &libc::cpu_set_t) -> i32 {
        // SAFETY: the set is a whole one.
        unsafe { libc::CPU_COUNT(set) }
    }

    #[test]
    fn a_thread_leaves_the_processor_of_another() {
        let all = system::permitted().unwrap();
        let there = (0..libc::CPU_SETSIZE as usize)
            // SAFETY: the set has room for the processor.
            .find(|&processor| unsafe { libc::CPU_ISSET(processor, &all) })
            .unwrap();
        let places = Places::new(2);
        places.0[0].store(there, Ordering::Relaxed);
        beginning_on(there, || {
            places.settle(1);
            assert_eq!(count(&system::permitted().unwrap()), count(&all));
        });
        let moved = places.0[1].load(Ordering::Relaxed);
        assert_eq!(moved != there, count(&all) > 1);
    }

    #[test]
    fn nobody_is_moved_for_a_thread_that_is_elsewhere() {
        let places = Places::new(3);
        places.0[2].store(NOWHERE - 1, Ordering::Relaxed);
        places.settle(0);
        places.settle(7);
        assert_ne!(places.0[0].load(Ordering::Relaxed), NOWHERE);
        assert_eq!(places.0[1].load(Ordering::Relaxed), NOWHERE);
    }
}
