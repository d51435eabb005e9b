//! Random damage to sound files, for a bounded time: no panic, little memory, only the errors for
//! bad files. `CANDLE_FUZZ_SECONDS` sets the time, `CANDLE_FUZZ_SEED` the damage.

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::time::{Duration, Instant};

use engine::files::raw_config::{self, RawConfig};
use engine::files::shard_index;
use engine::text::tokenizer::Tokenizer;
use engine::{Error, Result};

use crate::allocation::peak_during;
use crate::hostile::Format;
use crate::weight_files::{self as files, fixture, Folder};

/// What reading a damaged file of less than 40 kB may hold at most.
const MOST_BYTES: usize = 4 << 20;
const SECONDS: f64 = 5.0;
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

struct Target {
    name: &'static str,
    seed: Vec<u8>,
    /// Puts damaged bytes into a file that a reader takes.
    wrap: fn(&[u8]) -> Vec<u8>,
    read: fn(&Path) -> Result<()>,
}

fn same(bytes: &[u8]) -> Vec<u8> {
    bytes.to_vec()
}

/// With a right checksum, so that the damage reaches the pickle machine.
fn as_pickle(bytes: &[u8]) -> Vec<u8> {
    files::checkpoint(bytes, &[&[0; 96], &[0; 96]])
}

fn read_config(path: &Path) -> Result<()> {
    let config = RawConfig::read(path)?;
    config.usize_in(["hidden_size", "n_embd"], raw_config::WIDTH)?;
    config.opt_usize_in("num_hidden_layers", raw_config::LAYERS)?;
    config.opt_f64("layer_norm_eps")?;
    config.opt_integers("eos_token_id")?;
    config.opt_nested("text_config")?;
    config.architectures()?;
    config.model_type()?;
    config.id2label()?;
    Ok(())
}

fn targets() -> Vec<Target> {
    let fixture = |name: &str| std::fs::read(fixture(name)).unwrap();
    let target = |name, seed, wrap, read| Target {
        name,
        seed,
        wrap,
        read,
    };
    let blocks = fixture("blocks.gguf");
    let config = r#"{"architectures": ["BertModel"], "hidden_size": 32, "layer_norm_eps": 1e-12,
        "num_hidden_layers": 2, "eos_token_id": [1, 2], "text_config": {"a": NaN},
        "model_type": "bert", "id2label": {"0": "O", "1": "B-PER"}}"#;
    let index = r#"{"metadata": {"total_size": 8}, "weight_map": {"a": "x-00001-of-00002.safetensors",
        "b": "x-00002-of-00002.safetensors"}}"#;
    let pickle = files::pickle_of("layer.weight", 24, 6, &[2, 3], &[1, 2]);
    vec![
        target("safetensors", fixture("dense.safetensors"), same, |path| {
            Format::Safetensors.read_all(path)
        }),
        target("gguf", blocks, same, |path| Format::Gguf.read_all(path)),
        target("torch", fixture("pytorch_model.bin"), same, |path| {
            Format::Torch.read_all(path)
        }),
        target("pickle", pickle, as_pickle, |path| {
            Format::Torch.read_all(path)
        }),
        target("index", index.into(), same, |path| {
            shard_index::read(path).map(drop)
        }),
        target(
            "tokenizer",
            std::fs::read(files::tiny("bert/tokenizer.json")).unwrap(),
            same,
            |path| Tokenizer::from_file(path).map(drop),
        ),
        target("config", config.into(), same, read_config),
    ]
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

#[test]
fn readers_survive_random_damage() {
    let seconds = setting("CANDLE_FUZZ_SECONDS").unwrap_or(SECONDS);
    let seed = setting("CANDLE_FUZZ_SEED").unwrap_or(SEED);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let folder = Folder::new();
    let targets = targets();
    let path = folder.path("damaged");
    let (mut tries, mut refused) = (0u64, 0u64);
    while Instant::now() < end {
        let target = &targets[tries as usize % targets.len()];
        // Each try has a seed of its own, so that one can be repeated alone.
        let this = seed.wrapping_add(tries);
        let mut bytes = target.seed.clone();
        damage(&mut Random(this), &mut bytes);
        std::fs::write(&path, (target.wrap)(&bytes)).unwrap();
        let (outcome, peak) =
            peak_during(|| panic::catch_unwind(AssertUnwindSafe(|| (target.read)(&path))));
        let place = format!("{} reader, try {tries}, seed {seed}", target.name);
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(Error::CorruptModel(message) | Error::UnsupportedModel(message))) => {
                assert!(message.contains("damaged"), "{place}: {message}");
                refused += 1;
            }
            Ok(Err(other)) => panic!("{place}: {other:?}"),
            Err(_) => panic!("{place}: it panicked"),
        }
        assert!(peak < MOST_BYTES, "{place}: {peak} bytes were held");
        tries += 1;
    }
    println!("{tries} damaged files, {refused} refused, seed {seed}");
    assert!(
        tries > 100 && refused > tries / 10,
        "{tries} tries, {refused} refused"
    );
}
