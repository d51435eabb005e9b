//! The names of what computes, for reports: a backend, and on the CPU an instruction set.

use candle_core::{DType, Device};

use super::cpu::isa::Isa;
use crate::Result;
use base::quant::BlockType;

/// What a product's matrix is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    Numbers(DType),
    /// Numbers of f32 that tiles multiply in parts, where there are any.
    Parts,
    /// Numbers that another part of the model holds, and that are read where they lie.
    Shared(DType),
    Bytes,
    Blocks(BlockType),
    /// Blocks that a GPU multiplies with rows rounded to FP8, too.
    WithFp8Rows(BlockType),
}

impl Stored {
    pub fn name(self) -> &'static str {
        match self {
            Self::Numbers(dtype) | Self::Shared(dtype) => dtype.as_str(),
            Self::Parts => DType::F32.as_str(),
            Self::Bytes => "int8",
            Self::Blocks(kind) => kind.name(),
            Self::WithFp8Rows(_) => "fp8 with rows in fp8",
        }
    }
}

/// What runs norms, activations, rotary positions and pooling, as in "cpu avx512" or "metal".
pub fn of_rows(device: &Device) -> Result<String> {
    named(device, |isa| isa.for_numbers())
}

/// What runs attention; from products and a softmax where a GPU has no kernel for heads so wide.
pub fn of_attention(device: &Device, dtype: DType, width: usize) -> Result<String> {
    let name = named(device, |isa| match dtype {
        DType::BF16 if isa.has_tiles() => isa.name(),
        _ => isa.for_numbers(),
    })?;
    if device.is_cpu() || super::attention::has_kernel(device, width) {
        Ok(name)
    } else {
        Ok(format!("{name} products"))
    }
}

/// What multiplies with a matrix of many rows, as in "cpu avx512vnni q4_k".
pub fn of_product(device: &Device, stored: Stored) -> Result<String> {
    let name = named(device, |isa| match stored {
        Stored::Numbers(DType::BF16) => isa.for_bf16(),
        // Groups are multiplied in f32.
        Stored::Blocks(kind) if kind.is_grouped() => isa.for_numbers(),
        Stored::Bytes | Stored::Blocks(_) | Stored::Parts if isa.has_tiles() => isa.name(),
        Stored::Numbers(_) | Stored::Shared(_) | Stored::Parts => isa.for_numbers(),
        Stored::Bytes | Stored::Blocks(_) => isa.for_bytes(),
        Stored::WithFp8Rows(_) => isa.for_numbers(),
    })?;
    Ok(format!("{name} {}", stored.name()))
}

/// The backend; on the CPU with the name that `level` picks.
pub fn named(device: &Device, level: impl Fn(Isa) -> &'static str) -> Result<String> {
    let kind = crate::Device::of(device).kind();
    if device.is_cpu() {
        Ok(format!("{kind} {}", level(Isa::current()?)))
    } else {
        Ok(kind.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instruction_set_is_the_one_that_the_numbers_need() {
        for &isa in Isa::available() {
            isa.force(|| {
                let cpu = Device::Cpu;
                let rows = of_rows(&cpu).unwrap();
                let product = |stored| of_product(&cpu, stored).unwrap();
                assert!(!rows.contains("vnni") && !rows.contains("amx"), "{rows}");
                let f32 = product(Stored::Numbers(DType::F32));
                assert_eq!(f32, format!("{rows} f32"));
                let parts = product(Stored::Parts);
                assert!(parts.ends_with(" f32"), "{parts}");
                assert_eq!(parts.contains("amx"), isa.has_tiles());
                let bf16 = product(Stored::Numbers(DType::BF16));
                assert_eq!(bf16.contains("amx"), isa.name() == "amx");
                let shared = product(Stored::Shared(DType::BF16));
                assert_eq!(shared, format!("{rows} bf16"));
                let q4 = product(Stored::Blocks(BlockType::Q4_1));
                assert!(q4.ends_with(" q4_1"), "{q4}");
                let bytes = product(Stored::Bytes);
                assert_eq!(q4.replace("q4_1", ""), bytes.replace("int8", ""));
                let attention = |dtype| of_attention(&cpu, dtype, 64).unwrap();
                assert_eq!(attention(DType::F32), rows);
                assert_eq!(attention(DType::BF16).contains("amx"), isa.has_tiles());
            });
        }
    }
}
