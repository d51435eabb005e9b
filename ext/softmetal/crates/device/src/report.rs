//! What was found, and what ran.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::Mutex;

use crate::lock;
use crate::settings::settings;

/// What a kernel did altogether. Bytes are known where accesses are watched.
#[derive(Default, Clone, Copy)]
pub struct Work {
    pub dispatches: u64,
    /// Bytes that a dispatch reads or writes at least once: what memory has to give and to take where a cache holds
    /// the rest.
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Bytes of all loads, of every lane.
    pub bytes_loaded: u64,
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.dispatches += other.dispatches;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.bytes_loaded += other.bytes_loaded;
    }
}

#[derive(Default)]
struct Counts {
    kernels: BTreeMap<String, Work>,
    events: BTreeMap<&'static str, u64>,
}

static FINDINGS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());
static COUNTS: Mutex<Counts> = Mutex::new(Counts {
    kernels: BTreeMap::new(),
    events: BTreeMap::new(),
});

/// Says what is wrong, the first time.
pub fn finding(text: String) {
    let mut findings = lock(&FINDINGS);
    let count = findings.entry(text.clone()).or_insert(0);
    *count += 1;
    if *count > 1 {
        return;
    }
    eprintln!("softmetal: {text}");
    if let Some(path) = &settings().report {
        let file = OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| writeln!(file, "{text}")) {
            eprintln!("softmetal: {} can't be written: {error}", path.display());
        }
    }
    if settings().fatal {
        std::process::abort();
    }
}

pub fn ran(kernel: &str, work: Work) {
    if settings().counts.is_some() {
        let mut counts = lock(&COUNTS);
        *counts.kernels.entry(kernel.to_string()).or_default() += work;
    }
}

pub fn count(event: &'static str) {
    if settings().counts.is_some() {
        *lock(&COUNTS).events.entry(event).or_insert(0) += 1;
    }
}

/// Lines of tab-separated words: an event and its number, or a kernel, its dispatches and its bytes.
pub fn counts() -> String {
    let counts = lock(&COUNTS);
    let mut text = String::new();
    for (event, number) in &counts.events {
        let _ = writeln!(text, "{event}\t{number}");
    }
    for (kernel, work) in &counts.kernels {
        let _ = writeln!(
            text,
            "kernel\t{kernel}\t{}\t{}\t{}\t{}",
            work.dispatches, work.bytes_read, work.bytes_written, work.bytes_loaded
        );
    }
    text
}

pub fn write_counts() {
    let Some(path) = &settings().counts else {
        return;
    };
    if let Err(error) = std::fs::write(path, counts()) {
        eprintln!("softmetal: {} can't be written: {error}", path.display());
    }
}
