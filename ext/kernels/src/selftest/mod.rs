//! Every kernel × dtype × shape on a device, compared with the f64 reference.
//!
//! The inputs are made here, from a fixed seed, so that a machine needs nothing but the binary.

mod cases;
mod data;
mod decoding;
mod pointwise;
mod scans;
mod state_layers;

use candle_core::{DType, Device, Tensor};

use crate::{Error, Result};

pub use cases::names;

/// How far one case is from the reference.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub kernel: &'static str,
    pub dtype: DType,
    pub case: String,
    /// The largest deviation in units of what the dtype allows; 1 is the limit.
    pub deviation: f64,
}

impl Outcome {
    pub fn passed(&self) -> bool {
        self.deviation <= 1.0
    }
}

pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Which cases run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extent {
    /// Without large inputs and shapes that add little, for a device that takes its time.
    pub few: bool,
    /// Small matrices, and all numbers of rows up to 512 that a kernel may treat in its own way: of what takes matrices.
    pub rows: bool,
    /// The first case that fails is the last.
    pub stop_at_first: bool,
}

/// With fewer, with as many and with more than a tile has.
pub const ROW_NUMBERS: [usize; 15] = [1, 2, 3, 4, 5, 8, 9, 31, 32, 33, 64, 65, 128, 255, 512];

/// Inputs of more rows or elements are large.
const LARGE: (usize, usize) = (6, 20_000);

/// Runs the kernels named (all, when none is) on the device.
pub fn run(device: &Device, kernels: &[&str], extent: Extent) -> Result<Vec<Outcome>> {
    let mut outcomes: Vec<Outcome> = Vec::new();
    for (name, kernel) in cases::ALL {
        if !kernels.is_empty() && !kernels.contains(name) {
            continue;
        }
        for dtype in DTYPES {
            let mut bench = Bench {
                device,
                dtype,
                kernel: name,
                extent,
                outcomes: &mut outcomes,
            };
            match kernel(&mut bench) {
                Err(_) if extent.stop_at_first && outcomes.last().is_some_and(|o| !o.passed()) => {
                    return Ok(outcomes);
                }
                done => done?,
            }
        }
    }
    Ok(outcomes)
}

/// What a case needs: where to run, and where its outcome goes.
struct Bench<'a> {
    device: &'a Device,
    dtype: DType,
    kernel: &'static str,
    extent: Extent,
    outcomes: &'a mut Vec<Outcome>,
}

impl Bench<'_> {
    fn takes(&self, (rows, width): (usize, usize)) -> bool {
        !self.extent.few || rows <= LARGE.0 && rows * width <= LARGE.1
    }

    /// Compares a tensor with what the reference says.
    fn check(&mut self, case: String, got: &Tensor, want: &[f64]) -> Result<()> {
        let got = data::read(got)?;
        let pairs = got.iter().zip(want);
        let deviations: Vec<f64> = if got.len() == want.len() {
            pairs.map(|(&g, &w)| deviation(g, w, self.dtype)).collect()
        } else {
            vec![f64::INFINITY]
        };
        self.judge(case, &deviations)
    }

    /// Takes down the largest of the deviations.
    fn judge(&mut self, case: String, deviations: &[f64]) -> Result<()> {
        let larger = |most: f64, one: &f64| {
            if one.is_nan() {
                f64::INFINITY
            } else {
                most.max(one.abs())
            }
        };
        let deviation = deviations.iter().fold(0.0, larger);
        self.outcomes.push(Outcome {
            kernel: self.kernel,
            dtype: self.dtype,
            case,
            deviation,
        });
        if self.extent.stop_at_first && deviation > 1.0 {
            Err(Error::InvalidInput("a case failed".into()))
        } else {
            Ok(())
        }
    }
}

/// NaN must meet NaN and infinity its own; else the error counts in units of the tolerance.
fn deviation(got: f64, want: f64, dtype: DType) -> f64 {
    let (relative, absolute, most) = match dtype {
        DType::F16 => (1.0e-3, 2.0e-6, 65504.0),
        DType::BF16 => (4.5e-3, 2.0e-6, f64::from(half::bf16::MAX)),
        _ => (1.0e-5, 2.0e-6, f64::from(f32::MAX)),
    };
    if want.is_nan() || got.is_nan() {
        return if want.is_nan() && got.is_nan() {
            0.0
        } else {
            f64::INFINITY
        };
    }
    if want.is_infinite() || got.is_infinite() {
        // What the type cannot hold rounds to infinity.
        let same = got == want || (got.is_infinite() && want.abs() > most && got * want > 0.0);
        return if same { 0.0 } else { f64::INFINITY };
    }
    (got - want).abs() / (absolute + relative * want.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviations_tell_nan_infinity_and_error_apart() {
        assert_eq!(deviation(f64::NAN, f64::NAN, DType::F32), 0.0);
        assert!(deviation(f64::NAN, 1.0, DType::F32).is_infinite());
        assert!(deviation(0.0, f64::NAN, DType::F32).is_infinite());
        assert!(deviation(f64::INFINITY, f64::NEG_INFINITY, DType::F32).is_infinite());
        assert_eq!(deviation(f64::INFINITY, 1e6, DType::F16), 0.0);
        assert!(deviation(1.001, 1.0, DType::F32) > 1.0);
        assert!(deviation(1.0005, 1.0, DType::F16) < 1.0);
    }
}
