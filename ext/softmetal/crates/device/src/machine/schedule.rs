//! In which order threadgroups, simdgroups and lanes run. None is promised, so a result must not depend on it.

use std::cell::Cell;
use std::ops::Range;

use super::{MAXIMUM_LANES, SIMDGROUPS, SIMD_WIDTH};
use crate::settings::Schedule;

pub struct Orders {
    schedule: Schedule,
    state: Cell<u64>,
    /// Lanes of the threadgroup that the orders below are for.
    count: Cell<usize>,
    simdgroups: Box<[Cell<usize>]>,
    /// Of the lanes of a simdgroup.
    lanes: Box<[Cell<usize>]>,
    /// Of all lanes, when they are called.
    starts: Box<[Cell<usize>]>,
}

fn numbers(count: usize) -> Box<[Cell<usize>]> {
    (0..count).map(Cell::new).collect()
}

impl Orders {
    pub fn new(schedule: Schedule) -> Self {
        Self {
            schedule,
            state: Cell::new(20_240_917),
            count: Cell::new(0),
            simdgroups: numbers(SIMDGROUPS),
            lanes: numbers(SIMD_WIDTH),
            starts: numbers(MAXIMUM_LANES),
        }
    }

    /// The threadgroups of a grid.
    pub fn groups(&self, count: usize) -> Box<[Cell<usize>]> {
        let groups = numbers(count);
        self.arrange(&groups);
        groups
    }

    /// Chooses the orders of a threadgroup of so many lanes.
    pub fn choose(&self, count: usize) {
        if self.count.replace(count) == count && self.schedule != Schedule::Shuffled {
            return;
        }
        let simdgroups = &self.simdgroups[..count.div_ceil(SIMD_WIDTH)];
        for list in [simdgroups, &self.lanes] {
            for (i, item) in list.iter().enumerate() {
                item.set(i);
            }
            self.arrange(list);
        }
        let mut starts = self.starts.iter();
        for simdgroup in simdgroups {
            for lane in self.lanes(simdgroup.get() * SIMD_WIDTH..count) {
                if let Some(start) = starts.next() {
                    start.set(lane);
                }
            }
        }
    }

    pub fn simdgroups(&self) -> impl Iterator<Item = usize> + '_ {
        let count = self.count.get().div_ceil(SIMD_WIDTH);
        self.simdgroups[..count].iter().map(Cell::get)
    }

    /// The lanes of the simdgroup that a range begins with, which may be short.
    pub fn lanes(&self, range: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        let lanes = self.lanes.iter().map(move |lane| range.start + lane.get());
        lanes.filter(move |lane| *lane < range.end)
    }

    /// The lane that starts as the `number`th.
    pub fn start(&self, number: usize) -> usize {
        self.starts[number].get()
    }

    fn arrange(&self, items: &[Cell<usize>]) {
        for i in (1..items.len()).rev() {
            match self.schedule {
                Schedule::Forwards => return,
                Schedule::Backwards if i < items.len() / 2 => return,
                Schedule::Backwards => items[i].swap(&items[items.len() - 1 - i]),
                Schedule::Shuffled => {
                    items[i].swap(&items[(self.random() % (i as u64 + 1)) as usize])
                }
            }
        }
    }

    fn random(&self) -> u64 {
        self.state
            .set(self.state.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut z = self.state.get();
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(schedule: Schedule, count: usize) -> Vec<usize> {
        let orders = Orders::new(schedule);
        orders.choose(count);
        (0..count).map(|number| orders.start(number)).collect()
    }

    #[test]
    fn every_lane_starts_once() {
        for schedule in [Schedule::Forwards, Schedule::Backwards, Schedule::Shuffled] {
            for count in [1, 31, 32, 33, 100, 1024] {
                let mut all = starts(schedule, count);
                all.sort_unstable();
                assert_eq!(all, (0..count).collect::<Vec<_>>(), "{schedule:?} {count}");
            }
        }
    }

    #[test]
    fn orders_are_what_they_are_called() {
        assert_eq!(starts(Schedule::Forwards, 3), [0, 1, 2]);
        assert_eq!(starts(Schedule::Backwards, 34)[..4], [33, 32, 31, 30]);
        assert_ne!(starts(Schedule::Shuffled, 32), (0..32).collect::<Vec<_>>());
        let groups: Vec<usize> = Orders::new(Schedule::Backwards)
            .groups(5)
            .iter()
            .map(Cell::get)
            .collect();
        assert_eq!(groups, [4, 3, 2, 1, 0]);
    }
}
