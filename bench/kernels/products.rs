//! Products with every type of weights, at the numbers of rows that matter: one and a few, which read
//! the weights, and many, which multiply.

use std::time::Instant;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use engine::nn::Linear;
use engine::quant::{BlockType, QuantizedTensor};
use engine::runtime::bytes::Bytes;
use engine::Result;

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
    Ok(())
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
        let (start, mut runs) = (Instant::now(), 0);
        while start.elapsed().as_secs_f64() < LEAST_SECONDS {
            layer.forward(x)?;
            runs += 1;
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(runs));
    }
    Ok(best * 1e6)
}
