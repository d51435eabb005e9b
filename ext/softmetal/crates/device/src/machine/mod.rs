//! Runs threadgroups. A lane is a call of the kernel's entry; it gets a stack of its own only when it has to wait, at a
//! barrier or in a simdgroup function: kernels without either run as a plain loop.

mod callbacks;
mod faults;
mod fibers;
mod schedule;
mod threadgroup;

use std::cell::{Cell, RefCell, UnsafeCell};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};

pub use callbacks::{Callbacks, CALLBACKS};
pub use faults::report_faults;
pub use threadgroup::THREADGROUP_BYTES;

use crate::report;
use crate::settings::settings;
use crate::shadow::Who;
use fibers::Fibers;
use schedule::Orders;
use threadgroup::Threadgroup;

pub const SIMD_WIDTH: usize = 32;
pub const MAXIMUM_LANES: usize = 1024;
const SIMDGROUPS: usize = MAXIMUM_LANES / SIMD_WIDTH;
const SLOT_BYTES: usize = 64;

/// What a kernel's arguments are made from; laid out as in `runtime.hpp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Position {
    pub group: [u32; 3],
    pub groups: [u32; 3],
    pub size: [u32; 3],
    pub nominal_size: [u32; 3],
    pub grid: [u32; 3],
    pub thread: [u32; 3],
    pub index: u32,
    pub lane: u32,
    pub simdgroup: u32,
    pub simdgroups: u32,
    pub buffers: *const *mut u8,
    pub threadgroup: *const *mut u8,
}

pub type Entry = unsafe extern "C" fn(&Position);

/// The values the lanes of a simdgroup published, and which of them took part; laid out as in `runtime.hpp`.
#[repr(C, align(64))]
struct Exchange {
    slots: [[u8; SLOT_BYTES]; SIMD_WIDTH],
    active: u32,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Fresh,
    Ready,
    AtBarrier,
    InSimdFunction,
    Finished,
}

struct Lane {
    state: Cell<State>,
    fiber: Cell<usize>,
    /// Where it waits.
    site: Cell<usize>,
    /// Of the exchange it published in.
    parity: Cell<usize>,
}

/// A grid and its arguments.
pub struct Launch<'a> {
    pub kernel: &'a str,
    pub entry: Entry,
    pub buffers: Vec<*mut u8>,
    pub threadgroup_lengths: Vec<usize>,
    pub grid: [usize; 3],
    pub group_size: [usize; 3],
}

/// A lane, and the barriers it passed.
pub struct Moment {
    lane: u16,
    simd_epoch: u16,
    device_epoch: u32,
    threadgroup_epoch: u32,
    /// Of the lane's threadgroup.
    pub first_epoch: u32,
}

impl Moment {
    /// A copy or fill, which has no lanes.
    pub const BLIT: Moment = Moment {
        lane: 0,
        simd_epoch: 0,
        device_epoch: 0,
        threadgroup_epoch: 0,
        first_epoch: 0,
    };

    pub fn on_device(&self) -> Who {
        Who {
            epoch: self.device_epoch,
            simd_epoch: self.simd_epoch,
            lane: self.lane,
        }
    }

    fn in_threadgroup(&self) -> Who {
        Who {
            epoch: self.threadgroup_epoch,
            ..self.on_device()
        }
    }
}

/// Everything is behind shared references: the scheduler's stack and those of the lanes all see it, by turns.
pub struct Machine {
    fibers: Fibers,
    idle: RefCell<Vec<usize>>,
    /// How many stacks are in use or idle.
    made: Cell<usize>,
    /// The lane that each fiber runs.
    running: Box<[Cell<usize>]>,
    lanes: Box<[Lane]>,
    orders: Orders,
    count: Cell<usize>,
    started: Cell<usize>,
    current_fiber: Cell<usize>,
    position: Cell<Position>,
    entry: Cell<Option<Entry>>,
    exchanges: Box<[[UnsafeCell<Exchange>; 2]]>,
    generation: Box<[Cell<usize>]>,
    simd_epochs: Box<[Cell<u16>]>,
    threadgroup: Threadgroup,
    kernel: RefCell<String>,
    barrier_flags: Cell<u32>,
    next_epoch: Cell<u32>,
    device_epoch: Cell<u32>,
    threadgroup_epoch: Cell<u32>,
    first_epoch: Cell<u32>,
}

// SAFETY: one thread at a time has it; see `execution`. What waits on its stacks is code of kernels and of this module,
// and neither keeps anything of a thread.
unsafe impl Send for Machine {}

/// The machine that runs a grid, for the functions that kernels call.
static CURRENT: AtomicPtr<Machine> = AtomicPtr::new(std::ptr::null_mut());

/// # Safety
/// A grid runs, and the caller is part of it.
unsafe fn machine<'a>() -> &'a Machine {
    // SAFETY: `run` set it and keeps the machine alive.
    unsafe { &*CURRENT.load(Ordering::Relaxed) }
}

/// Takes one lane after the other until none is left to start, then waits to be asked again.
extern "C" fn fiber_main() -> ! {
    // SAFETY: fibers run in grids only.
    let machine = unsafe { machine() };
    loop {
        let me = machine.current_fiber.get();
        match machine.next_fresh() {
            Some(lane) => machine.run_lane(me, lane),
            None => {
                machine.idle.borrow_mut().push(me);
                machine.fibers.leave(me);
            }
        }
    }
}

impl Machine {
    pub fn new() -> Box<Self> {
        fn cells<T: Clone>(count: usize, value: T) -> Box<[Cell<T>]> {
            (0..count).map(|_| Cell::new(value.clone())).collect()
        }
        let lane = || Lane {
            state: Cell::new(State::Finished),
            fiber: Cell::new(0),
            site: Cell::new(0),
            parity: Cell::new(0),
        };
        let exchange = || {
            UnsafeCell::new(Exchange {
                slots: [[0; SLOT_BYTES]; SIMD_WIDTH],
                active: 0,
            })
        };
        Box::new(Self {
            fibers: Fibers::new(MAXIMUM_LANES, fiber_main),
            idle: RefCell::default(),
            made: Cell::new(0),
            running: cells(MAXIMUM_LANES, 0),
            lanes: (0..MAXIMUM_LANES).map(|_| lane()).collect(),
            orders: Orders::new(settings().schedule),
            count: Cell::new(0),
            started: Cell::new(0),
            current_fiber: Cell::new(0),
            position: Cell::new(Position {
                group: [0; 3],
                groups: [0; 3],
                size: [0; 3],
                nominal_size: [0; 3],
                grid: [0; 3],
                thread: [0; 3],
                index: 0,
                lane: 0,
                simdgroup: 0,
                simdgroups: 0,
                buffers: std::ptr::null(),
                threadgroup: std::ptr::null(),
            }),
            entry: Cell::new(None),
            exchanges: (0..SIMDGROUPS).map(|_| [exchange(), exchange()]).collect(),
            generation: cells(SIMDGROUPS, 0),
            simd_epochs: cells(SIMDGROUPS, 0),
            threadgroup: Threadgroup::new(),
            kernel: RefCell::default(),
            barrier_flags: Cell::new(0),
            next_epoch: Cell::new(1),
            device_epoch: Cell::new(0),
            threadgroup_epoch: Cell::new(0),
            first_epoch: Cell::new(0),
        })
    }

    /// Runs a grid.
    pub fn run(&self, launch: &Launch) {
        CURRENT.store(std::ptr::from_ref(self).cast_mut(), Ordering::Relaxed);
        faults::running(true);
        self.run_grid(launch);
        faults::running(false);
    }

    fn run_grid(&self, launch: &Launch) {
        *self.kernel.borrow_mut() = launch.kernel.to_string();
        self.entry.set(Some(launch.entry));
        let threadgroup = self.threadgroup.lay_out(&launch.threadgroup_lengths);
        let groups: [usize; 3] =
            std::array::from_fn(|i| launch.grid[i].div_ceil(launch.group_size[i]));
        let count = groups.iter().product();
        for index in self.orders.groups(count).iter().map(Cell::get) {
            let group = [
                index % groups[0],
                index / groups[0] % groups[1],
                index / (groups[0] * groups[1]),
            ];
            let size: [usize; 3] = std::array::from_fn(|i| {
                launch.group_size[i].min(launch.grid[i] - group[i] * launch.group_size[i])
            });
            let narrow = |values: [usize; 3]| values.map(|value| value as u32);
            self.count.set(size.iter().product());
            self.position.set(Position {
                group: narrow(group),
                groups: narrow(groups),
                size: narrow(size),
                nominal_size: narrow(launch.group_size),
                grid: narrow(launch.grid),
                simdgroups: self.count.get().div_ceil(SIMD_WIDTH) as u32,
                buffers: launch.buffers.as_ptr(),
                threadgroup: threadgroup.as_ptr(),
                ..self.position.get()
            });
            self.run_threadgroup();
        }
    }

    fn run_threadgroup(&self) {
        let epoch = self.new_epoch();
        self.first_epoch.set(epoch);
        self.device_epoch.set(epoch);
        self.threadgroup_epoch.set(epoch);
        self.threadgroup.clear();
        self.started.set(0);
        self.orders.choose(self.count.get());
        for lane in &self.lanes[..self.count.get()] {
            lane.state.set(State::Fresh);
        }
        while self.started.get() < self.count.get() {
            let idle = self.idle.borrow_mut().pop();
            self.enter(idle.unwrap_or_else(|| self.new_fiber()));
        }
        loop {
            self.run_simdgroups();
            if !self.pass_barrier() {
                return;
            }
        }
    }

    /// Runs until every lane waits at a barrier or is finished.
    fn run_simdgroups(&self) {
        for simdgroup in self.orders.simdgroups() {
            let lanes = simdgroup * SIMD_WIDTH..self.count.get().min((simdgroup + 1) * SIMD_WIDTH);
            self.resume_ready(lanes.clone());
            while self.complete_simd_function(lanes.clone()) {
                self.resume_ready(lanes.clone());
            }
        }
    }

    /// False when nobody waits at one.
    fn pass_barrier(&self) -> bool {
        let lanes = &self.lanes[..self.count.get()];
        let waiting: Vec<&Lane> = lanes
            .iter()
            .filter(|lane| lane.state.get() == State::AtBarrier)
            .collect();
        let Some(first) = waiting.first() else {
            return false;
        };
        let same_site = waiting
            .iter()
            .all(|lane| lane.site.get() == first.site.get());
        if waiting.len() != lanes.len() || !same_site {
            self.complain("a barrier that not all lanes of the threadgroup reach");
        }
        for lane in waiting {
            lane.state.set(State::Ready);
        }
        let epoch = self.new_epoch();
        let flags = self.barrier_flags.get();
        if flags & callbacks::MEM_DEVICE != 0 {
            self.device_epoch.set(epoch);
        }
        if flags & callbacks::MEM_THREADGROUP != 0 {
            self.threadgroup_epoch.set(epoch);
        }
        true
    }

    /// Wakes the lanes of a simdgroup that wait in the same simdgroup function. False when none does.
    fn complete_simd_function(&self, lanes: Range<usize>) -> bool {
        let waits = |i: &usize| self.lanes[*i].state.get() == State::InSimdFunction;
        let Some(first) = lanes.clone().find(waits) else {
            return false;
        };
        let site = self.lanes[first].site.get();
        let mut active = 0u32;
        for i in lanes.clone().filter(waits) {
            if self.lanes[i].site.get() == site {
                active |= 1 << (i % SIMD_WIDTH);
                self.lanes[i].state.set(State::Ready);
            }
        }
        if settings().strict && active.count_ones() as usize != lanes.len() {
            let part = active.count_ones();
            self.complain(&format!(
                "divergent simdgroup function: {part} of {} lanes take part",
                lanes.len()
            ));
        }
        // Lanes that left take no part, as on a GPU; reads of their values give NaNs.
        let simdgroup = lanes.start / SIMD_WIDTH;
        let exchange = &self.exchanges[simdgroup][self.lanes[first].parity.get()];
        // SAFETY: the lanes that read it are not running.
        unsafe { (*exchange.get()).active = active };
        self.generation[simdgroup].set(self.generation[simdgroup].get() + 1);
        true
    }

    fn resume_ready(&self, lanes: Range<usize>) {
        for lane in self.orders.lanes(lanes) {
            if self.lanes[lane].state.get() == State::Ready {
                self.enter(self.lanes[lane].fiber.get());
            }
        }
    }

    fn enter(&self, fiber: usize) {
        self.current_fiber.set(fiber);
        self.fibers.enter(fiber);
    }

    fn new_fiber(&self) -> usize {
        let fiber = self.made.get();
        self.made.set(fiber + 1);
        fiber
    }

    fn new_epoch(&self) -> u32 {
        let epoch = self.next_epoch.get();
        self.next_epoch.set(epoch + 1);
        epoch
    }

    /// The lane that starts next.
    fn next_fresh(&self) -> Option<usize> {
        let started = self.started.get();
        let lane = (started < self.count.get()).then(|| self.orders.start(started));
        self.started.set(started + usize::from(lane.is_some()));
        lane
    }

    fn run_lane(&self, fiber: usize, lane: usize) {
        self.running[fiber].set(lane);
        self.lanes[lane].state.set(State::Ready);
        self.lanes[lane].fiber.set(fiber);
        let mut position = self.position.get();
        let [width, height, _] = position.size.map(|size| size as usize);
        position.index = lane as u32;
        position.thread =
            [lane % width, lane / width % height, lane / (width * height)].map(|i| i as u32);
        position.lane = (lane % SIMD_WIDTH) as u32;
        position.simdgroup = (lane / SIMD_WIDTH) as u32;
        if let Some(entry) = self.entry.get() {
            // SAFETY: the entry is a translated kernel's, and the position has its arguments.
            unsafe { entry(&position) };
        }
        self.lanes[lane].state.set(State::Finished);
    }

    /// Lets the current lane wait.
    fn wait(&self, state: State, site: usize) {
        let fiber = self.current_fiber.get();
        let lane = &self.lanes[self.running[fiber].get()];
        lane.state.set(state);
        lane.site.set(site);
        self.fibers.leave(fiber);
    }

    fn current_lane(&self) -> usize {
        self.running[self.current_fiber.get()].get()
    }

    fn moment(&self) -> Moment {
        let lane = self.current_lane();
        Moment {
            lane: lane as u16,
            simd_epoch: self.simd_epochs[lane / SIMD_WIDTH].get(),
            device_epoch: self.device_epoch.get(),
            threadgroup_epoch: self.threadgroup_epoch.get(),
            first_epoch: self.first_epoch.get(),
        }
    }

    fn complain(&self, what: &str) {
        report::finding(format!("{}: {what}", self.kernel.borrow()));
    }

    /// What kernel, lane and threadgroup run, for a fault's report.
    fn describe(&self) -> String {
        let kernel = self
            .kernel
            .try_borrow()
            .map_or_else(|_| String::new(), |kernel| kernel.clone());
        let group = self.position.get().group;
        format!(
            "{kernel}: lane {} of threadgroup {group:?}",
            self.current_lane()
        )
    }
}

/// An opaque pointer of a kernel's, for its callbacks.
type Site = *const c_void;
