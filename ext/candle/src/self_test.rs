//! `Candle::SelfTest`: kernels beside their reference, long work and panics on demand, and what the
//! allocator keeps, so that what is promised can be shown on any installation.

use std::time::{Duration, Instant};

use kernels::selftest::{self, Extent};
use magnus::{function, prelude::*, Error, RArray, RModule, Ruby, Value};

use crate::{convert, gvl, ALLOCATOR};

/// Computes for `seconds`, looking at the cancel token as all engine loops do.
fn work(ruby: &Ruby, seconds: f64) -> Result<u64, Error> {
    let end = Instant::now() + Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let mut state = 1u64;
    gvl::leave(ruby, move |cancel| {
        while Instant::now() < end {
            cancel.check()?;
            for _ in 0..10_000 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            }
        }
        Ok(state)
    })
}

fn panic_holding(ruby: &Ruby, message: String) -> Result<(), Error> {
    gvl::hold(ruby, || panic!("{message}"))
}

fn panic_away(ruby: &Ruby, message: String) -> Result<(), Error> {
    gvl::leave(ruby, |_| panic!("{message}"))
}

/// Every kernel on a device beside the reference: its name, how many cases it has, and what failed. An
/// interrupt costs at most the kernel at hand.
fn kernels(ruby: &Ruby, device: Value) -> Result<RArray, Error> {
    let device = convert::device(ruby, device)?;
    let extent = Extent {
        few: true,
        ..Extent::default()
    };
    let found = ruby.ary_new();
    for name in selftest::names() {
        let outcomes = gvl::leave(ruby, |_| selftest::run(&device.open()?, &[name], extent))?;
        let failed = outcomes.iter().filter(|outcome| !outcome.passed());
        let failed = failed.map(|outcome| format!("{} {}", outcome.dtype.as_str(), outcome.case));
        found.push((name, outcomes.len(), failed.collect::<Vec<_>>()))?;
    }
    Ok(found)
}

fn kept_bytes() -> usize {
    ALLOCATOR.kept_bytes()
}

pub fn init(candle: RModule) -> Result<(), Error> {
    let module = candle.define_module("SelfTest")?;
    module.define_singleton_method("work", function!(work, 1))?;
    module.define_singleton_method("kernels", function!(kernels, 1))?;
    module.define_singleton_method("kept_bytes", function!(kept_bytes, 0))?;
    module.define_singleton_method("panic_holding_gvl", function!(panic_holding, 1))?;
    module.define_singleton_method("panic_without_gvl", function!(panic_away, 1))
}
