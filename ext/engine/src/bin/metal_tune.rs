//! Measures products on a Metal GPU and says which of their tiles to change: `metal_tune`, or `metal_tune --small` to
//! see that it works.

use std::process::ExitCode;

use engine::Device;
use kernels::tuning;

fn main() -> ExitCode {
    let small = std::env::args()
        .skip(1)
        .any(|argument| argument == "--small");
    let extent = if small { tuning::SMALL } else { tuning::WHOLE };
    let measured = Device::Metal(0)
        .open()
        .and_then(|device| tuning::run(&device, extent));
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
