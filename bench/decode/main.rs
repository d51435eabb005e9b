//! Reading a prompt and generating, on a GGUF file: `bench_decode FILE [PROMPT_TOKENS [NEW_TOKENS [ROUNDS]]]`.
//! Prints tokens per second, the best and the median of the rounds, and the processor time of a token.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use candle_core::{DType, Device};
use engine::files::model_files::WeightFiles;
use engine::models::decoder::model::Logits;
use engine::models::decoder::{Blueprint, Decoder};
use engine::weights::{self, WeightSource};
use engine::{runtime::threads, CancelToken, Result};

fn main() {
    if cfg!(debug_assertions) {
        eprintln!("this is a debug build, whose times mean nothing: run it with --release");
        std::process::exit(2);
    }
    let mut arguments = std::env::args().skip(1);
    let Some(path) = arguments.next().map(PathBuf::from) else {
        eprintln!("usage: bench_decode FILE [PROMPT_TOKENS [NEW_TOKENS [ROUNDS]]]");
        std::process::exit(2);
    };
    let mut number = |default: usize| {
        arguments
            .next()
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let (prompt, new, rounds) = (number(256), number(64), number(5));
    threads::init();
    let done = threads::install(|| run(path, prompt, new, rounds)).and_then(|result| result);
    if let Err(error) = done {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run(path: PathBuf, prompt: usize, new: usize, rounds: usize) -> Result<()> {
    let cancel = CancelToken::new();
    let started = Instant::now();
    let source: Arc<dyn WeightSource> = weights::open(&WeightFiles::Gguf(path))?;
    let blueprint = Blueprint::from_gguf(source.as_ref())?;
    let decoder = Decoder::load(
        &blueprint,
        source.as_ref(),
        &Device::Cpu,
        DType::F32,
        &cancel,
    )?;
    println!("load      {:8.1} ms", started.elapsed().as_secs_f64() * 1e3);
    let vocabulary = decoder.config().vocab_size as u32;
    let tokens: Vec<u32> = (0..prompt as u32)
        .map(|i| i.wrapping_mul(2_654_435_761) % vocabulary)
        .collect();
    let (mut reading, mut writing) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut cache = decoder.new_cache()?;
        let before = (Instant::now(), processor_seconds());
        let mut logits = decoder.forward(&tokens, &mut cache, Logits::Last, &cancel)?;
        reading.push(per_token(before, prompt));
        let before = (Instant::now(), processor_seconds());
        for _ in 0..new {
            let values: Vec<f32> = logits.flatten_all()?.to_vec1()?;
            let best = (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b]));
            let next = [best.unwrap_or(0) as u32];
            logits = decoder.forward(&next, &mut cache, Logits::Last, &cancel)?;
        }
        writing.push(per_token(before, new));
    }
    report("prefill", reading);
    report("decode", writing);
    Ok(())
}

/// Wall and processor seconds of one token.
fn per_token((started, before): (Instant, f64), tokens: usize) -> (f64, f64) {
    let tokens = tokens as f64;
    let processor = processor_seconds() - before;
    (started.elapsed().as_secs_f64() / tokens, processor / tokens)
}

fn report(name: &str, mut rounds: Vec<(f64, f64)>) {
    rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (Some(best), Some(median)) = (rounds.first(), rounds.get(rounds.len() / 2)) else {
        return;
    };
    let processor = rounds.iter().map(|round| round.1).fold(f64::MAX, f64::min);
    println!(
        "{name:<9} {:8.1} tokens/s at best, {:8.1} in the middle, {:.3} ms of processor time a token",
        1.0 / best.0,
        1.0 / median.0,
        processor * 1e3
    );
}

fn processor_seconds() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let all: f64 = tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next()?.parse::<f64>().ok())
        .sum();
    all / 1e9
}
