//! Eight threads on one device: seven compute in several encoders each, and one waits for the device again and again.
//! Under `SOFTMETAL_CHECK=1` the device reports work that does not wait for what it reads. With `--candle` the waiting
//! is candle's, which loses the fences of the other threads; the threads go on until the device has reported it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use candle_core::{DType, Result, Tensor};
use engine::Device;

const THREADS: usize = 7;
const ROUNDS: usize = 40;
/// How long losses are waited for: on a busy machine many rounds pass before two threads meet.
const TIME_TO_LOSE: Duration = Duration::from_secs(60);
/// Lets another thread run in the middle of a round.
const PAUSE: Duration = Duration::from_micros(200);

/// Whether the device has found something.
fn is_reported() -> bool {
    let file = std::env::var_os("SOFTMETAL_REPORT").and_then(|path| std::fs::metadata(path).ok());
    file.is_some_and(|file| file.len() > 0)
}

/// Writes in one encoder and reads in another: the zeros between are a blit, which ends an encoder.
fn round(one: &Tensor, number: f64, pause: Duration) -> Result<bool> {
    let written = one.affine(2.0, number)?;
    std::thread::sleep(pause);
    let zeros = Tensor::zeros((8, 8), DType::F32, one.device())?;
    let read = written.affine(3.0, 1.0)?;
    let again = Tensor::zeros((8, 8), DType::F32, one.device())?;
    let sum = ((read + zeros.affine(1.0, 0.0)?)? + again)?;
    let wanted = (2.0 + number as f32) * 3.0 + 1.0;
    let values = sum.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.iter().all(|value| *value == wanted))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let candles = std::env::args().any(|argument| argument == "--candle");
    let device = Device::Metal(0).open()?;
    let one = Tensor::ones((8, 8), DType::F32, &device)?;
    // Compiles what is needed.
    round(&one, 0.0, Duration::ZERO)?;
    let pause = if candles { PAUSE } else { Duration::ZERO };
    let started = Instant::now();
    let goes_on = |rounds: usize| {
        if candles {
            started.elapsed() < TIME_TO_LOSE && !is_reported()
        } else {
            rounds < ROUNDS
        }
    };
    let rounds = AtomicUsize::new(0);

    let done = AtomicBool::new(false);
    let right = std::thread::scope(|scope| -> Result<bool> {
        let waiter = scope.spawn(|| -> std::result::Result<(), engine::Error> {
            while !done.load(Ordering::Relaxed) {
                if candles {
                    device.synchronize()?
                } else {
                    Device::Metal(0).synchronize()?
                }
            }
            Ok(())
        });
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (one, rounds, goes_on) = (&one, &rounds, &goes_on);
                scope.spawn(move || -> Result<bool> {
                    let (mut right, mut number) = (true, 0);
                    while goes_on(number) {
                        right &= round(one, (thread * ROUNDS + number) as f64, pause)?;
                        number += 1;
                    }
                    rounds.fetch_add(number, Ordering::Relaxed);
                    Ok(right)
                })
            })
            .collect();
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        waiter
            .join()
            .expect("the waiting thread")
            .expect("a device that waits");
        let mut right = true;
        for result in results {
            right &= result.expect("a computing thread")?;
        }
        Ok(right)
    })?;
    println!(
        "{THREADS} threads, {} rounds: {}",
        rounds.into_inner(),
        if right { "right" } else { "WRONG" }
    );
    std::process::exit(i32::from(!right));
}
