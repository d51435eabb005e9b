//! Convolutions over time, as matrix products on overlapping windows.

use candle_core::Tensor;

use super::inventory::Inventory;
use super::joined::joined;
use super::linear::{Epilogue, Linear};
use crate::{CancelToken, Error, Result};
use kernels::Activation;

/// Windows of at most so many elements are laid out at once, and cannot be interrupted meanwhile.
const MOST_ELEMENTS: usize = 1 << 21;

/// A convolution of rows [frames, channels].
#[derive(Clone, Debug)]
pub struct Conv1d {
    /// One for each group of channels.
    groups: Vec<Linear>,
    /// Channels that a group reads.
    inputs: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
}

impl Conv1d {
    /// `weight` is [outputs, channels of a group, kernel], as checkpoints store it.
    pub fn new(
        weight: &Tensor,
        bias: Option<&Tensor>,
        (stride, padding, groups): (usize, usize, usize),
    ) -> Result<Self> {
        let (outputs, inputs, kernel) = weight.dims3()?;
        if groups == 0 || stride == 0 || !outputs.is_multiple_of(groups) {
            return Err(Error::CorruptModel(format!(
                "a convolution of {outputs} outputs can't have {groups} groups and a stride of {stride}"
            )));
        }
        let rows = outputs / groups;
        // Windows are laid out frame by frame.
        let matrix = weight.permute((0, 2, 1))?.contiguous()?;
        let matrix = matrix.reshape((outputs, kernel * inputs))?;
        let group = |number: usize| -> Result<Linear> {
            let bias = bias.map(|bias| bias.narrow(0, number * rows, rows)?.contiguous());
            Linear::new(
                matrix.narrow(0, number * rows, rows)?.contiguous()?,
                bias.transpose()?,
            )
        };
        Ok(Self {
            groups: (0..groups).map(group).collect::<Result<_>>()?,
            inputs,
            kernel,
            stride,
            padding,
        })
    }

    pub fn outputs(&self) -> usize {
        self.groups.iter().map(Linear::outputs).sum()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let mut groups = self.groups.iter();
        groups.try_for_each(|group| inventory.add_linear(group))
    }

    /// How many frames come of so many.
    pub fn frames(&self, frames: usize) -> usize {
        let padded = frames + 2 * self.padding;
        match padded.checked_sub(self.kernel) {
            Some(room) => room / self.stride + 1,
            None => 0,
        }
    }

    /// activation(convolution) of one sequence [frames, channels].
    pub fn forward(
        &self,
        x: &Tensor,
        activation: Option<Activation>,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let (frames, channels) = x.dims2()?;
        let count = self.frames(frames);
        if count == 0 || channels != self.inputs * self.groups.len() {
            return Err(Error::InvalidInput(format!(
                "a convolution of {} frames can't read {frames} frames of {channels} channels",
                self.kernel
            )));
        }
        let x = match self.padding {
            0 => x.contiguous()?,
            padding => x.pad_with_zeros(0, padding, padding)?.contiguous()?,
        };
        let most = (MOST_ELEMENTS / (self.kernel * self.inputs)).max(1);
        let mut rows = Vec::new();
        let mut done = 0;
        while done < count {
            cancel.check()?;
            let part = most.min(count - done);
            let reach = (part - 1) * self.stride + self.kernel;
            let frames = x.narrow(0, done * self.stride, reach)?;
            let groups = self.groups.iter().enumerate();
            let groups = groups.map(|(number, group)| {
                let channels = match self.groups.len() {
                    1 => frames.clone(),
                    _ => frames
                        .narrow(1, number * self.inputs, self.inputs)?
                        .contiguous()?,
                };
                let epilogue = Epilogue {
                    activation,
                    ..Epilogue::default()
                };
                group.forward_with(&self.windows(&channels, part)?, &epilogue)
            });
            rows.push(joined(groups.collect::<Result<_>>()?, 1)?);
            done += part;
        }
        joined(rows, 0)
    }

    /// [count, kernel · channels] of [frames, channels].
    fn windows(&self, x: &Tensor, count: usize) -> Result<Tensor> {
        let (frames, channels) = x.dims2()?;
        let (stride, kernel) = (self.stride, self.kernel);
        // Rows of as many frames as a window moves by; a window is some of them, the last one cut.
        let steps = kernel.div_ceil(stride);
        let rows = count + steps - 1;
        let x = match rows * stride {
            wanted if wanted > frames => x.pad_with_zeros(0, 0, wanted - frames)?,
            wanted => x.narrow(0, 0, wanted)?,
        };
        let x = x.contiguous()?.reshape((rows, stride * channels))?;
        let pieces = (0..steps).map(|step| {
            let width = stride.min(kernel - step * stride) * channels;
            Ok(x.narrow(0, step, count)?.narrow(1, 0, width)?)
        });
        joined(pieces.collect::<Result<_>>()?, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::joined::testing::{close, numbers};
    use super::*;

    #[test]
    fn windows_and_products_equal_the_convolution() {
        for (frames, channels, outputs, kernel, stride, padding, groups) in [
            (11, 3, 4, 3, 1, 1, 1),
            (12, 3, 4, 3, 2, 1, 1),
            (40, 1, 6, 10, 5, 0, 1),
            (9, 8, 8, 4, 1, 2, 4),
        ] {
            let weight = numbers(&[outputs, channels / groups, kernel], 1);
            let bias = numbers(&[outputs], 2);
            let x = numbers(&[frames, channels], 3);
            let shape = (stride, padding, groups);
            let ours = Conv1d::new(&weight, Some(&bias), shape).unwrap();
            let found = ours.forward(&x, None, &CancelToken::new()).unwrap();
            let wanted = x.t().unwrap().unsqueeze(0).unwrap().contiguous().unwrap();
            let wanted = wanted.conv1d(&weight, padding, stride, 1, groups).unwrap();
            let wanted = wanted.squeeze(0).unwrap().t().unwrap();
            let wanted = wanted.broadcast_add(&bias).unwrap();
            assert_eq!(found.dim(0).unwrap(), ours.frames(frames));
            close(&found, &wanted);
        }
    }
}
