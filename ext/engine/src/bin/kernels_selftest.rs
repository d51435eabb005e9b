//! Compares every kernel on a device with the f64 reference: `kernels_selftest --device cuda`.

use std::process::ExitCode;

use engine::nn;
use engine::Device;
use kernels::selftest::{self, Extent};
use kernels::Isa;

const USAGE: &str =
    "usage: kernels_selftest [--device cpu|cuda|cuda:1|metal] [--few] [--rows] [--stop-at-first] [KERNEL ...]";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, String> {
    let (device, kernels, extent) = arguments()?;
    let kernels: Vec<&str> = kernels.iter().map(String::as_str).collect();
    let opened = device.open().map_err(|error| error.to_string())?;
    if device != Device::Cpu {
        return report(&device.to_string(), &opened, &kernels, extent);
    }
    let mut sound = true;
    for isa in Isa::for_rows().map_err(|error| error.to_string())? {
        let label = format!("cpu {}", isa.name());
        sound &= isa.force(|| report(&label, &opened, &kernels, extent))?;
    }
    Ok(sound)
}

fn arguments() -> Result<(Device, Vec<String>, Extent), String> {
    let (mut device, mut extent) = (Device::Cpu, Extent::default());
    let mut kernels = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--device" => {
                let name = arguments.next().ok_or(USAGE)?;
                device = Device::parse(&name).map_err(|error| error.to_string())?;
            }
            "--few" => extent.few = true,
            "--rows" => extent.rows = true,
            "--stop-at-first" => extent.stop_at_first = true,
            name if known().any(|known| known == name) => kernels.push(argument),
            _ => {
                let known: Vec<_> = known().collect();
                return Err(format!("{USAGE}\nkernels: {}", known.join(", ")));
            }
        }
    }
    Ok((device, kernels, extent))
}

/// Kernels, and the layers that are made of them.
fn known() -> impl Iterator<Item = &'static str> {
    selftest::names().chain(nn::selftest::names())
}

/// One line per kernel and dtype, and one per failed case.
fn report(
    label: &str,
    device: &candle_core::Device,
    kernels: &[&str],
    extent: Extent,
) -> Result<bool, String> {
    let mut outcomes = selftest::run(device, kernels, extent).map_err(|error| error.to_string())?;
    outcomes.extend(nn::selftest::run(device, kernels, extent).map_err(|error| error.to_string())?);
    println!("{label}: {} cases", outcomes.len());
    println!(
        "{:<16} {:<5} {:>6} {:>7} {:>10}",
        "kernel", "dtype", "cases", "failed", "deviation"
    );
    let mut names: Vec<_> = outcomes.iter().map(|outcome| outcome.kernel).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        for dtype in selftest::DTYPES {
            let rows: Vec<_> = outcomes
                .iter()
                .filter(|o| o.kernel == name && o.dtype == dtype)
                .collect();
            if rows.is_empty() {
                continue;
            }
            let failed = rows.iter().filter(|o| !o.passed()).count();
            let worst = rows.iter().map(|o| o.deviation).fold(0.0, f64::max);
            println!(
                "{name:<16} {:<5} {:>6} {failed:>7} {worst:>10.3}",
                dtype.as_str(),
                rows.len()
            );
        }
    }
    for outcome in outcomes.iter().filter(|o| !o.passed()).take(40) {
        println!(
            "FAILED {} {} {}: deviation {}",
            outcome.kernel,
            outcome.dtype.as_str(),
            outcome.case,
            outcome.deviation
        );
    }
    Ok(!outcomes.is_empty() && outcomes.iter().all(selftest::Outcome::passed))
}
