//! Tensors as addresses on the device, results, and small constants that stay there.

use std::sync::{Arc, Mutex};

use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};
use candle_core::cuda_backend::{CudaStorageSlice, DeviceId};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Result, Shape, Storage, Tensor};
use half::{bf16, f16};

use super::recording;

/// What a kernel reads 16 bytes at a time must begin at a multiple of this.
pub const ALIGNMENT: u64 = 16;

/// How many constants are kept on the device.
const KEPT: usize = 16;

/// Where the tensor's first element lies. The tensor must outlive the launch that reads it; its memory
/// is freed in the order of the one stream that everything runs on.
pub fn address(tensor: &Tensor) -> Result<u64> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        candle_core::bail!("a kernel's tensors must all be on one device")
    };
    let start = (layout.start_offset() * tensor.dtype().size_in_bytes()) as u64;
    let address = start + base(storage)?;
    keep(tensor);
    Ok(address)
}

/// Lets what was there before a recording live as long as it.
pub(super) fn keep(tensor: &Tensor) {
    if recording::is_older(tensor) {
        recording::keep(|| Box::new(tensor.clone()));
    }
}

fn base(storage: &CudaStorage) -> Result<u64> {
    let stream = storage.device.cuda_stream();
    Ok(match &storage.slice {
        CudaStorageSlice::F32(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::F16(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::BF16(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::U32(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::U8(slice) => slice.device_ptr(&stream).0,
        _ => candle_core::bail!("kernels take f32, f16, bf16, u32 or u8 tensors"),
    })
}

/// The device to launch on: the tensor's, or that of a recording.
pub fn device_of(tensor: &Tensor) -> Result<CudaDevice> {
    match recording::device() {
        Some(device) => Ok(device),
        None => Ok(tensor.device().as_cuda_device()?.clone()),
    }
}

/// A tensor whose elements a kernel is about to write, all of them, and their address.
pub fn result(device: &CudaDevice, shape: impl Into<Shape>, dtype: DType) -> Result<(Tensor, u64)> {
    let shape = shape.into();
    let count = shape.elem_count();
    // SAFETY: the caller's kernel writes every element before anything reads them.
    let storage = unsafe {
        let own = device.clone();
        match dtype {
            DType::F32 => {
                CudaStorage::wrap_cuda_slice(recording::alloc::<f32>(device, count)?, own)
            }
            DType::F16 => {
                CudaStorage::wrap_cuda_slice(recording::alloc::<f16>(device, count)?, own)
            }
            DType::BF16 => {
                CudaStorage::wrap_cuda_slice(recording::alloc::<bf16>(device, count)?, own)
            }
            DType::U32 => {
                CudaStorage::wrap_cuda_slice(recording::alloc::<u32>(device, count)?, own)
            }
            DType::U8 => CudaStorage::wrap_cuda_slice(recording::alloc::<u8>(device, count)?, own),
            other => {
                candle_core::bail!("kernels make f32, f16, bf16, u32 or u8 tensors, not {other:?}")
            }
        }
    };
    let address = base(&storage)?;
    let storage = Storage::Cuda(storage);
    Ok((
        Tensor::from_storage(storage, shape, BackpropOp::none(), false),
        address,
    ))
}

/// Words that are on the device as long as this lives.
#[derive(Clone)]
pub struct Constant(Arc<CudaSlice<u32>>);

impl Constant {
    pub fn address(&self) -> u64 {
        self.0.device_ptr(self.0.stream()).0
    }
}

struct Kept {
    device: DeviceId,
    values: Vec<u32>,
    constant: Constant,
}

/// Copies values to the device, unless they are there already: every layer of a forward asks for the
/// same boundaries, slopes and buckets.
pub fn constant(device: &CudaDevice, values: &[u32]) -> Result<Constant> {
    static ALL: Mutex<Vec<Kept>> = Mutex::new(Vec::new());
    let mut all = ALL.lock().unwrap_or_else(|e| e.into_inner());
    let found = all
        .iter()
        .position(|kept| kept.device == device.id() && kept.values == values);
    if let Some(at) = found {
        let kept = all.remove(at);
        let constant = kept.constant.clone();
        all.push(kept);
        recording::keep(|| Box::new(constant.clone()));
        return Ok(constant);
    }
    let constant = Constant(Arc::new(device.clone_htod(values)?));
    if all.len() == KEPT {
        all.remove(0);
    }
    all.push(Kept {
        device: device.id(),
        values: values.to_vec(),
        constant: constant.clone(),
    });
    Ok(constant)
}
