//! Matrix products by cuBLASLt, with bias and residual added before the one rounding.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use candle_core::cuda_backend::cudarc::cublaslt::{result as lt, sys};
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};
use candle_core::cuda_backend::{DeviceId, WrapErr};
use candle_core::{CudaDevice, DType, Result, Tensor};

use super::device::{address, device_of, result, ALIGNMENT};
use crate::matrix::Matrix;

/// What NVIDIA recommends for Hopper; older GPUs need less.
const WORKSPACE_BYTES: usize = 32 << 20;

/// Shapes whose algorithm is remembered.
const MOST_SHAPES: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    dtype: DType,
    rows: usize,
    inputs: usize,
    outputs: usize,
    biased: bool,
    residual: bool,
}

struct Blas {
    handle: sys::cublasLtHandle_t,
    workspace: CudaSlice<u8>,
    /// `None` where the library has no algorithm.
    algorithms: Mutex<HashMap<Shape, Option<sys::cublasLtMatmulAlgo_t>>>,
}

// SAFETY: the library's handle may be used from any thread; the workspace is used in stream order.
unsafe impl Send for Blas {}
// SAFETY: as for `Send`; the map of algorithms has a lock of its own.
unsafe impl Sync for Blas {}

/// x · weightᵀ + bias + residual, or `None` where layouts ask for another way. `x` is [rows, in].
pub fn multiply(
    x: &Tensor,
    matrix: &Matrix<'_>,
    residual: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let (rows, inputs) = x.dims2()?;
    let outputs = matrix.weight.dim(0)?;
    let tensors = [Some(matrix.weight), matrix.bias, residual, Some(x)];
    let sound = |tensor: &Tensor| tensor.is_contiguous() && tensor.dtype() == x.dtype();
    if rows == 0 || inputs == 0 || outputs == 0 || !tensors.into_iter().flatten().all(sound) {
        return Ok(None);
    }
    let find = |tensor: Option<&Tensor>| tensor.map(address).transpose();
    let (weight, from) = (address(matrix.weight)?, address(x)?);
    let (bias, added) = (find(matrix.bias)?, find(residual)?);
    // Rows of a width that is not a multiple of the alignment are refused by the same token.
    let row_bytes = |width: usize| (width * x.dtype().size_in_bytes()) as u64;
    let numbers = [weight, from, added.unwrap_or(0), bias.unwrap_or(0)];
    let widths = [row_bytes(inputs), row_bytes(outputs)];
    if numbers.iter().chain(&widths).any(|at| at % ALIGNMENT != 0) {
        return Ok(None);
    }
    let device = device_of(x)?;
    // The library works on the thread's current device, which may be another GPU.
    device.cuda_stream().context().bind_to_thread().w()?;
    let blas = blas(&device)?;
    let shape = Shape {
        dtype: x.dtype(),
        rows,
        inputs,
        outputs,
        biased: bias.is_some(),
        residual: added.is_some(),
    };
    let operation = Operation::new(&shape, bias)?;
    let Some(algorithm) = blas.algorithm(&shape, &operation)? else {
        return Ok(None);
    };
    let (out, to) = result(&device, (rows, outputs), x.dtype())?;
    let stream = device.cuda_stream();
    let scales: [f32; 2] = [1.0, if added.is_some() { 1.0 } else { 0.0 }];
    // SAFETY: the addresses are of tensors of the shapes that the layouts say, on this device.
    unsafe {
        lt::matmul(
            blas.handle,
            operation.product,
            (&scales[0] as *const f32).cast(),
            (&scales[1] as *const f32).cast(),
            weight as *const c_void,
            operation.weight,
            from as *const c_void,
            operation.x,
            added.unwrap_or(to) as *const c_void,
            operation.out,
            to as *mut c_void,
            operation.out,
            &algorithm,
            blas.workspace.device_ptr(&stream).0 as *mut c_void,
            WORKSPACE_BYTES,
            stream.cu_stream().cast(),
        )
    }
    .map_err(failed)?;
    Ok(Some(out))
}

fn failed(error: lt::CublasError) -> candle_core::Error {
    candle_core::Error::Cuda(format!("cuBLASLt: {error:?}").into())
}

/// One per device and process.
fn blas(device: &CudaDevice) -> Result<Arc<Blas>> {
    static ALL: Mutex<Option<HashMap<DeviceId, Arc<Blas>>>> = Mutex::new(None);
    let mut guard = ALL.lock().unwrap_or_else(|e| e.into_inner());
    let all = guard.get_or_insert_default();
    if let Some(blas) = all.get(&device.id()) {
        return Ok(blas.clone());
    }
    let blas = Arc::new(Blas {
        handle: lt::create_handle().map_err(failed)?,
        // SAFETY: the workspace is uninitialized memory of the device; cuBLASLt writes to it before it reads.
        workspace: unsafe { device.alloc::<u8>(WORKSPACE_BYTES)? },
        algorithms: Mutex::new(HashMap::new()),
    });
    all.insert(device.id(), blas.clone());
    Ok(blas)
}

impl Blas {
    /// The library's choice, asked for once per shape.
    fn algorithm(
        &self,
        shape: &Shape,
        operation: &Operation,
    ) -> Result<Option<sys::cublasLtMatmulAlgo_t>> {
        let mut known = self.algorithms.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(algorithm) = known.get(shape) {
            return Ok(*algorithm);
        }
        let preference = Preference::new()?;
        // SAFETY: the handle lives as long as `self`, the descriptors of `operation` and `preference` until the
        // call returns.
        let chosen = unsafe {
            lt::get_matmul_algo_heuristic(
                self.handle,
                operation.product,
                operation.weight,
                operation.x,
                operation.out,
                operation.out,
                preference.0,
            )
        };
        let algorithm = chosen.ok().map(|chosen| chosen.algo);
        if known.len() >= MOST_SHAPES {
            known.clear();
        }
        known.insert(*shape, algorithm);
        Ok(algorithm)
    }
}

struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new() -> Result<Self> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let preference = Self(lt::create_matmul_pref().map_err(failed)?);
        let set = |attribute, value: *const c_void, size| {
            // SAFETY: the value lives during the call and has the size.
            unsafe { lt::set_matmul_pref_attribute(preference.0, attribute, value, size) }
                .map_err(failed)
        };
        let bytes = WORKSPACE_BYTES as u64;
        set(
            Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            (&bytes as *const u64).cast(),
            size_of::<u64>(),
        )?;
        let alignment = ALIGNMENT as u32;
        for attribute in [
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            set(
                attribute,
                (&alignment as *const u32).cast(),
                size_of::<u32>(),
            )?;
        }
        Ok(preference)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by us, and used no more.
        let _ = unsafe { lt::destroy_matmul_pref(self.0) };
    }
}

/// The product as the library sees it, whose matrices are stored by column: outᵀ = weight · xᵀ.
struct Operation {
    product: sys::cublasLtMatmulDesc_t,
    weight: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
}

impl Operation {
    fn new(shape: &Shape, bias: Option<u64>) -> Result<Self> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let element = match shape.dtype {
            DType::F32 => sys::cudaDataType_t::CUDA_R_32F,
            DType::F16 => sys::cudaDataType_t::CUDA_R_16F,
            DType::BF16 => sys::cudaDataType_t::CUDA_R_16BF,
            other => candle_core::bail!("matrix products take f32, f16 or bf16, not {other:?}"),
        };
        let (rows, inputs, outputs) = (shape.rows, shape.inputs, shape.outputs);
        let layout = |rows: usize, columns: usize| {
            lt::create_matrix_layout(element, rows as u64, columns as u64, rows as i64)
                .map_err(failed)
        };
        let mut operation = Self {
            product: lt::create_matmul_desc(
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cudaDataType_t::CUDA_R_32F,
            )
            .map_err(failed)?,
            weight: std::ptr::null_mut(),
            x: std::ptr::null_mut(),
            out: std::ptr::null_mut(),
        };
        operation.weight = layout(inputs, outputs)?;
        operation.x = layout(inputs, rows)?;
        operation.out = layout(outputs, rows)?;
        let set = |attribute, value: *const c_void, size| {
            // SAFETY: the value lives during the call and has the size.
            unsafe { lt::set_matmul_desc_attribute(operation.product, attribute, value, size) }
                .map_err(failed)
        };
        let transposed = 1u32;
        set(
            Attribute::CUBLASLT_MATMUL_DESC_TRANSA,
            (&transposed as *const u32).cast(),
            size_of::<u32>(),
        )?;
        if let Some(bias) = bias {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
            set(
                Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE,
                (&epilogue as *const u32).cast(),
                size_of::<u32>(),
            )?;
            set(
                Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                (&bias as *const u64).cast(),
                size_of::<u64>(),
            )?;
        }
        Ok(operation)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // SAFETY: made by us, and used no more.
        unsafe {
            let _ = lt::destroy_matmul_desc(self.product);
            for layout in [self.weight, self.x, self.out] {
                if !layout.is_null() {
                    let _ = lt::destroy_matrix_layout(layout);
                }
            }
        }
    }
}
