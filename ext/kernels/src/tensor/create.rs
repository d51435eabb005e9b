//! Tensors from numbers, from bytes, and from chance.

use candle_core::{DType, Device, Tensor};

use super::dtype::{fitting, for_dtype};
use super::storage::fill;
use crate::{CancelToken, Error, Result};
use base::runtime::device::placed;
use base::runtime::memory::{ensure_available, ensure_elements, format_bytes};

/// Elements in row-major order, in the widest type of their kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    Integer(Vec<i64>),
    Float(Vec<f64>),
}

/// The number of elements of a shape, unless it exceeds the address space.
pub fn element_count(shape: &[usize]) -> Result<usize> {
    if shape.contains(&0) {
        return Ok(0);
    }
    shape
        .iter()
        .try_fold(1usize, |count, &size| count.checked_mul(size))
        .filter(|&count| isize::try_from(count).is_ok())
        .ok_or_else(|| {
            Error::OutOfMemory(format!(
                "a tensor of shape {shape:?} has more elements than memory has addresses"
            ))
        })
}

/// candle's kernels for GPUs count elements with 32 bits: beyond that a filling one never ends.
const MOST_ON_A_GPU: usize = u32::MAX as usize;

fn ensure_room(shape: &[usize], dtype: DType, device: &Device) -> Result<()> {
    let count = element_count(shape)?;
    if matches!(device, Device::Cpu) {
        let what = format_args!("a tensor of shape {shape:?}");
        return ensure_elements(shape, dtype.size_in_bytes(), what);
    }
    ensure_countable(count, shape)
}

fn ensure_countable(count: usize, shape: &[usize]) -> Result<()> {
    if count <= MOST_ON_A_GPU {
        return Ok(());
    }
    Err(Error::OutOfMemory(format!(
        "a tensor of shape {shape:?} has {count} elements; one on a GPU has at most {MOST_ON_A_GPU}. Split it"
    )))
}

pub fn from_numbers(
    numbers: &Numbers,
    shape: &[usize],
    dtype: DType,
    device: &Device,
) -> Result<Tensor> {
    ensure_room(shape, dtype, device)?;
    let wide = match numbers {
        Numbers::Integer(values) => {
            if dtype.is_int() {
                for (index, &value) in values.iter().enumerate() {
                    fitting(value, dtype, || format!(" (element {index})"))?;
                }
            }
            Tensor::from_slice(values, shape, &Device::Cpu)?
        }
        Numbers::Float(values) => Tensor::from_slice(values, shape, &Device::Cpu)?,
    };
    placed(&wide.to_dtype(dtype)?, device)
}

/// Elements from little-endian bytes in row-major order.
pub fn from_bytes(bytes: &[u8], shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let needed = element_count(shape)?.checked_mul(dtype.size_in_bytes());
    if needed != Some(bytes.len()) {
        return Err(Error::InvalidInput(format!(
            "a tensor of shape {shape:?} and dtype {} takes {} bytes, but the string has {}",
            dtype.as_str(),
            needed.map_or("too many".to_owned(), |bytes| bytes.to_string()),
            bytes.len()
        )));
    }
    ensure_available(
        bytes.len(),
        format_args!("{} of elements", format_bytes(bytes.len())),
    )?;
    for_dtype!(dtype, T => {
        let values: Vec<T> = bytes
            .chunks_exact(size_of::<T>())
            .filter_map(|chunk| chunk.try_into().ok().map(T::from_le_bytes))
            .collect();
        placed(&Tensor::from_vec(values, shape, &Device::Cpu)?, device)
    })
}

/// A tensor of zeros, or of ones.
pub fn filled(
    one: bool,
    shape: &[usize],
    dtype: DType,
    device: &Device,
    cancel: &CancelToken,
) -> Result<Tensor> {
    ensure_room(shape, dtype, device)?;
    if !one {
        return Ok(Tensor::zeros(shape, dtype, device)?);
    }
    if !matches!(device, Device::Cpu) {
        return Ok(Tensor::ones(shape, dtype, device)?);
    }
    for_dtype!(dtype, T => {
        let ones = fill::<T>(element_count(shape)?, cancel, |_, part| part.fill(num_traits::One::one()))?;
        Ok(Tensor::from_vec(ones, shape, device)?)
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Between 0 (included) and 1 (excluded).
    Uniform,
    /// Mean 0, standard deviation 1.
    Normal,
}

/// Random elements: the same for the same `seed`, whatever the number of threads.
pub fn random(
    distribution: Distribution,
    seed: u64,
    shape: &[usize],
    dtype: DType,
    device: &Device,
    cancel: &CancelToken,
) -> Result<Tensor> {
    let digits = match dtype {
        DType::F64 => 53,
        DType::F32 => 24,
        DType::F16 => 11,
        DType::BF16 => 8,
        other => {
            return Err(Error::InvalidInput(format!(
                "random tensors are of a float type, not {}: create one of :f32, then to_dtype",
                other.as_str()
            )))
        }
    };
    ensure_room(shape, dtype, device)?;
    let count = element_count(shape)?;
    let value = move |index: usize| match distribution {
        Distribution::Uniform => uniform(seed, index as u64, digits),
        Distribution::Normal => normal(seed, index as u64),
    };
    if dtype == DType::F64 {
        let values = fill::<f64>(count, cancel, |start, part| {
            for (offset, slot) in part.iter_mut().enumerate() {
                *slot = value(start + offset);
            }
        })?;
        return placed(&Tensor::from_vec(values, shape, &Device::Cpu)?, device);
    }
    let values = fill::<f32>(count, cancel, |start, part| {
        for (offset, slot) in part.iter_mut().enumerate() {
            *slot = value(start + offset) as f32;
        }
    })?;
    let values = Tensor::from_vec(values, shape, &Device::Cpu)?;
    placed(&values.to_dtype(dtype)?, device)
}

/// A number from the `index`-th step of a Weyl sequence, whose bits are then well mixed.
fn mixed(seed: u64, index: u64) -> u64 {
    let mut bits = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// With no more binary digits than the type has, since rounding up could reach 1.
fn uniform(seed: u64, index: u64, digits: u32) -> f64 {
    (mixed(seed, index) >> (64 - digits)) as f64 / (1u64 << digits) as f64
}

/// Box and Muller's transform.
fn normal(seed: u64, index: u64) -> f64 {
    let radius = 1.0 - uniform(seed, index.wrapping_mul(2), 53);
    let angle = uniform(seed, index.wrapping_mul(2).wrapping_add(1), 53);
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_on_a_gpu_have_as_many_elements_as_its_kernels_count() {
        assert!(ensure_countable(MOST_ON_A_GPU, &[MOST_ON_A_GPU]).is_ok());
        let error = ensure_countable(MOST_ON_A_GPU + 1, &[1 << 16, 1 << 16]).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory(message) if message.contains("[65536, 65536]")));
    }

    #[test]
    fn chance_has_the_promised_moments_and_repeats() {
        let make = |distribution, seed| {
            let cancel = CancelToken::new();
            let shape = [100_000];
            random(
                distribution,
                seed,
                &shape,
                DType::F32,
                &Device::Cpu,
                &cancel,
            )
            .unwrap()
            .to_vec1::<f32>()
            .unwrap()
        };
        for (distribution, mean, variance) in [
            (Distribution::Uniform, 0.5, 1.0 / 12.0),
            (Distribution::Normal, 0.0, 1.0),
        ] {
            let values = make(distribution, 7);
            let count = values.len() as f64;
            let average = values.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
            let spread = values
                .iter()
                .map(|&x| (f64::from(x) - average).powi(2))
                .sum::<f64>()
                / count;
            assert!((average - mean).abs() < 0.01, "{average}");
            assert!((spread - variance).abs() < 0.02, "{spread}");
            assert_eq!(values, make(distribution, 7));
            assert_ne!(values, make(distribution, 8));
        }
        assert!(make(Distribution::Uniform, 1)
            .iter()
            .all(|x| (0.0..1.0).contains(x)));
    }

    #[test]
    fn ones_of_every_type_and_an_end_to_making_them() {
        let make = |shape: &[usize], dtype, cancel: &CancelToken| {
            filled(true, shape, dtype, &Device::Cpu, cancel)
        };
        let types = [
            DType::U8,
            DType::I64,
            DType::BF16,
            DType::F16,
            DType::F32,
            DType::F64,
        ];
        for dtype in types {
            for shape in [&[][..], &[0, 3], &[3, 70_000]] {
                let ones = make(shape, dtype, &CancelToken::new()).unwrap();
                assert_eq!((ones.dims(), ones.dtype()), (shape, dtype));
                let sum = ones.to_dtype(DType::F64).unwrap().sum_all().unwrap();
                let count = shape.iter().product::<usize>() as f64;
                assert_eq!(sum.to_scalar::<f64>().unwrap(), count);
            }
        }
        let cancelled = CancelToken::new();
        cancelled.cancel();
        assert!(matches!(
            make(&[3, 70_000], DType::F32, &cancelled),
            Err(Error::Interrupted)
        ));
    }

    #[test]
    fn shapes_beyond_the_address_space_are_refused() {
        assert!(element_count(&[usize::MAX, 2]).is_err());
        assert_eq!(element_count(&[usize::MAX, 0]).unwrap(), 0);
        let error = filled(
            false,
            &[1 << 40],
            DType::F32,
            &Device::Cpu,
            &CancelToken::new(),
        )
        .unwrap_err();
        assert!(matches!(error, Error::OutOfMemory(_)));
    }
}
