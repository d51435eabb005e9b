//! What stands around scans: how much states keep, the gates of recurrent units, and vectors of length one.

use candle_core::{DType, Device, Tensor};

use crate::cpu::for_each_row;
use crate::cpu::scan as cpu;
use crate::cpu::scan::{Decay, RglruGates};
use crate::packed_weight::with_values;
use crate::{Isa, Result};

/// A gate takes as long as copying about so many numbers.
const COST: usize = 8;

/// On a GPU, numbers that a kernel reads.
fn on_device(parts: &[&[f32]], device: &Device) -> Result<Option<Tensor>> {
    if device.is_cpu() {
        return Ok(None);
    }
    let all = parts.concat();
    let count = all.len();
    Ok(Some(Tensor::from_vec(all, count, device)?))
}

/// The numbers of a tensor, for changing.
fn owned(x: &Tensor) -> Result<Vec<f32>> {
    with_values(x, |values: &[f32]| Ok(values.to_vec()))
}

/// How much states keep, given rows of f32.
pub struct Decays {
    biases: Vec<f32>,
    rates: Vec<f32>,
    rule: Decay,
    constants: Option<Tensor>,
}

impl Decays {
    /// With a bias and a rate for each column.
    pub fn new(biases: Vec<f32>, rates: Vec<f32>, rule: Decay, device: &Device) -> Result<Self> {
        Ok(Self {
            constants: on_device(&[&biases, &rates], device)?,
            biases,
            rates,
            rule,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.to_dtype(DType::F32)?.contiguous()?;
        if let Some(constants) = &self.constants {
            return launched::decays(&x, constants, self.rule);
        }
        let (isa, mut values) = (Isa::current()?, owned(&x)?);
        for_each_row(&mut values, self.biases.len(), COST, |_, row| {
            cpu::decays(isa, row, &self.biases, &self.rates, self.rule);
        });
        Ok(Tensor::from_vec(values, x.shape(), x.device())?)
    }
}

/// What the gates of recurrent units are opened with.
pub struct RecurrentGates {
    /// Of the gates of inputs and of fading.
    biases: [Vec<f32>; 2],
    /// How fast channels fade where their gates are open, in powers of e.
    rates: Vec<f32>,
    constants: Option<Tensor>,
}

impl RecurrentGates {
    pub fn new(biases: [Vec<f32>; 2], rates: Vec<f32>, device: &Device) -> Result<Self> {
        Ok(Self {
            constants: on_device(&[&biases[0], &biases[1], &rates], device)?,
            biases,
            rates,
        })
    }

    /// What is taken of inputs, and beside it what states keep, `[tokens, 2 · width]`, given inputs and both gates before
    /// their sigmoid, `[tokens, width]` of f32; first tokens of sequences, where `begins` is not 0, are taken as they are.
    pub fn open(&self, given: &Tensor, gates: [&Tensor; 2], begins: &[u32]) -> Result<Tensor> {
        let (tokens, width) = (begins.len(), self.rates.len());
        if let Some(constants) = &self.constants {
            let begins = Tensor::new(begins, given.device())?;
            let [input, fading] = gates;
            return launched::open([given, input, fading], constants, &begins);
        }
        let isa = Isa::current()?;
        let mut opened = owned(&Tensor::cat(&gates, 1)?)?;
        with_values(given, |given: &[f32]| {
            for_each_row(&mut opened, 2 * width, COST, |token, row| {
                let (taken, kept) = row.split_at_mut(width);
                let gates = RglruGates {
                    given: &given[token * width..][..width],
                    biases: [&self.biases[0], &self.biases[1]],
                    rates: &self.rates,
                    begins: begins[token] != 0,
                };
                cpu::open_rglru(isa, &gates, taken, kept);
            });
            Ok(())
        })?;
        Ok(Tensor::from_vec(
            opened,
            (tokens, 2 * width),
            given.device(),
        )?)
    }
}

/// The first heads of rows, in two groups, each of its factor.
#[derive(Clone, Copy, Debug)]
pub struct UnitHeads {
    pub size: usize,
    pub counts: [usize; 2],
    pub factors: [f32; 2],
    pub epsilon: f32,
}

/// Divides these heads of `[tokens, width]` rows of f32 by their lengths, √(Σx² + ε), and multiplies them by a factor;
/// the rest stays.
pub fn unit_heads(x: &Tensor, heads: UnitHeads) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return launched::units(&x.contiguous()?, heads);
    }
    let (isa, mut values) = (Isa::current()?, owned(x)?);
    let (width, [first, second]) = (x.dim(1)?, heads.counts);
    for_each_row(&mut values, width, 1, |_, row| {
        let normed = row[..(first + second) * heads.size].chunks_exact_mut(heads.size);
        for (at, head) in normed.enumerate() {
            let factor = heads.factors[usize::from(at >= first)];
            cpu::unit(isa, head, heads.epsilon, factor);
        }
    });
    Ok(Tensor::from_vec(values, x.shape(), x.device())?)
}

/// On the GPU that the rows are on.
mod launched {
    use candle_core::Tensor;

    use super::UnitHeads;
    use crate::cpu::scan::Decay;
    use crate::{Error, Result};

    macro_rules! launched {
        ($name:ident($($argument:ident: $type:ty),+), $first:expr) => {
            pub fn $name($($argument: $type),+) -> Result<Tensor> {
                #[cfg(feature = "metal")]
                if $first.device().is_metal() {
                    return Ok(crate::metal::scan_gates::$name($($argument),+)?);
                }
                #[cfg(feature = "cuda")]
                if $first.device().is_cuda() {
                    return Ok(crate::cuda::scan_gates::$name($($argument),+)?);
                }
                let _ = ($($argument),+);
                Err(Error::Internal("no kernel for this device".into()))
            }
        };
    }

    launched!(decays(x: &Tensor, constants: &Tensor, rule: Decay), x);
    launched!(open(rows: [&Tensor; 3], constants: &Tensor, begins: &Tensor), rows[0]);
    launched!(units(x: &Tensor, heads: UnitHeads), x);
}
