//! A mixture's experts on a GPU: which of them each row passes is chosen on the device, and their products read the
//! chosen matrices in one launch. Nothing waits for the host, so that a step can be recorded.

use candle_core::{DType, Device, Tensor};

use crate::blocks::BlockFactor;
use crate::matrix::Matrix;
use crate::{Activation, Result};

/// The most experts that are chosen among.
pub const MOST_EXPERTS: usize = 2048;

/// What the scores of experts are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteScores {
    Softmax,
    Sigmoid,
    /// Experts are chosen by logits, and weighed by the sigmoids of these.
    SigmoidOfChosen,
}

/// Experts of all groups but the best have this score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteGroups {
    pub count: usize,
    pub used: usize,
    /// A group is as good as so many of its best experts together.
    pub best_of: usize,
    pub left_out: f32,
}

/// How experts are chosen and weighed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteRule {
    pub experts: usize,
    pub used: usize,
    pub scores: RouteScores,
    pub soft_cap: Option<f32>,
    pub groups: Option<RouteGroups>,
    /// Weights are divided by their sum, or by this where it is larger.
    pub least_total: Option<f32>,
    pub scale: f32,
}

impl RouteRule {
    /// Whether the device's kernel takes it.
    fn is_sound(&self) -> bool {
        let groups = self.groups.is_none_or(|groups| {
            let size = self.experts / groups.count.max(1);
            size > 0 && size * groups.count == self.experts && groups.best_of <= size
        });
        groups && self.experts <= MOST_EXPERTS && (1..=self.experts).contains(&self.used)
    }
}

/// Chooses experts for rows.
#[cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "what kernels of GPUs read")
)]
pub struct Router {
    pub(crate) rule: RouteRule,
    /// f32 `[experts]`: added to scores where experts are chosen, and factors on their weights.
    pub(crate) bias: Option<Tensor>,
    pub(crate) scales: Option<Tensor>,
}

/// What was chosen for the rows of a step.
#[cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "what kernels of GPUs read")
)]
pub struct Routes {
    /// u32 `[rows · used]`
    pub(crate) chosen: Tensor,
    /// f32, as many.
    pub(crate) weights: Tensor,
    /// u32, as many: those of one expert after those of another; `None` of a single row.
    pub(crate) order: Option<Tensor>,
    /// u32 `[tiles, 2]`: choices of one expert that follow each other in the order; `None` where each stands alone.
    pub(crate) tiles: Option<Tensor>,
    /// The most choices of a tile.
    pub(crate) together: usize,
    pub(crate) used: usize,
}

impl Router {
    /// `None` where the device has no kernel for it.
    pub fn new(
        rule: RouteRule,
        bias: Option<&[f32]>,
        scales: Option<&[f32]>,
        device: &Device,
    ) -> Result<Option<Self>> {
        let fits = |numbers: Option<&[f32]>| numbers.is_none_or(|one| one.len() == rule.experts);
        if !has_kernels(device) || !rule.is_sound() || !fits(bias) || !fits(scales) {
            return Ok(None);
        }
        let placed = |numbers: Option<&[f32]>| -> Result<Option<Tensor>> {
            let numbers = numbers.map(|numbers| Tensor::new(numbers, device));
            Ok(numbers.transpose()?)
        };
        Ok(Some(Self {
            rule,
            bias: placed(bias)?,
            scales: placed(scales)?,
        }))
    }

    /// Given logits `[rows, experts]`; so many choices of an expert are multiplied together.
    pub fn route(&self, logits: &Tensor, together: usize) -> Result<Routes> {
        #[cfg(feature = "cuda")]
        return Ok(crate::cuda::experts::route(self, logits, together.max(1))?);
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (logits, together);
            Err(foreign())
        }
    }
}

/// A matrix of an expert.
pub enum ExpertMatrix<'a> {
    Numbers(Matrix<'a>),
    Blocks(BlockFactor<'a>),
}

/// The matrices of all experts that read the same rows, such as gates and ups.
pub struct ExpertMatrices {
    #[cfg(feature = "cuda")]
    pub(crate) held: crate::cuda::expert_matrices::Matrices,
}

impl ExpertMatrices {
    /// Of each expert its matrices, with outputs of these widths, or one matrix with all of them; `None` where the device
    /// has no kernel for them, or they differ in more than their numbers.
    pub fn new(
        experts: &[Vec<ExpertMatrix<'_>>],
        widths: &[usize],
        device: &Device,
    ) -> Result<Option<Self>> {
        if !has_kernels(device) {
            return Ok(None);
        }
        #[cfg(feature = "cuda")]
        {
            let held = crate::cuda::expert_matrices::Matrices::new(experts, widths, device)?;
            Ok(held.map(|held| Self { held }))
        }
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (experts, widths);
            Ok(None)
        }
    }

    /// With more choices than this of all rows together, products by experts are faster.
    pub fn most_choices(&self, dtype: DType) -> usize {
        #[cfg(feature = "cuda")]
        return self.held.most_choices(dtype);
        #[cfg(not(feature = "cuda"))]
        {
            let _ = dtype;
            0
        }
    }

    /// How many choices of an expert should be multiplied together, of so many of all rows.
    pub fn together(&self, choices: usize, dtype: DType) -> usize {
        #[cfg(feature = "cuda")]
        return self.held.together(choices, dtype);
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (choices, dtype);
            1
        }
    }

    /// What the chosen experts' matrices give, side by side, `[rows · used, outputs]`, for rows `[rows, inputs]` or, in the
    /// order of choices, `[rows · used, inputs]`. Of two equal widths and an activation it is activation(first) · second.
    pub fn multiply(
        &self,
        x: &Tensor,
        routes: &Routes,
        gate: Option<Activation>,
    ) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        return Ok(self.held.multiply(x, routes, gate)?);
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (x, routes, gate);
            Err(foreign())
        }
    }
}

/// What every row passes: what it gives, `[rows, outputs]`, and the logits of its gates, `[rows, 1]`.
pub type SharedResult<'a> = (&'a Tensor, Option<&'a Tensor>);

impl Routes {
    /// The weighed sums of what experts give, `[rows · used, outputs]`, and of what every row passes.
    pub fn combine(&self, given: &Tensor, shared: Option<SharedResult<'_>>) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        return Ok(crate::cuda::experts::combine(self, given, shared)?);
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (given, shared);
            Err(foreign())
        }
    }
}

fn has_kernels(device: &Device) -> bool {
    cfg!(feature = "cuda") && device.is_cuda()
}

#[cfg(not(feature = "cuda"))]
fn foreign() -> crate::Error {
    crate::Error::Internal("no kernel for experts on this device".into())
}
