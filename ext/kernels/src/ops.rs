//! The kernels as candle custom ops: what each backend runs.
//!
//! An op owns the small tensors it needs besides its input (weights, masks, tables), so that every
//! kernel is a `CustomOp1`, or a `CustomOp2` where there are two large inputs. Shapes were checked
//! by the functions in the parent module.

use std::sync::{Mutex, PoisonError};

use candle_core::op::BackpropOp;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, DType, InplaceOp2, Layout, Shape, Storage, Tensor,
};

use super::cpu::{
    self, isa::Isa, rows::norm::NormRows, rows::rope::RopeTables, rows::softmax::SoftmaxMasks,
    Element, RowView,
};
#[cfg(feature = "cuda")]
use super::cuda;
#[cfg(feature = "metal")]
use super::metal;
use super::{Activation, ClampedGlu, Pointwise, RopeKind};

type CandleResult<T> = candle_core::Result<T>;

pub(super) struct Norm {
    pub centered: bool,
    pub weight: Tensor,
    pub bias: Option<Tensor>,
    pub epsilon: f32,
    pub weight_offset: f32,
}

/// x becomes x + residual; what it gives besides is its norm, since candle's ops in place have no result.
pub(super) struct AddNorm {
    norm: Norm,
    normed: Mutex<Option<Storage>>,
}

/// The masks are already broadcast to the input's shape, the additive one of its type.
pub(super) struct Softmax {
    pub scale: f32,
    pub additive: Option<Tensor>,
    pub keep: Option<Tensor>,
    /// [.., 1].
    pub lengths: Option<Tensor>,
}

pub(super) struct Activate(pub Activation);

pub(super) struct Gated(pub Activation);

/// A function with parameters, of every element.
pub(super) struct EachElement(pub Pointwise);

pub(super) struct GatedClamped(pub ClampedGlu);

pub(super) struct Rope {
    pub cosines: Tensor,
    pub sines: Tensor,
    pub positions: Tensor,
    pub kind: RopeKind,
}

pub(super) struct MeanPool {
    pub boundaries: Vec<u32>,
}

pub(super) struct L2Normalize {
    pub least: f32,
}

/// Runs `$body` with `$T` the element type of a storage.
macro_rules! for_float {
    ($name:expr, $storage:expr, $T:ident => $body:expr) => {
        match $storage {
            CpuStorage::F32(_) => {
                type $T = f32;
                Ok(CpuStorage::F32($body))
            }
            CpuStorage::F16(_) => {
                type $T = half::f16;
                Ok(CpuStorage::F16($body))
            }
            CpuStorage::BF16(_) => {
                type $T = half::bf16;
                Ok(CpuStorage::BF16($body))
            }
            _ => Err(not_a_float($name)),
        }
    };
}

fn not_a_float(name: &str) -> candle_core::Error {
    candle_core::Error::Msg(format!("{name} takes f32, f16 or bf16 tensors"))
}

/// The GPU halves of an op, each a call of the backend's launcher with the same arguments.
macro_rules! gpu_forward {
    (one $launcher:ident) => {
        #[cfg(feature = "cuda")]
        fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> CandleResult<(CudaStorage, Shape)> {
            cuda::$launcher(self, x, layout)
        }

        #[cfg(feature = "metal")]
        fn metal_fwd(
            &self,
            x: &MetalStorage,
            layout: &Layout,
        ) -> CandleResult<(MetalStorage, Shape)> {
            metal::$launcher(self, x, layout)
        }
    };
    (two $launcher:ident) => {
        #[cfg(feature = "cuda")]
        fn cuda_fwd(
            &self,
            a: &CudaStorage,
            a_layout: &Layout,
            b: &CudaStorage,
            b_layout: &Layout,
        ) -> CandleResult<(CudaStorage, Shape)> {
            cuda::$launcher(self, a, a_layout, b, b_layout)
        }

        #[cfg(feature = "metal")]
        fn metal_fwd(
            &self,
            a: &MetalStorage,
            a_layout: &Layout,
            b: &MetalStorage,
            b_layout: &Layout,
        ) -> CandleResult<(MetalStorage, Shape)> {
            metal::$launcher(self, a, a_layout, b, b_layout)
        }
    };
}

/// `read(storage, layout)` of a tensor that must be on the CPU.
fn with_cpu<R>(
    tensor: &Tensor,
    read: impl FnOnce(&CpuStorage, &Layout) -> CandleResult<R>,
) -> CandleResult<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => read(storage, layout),
        _ => candle_core::bail!("a kernel's tensors must all be on one device"),
    }
}

fn floats(tensor: &Tensor, offset: f32) -> CandleResult<Vec<f32>> {
    let mut values: Vec<f32> = tensor.to_dtype(DType::F32)?.to_vec1()?;
    if offset != 0.0 {
        values.iter_mut().for_each(|v| *v += offset);
    }
    Ok(values)
}

fn isa() -> CandleResult<Isa> {
    Isa::current().map_err(candle_core::Error::wrap)
}

impl Norm {
    fn rows(&self) -> CandleResult<NormRows> {
        Ok(NormRows {
            centered: self.centered,
            epsilon: self.epsilon,
            weight: floats(&self.weight, self.weight_offset)?,
            bias: self.bias.as_ref().map(|b| floats(b, 0.0)).transpose()?,
        })
    }
}

impl CustomOp1 for Norm {
    fn name(&self) -> &'static str {
        if self.centered {
            "layer_norm"
        } else {
            "rms_norm"
        }
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        let (isa, rows) = (isa()?, self.rows()?);
        let out = for_float!(CustomOp1::name(self), x, T => {
            cpu::rows::norm::norm(isa, &RowView::<T>::new(x, layout)?, &rows)
        })?;
        Ok((out, layout.shape().clone()))
    }

    gpu_forward!(one norm);
}

impl AddNorm {
    pub fn new(norm: Norm) -> Self {
        Self {
            norm,
            normed: Mutex::new(None),
        }
    }

    /// Adds the residual to `x` where it lies and returns the norm of the sum.
    pub fn apply(self, x: &Tensor, residual: &Tensor) -> CandleResult<Tensor> {
        x.inplace_op2(residual, &self)?;
        let normed = self.normed.into_inner();
        match normed.unwrap_or_else(PoisonError::into_inner) {
            Some(normed) => {
                let shape = x.shape().clone();
                Ok(Tensor::from_storage(
                    normed,
                    shape,
                    BackpropOp::none(),
                    false,
                ))
            }
            None => candle_core::bail!("add_norm gave no result"),
        }
    }

    fn on_cpu<T: Element>(
        &self,
        x: &mut [T],
        layout: &Layout,
        residual: (&CpuStorage, &Layout),
    ) -> CandleResult<Vec<T>> {
        let rows = cpu::rows_of(layout)?;
        let residual = RowView::<T>::new(residual.0, residual.1)?;
        let (isa, norm) = (isa()?, self.norm.rows()?);
        Ok(cpu::rows::norm::add_norm(isa, (x, &rows), &residual, &norm))
    }

    fn give(&self, normed: Storage) {
        *self.normed.lock().unwrap_or_else(PoisonError::into_inner) = Some(normed);
    }
}

impl InplaceOp2 for AddNorm {
    fn name(&self) -> &'static str {
        if self.norm.centered {
            "add_layer_norm"
        } else {
            "add_rms_norm"
        }
    }

    fn cpu_fwd(
        &self,
        x: &mut CpuStorage,
        layout: &Layout,
        residual: &CpuStorage,
        residual_layout: &Layout,
    ) -> CandleResult<()> {
        let residual = (residual, residual_layout);
        let normed = match x {
            CpuStorage::F32(x) => CpuStorage::F32(self.on_cpu(x, layout, residual)?),
            CpuStorage::F16(x) => CpuStorage::F16(self.on_cpu(x, layout, residual)?),
            CpuStorage::BF16(x) => CpuStorage::BF16(self.on_cpu(x, layout, residual)?),
            _ => return Err(not_a_float(self.name())),
        };
        self.give(Storage::Cpu(normed));
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &mut CudaStorage,
        layout: &Layout,
        residual: &CudaStorage,
        residual_layout: &Layout,
    ) -> CandleResult<()> {
        let normed = cuda::add_norm(&self.norm, (x, layout), (residual, residual_layout))?;
        self.give(Storage::Cuda(normed));
        Ok(())
    }

    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &mut MetalStorage,
        layout: &Layout,
        residual: &MetalStorage,
        residual_layout: &Layout,
    ) -> CandleResult<()> {
        let normed = metal::add_norm(&self.norm, (x, layout), (residual, residual_layout))?;
        self.give(Storage::Metal(normed));
        Ok(())
    }
}

impl CustomOp1 for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        let isa = isa()?;
        let held = [&self.additive, &self.keep, &self.lengths]
            .map(|mask| mask.as_ref().map(Tensor::storage_and_layout));
        let [additive, keep, lengths] = &held;
        let out = for_float!(self.name(), x, T => {
            let masks = SoftmaxMasks::<T> {
                scale: self.scale,
                additive: mask_rows(additive)?,
                keep: mask_rows(keep)?,
                lengths: mask_rows(lengths)?,
                lowest: crate::types::lowest_finite(<T as candle_core::WithDType>::DTYPE),
            };
            cpu::rows::softmax::softmax(isa, &RowView::<T>::new(x, layout)?, &masks)
        })?;
        Ok((out, layout.shape().clone()))
    }

    gpu_forward!(one softmax);
}

fn mask_rows<'a, T: candle_core::WithDType, S: std::ops::Deref<Target = Storage>>(
    mask: &'a Option<(S, &Layout)>,
) -> CandleResult<Option<RowView<'a, T>>> {
    match mask {
        None => Ok(None),
        Some((storage, layout)) => match &**storage {
            Storage::Cpu(storage) => Ok(Some(RowView::new(storage, layout)?)),
            _ => candle_core::bail!("softmax: the mask must be on the input's device"),
        },
    }
}

impl CustomOp1 for Activate {
    fn name(&self) -> &'static str {
        "activate"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        let isa = isa()?;
        let out = for_float!(self.name(), x, T => {
            cpu::rows::activation::activate(isa, &mut RowView::<T>::new(x, layout)?, self.0)
        })?;
        Ok((out, layout.shape().clone()))
    }

    gpu_forward!(one activate);
}

impl CustomOp2 for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        layout: &Layout,
        up: &CpuStorage,
        up_layout: &Layout,
    ) -> CandleResult<(CpuStorage, Shape)> {
        let isa = isa()?;
        let out = for_float!(self.name(), gate, T => {
            let gate = RowView::<T>::new(gate, layout)?;
            cpu::rows::activation::gated(isa, &gate, Some(&RowView::<T>::new(up, up_layout)?), self.0)
        })?;
        Ok((out, layout.shape().clone()))
    }

    gpu_forward!(two gated);
}

impl CustomOp1 for EachElement {
    fn name(&self) -> &'static str {
        "pointwise"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        let isa = isa()?;
        let out = for_float!(self.name(), x, T => {
            cpu::rows::pointwise::pointwise(isa, &mut RowView::<T>::new(x, layout)?, self.0)
        })?;
        Ok((out, layout.shape().clone()))
    }

    gpu_forward!(one each_element);
}

impl CustomOp2 for GatedClamped {
    fn name(&self) -> &'static str {
        "clamped_glu"
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        layout: &Layout,
        up: &CpuStorage,
        up_layout: &Layout,
    ) -> CandleResult<(CpuStorage, Shape)> {
        let isa = isa()?;
        let out = for_float!(self.name(), gate, T => {
            let gate = RowView::<T>::new(gate, layout)?;
            cpu::rows::pointwise::clamped_glu(isa, &gate, &RowView::<T>::new(up, up_layout)?, self.0)
        })?;
        Ok((out, layout.shape().clone()))
    }

    gpu_forward!(two clamped_glu);
}

impl CustomOp1 for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        let isa = isa()?;
        let positions: Vec<u32> = self.positions.to_vec1()?;
        let (known, _) = self.cosines.dims2()?;
        if let Some(beyond) = positions.iter().find(|&&p| p as usize >= known) {
            candle_core::bail!(
                "rope: position {beyond} lies beyond the tables of {known} positions"
            );
        }
        let heads = layout.dims()[1];
        with_cpu(&self.cosines, |cosines, cosines_layout| {
            with_cpu(&self.sines, |sines, sines_layout| {
                let tables = RopeTables {
                    cosines: RowView::new(cosines, cosines_layout)?,
                    sines: RowView::new(sines, sines_layout)?,
                    positions: &positions,
                    kind: self.kind,
                };
                let out = for_float!(self.name(), x, T => {
                    cpu::rows::rope::rope(isa, &RowView::<T>::new(x, layout)?, heads, &tables)
                })?;
                Ok((out, layout.shape().clone()))
            })
        })
    }

    gpu_forward!(one rope);
}

impl CustomOp1 for MeanPool {
    fn name(&self) -> &'static str {
        "mean_pool"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        let isa = isa()?;
        let width = layout.dims()[1];
        let out = for_float!(self.name(), x, T => {
            cpu::rows::pool::mean_pool(isa, &RowView::<T>::new(x, layout)?, &self.boundaries)
        })?;
        Ok((out, (self.boundaries.len() - 1, width).into()))
    }

    gpu_forward!(one mean_pool);
}

impl CustomOp1 for L2Normalize {
    fn name(&self) -> &'static str {
        "l2_normalize"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        let isa = isa()?;
        let out = for_float!(self.name(), x, T => {
            cpu::rows::pool::l2_normalize(isa, &RowView::<T>::new(x, layout)?, self.least)
        })?;
        Ok((out, layout.shape().clone()))
    }

    gpu_forward!(one l2_normalize);
}
