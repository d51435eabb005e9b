//! ConvBERT's convolutions beside attention, whose kernels each token makes of its query and of the keys around it.

use candle_core::{DType, Tensor};

use super::spans::Spans;
use crate::models::config::AttentionShape;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{elementwise, Inventory, Linear};
use crate::{CancelToken, Result};
use kernels::tensor;

#[derive(Debug)]
pub struct KernelConvolutions {
    /// [kernel, hidden]
    depthwise: Tensor,
    pointwise: Linear,
    /// Makes the kernels of all heads.
    kernels: Linear,
    values: Linear,
    kernel: usize,
    heads: usize,
    width: usize,
}

impl KernelConvolutions {
    pub fn load(
        shape: &AttentionShape,
        kernel: usize,
        parameters: &Parameters<'_>,
        number: usize,
    ) -> Result<Self> {
        let (hidden, width) = (shape.hidden_size, shape.width());
        let depthwise = Part::KeyDepthwise.at(number);
        let depthwise = parameters.shaped(depthwise, &[hidden, 1, kernel])?;
        let pointwise = parameters.matrix(Part::KeyPointwise.at(number), hidden, width)?;
        let bias = parameters.shaped(Part::KeyConvolutionBias.at(number), &[width, 1])?;
        Ok(Self {
            depthwise: depthwise.reshape((hidden, kernel))?.t()?.contiguous()?,
            pointwise: Linear::new(pointwise, Some(bias.reshape(width)?))?,
            kernels: parameters.linear(
                Part::KernelMaker.at(number),
                width,
                shape.head_count * kernel,
            )?,
            values: parameters.linear(Part::ConvolvedValue.at(number), hidden, width)?,
            kernel,
            heads: shape.head_count,
            width: shape.head_size,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_tensor(&self.depthwise);
        for linear in [&self.pointwise, &self.kernels, &self.values] {
            inventory.add_linear(linear)?;
        }
        Ok(())
    }

    /// [tokens, heads · width] of [tokens, hidden] and its queries, [tokens, heads, width].
    pub fn forward(&self, x: &Tensor, q: &Tensor, spans: &Spans<'_>) -> Result<Tensor> {
        let tokens = x.dim(0)?;
        let factors = self.depthwise.to_dtype(x.dtype())?;
        let keys = self.around(x, spans, |at| Ok(factors.get(at)?))?;
        let keys = self.pointwise.forward(&keys)?;
        let queries = q.contiguous()?.reshape((tokens, self.heads * self.width))?;
        let made = elementwise::multiply(&keys, &queries.to_dtype(keys.dtype())?)?;
        let made = self.kernels.forward(&made)?.to_dtype(DType::F32)?;
        let made = made.reshape((tokens, self.heads, self.kernel))?;
        let made = tensor::normalize::softmax(&made, -1, &CancelToken::new())?;
        let values = self.values.forward(x)?.to_dtype(DType::F32)?;
        let values = values.reshape((tokens, self.heads, self.width))?;
        let mixed = self.around(&values, spans, |at| {
            Ok(made.narrow(2, at, 1)?.contiguous()?)
        })?;
        Ok(mixed.reshape((tokens, self.heads * self.width))?)
    }

    /// The sum of the rows around each one, each multiplied by what belongs to its distance.
    fn around(
        &self,
        x: &Tensor,
        spans: &Spans<'_>,
        factor: impl Fn(usize) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let reach = spans.longest() as isize;
        let mut sum: Option<Tensor> = None;
        for at in 0..self.kernel {
            let distance = at as isize - (self.kernel / 2) as isize;
            if distance.abs() >= reach {
                continue;
            }
            let part = elementwise::multiply(&spans.neighbours(x, distance)?, &factor(at)?)?;
            sum = Some(match sum {
                Some(sum) => elementwise::add(&sum, &part)?,
                None => part,
            });
        }
        Ok(match sum {
            Some(sum) => sum,
            None => x.zeros_like()?,
        })
    }
}
