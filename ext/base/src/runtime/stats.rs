//! Counts and times of a model's work: written by its calls, read by anyone, never behind a lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Something that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many of something there are now, in this process: a forked child begins with none, since the
/// threads that would end the parent's do not exist there.
#[derive(Debug, Default)]
pub struct Gauge {
    process: AtomicU32,
    value: AtomicU64,
}

/// Some more of a gauge, until it is dropped.
#[derive(Debug)]
pub struct Entered<'a> {
    gauge: &'a Gauge,
    count: u64,
    process: u32,
}

impl Gauge {
    pub fn enter(&self) -> Entered<'_> {
        self.enter_many(1)
    }

    pub fn enter_many(&self, count: u64) -> Entered<'_> {
        let process = self.claim();
        self.value.fetch_add(count, Ordering::Relaxed);
        Entered {
            gauge: self,
            count,
            process,
        }
    }

    /// For a gauge that is set to a number, instead of being entered.
    pub fn set(&self, value: usize) {
        self.claim();
        self.value.store(value as u64, Ordering::Relaxed);
    }

    /// Lowers the value where it is greater.
    pub fn at_most(&self, value: usize) {
        self.claim();
        self.value.fetch_min(value as u64, Ordering::Relaxed);
    }

    /// Makes the gauge this process's, whose id it returns.
    fn claim(&self) -> u32 {
        let process = std::process::id();
        let before = self.process.load(Ordering::Acquire);
        if before != process {
            let order = (Ordering::AcqRel, Ordering::Acquire);
            let exchanged = self
                .process
                .compare_exchange(before, process, order.0, order.1);
            if exchanged.is_ok() {
                self.value.store(0, Ordering::Relaxed);
            }
        }
        process
    }

    pub fn value(&self) -> u64 {
        if self.process.load(Ordering::Acquire) == std::process::id() {
            self.value.load(Ordering::Relaxed)
        } else {
            0
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.process == self.gauge.process.load(Ordering::Acquire) {
            self.gauge.value.fetch_sub(self.count, Ordering::Relaxed);
        }
    }
}

/// Upper bounds of times in milliseconds.
const MILLISECONDS: &[f64] = &[
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 1e4,
    3e4, 6e4,
];
/// Upper bounds of sizes.
const SIZES: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0,
    16384.0,
];
/// Sums are kept in thousandths.
const PARTS: f64 = 1000.0;

/// How often values came in each of some ranges.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One for each bound, and one for what lies beyond the last.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    /// Of times, in milliseconds.
    pub fn of_times() -> Self {
        Self::new(MILLISECONDS)
    }

    /// Of sizes: texts or tokens of a batch.
    pub fn of_sizes() -> Self {
        Self::new(SIZES)
    }

    fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    pub fn observe(&self, value: f64) {
        let at = self.bounds.partition_point(|&bound| bound < value);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.sum
            .fetch_add((value * PARTS).round() as u64, Ordering::Relaxed);
    }

    pub fn observe_time(&self, time: Duration) {
        self.observe(time.as_secs_f64() * 1e3);
    }

    /// What came so far.
    pub fn read(&self) -> Distribution {
        let mut total = 0;
        let counts = self.counts.iter().map(|count| {
            total += count.load(Ordering::Relaxed);
            total
        });
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        Distribution {
            buckets: bounds.zip(counts).collect(),
            sum: self.sum.load(Ordering::Relaxed) as f64 / PARTS,
        }
    }
}

/// One thing that a model counts, as it was when it was read.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    Number(u64),
    Distribution(Distribution),
}

/// A histogram as it was when it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Upper bounds, the last of them infinite, each with how many values lie at or below it.
    pub buckets: Vec<(f64, u64)>,
    pub sum: f64,
}

impl Distribution {
    pub fn count(&self) -> u64 {
        self.buckets.last().map_or(0, |&(_, count)| count)
    }

    /// About the value that this share of all lies at or below, as far as the buckets tell; 0 where there
    /// is none.
    pub fn quantile(&self, share: f64) -> f64 {
        let wanted = self.count() as f64 * share;
        let (mut lower, mut below) = (0.0, 0);
        for &(bound, count) in &self.buckets {
            if count > below && count as f64 >= wanted {
                if bound.is_infinite() {
                    return lower;
                }
                let within = (wanted - below as f64) / (count - below) as f64;
                return lower + (bound - lower) * within.clamp(0.0, 1.0);
            }
            (lower, below) = (bound, count);
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_sums_and_knows_its_quantiles() {
        let histogram = Histogram::of_times();
        assert_eq!(histogram.read().quantile(0.5), 0.0);
        for value in [0.05, 0.1, 0.2, 0.3, 90_000.0] {
            histogram.observe(value);
        }
        histogram.observe_time(Duration::from_micros(1500));
        let read = histogram.read();
        assert_eq!(read.count(), 6);
        assert!((read.sum - 90_002.15).abs() < 1e-6);
        assert_eq!(
            read.buckets[..5],
            [(0.1, 2), (0.25, 3), (0.5, 4), (1.0, 4), (2.5, 5)]
        );
        assert_eq!(read.buckets.last(), Some(&(f64::INFINITY, 6)));
        assert_eq!(read.quantile(0.5), 0.25);
        assert_eq!(read.quantile(1.0), 60_000.0);
    }

    #[test]
    fn counts_of_many_threads_are_complete() {
        let (counter, gauge, sizes) = (Counter::default(), Gauge::default(), Histogram::of_sizes());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let _entered = gauge.enter();
                        counter.add(2);
                        sizes.observe(3.0);
                        assert!(gauge.value() >= 1);
                    }
                });
            }
        });
        assert_eq!((counter.value(), gauge.value()), (16_000, 0));
        assert_eq!(sizes.read().count(), 8000);
        assert_eq!(sizes.read().sum, 24_000.0);
    }

    #[test]
    #[cfg(unix)]
    fn a_forked_child_has_none_of_its_parents() {
        let gauge = Gauge::default();
        let entered = gauge.enter();
        // SAFETY: the child only counts and leaves through _exit.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let before = gauge.value();
                let own = gauge.enter();
                drop(entered);
                let during = gauge.value();
                drop(own);
                libc::_exit(i32::from((before, during, gauge.value()) != (0, 1, 0)));
            }
            let mut status = -1;
            libc::waitpid(child, &mut status, 0);
            assert_eq!(status, 0);
        }
        assert_eq!(gauge.value(), 1);
        drop(entered);
        assert_eq!(gauge.value(), 0);
    }
}
