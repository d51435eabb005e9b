//! The readers of `ext/fuzz` on their saved corpus, and on random damage to it for a bounded time: no panic, little
//! memory, only the errors for bad files. `CANDLE_FUZZ_SECONDS` sets the time, `CANDLE_FUZZ_SEED` the damage.

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::allocation::peak_during;
use crate::readers::{Reader, READERS};

const SECONDS: f64 = 8.0;
const SEED: u64 = 20_240_917;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

const NUMBERS: [u64; 8] = [
    0,
    1,
    0x7f,
    0xffff,
    0x7fff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];
const WORDS: [&[u8]; 10] = [
    b"[",
    b"{",
    b"]",
    b"\"",
    b",",
    b"99999999999999999999",
    b"-1",
    b"1e999",
    b"null",
    b"../",
];

/// Damage near the front counts more: that is where the counts and offsets are.
fn place(random: &mut Random, length: usize) -> usize {
    let reach = match random.below(3) {
        0 => length.min(64),
        1 => length.min(1024),
        _ => length,
    };
    random.below(reach)
}

fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..1 + random.below(4) {
        let at = place(random, bytes.len());
        match random.below(7) {
            0 => bytes.truncate(at),
            1 => {
                let width = 1 << random.below(4);
                let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
                bytes
                    .iter_mut()
                    .skip(at)
                    .zip(&number[..width])
                    .for_each(|(to, from)| *to = *from);
            }
            2 => {
                let word = WORDS[random.below(WORDS.len())];
                bytes.splice(at..at, word.iter().copied());
            }
            3 => {
                let (from, length) = (place(random, bytes.len()), random.below(64));
                let end = (from + length).min(bytes.len());
                let copy = bytes[from..end].to_vec();
                bytes.splice(at..at, copy);
            }
            4 => {
                let end = (at + random.below(16)).min(bytes.len());
                bytes.drain(at..end);
            }
            5 => bytes
                .iter_mut()
                .skip(at)
                .take(1)
                .for_each(|byte| *byte = random.next() as u8),
            _ => bytes
                .iter_mut()
                .skip(at)
                .take(1)
                .for_each(|byte| *byte ^= 1 << random.below(8)),
        }
    }
}

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// The files that a reader's fuzzing begins with, by their names.
fn corpus(reader: &Reader) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let entries = std::fs::read_dir(folder.join(reader.name)).unwrap();
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read(path).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// Whether the reader took the bytes.
#[track_caller]
fn survives(reader: &Reader, bytes: &[u8], place: &str) -> bool {
    let attempt = || panic::catch_unwind(AssertUnwindSafe(|| reader.survives(bytes)));
    let (outcome, peak) = peak_during(attempt);
    let Ok(taken) = outcome else {
        panic!("{place}: the reader of {} panicked", reader.name);
    };
    assert!(peak < reader.most_bytes, "{place}: {peak} bytes were held");
    taken
}

#[test]
fn every_reader_survives_its_corpus_and_takes_some_of_it() {
    for reader in &READERS {
        let files = corpus(reader);
        let taken = files
            .iter()
            .filter(|(name, bytes)| survives(reader, bytes, &format!("{}/{name}", reader.name)));
        assert!(taken.count() > 0, "nothing of {} is sound", reader.name);
    }
}

#[test]
fn every_reader_has_a_fuzz_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/fuzz_targets");
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let source = std::fs::read_to_string(&path).unwrap();
        assert!(source.contains(&format!("fuzz({:?}, ", Reader::named(name).name)));
    }
    let targets = std::fs::read_dir(folder).unwrap().count();
    assert_eq!(targets, READERS.len());
}

#[test]
fn readers_survive_random_damage() {
    let seconds = setting("CANDLE_FUZZ_SECONDS").unwrap_or(SECONDS);
    let seed = setting("CANDLE_FUZZ_SEED").unwrap_or(SEED);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let corpora: Vec<_> = READERS.iter().map(corpus).collect();
    let (mut tries, mut refused) = (0u64, 0u64);
    while Instant::now() < end {
        let number = tries as usize % READERS.len();
        // Each try has a seed of its own, so that one can be repeated alone.
        let mut random = Random(seed.wrapping_add(tries));
        let files = &corpora[number];
        let (name, bytes) = &files[random.below(files.len())];
        let mut bytes = bytes.clone();
        damage(&mut random, &mut bytes);
        let place = format!("{name}, try {tries}, seed {seed}");
        refused += u64::from(!survives(&READERS[number], &bytes, &place));
        tries += 1;
    }
    println!("{tries} damaged files, {refused} refused, seed {seed}");
    assert!(
        tries > 100 && refused > tries / 10,
        "{tries} tries, {refused} refused"
    );
}
