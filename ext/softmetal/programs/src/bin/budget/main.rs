//! What a model asks of the device for one step, or for one batch of texts, once all is compiled and warm:
//! `budget ours-llama|ours-sampled|ours-drawn|ours-gguf|ours-bert|candle-llama|candle-bert LAYERS`, with
//! `SOFTMETAL_COUNTS` set. A step has one sequence, that of `ours-llama8` eight. Prints the counts as the device writes
//! them, how many bytes the weights and the cache have that the work must read, and how many autoreleased objects more
//! there are after some more steps. Ours is what a Ruby program calls; candle's is candle-transformers on the same
//! weights.

mod candles;
mod checkpoints;
mod ours;

use std::collections::BTreeMap;

use candle_core::{Device, Result};
use checkpoints::Checkpoint;
use objc2::rc::soft_autoreleased_count;
use softmetal_interface::{runtime, Sink};

/// Lengths of the texts of a batch, in tokens.
const TEXTS: [usize; 5] = [19, 3, 11, 7, 14];
/// The tokens before those that are counted.
pub const PROMPT: [u32; 9] = [5, 17, 8, 33, 21, 9, 40, 2, 11];
/// Tokens that are not counted: the first ones compile, and fill what is kept between tokens.
pub const WARM: usize = 3;
/// How often the work is repeated while autoreleased objects are counted.
const REPEATED: usize = 8;

/// The tokens of the batch.
pub fn texts() -> Vec<Vec<u32>> {
    let text = |length: &usize| (0..*length as u32).map(|i| 5 + (i * 7) % 100).collect();
    TEXTS.iter().map(text).collect()
}

/// Numbers by what they count; a kernel's are its dispatches and its bytes.
type Counts = BTreeMap<String, Vec<u64>>;

fn counts() -> Counts {
    // SAFETY: the sink lives for the call.
    let ((), text) = Sink::collect(|sink| unsafe { (runtime().counts)(sink) });
    let line = |line: &str| {
        let (words, numbers): (Vec<_>, Vec<_>) = line
            .split('\t')
            .partition(|word| word.parse::<u64>().is_err());
        let numbers = numbers.iter().flat_map(|number| number.parse()).collect();
        (words.join("\t"), numbers)
    };
    text.lines().map(line).collect()
}

/// Runs `work`, and prints what it made the device do, and what it left behind when it ran some times more.
pub fn counted<R>(device: &Device, mut work: impl FnMut() -> Result<R>) -> Result<()> {
    settle(device)?;
    let before = counts();
    work()?;
    let after = counts();
    for (name, numbers) in after {
        let earlier = before.get(&name);
        let at = |i: usize| earlier.and_then(|numbers| numbers.get(i)).copied();
        let numbers = numbers.iter().enumerate();
        let numbers: Vec<_> = numbers.map(|(i, n)| n - at(i).unwrap_or(0)).collect();
        if numbers.iter().any(|number| *number > 0) {
            let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
            println!("{name}\t{}", numbers.join("\t"));
        }
    }
    let objects = soft_autoreleased_count();
    for _ in 0..REPEATED {
        work()?;
    }
    println!(
        "objects left\t{}",
        soft_autoreleased_count().saturating_sub(objects)
    );
    Ok(())
}

/// Whatever was encoded before is not counted with what follows.
fn settle(device: &Device) -> Result<()> {
    match device {
        Device::Metal(device) => device.flush_and_wait_current(),
        _ => candle_core::bail!("no Metal device"),
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, layers] = &arguments[..] else {
        candle_core::bail!("usage: budget MODEL LAYERS");
    };
    let layers = layers.parse().map_err(candle_core::Error::wrap)?;
    let (whose, kind) = model.split_once('-').unwrap_or((model, ""));
    let name = kind.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let sequences = match &kind[name.len()..] {
        "" => 1,
        number => number.parse().map_err(candle_core::Error::wrap)?,
    };
    let checkpoint = Checkpoint::write(name, layers)?;
    let device = engine::Device::Metal(0).open();
    let device = device.map_err(candle_core::Error::wrap)?;
    let work = checkpoint.work(sequences);
    println!("weights\t{}\ncache\t{}", work.weights, work.cache);
    let decode = |config| ours::decode(&checkpoint, config, sequences, &device);
    match (whose, name) {
        ("ours", "bert") => ours::embed(&checkpoint, &device),
        ("ours", "sampled") => decode(ours::sampled()),
        ("ours", "drawn") => decode(ours::drawn()),
        ("ours", _) => decode(ours::greedy()),
        ("candle", "bert") => candles::embed(&checkpoint, &device),
        ("candle", "llama") => candles::decode(&checkpoint, &device),
        _ => candle_core::bail!("{model}: not known"),
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    Ok(run()?)
}
