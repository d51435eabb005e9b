//! Matrices as the units that copy tiles of them see them.

use std::ffi::c_void;
use std::ptr;

use candle_core::cuda_backend::cudarc::driver::{sys, DeviceRepr};
use candle_core::cuda_backend::WrapErr;
use candle_core::{DType, Result};

/// A row of a tile.
pub(super) const TILE_BYTES: usize = 128;
/// Numbers of 16 bits of it.
pub(super) const TILE_DEPTH: usize = TILE_BYTES / 2;

/// As `TensorMap` in the CUDA source.
#[repr(transparent)]
pub(super) struct TensorMap(sys::CUtensorMap);

// SAFETY: plain numbers, which the driver lays out for kernels.
unsafe impl DeviceRepr for TensorMap {}

impl TensorMap {
    /// Tiles of so many rows of a matrix [rows, columns] of f16, bf16 or bytes, whose rows lie `stride` numbers apart; beyond it
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
            DType::U8 => Element::CU_TENSOR_MAP_DATA_TYPE_UINT8,
            other => candle_core::bail!("tiles are of f16, bf16 or bytes, not {other:?}"),
        };
        let size = dtype.size_in_bytes();
        Self::encoded(
            address,
            element,
            [columns as u64, rows as u64],
            [(stride * size) as u64],
            [(TILE_BYTES / size) as u32, tile_rows as u32],
        )
    }

    /// Tiles of so many rows of bytes that lie in units of `unit` bytes, `used` of them; a row has so many units.
    pub fn of_units(
        address: u64,
        (rows, units): (usize, usize),
        (used, unit): (usize, usize),
        tile_rows: usize,
    ) -> Result<Self> {
        Self::encoded(
            address,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
            [used as u64, units as u64, rows as u64],
            [unit as u64, (units * unit) as u64],
            [TILE_BYTES as u32, 1, tile_rows as u32],
        )
    }

    fn encoded<const DIMENSIONS: usize, const STRIDES: usize>(
        address: u64,
        element: sys::CUtensorMapDataType,
        dims: [u64; DIMENSIONS],
        strides: [u64; STRIDES],
        tile: [u32; DIMENSIONS],
    ) -> Result<Self> {
        const { assert!(STRIDES + 1 == DIMENSIONS) };
        let steps = [1; DIMENSIONS];
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: the arrays have as many elements as the matrix has dimensions, strides one less, and live during the
        // call.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                ptr::from_mut(&mut map),
                element,
                DIMENSIONS as u32,
                address as *mut c_void,
                dims.as_ptr(),
                strides.as_ptr(),
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
