//! The checks of `SOFTMETAL_CHECK=1`. Device memory then comes from one region with a cell of history for every byte,
//! and the kernels report each load and store (clang's instrumentation for its thread sanitizer, with functions of ours
//! instead of its runtime). Found are: accesses outside of the bound buffers, reads of bytes nobody wrote, lanes that
//! race inside a dispatch, and commands that touch what an unordered one wrote or read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::encoders::Encoders;
use crate::machine::Moment;
use crate::report::{self, Work};
use crate::settings::settings;
use crate::{lock, memory};

const REGION_BYTES: usize = 1 << 36;

/// A lane, and how far it had come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Who {
    pub epoch: u32,
    pub simd_epoch: u16,
    pub lane: u16,
}

impl Who {
    /// Whether nothing orders what `other` did in the same dispatch before what this one does; `several` where
    /// further lanes did the same.
    pub fn races_with(self, other: Who, first_epoch: u32, several: bool) -> bool {
        let another_threadgroup = other.epoch < first_epoch;
        let same_simdgroup = self.lane / 32 == other.lane / 32;
        let behind_simdgroup_barrier = same_simdgroup && self.simd_epoch != other.simd_epoch;
        let another_lane = several || other.lane != self.lane;
        another_threadgroup
            || (other.epoch == self.epoch && another_lane && !behind_simdgroup_barrier)
    }
}

/// The number of the command that touched a byte last, 0 for none, and who in it.
#[derive(Clone, Copy)]
struct Touch {
    command: u32,
    who: Who,
}

#[derive(Clone, Copy)]
struct Cell {
    written: Touch,
    read: Touch,
    several_readers: bool,
}

const UNTOUCHED: Touch = Touch {
    command: 0,
    who: Who {
        epoch: 0,
        simd_epoch: 0,
        lane: 0,
    },
};
const EMPTY: Cell = Cell {
    written: UNTOUCHED,
    read: UNTOUCHED,
    several_readers: false,
};

/// The command's number of everything the host writes.
const HOST: u32 = 1;

struct Region {
    base: usize,
    cells: usize,
    next: AtomicUsize,
}

fn region() -> &'static Region {
    static REGION: OnceLock<Region> = OnceLock::new();
    REGION.get_or_init(|| {
        let bytes = REGION_BYTES * size_of::<Cell>();
        let (readable, none) = (libc::PROT_READ | libc::PROT_WRITE, libc::PROT_NONE);
        Region {
            base: memory::map(REGION_BYTES, none).expect("address space for buffers") as usize,
            cells: memory::map(bytes, readable).expect("address space for the shadow memory")
                as usize,
            next: AtomicUsize::new(0),
        }
    })
}

/// Address space for an allocation, never handed out twice.
pub fn reserve(bytes: usize) -> Option<*mut u8> {
    let region = region();
    let start = region.next.fetch_add(bytes, Ordering::Relaxed);
    (start + bytes <= REGION_BYTES).then(|| (region.base + start) as *mut u8)
}

/// All cells, by one holder at a time.
static CELLS: Mutex<()> = Mutex::new(());

fn with_cells<R>((address, bytes): (usize, usize), change: impl FnOnce(&mut [Cell]) -> R) -> R {
    let _only_one = lock(&CELLS);
    let region = region();
    let start = (region.cells as *mut Cell).wrapping_add(address - region.base);
    // SAFETY: the region has a cell for each of its bytes, zeroes are a cell, and the lock makes the slice the only one.
    change(unsafe { std::slice::from_raw_parts_mut(start, bytes) })
}

pub fn forget(range: (usize, usize)) {
    if settings().check {
        with_cells(range, |cells| cells.fill(EMPTY));
    }
}

/// The host wrote there, or may have.
pub fn host_wrote(range: (usize, usize)) {
    if settings().check {
        with_cells(range, |cells| {
            for cell in cells.iter_mut().filter(|cell| cell.written.command == 0) {
                cell.written.command = HOST;
            }
        });
    }
}

/// What came before an encoder, and how far its own commands are ordered.
#[derive(Default, Clone)]
pub struct Order {
    pub encoder: u32,
    /// Commands up to here were known to be complete when its command buffer was committed.
    pub completed: u32,
    pub before: Encoders,
    pub barrier: u32,
}

/// The command that runs.
struct Now {
    command: u32,
    name: String,
    order: Order,
    bound: Vec<(usize, usize)>,
    work: Work,
    /// Bytes that two lanes write without order, and what the first wrote.
    rewritten: Vec<(usize, Vec<u8>)>,
}

#[derive(Default)]
struct History {
    /// Encoders and names, by number.
    commands: Vec<(u32, String)>,
    /// Commands up to here are complete, and the host knows.
    completed: u32,
    now: Option<Now>,
    /// What earlier commands are to the one that runs; they are asked for byte by byte.
    known: BTreeMap<u32, Option<String>>,
}

static HISTORY: Mutex<Option<History>> = Mutex::new(None);

/// Starts a command; the accesses that follow are its own.
pub fn begin(name: &str, order: &Order, bound: Vec<(usize, usize)>) {
    if !settings().check {
        return;
    }
    let mut guard = lock(&HISTORY);
    let history = guard.get_or_insert_with(History::default);
    while history.commands.len() <= HOST as usize {
        history.commands.push((0, "the host".to_string()));
    }
    let command = history.commands.len() as u32;
    history.commands.push((order.encoder, name.to_string()));
    history.known.clear();
    history.now = Some(Now {
        command,
        name: name.to_string(),
        order: order.clone(),
        bound,
        work: Work::default(),
        rewritten: Vec::new(),
    });
}

/// Ends the command, and says how many bytes it touched.
pub fn end() -> Work {
    let now = lock(&HISTORY)
        .as_mut()
        .and_then(|history| history.now.take());
    let Some(now) = now else {
        return Work::default();
    };
    for (address, first) in &now.rewritten {
        // SAFETY: the bytes belong to a buffer that the command binds, and it ran to its end.
        let last = unsafe { std::slice::from_raw_parts(*address as *const u8, first.len()) };
        if last != first {
            report::finding(format!(
                "{}: race: two lanes write different values to one place",
                now.name
            ));
        }
    }
    now.work
}

pub fn last_command() -> u32 {
    let guard = lock(&HISTORY);
    guard
        .as_ref()
        .map_or(0, |history| history.commands.len().saturating_sub(1) as u32)
}

/// The host learns that commands up to `last` are complete: what it commits from then on needs no fence.
pub fn complete(last: u32) {
    if let Some(history) = lock(&HISTORY).as_mut() {
        history.completed = history.completed.max(last);
    }
}

pub fn completed() -> u32 {
    lock(&HISTORY)
        .as_ref()
        .map_or(0, |history| history.completed)
}

impl History {
    /// The earlier command, where nothing orders it before the one that runs.
    fn unordered(&mut self, earlier: u32) -> Option<String> {
        let now = self.now.as_ref()?;
        if earlier <= HOST || earlier == now.command || earlier <= now.order.completed {
            return None;
        }
        if let Some(known) = self.known.get(&earlier) {
            return known.clone();
        }
        let (encoder, name) = &self.commands[earlier as usize];
        let same = *encoder == now.order.encoder;
        let ordered = if same {
            earlier <= now.order.barrier
        } else {
            now.order.before.contains(*encoder)
        };
        let place = if same {
            "same encoder"
        } else {
            "earlier encoder"
        };
        let found = (!ordered).then(|| format!("{name} ({place})"));
        self.known.insert(earlier, found.clone());
        found
    }

    /// Counts a byte that the command touches for the first time in this way.
    fn count(&mut self, bytes: impl Fn(&mut Work) -> &mut u64, before: Touch) {
        if let Some(now) = self.now.as_mut() {
            *bytes(&mut now.work) += u64::from(before.command != now.command);
        }
    }

    /// Whether the byte is one that another lane wrote, in no order.
    fn touch(
        &mut self,
        cell: &mut Cell,
        write: bool,
        moment: &Moment,
        problems: &mut Vec<String>,
    ) -> bool {
        let Some(now) = self.now.as_ref() else {
            return false;
        };
        let command = now.command;
        let who = moment.on_device();
        let verb = if write { "writes" } else { "reads" };
        if !write && cell.written.command == 0 {
            problems.push("reads bytes nobody wrote".to_string());
            cell.written.command = HOST;
        }
        let races = |touch: Touch, several| {
            touch.command == command && who.races_with(touch.who, moment.first_epoch, several)
        };
        let written_by_another = races(cell.written, false);
        if written_by_another && !write {
            problems.push("race: a lane reads what another lane wrote".to_string());
        }
        if write && races(cell.read, cell.several_readers) {
            problems.push("race: a lane writes what another lane read".to_string());
        }
        if let Some(other) = self.unordered(cell.written.command) {
            problems.push(format!(
                "hazard: {verb} what {other} wrote, with no barrier or fence between"
            ));
        }
        if write {
            if let Some(other) = self.unordered(cell.read.command) {
                problems.push(format!(
                    "hazard: writes what {other} read, with no barrier or fence between"
                ));
            }
            self.count(|work| &mut work.bytes_written, cell.written);
            cell.written = Touch { command, who };
        } else {
            self.count(|work| &mut work.bytes_read, cell.read);
            let again = cell.read.command == command && cell.read.who.epoch == who.epoch;
            cell.several_readers =
                again && (cell.several_readers || cell.read.who.lane != who.lane);
            cell.read = Touch { command, who };
        }
        write && written_by_another
    }
}

/// A load or store of the command that runs.
pub fn access(address: usize, bytes: usize, write: bool, moment: &Moment) {
    if address.wrapping_sub(region().base) >= REGION_BYTES {
        return;
    }
    let mut guard = lock(&HISTORY);
    let Some(history) = guard.as_mut() else {
        return;
    };
    let Some(now) = history.now.as_mut() else {
        return;
    };
    if !write {
        now.work.bytes_loaded += bytes as u64;
    }
    let name = now.name.clone();
    let inside =
        |&(start, length): &(usize, usize)| address >= start && address + bytes <= start + length;
    if !now.bound.iter().any(inside) {
        let verb = if write { "writes" } else { "reads" };
        let place = memory::describe(address);
        return report::finding(format!(
            "{name}: {verb} {bytes} bytes outside of its buffers: {place}"
        ));
    }
    let mut problems = Vec::new();
    let rewritten = with_cells((address, bytes), |cells| {
        let touched = cells.iter_mut();
        touched.fold(false, |any, cell| {
            history.touch(cell, write, moment, &mut problems) || any
        })
    });
    if let Some(now) = history.now.as_mut().filter(|_| rewritten) {
        // SAFETY: the bytes belong to a buffer that the command binds, and the store has not happened yet.
        let first = unsafe { std::slice::from_raw_parts(address as *const u8, bytes) };
        now.rewritten.push((address, first.to_vec()));
    }
    problems.dedup();
    for problem in problems {
        report::finding(format!("{name}: {problem}"));
    }
}

#[cfg(test)]
pub mod tests {
    use super::{lock, History, Who, HISTORY};

    /// Takes down a command that touches nothing, and says its number.
    pub fn ran(name: &str) -> u32 {
        let mut guard = lock(&HISTORY);
        let history = guard.get_or_insert_with(History::default);
        if history.commands.is_empty() {
            history.commands = vec![(0, String::new()); 2];
        }
        history.commands.push((1, name.to_string()));
        history.commands.len() as u32 - 1
    }

    fn who(lane: u16, epoch: u32, simd_epoch: u16) -> Who {
        Who {
            epoch,
            simd_epoch,
            lane,
        }
    }

    #[test]
    fn barriers_order_lanes() {
        let me = who(3, 7, 1);
        assert!(me.races_with(who(4, 7, 1), 6, false));
        assert!(
            !me.races_with(who(3, 7, 1), 6, false),
            "a lane does not race with itself"
        );
        assert!(
            me.races_with(who(3, 7, 1), 6, true),
            "but with the others that read"
        );
        assert!(
            !me.races_with(who(4, 6, 1), 6, false),
            "a barrier is between"
        );
        assert!(
            !me.races_with(who(4, 7, 0), 6, false),
            "a barrier of the simdgroup is between"
        );
        assert!(
            me.races_with(who(40, 7, 0), 6, false),
            "which orders nothing in another simdgroup"
        );
        assert!(me.races_with(who(4, 5, 1), 6, false), "another threadgroup");
    }
}
