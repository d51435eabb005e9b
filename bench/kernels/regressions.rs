//! What candle-nn 0.11.1 gets wrong on the CPU, beside ours.

use candle_core::{DType, Device, Tensor};
use kernels::{self, reference, SoftmaxOptions};

const WIDTH: usize = 768;

pub fn report() -> engine::Result<()> {
    println!(
        "{:<44} {:>12} {:>12}",
        "largest error against f64", "candle-nn", "ours"
    );
    let wave = |mean: f32, deviation: f32| {
        move |i: usize| mean + deviation * std::f32::consts::SQRT_2 * (i as f32).sin()
    };
    layer_norm("layer_norm, constant row 3.3", DType::F32, |_| 3.3)?;
    layer_norm(
        "layer_norm, mean 1000, deviation 0.1",
        DType::F32,
        wave(1000.0, 0.1),
    )?;
    layer_norm(
        "layer_norm, mean 100, deviation 0.01",
        DType::F32,
        wave(100.0, 0.01),
    )?;
    layer_norm("layer_norm, constant row 3.3, f16", DType::F16, |_| 3.3)?;
    masked_attention()
}

fn layer_norm(name: &str, dtype: DType, value: impl Fn(usize) -> f32) -> engine::Result<()> {
    let values: Vec<f32> = (0..WIDTH).map(value).collect();
    let x = Tensor::from_vec(values, (1, WIDTH), &Device::Cpu)?.to_dtype(dtype)?;
    let weight = Tensor::ones(WIDTH, dtype, &Device::Cpu)?;
    let bias = weight.zeros_like()?;
    let epsilon = 1e-12;
    let want = reference::layer_norm(&read(&x)?, &[1.0; WIDTH], None, f64::from(epsilon));
    let theirs = candle_nn::ops::layer_norm(&x, &weight, &bias, epsilon)?;
    let ours = kernels::layer_norm(&x, &weight, Some(&bias), epsilon)?;
    println!(
        "{name:<44} {:>12.2e} {:>12.2e}",
        apart(&read(&theirs)?, &want),
        apart(&read(&ours)?, &want)
    );
    Ok(())
}

/// Two rows of f16 scores under an additive mask of f32::MIN, as BERT adds it; the second row is
/// masked whole.
fn masked_attention() -> engine::Result<()> {
    let device = &Device::Cpu;
    let scores = Tensor::new(&[[1f32, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]], device)?
        .to_dtype(DType::F16)?;
    let mask = Tensor::new(&[[0f32, 0.0, f32::MIN, f32::MIN], [f32::MIN; 4]], device)?;
    let share = 1.0 / (1.0 + 1f64.exp());
    let want = [share, 1.0 - share, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let theirs = candle_nn::ops::softmax_last_dim(&(&scores + mask.to_dtype(DType::F16)?)?)?;
    let options = SoftmaxOptions {
        additive: Some(&mask),
        ..SoftmaxOptions::default()
    };
    let ours = kernels::softmax_masked(&scores, &options)?;
    let name = "f16 softmax, additive mask of f32::MIN";
    println!(
        "{name:<44} {:>12.2e} {:>12.2e}",
        apart(&read(&theirs)?, &want),
        apart(&read(&ours)?, &want)
    );
    Ok(())
}

fn read(tensor: &Tensor) -> engine::Result<Vec<f64>> {
    Ok(tensor.flatten_all()?.to_dtype(DType::F64)?.to_vec1()?)
}

/// The largest difference; NaN where any is.
fn apart(got: &[f64], want: &[f64]) -> f64 {
    let differences = got.iter().zip(want).map(|(got, want)| (got - want).abs());
    differences.fold(0.0, |worst, difference| {
        if difference.is_nan() || worst.is_nan() {
            f64::NAN
        } else {
            worst.max(difference)
        }
    })
}
