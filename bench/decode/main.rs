//! Reading a prompt and generating, on a GGUF file:
//! `bench_decode FILE [PROMPT_TOKENS [NEW_TOKENS [ROUNDS [SEQUENCES]]]]`. Prints tokens per second, the best and the
//! median of the rounds, and the processor time of a token; of one sequence, and of several in one pass.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use base::runtime::threads;
use candle_core::{DType, Device, Tensor};
use engine::models::decoder::model::{Logits, Reading};
use engine::models::decoder::{Blueprint, Decoder, KvPool, Sequence};
use engine::{CancelToken, Result};
use formats::files::model_files::WeightFiles;
use formats::weights::{self, WeightSource};
use kernels::paged::KvType;

fn main() {
    if cfg!(debug_assertions) {
        eprintln!("this is a debug build, whose times mean nothing: run it with --release");
        std::process::exit(2);
    }
    let mut arguments = std::env::args().skip(1);
    let Some(path) = arguments.next().map(PathBuf::from) else {
        eprintln!("usage: bench_decode FILE [PROMPT_TOKENS [NEW_TOKENS [ROUNDS [SEQUENCES]]]]");
        std::process::exit(2);
    };
    let mut number = |default: usize| {
        arguments
            .next()
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let run = Run {
        prompt: number(256),
        new: number(64),
        rounds: number(5),
        sequences: number(8),
    };
    threads::init();
    let done = threads::install(|| run.measure(path)).and_then(|result| result);
    if let Err(error) = done {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

struct Run {
    prompt: usize,
    new: usize,
    rounds: usize,
    sequences: usize,
}

impl Run {
    fn measure(&self, path: PathBuf) -> Result<()> {
        let cancel = CancelToken::new();
        let started = Instant::now();
        let source: Arc<dyn WeightSource> = weights::open(&WeightFiles::Gguf(path))?;
        let blueprint = Blueprint::from_gguf(source.as_ref())?;
        let place = (&Device::Cpu, DType::F32);
        let decoder = Decoder::load(&blueprint, source.as_ref(), place.0, place.1, &cancel)?;
        println!("load      {:8.1} ms", started.elapsed().as_secs_f64() * 1e3);
        let (mut reading, mut writing, mut together) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.rounds {
            let tokens = self.tokens(&decoder, 0);
            let mut cache = decoder.new_cache()?;
            let before = (Instant::now(), processor_seconds());
            let mut logits = decoder.forward(&tokens, &mut cache, Logits::Last, &cancel)?;
            reading.push(per_token(before, self.prompt));
            let before = (Instant::now(), processor_seconds());
            for _ in 0..self.new {
                let next = likeliest(&logits)?;
                logits = decoder.forward(&next, &mut cache, Logits::Last, &cancel)?;
            }
            writing.push(per_token(before, self.new));
            together.push(self.together(&decoder, &cancel)?);
        }
        report("prefill", reading);
        report("decode", writing);
        report(&format!("{} at once", self.sequences), together);
        Ok(())
    }

    fn tokens(&self, decoder: &Decoder, number: usize) -> Vec<u32> {
        let vocabulary = decoder.config().vocab_size as u32;
        let mixed = |i: usize| ((i + 7 * number) as u32).wrapping_mul(2_654_435_761) % vocabulary;
        (0..self.prompt).map(mixed).collect()
    }

    /// One token of every sequence in each pass.
    fn together(&self, decoder: &Decoder, cancel: &CancelToken) -> Result<(f64, f64)> {
        let mut pool = KvPool::new(decoder.config(), KvType::F32, decoder.stages(), 4 << 30)?;
        let mut next: Vec<u32> = Vec::new();
        let mut sequences = Vec::new();
        for number in 0..self.sequences {
            let tokens = self.tokens(decoder, number);
            let mut sequence = Sequence::new(None);
            pool.extend(&mut sequence, tokens.len())?;
            let reading = Reading {
                tokens: &tokens,
                sequence: &mut sequence,
                wanted: 1,
            };
            if let Some(logits) = decoder.forward_batch(&mut [reading], &mut pool, cancel)? {
                next.extend(likeliest(&logits)?);
            }
            sequences.push(sequence);
        }
        let before = (Instant::now(), processor_seconds());
        for _ in 0..self.new {
            for sequence in &mut sequences {
                pool.extend(sequence, 1)?;
            }
            let mut readings: Vec<Reading<'_>> = sequences
                .iter_mut()
                .zip(next.chunks(1))
                .map(|(sequence, tokens)| Reading {
                    tokens,
                    sequence,
                    wanted: 1,
                })
                .collect();
            if let Some(logits) = decoder.forward_batch(&mut readings, &mut pool, cancel)? {
                next = likeliest(&logits)?;
            }
        }
        let taken = per_token(before, self.new * self.sequences);
        for sequence in sequences {
            pool.release(sequence);
        }
        Ok(taken)
    }
}

/// Of each row.
fn likeliest(logits: &Tensor) -> Result<Vec<u32>> {
    let rows: Vec<Vec<f32>> = logits.to_vec2()?;
    let best = |row: &Vec<f32>| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
    Ok(rows
        .iter()
        .map(|row| best(row).unwrap_or(0) as u32)
        .collect())
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
