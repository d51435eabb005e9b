//! What a launch binds: tensors on the device, outputs being written, and the grid.

use std::ops::Deref;
use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::{bail, DType, Layout, MetalDevice, MetalStorage, Result, Storage, Tensor};
use candle_metal_kernels::metal::{
    Buffer, ComputeCommandEncoder, ComputePipeline, MetalDeviceType,
};
use objc2_metal::MTLSize;

use super::plan::{self, Gpu};
use crate::rows::Rows;

/// A large input of an op.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    pub storage: &'a MetalStorage,
    pub layout: &'a Layout,
}

impl Input<'_> {
    pub fn dtype(&self) -> DType {
        self.storage.dtype()
    }

    pub fn rows(&self, kernel: &str) -> Result<Rows> {
        plan::rows_of(kernel, self.layout)
    }

    pub fn bind(&self, encoder: &ComputeCommandEncoder, index: usize) {
        encoder.set_input_buffer(index, Some(self.storage.buffer()), self.offset());
    }

    /// Binds what the kernel reads and writes over.
    pub fn bind_for_writing(&self, encoder: &ComputeCommandEncoder, index: usize) {
        encoder.set_output_buffer(index, Some(self.storage.buffer()), self.offset());
    }

    /// Of the first element, in bytes.
    fn offset(&self) -> usize {
        self.layout.start_offset() * self.dtype().size_in_bytes()
    }
}

/// A small tensor an op owns, locked for reading while its launch is encoded.
pub struct Held<'a, Guard> {
    storage: Guard,
    layout: &'a Layout,
}

pub fn hold(tensor: &Tensor) -> Held<'_, impl Deref<Target = Storage> + '_> {
    let (storage, layout) = tensor.storage_and_layout();
    Held { storage, layout }
}

impl<Guard: Deref<Target = Storage>> Held<'_, Guard> {
    pub fn input(&self) -> Result<Input<'_>> {
        match &*self.storage {
            Storage::Metal(storage) => Ok(Input {
                storage,
                layout: self.layout,
            }),
            _ => bail!("a kernel's tensors must all be on one device"),
        }
    }
}

/// An output being written, and the storage it becomes.
pub struct Output<'a> {
    device: &'a MetalDevice,
    buffer: Arc<Buffer>,
    count: usize,
    dtype: DType,
}

impl<'a> Output<'a> {
    pub fn new(device: &'a MetalDevice, count: usize, dtype: DType) -> Result<Self> {
        let buffer = device
            .new_buffer_builder()
            .with_size_for(count, dtype)
            .build()?;
        Ok(Output {
            device,
            buffer,
            count,
            dtype,
        })
    }

    pub fn bind(&self, encoder: &ComputeCommandEncoder, index: usize) {
        encoder.set_output_buffer(index, Some(&self.buffer), 0);
    }

    /// From an element on.
    pub fn bind_at(&self, encoder: &ComputeCommandEncoder, index: usize, element: usize) {
        let offset = element * self.dtype.size_in_bytes();
        encoder.set_output_buffer(index, Some(&self.buffer), offset);
    }

    /// Binds what an earlier launch wrote.
    pub fn bind_for_reading(&self, encoder: &ComputeCommandEncoder, index: usize) {
        encoder.set_input_buffer(index, Some(&self.buffer), 0);
    }

    pub fn into_storage(self) -> MetalStorage {
        MetalStorage::new(self.buffer, self.device.clone(), self.count, self.dtype)
    }
}

/// As its architecture's name tells.
pub fn gpu(device: &MetalDevice) -> Gpu {
    match device.metal_device().device_type() {
        MetalDeviceType::Phone => Gpu::Phone,
        MetalDeviceType::BasePro | MetalDeviceType::Medium => Gpu::Base,
        MetalDeviceType::Max => Gpu::Max,
        MetalDeviceType::Ultra => Gpu::Ultra,
    }
}

pub struct Grid {
    pub groups: (usize, usize),
    pub lanes: usize,
}

impl Grid {
    /// A threadgroup per row.
    pub fn of_rows(rows: &Rows, pipeline: &ComputePipeline) -> Grid {
        let maximum = pipeline.max_total_threads_per_threadgroup();
        Grid {
            groups: (rows.count, 1),
            lanes: plan::row_lanes(rows.width, maximum),
        }
    }

    pub fn elementwise(lanes_per_row: usize, rows: usize, pipeline: &ComputePipeline) -> Grid {
        let maximum = pipeline.max_total_threads_per_threadgroup();
        let lanes = plan::elementwise_lanes(lanes_per_row, maximum);
        Grid {
            groups: (lanes_per_row.div_ceil(lanes), rows),
            lanes,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.groups.0 == 0 || self.groups.1 == 0
    }
}

/// Encodes one dispatch. The encoder holds the device's command lock: `bind` must not allocate.
pub fn dispatch(
    device: &MetalDevice,
    pipeline: &ComputePipeline,
    grid: Grid,
    bind: impl FnOnce(&ComputeCommandEncoder),
) -> Result<()> {
    if grid.is_empty() {
        return Ok(());
    }
    let guard = device.command_encoder()?;
    let encoder: &ComputeCommandEncoder = guard.as_ref();
    encoder.set_compute_pipeline_state(pipeline);
    bind(encoder);
    encoder.dispatch_thread_groups(
        MTLSize {
            width: grid.groups.0,
            height: grid.groups.1,
            depth: 1,
        },
        MTLSize {
            width: grid.lanes,
            height: 1,
            depth: 1,
        },
    );
    Ok(())
}
