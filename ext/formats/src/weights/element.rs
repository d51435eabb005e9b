//! The element types of dense tensors in files, and their way into tensors.

use candle_core::{DType, Device, Tensor, WithDType};
use half::{bf16, f16};
use rayon::prelude::*;

use crate::Result;
use base::runtime::{memory, threads};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    F64,
    F32,
    F16,
    Bf16,
    F8E4M3,
    F8E5M2,
    F8E8M0,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
}

/// From this many bytes on, converting is shared between threads.
const PARALLEL_BYTES: usize = 1 << 20;

impl Element {
    pub fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F8E4M3 | Self::F8E5M2 | Self::F8E8M0 => 1,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F8E4M3 => "f8_e4m3",
            Self::F8E5M2 => "f8_e5m2",
            Self::F8E8M0 => "f8_e8m0",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::I16 => "i16",
            Self::I8 => "i8",
            Self::U64 => "u64",
            Self::U32 => "u32",
            Self::U16 => "u16",
            Self::U8 => "u8",
            Self::Bool => "bool",
        }
    }

    /// The tensor type that holds every value: types without a tensor type are widened.
    pub fn dtype(self) -> DType {
        match self {
            Self::F64 => DType::F64,
            Self::F32 | Self::F8E4M3 | Self::F8E5M2 | Self::F8E8M0 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
            Self::I64 | Self::U64 => DType::I64,
            Self::I32 => DType::I32,
            Self::I16 | Self::I8 => DType::I16,
            Self::U32 | Self::U16 => DType::U32,
            Self::U8 | Self::Bool => DType::U8,
        }
    }

    fn is_float(self) -> bool {
        self.dtype().is_float()
    }
}

/// A CPU tensor from little-endian bytes, in `dtype` or else the type nearest to the file's.
/// `bytes` must hold exactly the elements of `shape`.
pub fn tensor(
    element: Element,
    bytes: &[u8],
    shape: &[usize],
    dtype: Option<DType>,
) -> Result<Tensor> {
    let natural = element.dtype();
    let dtype = dtype.unwrap_or(natural);
    memory::ensure_elements(shape, dtype.size_in_bytes(), "a tensor of the model")?;
    if element.is_float() && dtype != natural {
        match dtype {
            DType::F32 => return finish(floats(element, bytes, |x| x)?, shape),
            DType::F16 => return finish(floats(element, bytes, f16::from_f32)?, shape),
            DType::BF16 => return finish(floats(element, bytes, bf16::from_f32)?, shape),
            _ => {}
        }
    }
    let tensor = match element {
        Element::F64 => finish(collect(bytes, f64::from_le_bytes)?, shape),
        Element::F32 => finish(collect(bytes, f32::from_le_bytes)?, shape),
        Element::F16 => finish(collect(bytes, f16::from_le_bytes)?, shape),
        Element::Bf16 => finish(collect(bytes, bf16::from_le_bytes)?, shape),
        Element::F8E4M3 | Element::F8E5M2 | Element::F8E8M0 => {
            finish(floats(element, bytes, |x| x)?, shape)
        }
        Element::I64 => finish(collect(bytes, i64::from_le_bytes)?, shape),
        Element::U64 => finish(collect(bytes, saturated)?, shape),
        Element::I32 => finish(collect(bytes, i32::from_le_bytes)?, shape),
        Element::I16 => finish(collect(bytes, i16::from_le_bytes)?, shape),
        Element::I8 => finish(collect(bytes, |b| i16::from(i8::from_le_bytes(b)))?, shape),
        Element::U32 => finish(collect(bytes, u32::from_le_bytes)?, shape),
        Element::U16 => finish(collect(bytes, |b| u32::from(u16::from_le_bytes(b)))?, shape),
        Element::U8 => finish(bytes.to_vec(), shape),
        Element::Bool => finish(collect(bytes, |[b]| u8::from(b != 0))?, shape),
    }?;
    Ok(tensor.to_dtype(dtype)?)
}

/// The values of a float type, each passed through `convert`; none for other types.
fn floats<T: Send>(
    element: Element,
    bytes: &[u8],
    convert: impl Fn(f32) -> T + Sync + Send,
) -> Result<Vec<T>> {
    match element {
        Element::F64 => collect(bytes, |b| convert(f64::from_le_bytes(b) as f32)),
        Element::F32 => collect(bytes, |b| convert(f32::from_le_bytes(b))),
        Element::F16 => collect(bytes, |b| convert(f16::from_le_bytes(b).to_f32())),
        Element::Bf16 => collect(bytes, |b| convert(bf16::from_le_bytes(b).to_f32())),
        Element::F8E4M3 => collect(bytes, |[b]| convert(f8_e4m3(b))),
        Element::F8E5M2 | Element::F8E8M0 => {
            let levels = eight_bit_levels(element);
            collect(bytes, |[b]| convert(levels[usize::from(b)]))
        }
        _ => Ok(Vec::new()),
    }
}

fn collect<const N: usize, T: Send>(
    bytes: &[u8],
    convert: impl Fn([u8; N]) -> T + Sync + Send,
) -> Result<Vec<T>> {
    let element = |chunk: &[u8]| {
        let mut array = [0; N];
        array.copy_from_slice(chunk);
        convert(array)
    };
    if bytes.len() < PARALLEL_BYTES {
        return Ok(bytes.chunks_exact(N).map(element).collect());
    }
    threads::install(|| {
        bytes
            .par_chunks_exact(N)
            .with_min_len(1 << 16)
            .map(element)
            .collect()
    })
}

fn finish<T: WithDType>(values: Vec<T>, shape: &[usize]) -> Result<Tensor> {
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}

/// Tensors have no u64; an id beyond i64 can't index anything either.
fn saturated(bytes: [u8; 8]) -> i64 {
    i64::try_from(u64::from_le_bytes(bytes)).unwrap_or(i64::MAX)
}

/// What the 256 codes of a type of eight bits stand for; zeros for other types.
pub fn eight_bit_levels(element: Element) -> [f32; 256] {
    std::array::from_fn(|code| {
        let code = code as u8;
        match element {
            Element::F8E4M3 => f8_e4m3(code),
            Element::F8E5M2 => f16::from_le_bytes([0, code]).to_f32(),
            Element::F8E8M0 => power_of_two(code),
            _ => 0.0,
        }
    })
}

/// What a byte of the type E8M0 stands for: an exponent, and NaN for the last.
pub fn power_of_two(byte: u8) -> f32 {
    match byte {
        255 => f32::NAN,
        _ => 2f32.powi(i32::from(byte) - 127),
    }
}

/// The "fn" flavour: no infinities, and only the all-ones pattern is NaN.
fn f8_e4m3(byte: u8) -> f32 {
    let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from(byte >> 3 & 0x0f);
    let mantissa = f32::from(byte & 0x07);
    match (exponent, byte & 0x07) {
        (0x0f, 0x07) => f32::NAN,
        (0, _) => sign * mantissa * 2f32.powi(-9),
        _ => sign * (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_have_their_published_extremes() {
        assert_eq!(f8_e4m3(0x7e), 448.0);
        assert_eq!(f8_e4m3(0x01), 2f32.powi(-9));
        assert_eq!(f8_e4m3(0xb8), -1.0);
        assert!(f8_e4m3(0x7f).is_nan());
        let largest = floats(Element::F8E5M2, &[0x7b], |x| x).unwrap();
        assert_eq!(largest, [57344.0]);
    }

    #[test]
    fn small_and_large_conversions_agree() {
        let halves: Vec<u8> = (0..1_000_000u32)
            .flat_map(|i| bf16::from_f32((i % 977) as f32).to_le_bytes())
            .collect();
        let widened = |bytes: &[u8]| floats(Element::Bf16, bytes, |x| x).unwrap();
        let all = widened(&halves);
        assert_eq!(all.len(), 1_000_000);
        assert_eq!(&all[..977], widened(&halves[..1954]));
        assert_eq!(
            all[999_999],
            bf16::from_f32((999_999 % 977) as f32).to_f32()
        );
    }

    #[test]
    fn types_that_tensors_lack_are_widened() {
        let bytes = tensor(Element::I8, &[0xff, 0x7f], &[2], None).unwrap();
        assert_eq!(bytes.to_vec1::<i16>().unwrap(), [-1, 127]);
        let flags = tensor(Element::Bool, &[0, 3], &[2], None).unwrap();
        assert_eq!(flags.to_vec1::<u8>().unwrap(), [0, 1]);
        let ids = tensor(Element::I64, &7i64.to_le_bytes(), &[], Some(DType::U32)).unwrap();
        assert_eq!(ids.to_scalar::<u32>().unwrap(), 7);
    }
}
