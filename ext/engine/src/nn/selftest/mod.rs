//! Attention and linear layers on a device, compared with their plainest form in f64.

mod attention;
mod blocks;
mod heads;
mod linear;

use candle_core::{DType, Device, Tensor};

use crate::kernels::selftest::{Extent, Outcome, DTYPES};
use crate::quant::BlockType;
use crate::runtime::device::placed;
use crate::{Error, Result};

type Case = fn(&mut Bench<'_>) -> Result<()>;

const ALL: &[(&str, Case)] = &[
    ("attention", attention::cases),
    ("head_product", heads::cases),
    ("linear", linear::cases),
    ("product", linear::own_products),
    ("blocks", blocks::cases),
];

/// What can be run by its name; with a format of blocks goes `blocks`, for that format alone.
pub fn names() -> impl Iterator<Item = &'static str> {
    let formats = BlockType::ALL.iter().map(|kind| kind.name());
    ALL.iter().map(|(name, _)| *name).chain(formats)
}

/// Runs the cases named (all, when nothing is) on the device, in every dtype.
pub fn run(device: &Device, named: &[&str], extent: Extent) -> Result<Vec<Outcome>> {
    let mut outcomes: Vec<Outcome> = Vec::new();
    for (name, cases) in ALL {
        if !named.is_empty() && !named.contains(name) {
            continue;
        }
        for dtype in DTYPES {
            let mut bench = Bench {
                device,
                dtype,
                seed: 1,
                extent,
                named,
                outcomes: &mut outcomes,
            };
            match cases(&mut bench) {
                Err(_) if extent.stop_at_first && outcomes.last().is_some_and(|o| !o.passed()) => {
                    return Ok(outcomes);
                }
                done => done?,
            }
        }
    }
    Ok(outcomes)
}

struct Bench<'a> {
    device: &'a Device,
    dtype: DType,
    seed: u64,
    extent: Extent,
    named: &'a [&'a str],
    outcomes: &'a mut Vec<Outcome>,
}

impl Bench<'_> {
    /// Numbers from -1 to 1, and what the type makes of them.
    fn tensor(&mut self, shape: &[usize]) -> Result<(Tensor, Vec<f64>)> {
        self.typed(shape, self.dtype)
    }

    fn typed(&mut self, shape: &[usize], dtype: DType) -> Result<(Tensor, Vec<f64>)> {
        let mut state = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        self.seed += 1;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        let count = shape.iter().product();
        let values: Vec<f32> = std::iter::repeat_with(next).take(count).collect();
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?;
        let kept = read(&tensor)?;
        Ok((placed(&tensor, self.device)?, kept))
    }

    /// The error counts against the largest number of the result; NaN must meet NaN and infinity its own.
    fn check(
        &mut self,
        kernel: &'static str,
        case: String,
        got: &Tensor,
        want: &[f64],
    ) -> Result<()> {
        let got = read(got)?;
        let allowed = match self.dtype {
            DType::F16 => 2e-3,
            DType::BF16 => 1.5e-2,
            _ => 2e-5,
        };
        let finite = want.iter().filter(|w| w.is_finite());
        let largest = finite.fold(1e-3f64, |most, w| most.max(w.abs()));
        let errors = got.iter().zip(want).map(|(g, w)| {
            let error = (g - w).abs() / (allowed * largest);
            match (g == w || g.is_nan() && w.is_nan(), error.is_nan()) {
                (true, _) => 0.0,
                (false, true) => f64::INFINITY,
                (false, false) => error,
            }
        });
        let deviation = match got.len() == want.len() {
            true => errors.fold(0.0, f64::max),
            false => f64::INFINITY,
        };
        self.outcomes.push(Outcome {
            kernel,
            dtype: self.dtype,
            case,
            deviation,
        });
        match self.extent.stop_at_first && deviation > 1.0 {
            true => Err(Error::InvalidInput("a case failed".into())),
            false => Ok(()),
        }
    }
}

fn read(tensor: &Tensor) -> Result<Vec<f64>> {
    if tensor.elem_count() == 0 {
        return Ok(Vec::new());
    }
    let values = tensor.to_device(&Device::Cpu)?.flatten_all()?;
    Ok(values.to_dtype(DType::F64)?.to_vec1()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_and_linear_layers_equal_the_reference_on_the_cpu() {
        let outcomes =
            crate::runtime::threads::install(|| run(&Device::Cpu, &[], Extent::default()))
                .unwrap()
                .unwrap();
        assert!(outcomes.len() > 1000);
        let failed: Vec<_> = outcomes.iter().filter(|o| !o.passed()).collect();
        assert!(
            failed.is_empty(),
            "{} failed: {:?}",
            failed.len(),
            failed.first()
        );
    }
}
