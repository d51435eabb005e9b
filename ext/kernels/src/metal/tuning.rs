//! Measures what tiles of products a GPU likes, and says what to change.

use std::time::Instant;

use candle_core::{DType, Device, MetalDevice, Result, Tensor};

use super::operands::gpu;
use super::plan::product::{Tiles, MOST_FEW_ROWS};
use super::product::{self, with_tiles, Factor};
use crate::blocks::{BlockFactor, DeviceBlocks};
use crate::matrix::{Epilogue, Matrix};
use base::quant::noise::random_matrix;
use base::quant::BlockType;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Inputs and outputs.
    pub shapes: &'static [(usize, usize)],
    /// Products before a wait, and how often that is timed, of which the best counts.
    pub products: usize,
    pub rounds: usize,
}

/// Layers of models of one, three and eight billion weights.
pub const WHOLE: Extent = Extent {
    shapes: &[
        (2048, 2048),
        (2048, 8192),
        (3072, 3072),
        (4096, 4096),
        (4096, 14_336),
    ],
    products: 50,
    rounds: 9,
};

/// Enough to see that measuring works.
pub const SMALL: Extent = Extent {
    shapes: &[(256, 64)],
    products: 2,
    rounds: 1,
};

/// Other tiles are worth a change from here on.
const GAIN: f64 = 1.03;

/// Of a matrix.
#[derive(Clone, Copy)]
enum Stored {
    Dense,
    Blocks(BlockType),
}

const STORED: [(Stored, &str); 3] = [
    (Stored::Dense, "f16"),
    (Stored::Blocks(BlockType::Q4K), "q4_k"),
    (Stored::Blocks(BlockType::Q8_0), "q8_0"),
];
const DTYPE: DType = DType::F16;

enum Weights {
    Dense(Tensor),
    Blocks(DeviceBlocks),
}

impl Weights {
    fn new(
        stored: Stored,
        (inputs, outputs): (usize, usize),
        device: &Device,
    ) -> crate::Result<Self> {
        Ok(match stored {
            Stored::Dense => {
                Self::Dense(Tensor::ones((outputs, inputs), DType::F32, device)?.to_dtype(DTYPE)?)
            }
            Stored::Blocks(kind) => {
                let matrix = random_matrix(kind, outputs, inputs);
                Self::Blocks(DeviceBlocks::new(&matrix, device)?)
            }
        })
    }

    fn factor(&self) -> Factor<'_> {
        let bias = None;
        match self {
            Self::Dense(weight) => Matrix { weight, bias }.into(),
            Self::Blocks(blocks) => BlockFactor { blocks, bias }.into(),
        }
    }

    fn time(&self, x: &Tensor, metal: &MetalDevice, extent: Extent) -> Result<f64> {
        time(metal, extent, || {
            match product::multiply(x, self.factor(), &Epilogue::default())? {
                Some(_) => Ok(()),
                None => candle_core::bail!("no kernel takes {:?}", x.dims()),
            }
        })
    }
}

/// Seconds of a product.
fn time(
    metal: &MetalDevice,
    extent: Extent,
    mut product: impl FnMut() -> Result<()>,
) -> Result<f64> {
    let mut best = f64::INFINITY;
    // The first round compiles.
    for round in 0..=extent.rounds {
        let started = Instant::now();
        (0..extent.products).try_for_each(|_| product())?;
        metal.flush_and_wait_current()?;
        if round > 0 {
            best = best.min(started.elapsed().as_secs_f64() / extent.products as f64);
        }
    }
    Ok(best)
}

/// Measures, and prints what was found.
pub fn run(device: &Device, extent: Extent) -> crate::Result<()> {
    let metal = device.as_metal_device()?;
    let gpu = gpu(metal);
    println!("{gpu:?} ({})", metal.metal_device().architecture_name());
    let (best, gain) = tiles(device, metal, extent)?;
    let now = Tiles::of(gpu);
    if best == now || gain < GAIN {
        println!("{now:?} is right for {gpu:?}: nothing to change\n")
    } else {
        println!(
            "{best:?} is {:.0}% faster than {now:?}: change Tiles::of for Gpu::{gpu:?} in \
             ext/kernels/src/metal/plan/product.rs\n",
            100.0 * (gain - 1.0)
        )
    }
    rows(device, metal, extent)
}

/// The tiles that are best over all shapes and formats, and how much faster they are than those of today.
fn tiles(device: &Device, metal: &MetalDevice, extent: Extent) -> crate::Result<(Tiles, f64)> {
    // Logarithms of times, summed.
    let mut totals = [0.0; Tiles::ALL.len()];
    let mut count = 0;
    for (stored, name) in STORED {
        for &shape in extent.shapes {
            let weights = Weights::new(stored, shape, device)?;
            for rows in [1, 4] {
                let x = Tensor::ones((rows, shape.0), DType::F32, device)?.to_dtype(DTYPE)?;
                let mut line = format!("{name:>5} {:>5} x {:>5}, {rows} rows:", shape.0, shape.1);
                for (total, tiles) in totals.iter_mut().zip(Tiles::ALL) {
                    let seconds = with_tiles(tiles, || weights.time(&x, metal, extent))?;
                    *total += seconds.ln();
                    let Tiles {
                        outputs,
                        simdgroups,
                    } = tiles;
                    line += &format!("  {outputs}x{simdgroups} {:.1}", 1e6 * seconds);
                }
                println!("{line} us");
                count += 1;
            }
        }
    }
    let now = Tiles::of(gpu(metal));
    let timed: Vec<_> = Tiles::ALL.into_iter().zip(totals).collect();
    let of_now = timed.iter().find(|(tiles, _)| *tiles == now);
    let best = timed.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    match (best, of_now) {
        (Some(best), Some(now)) => Ok((best.0, ((now.1 - best.1) / f64::from(count)).exp())),
        _ => Ok((now, 1.0)),
    }
}

/// Where products of many rows overtake those of few, and candle's overtake ours.
fn rows(device: &Device, metal: &MetalDevice, extent: Extent) -> crate::Result<()> {
    let numbers = [1, 2, 4, 8, MOST_FEW_ROWS + 1, 16, 32, 128];
    for (stored, name) in STORED {
        for &shape in extent.shapes {
            let weights = Weights::new(stored, shape, device)?;
            let mut line = format!("{name:>5} {:>5} x {:>5}, by rows:", shape.0, shape.1);
            for rows in numbers {
                let x = Tensor::ones((rows, shape.0), DType::F32, device)?.to_dtype(DTYPE)?;
                let ours = weights.time(&x, metal, extent)?;
                line += &format!("  {rows}: {:.1}", 1e6 * ours);
                if let Weights::Dense(weight) = &weights {
                    let theirs = time(metal, extent, || x.matmul(&weight.t()?).map(drop))?;
                    line += &format!(" (candle's {:.1})", 1e6 * theirs);
                }
            }
            println!("{line} us");
        }
    }
    println!(
        "If {} rows take less time than {MOST_FEW_ROWS}, lower MOST_FEW_ROWS in the same file; if candle's products of \
         32 and 128 rows are much faster than ours, say so in an issue: layers with a bias go by ours",
        MOST_FEW_ROWS + 1
    );
    Ok(())
}
