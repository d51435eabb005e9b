//! Reads a prompt and generates, on one thread, for counts of instructions:
//! `count_instructions FILE PROMPT_TOKENS NEW_TOKENS`. Prints a line after each phase.

use std::path::PathBuf;
use std::sync::Arc;

use base::runtime::threads;
use candle_core::{DType, Device, Tensor};
use engine::models::decoder::model::Logits;
use engine::models::decoder::{Blueprint, Decoder};
use engine::{CancelToken, Result};
use formats::files::model_files::WeightFiles;
use formats::weights::{self, WeightSource};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<usize> = arguments.iter().filter_map(|a| a.parse().ok()).collect();
    let ([path, ..], [prompt, new]) = (arguments.as_slice(), numbers.as_slice()) else {
        eprintln!("usage: count_instructions FILE PROMPT_TOKENS NEW_TOKENS");
        std::process::exit(2);
    };
    threads::init();
    let done = threads::set_count(1).and_then(|()| run(PathBuf::from(path), *prompt, *new));
    if let Err(error) = done {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run(path: PathBuf, prompt: usize, new: usize) -> Result<()> {
    let cancel = CancelToken::new();
    let source: Arc<dyn WeightSource> = weights::open(&WeightFiles::Gguf(path))?;
    let blueprint = Blueprint::from_gguf(source.as_ref())?;
    let place = (&Device::Cpu, DType::F32);
    let decoder = Decoder::load(&blueprint, source.as_ref(), place.0, place.1, &cancel)?;
    let vocabulary = decoder.config().vocab_size as u32;
    let mut cache = decoder.new_cache()?;
    println!("load 0");
    let mixed = |i: usize| (i as u32).wrapping_mul(2_654_435_761) % vocabulary;
    let tokens: Vec<u32> = (0..prompt).map(mixed).collect();
    threads::install(|| {
        let mut next = likeliest(&decoder.forward(&tokens, &mut cache, Logits::Last, &cancel)?)?;
        println!("prefill {next}");
        for _ in 0..new {
            next = likeliest(&decoder.forward(&[next], &mut cache, Logits::Last, &cancel)?)?;
        }
        println!("decode {next}");
        Ok(())
    })?
}

fn likeliest(logits: &Tensor) -> Result<u32> {
    let row: Vec<f32> = logits.flatten_all()?.to_vec1()?;
    let mut best = 0;
    for token in 1..row.len() {
        if row[token] > row[best] {
            best = token;
        }
    }
    Ok(best as u32)
}
