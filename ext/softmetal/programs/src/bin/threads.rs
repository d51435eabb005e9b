//! Eight threads on one device: seven compute in several encoders each, and one waits for the device again and again.
//! Under `SOFTMETAL_CHECK=1` the device reports work that does not wait for what it reads. With `--candle` the waiting
//! is candle's, which loses the fences of the other threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use candle_core::{DType, Result, Tensor};
use engine::Device;

const THREADS: usize = 7;
const ROUNDS: usize = 40;
/// A thread of a busy machine may do all of `ROUNDS` before another runs: losses take more, with pauses, to be seen.
const ROUNDS_TO_LOSE: usize = 400;
const PAUSE: Duration = Duration::from_micros(200);

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
    let (rounds, pause) = match candles {
        true => (ROUNDS_TO_LOSE, PAUSE),
        false => (ROUNDS, Duration::ZERO),
    };

    let done = AtomicBool::new(false);
    let right = std::thread::scope(|scope| -> Result<bool> {
        let waiter = scope.spawn(|| -> std::result::Result<(), engine::Error> {
            while !done.load(Ordering::Relaxed) {
                match candles {
                    true => device.synchronize()?,
                    false => Device::Metal(0).synchronize()?,
                }
            }
            Ok(())
        });
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let one = &one;
                scope.spawn(move || -> Result<bool> {
                    let mut right = true;
                    for number in 0..rounds {
                        right &= round(one, (thread * rounds + number) as f64, pause)?;
                    }
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
        "{THREADS} threads, {rounds} rounds: {}",
        if right { "right" } else { "WRONG" }
    );
    std::process::exit(i32::from(!right));
}
