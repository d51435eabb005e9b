//! The memory of recordings: what their launches leave for each other.
//!
//! All recordings of a GPU have the same, since they are replayed on one stream, one after the other; within one, what a
//! tensor took is taken by the next after it, in the order of launches. It is not given back.

use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::sys::{
    self, CUmemAllocationType, CUmemLocationType, CUmemPoolProps, CUmemPool_attribute, CUmemoryPool,
};
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DeviceRepr};
use candle_core::cuda_backend::WrapErr;
use candle_core::{CudaDevice, Result};

#[derive(Clone)]
pub(super) struct Memory {
    pool: CUmemoryPool,
    /// Nothing runs on it: it orders what is taken and given back.
    stream: Arc<CudaStream>,
}

// SAFETY: a pool may be used from any thread.
unsafe impl Send for Memory {}

impl Memory {
    pub fn new(device: &CudaDevice) -> Result<Self> {
        let context = device.cuda_stream().context().clone();
        let stream = context.new_stream().w()?;
        // SAFETY: all numbers of it may be zero.
        let mut properties: CUmemPoolProps = unsafe { std::mem::zeroed() };
        properties.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        let place = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as i32;
        // SAFETY: a place is a kind and a number, whatever a version of CUDA names them.
        unsafe {
            (&raw mut properties.location)
                .cast::<[i32; 2]>()
                .write([place, context.cu_device()]);
        }
        let mut pool = std::ptr::null_mut();
        let mut most = u64::MAX;
        let kept = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the properties and the number live during the calls, and the attribute is a number of this size.
        unsafe {
            sys::cuMemPoolCreate(&mut pool, &properties).result().w()?;
            sys::cuMemPoolSetAttribute(pool, kept, (&raw mut most).cast())
                .result()
                .w()?;
        }
        Ok(Self { pool, stream })
    }

    /// # Safety
    ///
    /// Only launches of a recording use the memory, which must be written before it is read.
    pub unsafe fn alloc<T: DeviceRepr>(&self, count: usize) -> Result<CudaSlice<T>> {
        let (mut address, bytes) = (0, count * size_of::<T>());
        // SAFETY: there is room for the address; what it becomes gives the memory back to the same stream.
        unsafe {
            sys::cuMemAllocFromPoolAsync(&mut address, bytes, self.pool, self.stream.cu_stream())
                .result()
                .w()?;
            Ok(self.stream.upgrade_device_ptr(address, count))
        }
    }
}
