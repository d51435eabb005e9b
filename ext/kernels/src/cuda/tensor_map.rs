//! Matrices as the units that copy tiles of them see them.

use std::ffi::c_void;
use std::ptr;

use candle_core::cuda_backend::cudarc::driver::{sys, DeviceRepr};
use candle_core::cuda_backend::WrapErr;
use candle_core::{DType, Result};

/// Numbers of a row of a tile: 128 bytes.
pub(super) const TILE_DEPTH: usize = 64;

/// As `TensorMap` in the CUDA source.
#[repr(transparent)]
pub(super) struct TensorMap(sys::CUtensorMap);

// SAFETY: plain numbers, which the driver lays out for kernels.
unsafe impl DeviceRepr for TensorMap {}

impl TensorMap {
    /// Tiles of so many rows of a matrix [rows, columns] of f16 or bf16, whose rows lie `stride` numbers apart; beyond it
    /// are zeros. The address and the distance between rows are multiples of 16 bytes.
    pub fn new(
        address: u64,
        dtype: DType,
        (rows, columns): (usize, usize),
        stride: usize,
        tile_rows: usize,
    ) -> Result<Self> {
        use sys::CUtensorMapDataType as Element;
        let element = match dtype {
            DType::F16 => Element::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            DType::BF16 => Element::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            other => candle_core::bail!("tiles are of f16 or bf16, not {other:?}"),
        };
        let dims = [columns as u64, rows as u64];
        let row_bytes = (stride * dtype.size_in_bytes()) as u64;
        let tile = [TILE_DEPTH as u32, tile_rows as u32];
        let steps = [1, 1];
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: the arrays have as many elements as the matrix has dimensions, and live during the call.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                ptr::from_mut(&mut map),
                element,
                dims.len() as u32,
                address as *mut c_void,
                dims.as_ptr(),
                ptr::from_ref(&row_bytes),
                tile.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .w()?;
        Ok(Self(map))
    }
}
