//! Attention and linear layers on a device, compared with their plainest form in f64.

mod attention;
mod blocks;
mod heads;
mod linear;

use candle_core::{DType, Device, Tensor};

use crate::{Error, Result};
use base::quant::BlockType;
use base::runtime::device::placed;
use kernels::selftest::{Extent, Outcome, DTYPES};
use kernels::{reference, Activation};

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
    let formats = BlockType::every().map(BlockType::name);
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

    /// The error counts against the largest number of the result.
    fn check(
        &mut self,
        kernel: &'static str,
        case: String,
        got: &Tensor,
        want: &[f64],
    ) -> Result<()> {
        let allowed = match self.dtype {
            DType::F16 => 2e-3,
            DType::BF16 => 1.5e-2,
            _ => 2e-5,
        };
        let finite = want.iter().filter(|w| w.is_finite());
        let largest = finite.fold(1e-3f64, |most, w| most.max(w.abs()));
        self.judge(
            kernel,
            case,
            got,
            want,
            &vec![allowed * largest; want.len()],
        )
    }

    /// The error of each sum counts against what it was made of: all may cancel, and few sums need not have a large one.
    fn check_sums(
        &mut self,
        kernel: &'static str,
        case: String,
        got: &Tensor,
        want: &[Sum],
    ) -> Result<()> {
        let unit = unit(self.dtype);
        let allowed: Vec<f64> = want.iter().map(|sum| unit * sum.roundings).collect();
        let want: Vec<f64> = want.iter().map(|sum| sum.value).collect();
        self.judge(kernel, case, got, &want, &allowed)
    }

    /// NaN must meet NaN and infinity its own.
    fn judge(
        &mut self,
        kernel: &'static str,
        case: String,
        got: &Tensor,
        want: &[f64],
        allowed: &[f64],
    ) -> Result<()> {
        let got = read(got)?;
        let errors = got.iter().zip(want).zip(allowed).map(|((g, w), allowed)| {
            let error = (g - w).abs() / allowed;
            match (g == w || g.is_nan() && w.is_nan(), error.is_nan()) {
                (true, _) => 0.0,
                (false, true) => f64::INFINITY,
                (false, false) => error,
            }
        });
        let deviation = if got.len() == want.len() {
            errors.fold(0.0, f64::max)
        } else {
            f64::INFINITY
        };
        self.outcomes.push(Outcome {
            kernel,
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

/// What a number of the type is off by at most when it is rounded, for its size; of f32, what sums of some thousand are.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 4e-6,
    }
}

/// What a kernel should find, and how far off it may be, in units of its type.
#[derive(Clone, Copy)]
struct Sum {
    value: f64,
    roundings: f64,
}

impl Sum {
    /// Of products, one factor of which may have been rounded: their errors go either way, and are fourteen times as
    /// large as usual together at most. The sum is rounded too.
    fn of(products: impl Iterator<Item = f64>) -> Self {
        let (value, squares) = products.fold((0.0, 0.0), |(sum, squares), product| {
            (sum + product, squares + product * product)
        });
        Self {
            value,
            roundings: 8.0 * f64::sqrt(squares) + value.abs(),
        }
    }

    /// With an exact number, and rounded again.
    fn plus(self, addend: f64) -> Self {
        let value = self.value + addend;
        Self {
            value,
            roundings: self.roundings + value.abs(),
        }
    }

    /// activation(self) · up, for activations that nowhere rise faster than 1.2.
    fn gated(self, up: Self, activation: Activation, dtype: DType) -> Self {
        let active = reference::activation(self.value, activation);
        let off = 1.2 * self.roundings;
        let either = off * up.value.abs() + active.abs() * up.roundings;
        Self {
            value: active * up.value,
            roundings: either + off * up.roundings * unit(dtype) + 2.0 * (active * up.value).abs(),
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

    /// Sums that cancel may be off by roundings of what they are made of, and by no more: not by one of 256 products.
    #[test]
    fn a_sum_is_judged_by_what_it_is_made_of() {
        for dtype in DTYPES {
            let judged = |off: f64, sum: Sum| {
                let mut outcomes = Vec::new();
                let mut bench = Bench {
                    device: &Device::Cpu,
                    dtype,
                    seed: 1,
                    extent: Extent::default(),
                    named: &[],
                    outcomes: &mut outcomes,
                };
                let got = Tensor::new(&[sum.value + off], &Device::Cpu).unwrap();
                bench
                    .check_sums("blocks", String::new(), &got, &[sum])
                    .unwrap();
                outcomes[0].passed()
            };
            let product = |at: i32| if at % 2 == 0 { 0.5 } else { -0.5 };
            let sum = Sum::of((0..256).map(product));
            assert_eq!((sum.value, sum.roundings), (0.0, 64.0));
            let rounding = unit(dtype) * 8.0;
            assert!(judged(rounding, sum), "{dtype:?}");
            assert!(!judged(0.5, sum), "{dtype:?}");
            assert!(!judged(f64::NAN, sum), "{dtype:?}");
            let gated = sum.plus(1.0).gated(sum.plus(2.0), Activation::Relu, dtype);
            assert_eq!(gated.value, 2.0);
            assert!(judged(2.0 * rounding, gated), "{dtype:?}");
            assert!(!judged(1.5, gated), "{dtype:?}");
        }
    }

    #[test]
    fn attention_and_linear_layers_equal_the_reference_on_the_cpu() {
        let outcomes =
            base::runtime::threads::install(|| run(&Device::Cpu, &[], Extent::default()))
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
