//! What was found, and what ran.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::Mutex;

use crate::lock;
use crate::settings::settings;

/// What a kernel did altogether.
#[derive(Default, Clone, Copy)]
pub struct Work {
    pub dispatches: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
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
        let total = counts.kernels.entry(kernel.to_string()).or_default();
        total.dispatches += work.dispatches;
        total.bytes_read += work.bytes_read;
        total.bytes_written += work.bytes_written;
    }
}

pub fn count(event: &'static str) {
    if settings().counts.is_some() {
        *lock(&COUNTS).events.entry(event).or_insert(0) += 1;
    }
}

/// Lines of tab-separated words: an event and its number, or a kernel, its dispatches and its bytes.
pub fn write_counts() {
    let Some(path) = &settings().counts else {
        return;
    };
    let counts = lock(&COUNTS);
    let mut text = String::new();
    for (event, number) in &counts.events {
        let _ = writeln!(text, "{event}\t{number}");
    }
    for (kernel, work) in &counts.kernels {
        let _ = writeln!(
            text,
            "kernel\t{kernel}\t{}\t{}\t{}",
            work.dispatches, work.bytes_read, work.bytes_written
        );
    }
    if let Err(error) = std::fs::write(path, text) {
        eprintln!("softmetal: {} can't be written: {error}", path.display());
    }
}
