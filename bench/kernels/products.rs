//! Products with every type of weights, at the numbers of rows that matter: one and a few, which read
//! the weights, and many, which multiply.

use std::time::Instant;

use base::quant::noise::random_matrix;
use base::quant::{BlockType, QuantizedTensor};
use base::runtime::bytes::Bytes;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use engine::nn::Linear;
use engine::Result;
use kernels::Isa;

const ROWS: [usize; 4] = [1, 8, 64, 512];
const INPUTS: usize = 1024;
const OUTPUTS: usize = 2048;

/// Blocks of the types that files mostly have.
const BLOCKS: [(GgmlDType, BlockType); 4] = [
    (GgmlDType::Q4_0, BlockType::Q4_0),
    (GgmlDType::Q8_0, BlockType::Q8_0),
    (GgmlDType::Q4K, BlockType::Q4K),
    (GgmlDType::Q6K, BlockType::Q6K),
];

/// Each repetition runs long enough for the clock.
const REPETITIONS: usize = 15;
const LEAST_SECONDS: f64 = 0.01;

/// Microseconds of a product with a bias, the best of the repetitions.
pub fn report(json: bool) -> Result<()> {
    if !json {
        println!(
            "{:<36} {:>10} {:>10} {:>10} {:>10}",
            format!("product {INPUTS} to {OUTPUTS}, µs; rows:"),
            ROWS[0],
            ROWS[1],
            ROWS[2],
            ROWS[3]
        );
    }
    for (name, layer) in layers()? {
        let mut times = Vec::new();
        for rows in ROWS {
            let x = Tensor::randn(0f32, 1.0, (rows, INPUTS), &Device::Cpu)?;
            times.push(measure(&layer, &x.to_dtype(layer.dtype())?)?);
        }
        if json {
            for (rows, time) in ROWS.iter().zip(times) {
                println!("{{\"case\":\"product {name} {rows}\",\"ours_us\":{time:.2}}}");
            }
        } else {
            let times: Vec<_> = times.iter().map(|time| format!("{time:>10.1}")).collect();
            println!("{name:<36} {}", times.join(" "));
        }
    }
    report_reading(json)?;
    report_f32(json)
}

/// Types whose products with one row are compared by the bytes that they read in a second.
const READ: [BlockType; 9] = [
    BlockType::Q4K,
    BlockType::Q4_0,
    BlockType::Q8_0,
    BlockType::Nf4,
    BlockType::Int4,
    BlockType::NvFp4,
    BlockType::Iq2,
    BlockType::Fp8,
    BlockType::Int8,
];
const READ_INPUTS: usize = 2048;
const READ_OUTPUTS: usize = 8192;
/// Together more than caches hold.
const READ_MATRICES: usize = 24;

/// Gigabytes of blocks a second that products with one row read, in turns with those of the first type. Q4_K has 3 %
/// more bytes in memory, where the scales of its groups are whole bytes.
pub fn report_reading(json: bool) -> Result<()> {
    let x = Tensor::randn(0f32, 1.0, (1, READ_INPUTS), &Device::Cpu)?;
    let rate = |layers: &[Linear], bytes: usize| -> Result<f64> {
        let start = Instant::now();
        for layer in layers {
            layer.forward(&x)?;
        }
        Ok((bytes * layers.len()) as f64 / start.elapsed().as_secs_f64() / 1e9)
    };
    let first = matrices_of(READ[0])?;
    for kind in READ {
        let layers = matrices_of(kind)?;
        let (mut of_first, mut found) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            of_first.push(rate(&first.0, first.1)?);
            found.push(rate(&layers.0, layers.1)?);
        }
        let (of_first, found) = (median(of_first), median(found));
        let (name, ratio) = (kind.name(), found / of_first);
        if json {
            println!("{{\"case\":\"read {name}\",\"gb_per_s\":{found:.2},\"ratio\":{ratio:.2}}}");
        } else {
            println!(
                "one row, {name:<10} {found:>8.1} GB/s  {ratio:>5.2} of {}",
                READ[0].name()
            );
        }
    }
    Ok(())
}

/// Layers of random blocks, and the bytes of one.
fn matrices_of(kind: BlockType) -> Result<(Vec<Linear>, usize)> {
    let blocks = random_matrix(kind, READ_OUTPUTS, READ_INPUTS);
    let place = (&Device::Cpu, DType::F32);
    let layers = (0..READ_MATRICES).map(|_| Linear::quantized(blocks.clone(), None, place));
    Ok((layers.collect::<Result<_>>()?, blocks.bytes.len()))
}

/// MiniLM's matrices, inputs and outputs, those of ResNet-50's and MobileNet's convolutions, and rows from a short text
/// to a large batch.
const F32_SHAPES: [(usize, usize); 16] = [
    (384, 384),
    (384, 1536),
    (1536, 384),
    (16, 96),
    (96, 24),
    (64, 64),
    (64, 256),
    (256, 64),
    (128, 128),
    (128, 512),
    (512, 128),
    (256, 1024),
    (1024, 256),
    (512, 2048),
    (2048, 512),
    (576, 64),
];
const F32_ROWS: [usize; 6] = [8, 32, 64, 256, 1024, 4096];

/// Turns of f32 itself and of its parts in tiles, where there are tiles and they are not turned off.
const TURNS: usize = 15;

/// Medians in microseconds of products of f32, by f32 itself and by tiles, which take turns.
fn report_f32(json: bool) -> Result<()> {
    let [.., without, tiles] = Isa::available() else {
        return Ok(());
    };
    if tiles.name() != "amx" || Isa::current()? != *tiles {
        return Ok(());
    }
    if std::env::var("CANDLE_F32").as_deref() == Ok("exact") {
        return Ok(());
    }
    for (inputs, outputs) in F32_SHAPES {
        let weight = Tensor::randn(0f32, 1.0, (outputs, inputs), &Device::Cpu)?;
        let exact = without.force(|| Linear::new(weight.clone(), None))?;
        let parts = Linear::new(weight, None)?;
        for (rows, outliers) in F32_ROWS.into_iter().flat_map(|rows| [(rows, 0), (rows, 2)]) {
            let x = rows_with_outliers(rows, inputs, outliers)?;
            let (mut of_exact, mut of_parts) = (Vec::new(), Vec::new());
            for _ in 0..TURNS {
                of_exact.push(without.force(|| turn(&exact, &x))?);
                of_parts.push(turn(&parts, &x)?);
            }
            let [of_exact, of_parts] = [of_exact, of_parts].map(median);
            let case = format!("f32 {inputs} to {outputs}, {rows} rows, {outliers} outliers each");
            if json {
                println!(
                    "{{\"case\":\"{case}\",\"exact_us\":{of_exact:.2},\"tiles_us\":{of_parts:.2}}}"
                )
            } else {
                println!(
                    "{case:<48} exact {of_exact:>9.1} tiles {of_parts:>9.1} {:>5.2} x",
                    of_exact / of_parts
                )
            }
        }
    }
    Ok(())
}

/// Rows whose first elements are a thousand times as large as the others.
fn rows_with_outliers(rows: usize, inputs: usize, outliers: usize) -> Result<Tensor> {
    let x = Tensor::randn(0f32, 1.0, (rows, inputs), &Device::Cpu)?;
    let large = x.narrow(1, 0, outliers)?.affine(1000.0, 0.0)?;
    let others = x.narrow(1, outliers, inputs - outliers)?;
    Ok(Tensor::cat(&[large, others], 1)?)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn layers() -> Result<Vec<(String, Linear)>> {
    let device = Device::Cpu;
    let weight = Tensor::randn(0f32, 1.0, (OUTPUTS, INPUTS), &device)?;
    let bias = Tensor::randn(0f32, 1.0, OUTPUTS, &device)?;
    let mut layers = Vec::new();
    for (name, dtype) in [
        ("f32", DType::F32),
        ("bf16", DType::BF16),
        ("f16", DType::F16),
    ] {
        let bias = bias.to_dtype(dtype)?;
        let layer = Linear::new(weight.to_dtype(dtype)?, Some(bias))?;
        layers.push((name.to_string(), layer));
    }
    let bytes = Linear::bytes(weight.clone(), Some(bias.clone()))?;
    layers.push(("int8".to_string(), bytes));
    for (dtype, kind) in BLOCKS {
        let blocks = QTensor::quantize(&weight, dtype)?;
        let quantized = QuantizedTensor {
            kind,
            shape: vec![OUTPUTS, INPUTS],
            bytes: Bytes::unpacked(blocks.data()?.into_owned()),
            order: None,
            fp8_rows: false,
        };
        let place = (&Device::Cpu, DType::F32);
        let layer = Linear::quantized(quantized, Some(bias.clone()), place)?;
        layers.push((kind.name().to_string(), layer));
    }
    Ok(layers)
}

fn measure(layer: &Linear, x: &Tensor) -> Result<f64> {
    let mut best = f64::MAX;
    for _ in 0..REPETITIONS {
        best = best.min(turn(layer, x)?);
    }
    Ok(best)
}

/// Microseconds of a product, over as many as fill a turn.
fn turn(layer: &Linear, x: &Tensor) -> Result<f64> {
    let (start, mut runs) = (Instant::now(), 0);
    while start.elapsed().as_secs_f64() < LEAST_SECONDS {
        layer.forward(x)?;
        runs += 1;
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(runs) * 1e6)
}
