//! What a model asks of the device for one token, or for one batch of texts, once all is compiled and warm:
//! `budget ours-llama|ours-sampled|ours-gguf|ours-bert|candle-llama|candle-bert LAYERS`, with `SOFTMETAL_COUNTS` set.
//! Prints the counts as the device writes them, and how many bytes the weights and the cache have that the work must
//! read. Ours is what a Ruby program calls; candle's is candle-transformers on the same weights.

mod candles;
mod checkpoints;
mod ours;

use std::collections::BTreeMap;

use candle_core::{Device, Result};
use checkpoints::Checkpoint;
use softmetal_interface::{runtime, Sink};

/// Lengths of the texts of a batch, in tokens.
const TEXTS: [usize; 5] = [19, 3, 11, 7, 14];
/// The tokens before those that are counted.
pub const PROMPT: [u32; 9] = [5, 17, 8, 33, 21, 9, 40, 2, 11];
/// Tokens that are not counted: the first ones compile, and fill what is kept between tokens.
pub const WARM: usize = 3;

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

/// Runs `work`, and prints what it made the device do.
pub fn counted<R>(device: &Device, work: impl FnOnce() -> Result<R>) -> Result<R> {
    settle(device)?;
    let before = counts();
    let result = work()?;
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
    Ok(result)
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
    let checkpoint = Checkpoint::write(kind, layers)?;
    let device = engine::Device::Metal(0).open();
    let device = device.map_err(candle_core::Error::wrap)?;
    let work = checkpoint.work();
    println!("weights\t{}\ncache\t{}", work.weights, work.cache);
    match (whose, kind) {
        ("ours", "bert") => ours::embed(&checkpoint, &device),
        ("ours", "sampled") => ours::decode(&checkpoint, ours::sampled(), &device),
        ("ours", _) => ours::decode(&checkpoint, ours::greedy(), &device),
        ("candle", "bert") => candles::embed(&checkpoint, &device),
        ("candle", "llama") => candles::decode(&checkpoint, &device),
        _ => candle_core::bail!("{model}: not known"),
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    Ok(run()?)
}
