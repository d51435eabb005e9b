use super::*;
use kernels::Isa;

#[test]
fn between_layers_that_widen_their_weights_passes_f32() {
    let between = |dtype| Linear::dtype_between(&Device::Cpu, dtype).unwrap();
    for &isa in Isa::available() {
        isa.force(|| {
            let keeps = ["avx512bf16", "amx", "bf16"].contains(&isa.name());
            assert_eq!(between(DType::BF16) == DType::BF16, keeps, "{}", isa.name());
            assert_eq!(between(DType::F16), DType::F32);
            assert_eq!(between(DType::F32), DType::F32);
        });
    }
}

#[test]
fn weights_of_16_bits_give_f32_for_f32() {
    let values: Vec<f32> = (0..6).map(|i| i as f32 / 8.0).collect();
    let tensor = |dtype| {
        let tensor = Tensor::from_slice(&values, (2, 3), &Device::Cpu).unwrap();
        tensor.to_dtype(dtype).unwrap()
    };
    let x = tensor(DType::F32).affine(1.0, 1.0 / 1024.0).unwrap();
    let exact = Linear::new(tensor(DType::F32), None).unwrap();
    let wanted: Vec<Vec<f32>> = exact.forward(&x).unwrap().to_vec2().unwrap();
    for dtype in [DType::BF16, DType::F16] {
        let layer = Linear::new(tensor(dtype), None).unwrap();
        let found: Vec<Vec<f32>> = layer.forward(&x).unwrap().to_vec2().unwrap();
        let apart = found.iter().flatten().zip(wanted.iter().flatten());
        assert!(
            apart.clone().all(|(a, b)| (a - b).abs() < 1e-6),
            "{found:?}"
        );
        assert_eq!(layer.forward(&tensor(dtype)).unwrap().dtype(), dtype);
    }
}
