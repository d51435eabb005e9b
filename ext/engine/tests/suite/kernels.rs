//! Kernels against the f64 reference on every instruction set that this machine has, and the cases
//! that candle-nn 0.11.1 gets wrong.

use candle_core::{DType, Device, Tensor};
use kernels::{self, reference, selftest, Activation, Isa, SoftmaxOptions};

fn assert_all_pass(kernels: &[&str]) {
    for isa in Isa::for_rows().unwrap() {
        let outcomes = isa
            .force(|| selftest::run(&Device::Cpu, kernels, selftest::Extent::default()))
            .unwrap();
        assert!(!outcomes.is_empty());
        let failed: Vec<_> = outcomes.iter().filter(|o| !o.passed()).collect();
        assert!(failed.is_empty(), "{}: {failed:?}", isa.name());
    }
}

#[test]
fn norms_match_the_reference() {
    assert_all_pass(&["layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"]);
}

#[test]
fn softmax_matches_the_reference() {
    assert_all_pass(&["softmax", "softmax_masked"]);
}

#[test]
fn activations_match_the_reference() {
    assert_all_pass(&["activation", "gated", "pointwise", "clamped_glu"]);
}

#[test]
fn rope_and_pooling_match_the_reference() {
    assert_all_pass(&["rope", "mean_pool", "l2_normalize"]);
}

#[test]
fn the_largest_number_is_the_reference_s() {
    assert_all_pass(&["largest"]);
}

/// Where a row lies in memory is chance; what it gives must not be.
#[test]
fn a_row_gives_the_same_bits_wherever_it_lies() {
    let (width, most) = (300, 16);
    let values = |i: usize| (i as f32 * 0.7).sin();
    let weight = Tensor::ones(width, DType::F32, &Device::Cpu).unwrap();
    let zeros = Tensor::zeros((1, width), DType::F32, &Device::Cpu).unwrap();
    let at = |offset: usize| {
        let padded: Vec<f32> = (0..width + most)
            .map(|i| i.checked_sub(offset).map_or(0.0, values))
            .collect();
        let padded = Tensor::from_vec(padded, (1, width + most), &Device::Cpu).unwrap();
        let x = padded.narrow(1, offset, width).unwrap();
        [
            kernels::layer_norm(&x, &weight, None, 1e-5),
            kernels::rms_norm(&x, &weight, 1e-5),
            kernels::softmax(&x),
            kernels::l2_normalize(&x),
            kernels::add_layer_norm(x, &zeros, &weight, None, 1e-5).map(|(_, normed)| normed),
        ]
        .map(|y| y.unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap())
    };
    for isa in Isa::for_rows().unwrap() {
        isa.force(|| {
            let expected = at(0);
            for offset in 1..most {
                assert_eq!(at(offset), expected, "{} at {offset}", isa.name());
            }
        });
    }
}

/// The columns 1 to 4 of six, as the whole is left by a sum over them.
#[test]
fn a_sum_is_written_over_its_own_rows_alone() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let whole = Tensor::arange(0f32, 18.0, &Device::Cpu).unwrap();
        let whole = whole.reshape((3, 6)).unwrap().to_dtype(dtype).unwrap();
        let ones = Tensor::ones((3, 4), dtype, &Device::Cpu).unwrap();
        let weight = Tensor::ones(4, dtype, &Device::Cpu).unwrap();
        let x = whole.narrow(1, 1, 4).unwrap();
        let (sum, _) = kernels::add_rms_norm(x, &ones, &weight, 1e-5, 0.0).unwrap();
        let read = |t: &Tensor| t.to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap();
        let raised = |row: f32| {
            [0.0, 2.0, 3.0, 4.0, 5.0, 5.0]
                .map(|v| 6.0 * row + v)
                .to_vec()
        };
        assert_eq!(read(&whole), [raised(0.0), raised(1.0), raised(2.0)]);
        assert_eq!(
            read(&sum),
            [0.0, 1.0, 2.0].map(|row| raised(row)[1..5].to_vec())
        );
    }
}

#[test]
fn a_repeated_row_is_copied_before_a_sum_is_written_over_it() {
    let row = Tensor::new(&[[1f32, 2.0, 3.0]], &Device::Cpu).unwrap();
    let addend = Tensor::new(&[[0f32, 0.0, 0.0], [1.0, 1.0, 1.0]], &Device::Cpu).unwrap();
    let weight = Tensor::ones(3, DType::F32, &Device::Cpu).unwrap();
    let repeated = row.broadcast_as((2, 3)).unwrap();
    let (sum, _) = kernels::add_layer_norm(repeated, &addend, &weight, None, 1e-5).unwrap();
    let expected = [[1f32, 2.0, 3.0], [2.0, 3.0, 4.0]].map(|row| row.to_vec());
    assert_eq!(sum.to_vec2::<f32>().unwrap(), expected);
    assert_eq!(row.to_vec2::<f32>().unwrap(), [[1f32, 2.0, 3.0]]);
}

#[test]
fn a_tensor_is_not_added_to_itself_in_place() {
    let x = Tensor::ones((2, 3), DType::F32, &Device::Cpu).unwrap();
    let weight = Tensor::ones(3, DType::F32, &Device::Cpu).unwrap();
    let failed = kernels::add_rms_norm(x.clone(), &x, &weight, 1e-5, 0.0);
    assert!(failed.unwrap_err().to_string().contains("shares storage"));
}

fn row(values: impl Fn(usize) -> f32) -> Tensor {
    let values: Vec<f32> = (0..768).map(values).collect();
    Tensor::from_vec(values, (1, 768), &Device::Cpu).unwrap()
}

/// Ours within 1e-4 of the reference, and candle-nn's largest error, NaN included.
fn layer_norm_against_candle(x: &Tensor) -> f64 {
    let ones = Tensor::ones(768, DType::F32, &Device::Cpu).unwrap();
    let zeros = ones.zeros_like().unwrap();
    let read = |t: &Tensor| -> Vec<f64> {
        let flat = t.flatten_all().unwrap().to_dtype(DType::F64).unwrap();
        flat.to_vec1().unwrap()
    };
    let want = reference::layer_norm(&read(x), &[1.0; 768], None, 1e-12f32 as f64);
    let ours = kernels::layer_norm(x, &ones, Some(&zeros), 1e-12).unwrap();
    for (got, want) in read(&ours).iter().zip(&want) {
        assert!((got - want).abs() < 1e-4, "{got} instead of {want}");
    }
    let theirs = candle_nn::ops::layer_norm(x, &ones, &zeros, 1e-12).unwrap();
    let errors = read(&theirs)
        .into_iter()
        .zip(want)
        .map(|(g, w)| (g - w).abs());
    errors.fold(0.0, |worst: f64, error| {
        if error.is_nan() || worst.is_nan() {
            f64::NAN
        } else {
            worst.max(error)
        }
    })
}

#[test]
fn a_constant_row_normalizes_to_zero() {
    assert!(layer_norm_against_candle(&row(|_| 3.3)).is_nan());
}

#[test]
fn mean_1000_and_deviation_a_tenth_is_no_nan() {
    let error = layer_norm_against_candle(&row(|i| 1000.0 + 0.1 * (i as f32).sin() * 1.414));
    assert!(error.is_nan() || error > 0.1, "{error}");
}

#[test]
fn mean_100_and_deviation_a_hundredth_is_right() {
    let error = layer_norm_against_candle(&row(|i| 100.0 + 0.01 * (i as f32).sin() * 1.414));
    assert!(error.is_nan() || error > 0.1, "{error}");
}

#[test]
fn half_statistics_are_taken_in_f32() {
    for dtype in [DType::F16, DType::BF16] {
        let x = row(|_| 3.3).to_dtype(dtype).unwrap();
        let ones = Tensor::ones(768, dtype, &Device::Cpu).unwrap();
        let normed = kernels::layer_norm(&x, &ones, None, 1e-12).unwrap();
        let values: Vec<f32> = normed
            .flatten_all()
            .unwrap()
            .to_dtype(DType::F32)
            .unwrap()
            .to_vec1()
            .unwrap();
        assert!(values.iter().all(|&v| v == 0.0));
    }
}

#[test]
fn a_mask_of_the_lowest_number_is_no_nan_in_f16() {
    let scores = Tensor::new(
        &[[60000f32, -60000.0, 1.0, 2.0], [1.0, 2.0, 3.0, 4.0]],
        &Device::Cpu,
    )
    .unwrap()
    .to_dtype(DType::F16)
    .unwrap();
    let mask = Tensor::new(
        &[[f32::MIN, f32::MIN, 0.0, 0.0], [f32::MIN; 4]],
        &Device::Cpu,
    )
    .unwrap();
    let options = SoftmaxOptions {
        additive: Some(&mask),
        ..SoftmaxOptions::default()
    };
    let probabilities = kernels::softmax_masked(&scores, &options).unwrap();
    let probabilities: Vec<Vec<f32>> = probabilities
        .to_dtype(DType::F32)
        .unwrap()
        .to_vec2()
        .unwrap();
    let probability = 1.0 / (1.0 + 1f32.exp());
    for (got, want) in probabilities[0]
        .iter()
        .zip([0.0, 0.0, probability, 1.0 - probability])
    {
        assert!((got - want).abs() < 1e-3);
    }
    assert_eq!(probabilities[1], [0.0; 4]);
}

#[test]
fn masks_broadcast_and_hide_even_nan() {
    let scores = Tensor::new(&[[[f32::NAN, 1.0], [f32::INFINITY, 1.0]]], &Device::Cpu).unwrap();
    let keep = Tensor::new(&[[0u8, 1]], &Device::Cpu).unwrap();
    let options = SoftmaxOptions {
        keep: Some(&keep),
        ..SoftmaxOptions::default()
    };
    let probabilities = kernels::softmax_masked(&scores, &options).unwrap();
    let probabilities: Vec<f32> = probabilities.flatten_all().unwrap().to_vec1().unwrap();
    assert_eq!(probabilities, [0.0, 1.0, 0.0, 1.0]);
}

#[test]
fn wrong_shapes_and_types_are_told() {
    let x = Tensor::zeros((2, 5), DType::F32, &Device::Cpu).unwrap();
    let weight = Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap();
    let message = kernels::layer_norm(&x, &weight, None, 1e-5)
        .unwrap_err()
        .to_string();
    assert!(message.contains("[4]") && message.contains("[2, 5]"));
    let integers = Tensor::zeros((2, 5), DType::U32, &Device::Cpu).unwrap();
    let message = kernels::activate(&integers, Activation::Gelu)
        .unwrap_err()
        .to_string();
    assert!(message.contains("u32"), "{message}");
    let y = Tensor::zeros((2, 6), DType::F32, &Device::Cpu).unwrap();
    let message = kernels::gated(&x, &y, Activation::Silu)
        .unwrap_err()
        .to_string();
    assert!(message.contains("[2, 5]") && message.contains("[2, 6]"));
    let table = Tensor::zeros((3, 2), DType::F32, &Device::Cpu).unwrap();
    let heads = Tensor::zeros((1, 1, 4), DType::F32, &Device::Cpu).unwrap();
    let beyond = Tensor::new(&[3u32], &Device::Cpu).unwrap();
    let message = kernels::rope(&heads, &table, &table, &beyond, kernels::RopeKind::Half, 4)
        .unwrap_err()
        .to_string();
    assert!(message.contains("position 3"), "{message}");
    assert!(kernels::mean_pool(&x, &[0, 3]).is_err());
    assert!(kernels::mean_pool(&x, &[1, 0]).is_err());
}

#[test]
fn kernels_work_outside_and_inside_the_pool() {
    let x = Tensor::rand(-1f32, 1.0, (2000, 100), &Device::Cpu).unwrap();
    let outside = kernels::softmax(&x).unwrap();
    let inside = base::runtime::threads::install(|| kernels::softmax(&x).unwrap()).unwrap();
    let values = |t: Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(values(outside), values(inside));
}
