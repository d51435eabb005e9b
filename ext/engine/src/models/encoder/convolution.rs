//! DeBERTa-v2's convolution, which runs beside the first layer.

use crate::nn::{elementwise, Inventory, Norm, PackedSequences};
use crate::Result;
use candle_core::Tensor;

use super::config::{Convolution, EncoderConfig};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;

#[derive(Debug)]
pub struct ConvolutionLayer {
    /// [hidden, hidden / groups, kernel]
    weight: Tensor,
    bias: Option<Tensor>,
    norm: Norm,
    config: Convolution,
}

impl ConvolutionLayer {
    pub fn load(config: &EncoderConfig, parts: &Parameters<'_>) -> Result<Option<Self>> {
        let Some(convolution) = config.convolution else {
            return Ok(None);
        };
        let hidden = config.hidden_size;
        let shape = [hidden, hidden / convolution.groups, convolution.kernel];
        Ok(Some(Self {
            weight: parts.shaped(Part::Convolution, &shape)?,
            bias: parts.bias(Part::Convolution)?,
            norm: parts.norm(Part::ConvolutionNorm, &[hidden], config.norm)?,
            config: convolution,
        }))
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_tensor(&self.weight);
        if let Some(bias) = &self.bias {
            inventory.add_tensor(bias);
        }
        inventory.add_norm(&self.norm)
    }

    /// norm(layer output + activation(convolution of the layer's input)), sequence by sequence.
    pub fn forward(
        &self,
        input: &Tensor,
        output: &Tensor,
        sequences: &PackedSequences,
    ) -> Result<Tensor> {
        let mut rows = Vec::with_capacity(sequences.count());
        for range in sequences.ranges().filter(|range| !range.is_empty()) {
            let sequence = input
                .narrow(0, range.start, range.len())?
                .t()?
                .unsqueeze(0)?
                .contiguous()?;
            let padding = (self.config.kernel - 1) / 2;
            let convolved = sequence.conv1d(&self.weight, padding, 1, 1, self.config.groups)?;
            rows.push(convolved.squeeze(0)?.t()?);
        }
        let convolved = Tensor::cat(&rows, 0)?.contiguous()?;
        let convolved = match &self.bias {
            Some(bias) => elementwise::add(&convolved, bias)?,
            None => convolved,
        };
        let convolved = kernels::activate(&convolved, self.config.activation)?;
        let convolved = convolved.to_dtype(output.dtype())?;
        self.norm.forward(&elementwise::add(&convolved, output)?)
    }
}
