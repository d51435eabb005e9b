//! Convolutions over maps, as matrix products on windows.

use candle_core::{DType, Tensor};

use super::elementwise;
use super::feature_map::{FeatureMap, Window};
use super::inventory::Inventory;
use super::joined::joined;
use super::linear::{Epilogue, Linear};
use crate::{Error, Result};
use kernels::cpu::depthwise::weigh_channels;
use kernels::cpu::windows::unfold;
use kernels::winograd::WinogradWeight;
use kernels::Activation;

/// Windows of at most so many elements are laid out at once: on the CPU those that stay in a core's cache until they are
/// multiplied.
const MOST_ELEMENTS: usize = 1 << 22;
const MOST_IN_CACHE: usize = 1 << 19;

#[derive(Clone, Debug)]
pub struct Conv2d {
    weight: Weight,
    /// Channels that it reads.
    inputs: usize,
    window: Window,
    activation: Option<Activation>,
}

#[derive(Clone, Debug)]
enum Weight {
    /// One for each group of channels.
    Groups(Vec<Linear>),
    /// All channels, by tiles of the map.
    Winograd(WinogradWeight),
    /// Every channel by itself: a row of factors for each place of the kernel, and what is added.
    Channels(Tensor, Option<Tensor>),
}

/// What a batch norm, whose statistics are fixed, does to a channel: multiply and add, in f32.
#[derive(Clone, Debug)]
pub struct FixedNorm {
    pub scale: Tensor,
    pub shift: Tensor,
}

impl FixedNorm {
    /// Weight, bias, mean and variance: [channels] each.
    pub fn new(
        [weight, bias, mean, variance]: [&Tensor; 4],
        epsilon: f64,
    ) -> candle_core::Result<Self> {
        let f32 = |tensor: &Tensor| tensor.to_dtype(DType::F32);
        let scale = (f32(weight)? / (f32(variance)? + epsilon)?.sqrt()?)?;
        let shift = (f32(bias)? - (f32(mean)? * &scale)?)?;
        Ok(Self { scale, shift })
    }
}

impl Conv2d {
    /// `weight` is [outputs, channels of a group, kernel, kernel], as checkpoints store it. The norm behind it
    /// becomes a part of it.
    pub fn new(
        weight: &Tensor,
        bias: Option<&Tensor>,
        norm: Option<&FixedNorm>,
        window: Window,
        groups: usize,
        activation: Option<Activation>,
    ) -> Result<Self> {
        let (outputs, inputs, high, wide) = weight.dims4()?;
        let kernel = window.kernel;
        let possible = groups > 0
            && outputs.is_multiple_of(groups)
            && outputs.min(inputs) > 0
            && window.stride > 0;
        if !possible || (high, wide) != (kernel, kernel) || kernel == 0 {
            return Err(Error::CorruptModel(format!(
                "a convolution of the shape {:?} can't have {groups} groups, a kernel of {kernel} and a stride of {}",
                weight.dims(),
                window.stride
            )));
        }
        let (weight, bias) = folded(weight, bias, norm)?;
        let weight = if inputs == 1 && groups == outputs && groups > 1 {
            let taps = weight.reshape((outputs, kernel * kernel))?.t()?;
            Weight::Channels(taps.contiguous()?, bias)
        } else if let Some(found) = by_tiles(&weight, bias.as_ref(), &window, groups)? {
            Weight::Winograd(found)
        } else {
            // Windows are laid out place by place.
            let matrix = weight.permute((0, 2, 3, 1))?.contiguous()?;
            let matrix = matrix.reshape((outputs, kernel * kernel * inputs))?;
            let rows = outputs / groups;
            let group = |number: usize| -> Result<Linear> {
                let part = |x: &Tensor| x.narrow(0, number * rows, rows)?.contiguous();
                Linear::by_vectors(part(&matrix)?, bias.as_ref().map(part).transpose()?)
            };
            Weight::Groups((0..groups).map(group).collect::<Result<_>>()?)
        };
        Ok(Self {
            weight,
            inputs: inputs * groups,
            window,
            activation,
        })
    }

    pub fn outputs(&self) -> usize {
        match &self.weight {
            Weight::Groups(groups) => groups.iter().map(Linear::outputs).sum(),
            Weight::Winograd(weight) => weight.outputs(),
            Weight::Channels(..) => self.inputs,
        }
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        match &self.weight {
            Weight::Groups(groups) => groups
                .iter()
                .try_for_each(|group| inventory.add_linear(group)),
            Weight::Winograd(weight) => inventory.add_winograd(weight),
            Weight::Channels(taps, bias) => {
                [taps]
                    .into_iter()
                    .chain(bias)
                    .for_each(|tensor| inventory.add_tensor(tensor));
                Ok(())
            }
        }
    }

    pub fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let size = (self.window.count(map.height), self.window.count(map.width));
        let channels = map.channels()?;
        if channels != self.inputs || size.0 * size.1 == 0 {
            return Err(Error::InvalidInput(format!(
                "a convolution of {} channels and a kernel of {} can't read a map of {}x{} places with {channels} \
                 channels: the image is too small, or its preprocessor_config.json belongs to another model",
                self.inputs, self.window.kernel, map.height, map.width
            )));
        }
        let rows = match &self.weight {
            Weight::Groups(groups) => self.products(map, groups, size.0 * size.1)?,
            Weight::Winograd(weight) => {
                let activation = self.activation.unwrap_or(Activation::Identity);
                weight.convolve(&map.rows, &self.window.over(map), activation)?
            }
            Weight::Channels(taps, bias) => self.sums(map, taps, bias.as_ref(), size.0 * size.1)?,
        };
        FeatureMap::new(rows, size)
    }

    fn products(&self, map: &FeatureMap, groups: &[Linear], count: usize) -> Result<Tensor> {
        let epilogue = Epilogue {
            activation: self.activation,
            ..Epilogue::default()
        };
        let window = &self.window;
        let whole = (window.kernel, window.stride, window.padding) == (1, 1, 0);
        if let ([only], true) = (groups, whole) {
            return only.forward_with(&map.rows.contiguous()?, &epilogue);
        }
        let places = window.kernel * window.kernel;
        if let ([only], true) = (groups, map.rows.device().is_cpu()) {
            if let Some(found) = self.unfolded(map, only, count, &epilogue)? {
                return Ok(found);
            }
        }
        let most = (MOST_ELEMENTS / (places * self.inputs)).max(1);
        let outside = (map.height * map.width) as u32;
        let mut parts = Vec::new();
        let mut done = 0;
        while done < count {
            let part = most.min(count - done);
            let rows = window.rows(map, done..done + part, outside);
            let seen = map.picked(rows, 0.0)?;
            parts.push(self.grouped(&seen, groups, part, &epilogue)?);
            done += part;
        }
        joined(parts, 0)
    }

    /// The same on the CPU, with windows laid out by its own kernel; `None` for types that it does not read.
    fn unfolded(
        &self,
        map: &FeatureMap,
        linear: &Linear,
        count: usize,
        epilogue: &Epilogue<'_>,
    ) -> Result<Option<Tensor>> {
        let windows = self.window.over(map);
        let found = linear.forward_windows(&map.rows, &windows, epilogue.activation)?;
        if found.is_some() {
            return Ok(found);
        }
        let each = self.window.kernel * self.window.kernel * self.inputs;
        let most = (MOST_IN_CACHE / each).max(64);
        let mut parts = Vec::with_capacity(count.div_ceil(most));
        let mut done = 0;
        while done < count {
            let end = (done + most).min(count);
            let Some(seen) = unfold(&map.rows, &windows, done..end)? else {
                return Ok(None);
            };
            parts.push(linear.forward_with(&seen, epilogue)?);
            done = end;
        }
        Ok(Some(joined(parts, 0)?))
    }

    /// `seen` is [windows · places, channels].
    fn grouped(
        &self,
        seen: &Tensor,
        groups: &[Linear],
        count: usize,
        epilogue: &Epilogue<'_>,
    ) -> Result<Tensor> {
        let places = self.window.kernel * self.window.kernel;
        let width = self.inputs / groups.len();
        let products = groups.iter().enumerate().map(|(number, group)| {
            let channels = match groups.len() {
                1 => seen.clone(),
                _ => seen.narrow(1, number * width, width)?.contiguous()?,
            };
            group.forward_with(&channels.reshape((count, places * width))?, epilogue)
        });
        joined(products.collect::<Result<_>>()?, 1)
    }

    fn sums(
        &self,
        map: &FeatureMap,
        taps: &Tensor,
        bias: Option<&Tensor>,
        count: usize,
    ) -> Result<Tensor> {
        let windows = self.window.over(map);
        let activation = self.activation.unwrap_or(Activation::Identity);
        if let Some(sums) = weigh_channels(&map.rows, &windows, taps, bias, activation)? {
            return Ok(sums);
        }
        let outside = (map.height * map.width) as u32;
        let places = self.window.rows(map, 0..count, outside);
        let mut sum: Option<Tensor> = None;
        let size = taps.dim(0)?;
        for number in 0..size {
            let rows = places.iter().skip(number).step_by(size);
            let seen = map.picked(rows.copied().collect(), 0.0)?;
            let part = elementwise::multiply(&seen, &taps.get(number)?)?;
            sum = Some(match sum {
                Some(sum) => elementwise::add(&sum, &part)?,
                None => part,
            });
        }
        let sum = sum.ok_or_else(|| Error::Internal("a convolution without a kernel".into()))?;
        let sum = match bias {
            Some(bias) => elementwise::add(&sum, bias)?,
            None => sum,
        };
        match self.activation {
            Some(activation) => Ok(kernels::activate(&sum, activation)?),
            None => Ok(sum),
        }
    }
}

/// A weight for Winograd's method, where there are kernels for it.
fn by_tiles(
    weight: &Tensor,
    bias: Option<&Tensor>,
    window: &Window,
    groups: usize,
) -> Result<Option<WinogradWeight>> {
    match (window.kernel, window.stride, window.dilation, groups) {
        (3, 1, 1, 1) => WinogradWeight::new(weight, bias),
        _ => Ok(None),
    }
}

/// A weight and a bias that do what a norm behind them did. In f32: products of 16 bits lose digits.
fn folded(
    weight: &Tensor,
    bias: Option<&Tensor>,
    norm: Option<&FixedNorm>,
) -> Result<(Tensor, Option<Tensor>)> {
    let Some(FixedNorm { scale, shift }) = norm else {
        return Ok((weight.clone(), bias.cloned()));
    };
    let dtype = weight.dtype();
    let outputs = weight.dim(0)?;
    if scale.dims() != [outputs] || shift.dims() != [outputs] {
        return Err(Error::CorruptModel(format!(
            "a norm of the shape {:?} stands behind a convolution of the shape {:?}",
            scale.dims(),
            weight.dims()
        )));
    }
    let scaled = weight.to_dtype(DType::F32)?;
    let scaled = scaled.broadcast_mul(&scale.reshape((outputs, 1, 1, 1))?)?;
    let shift = match bias {
        Some(bias) => (shift + (bias.to_dtype(DType::F32)? * scale)?)?,
        None => shift.clone(),
    };
    Ok((scaled.to_dtype(dtype)?, Some(shift.to_dtype(dtype)?)))
}

#[cfg(test)]
mod tests {
    use super::super::joined::testing::{close, numbers};
    use super::*;

    /// [places, channels] of [1, channels, height, width].
    fn rows(map: &Tensor) -> Tensor {
        let rows = map.squeeze(0).unwrap().flatten_from(1).unwrap();
        rows.t().unwrap().contiguous().unwrap()
    }

    #[test]
    fn windows_and_products_equal_the_convolution() {
        for (size, channels, outputs, kernel, stride, padding, dilation, groups) in [
            ((7, 6), 3, 4, 3, 1, 1, 1, 1),
            ((7, 6), 3, 4, 3, 2, 1, 1, 1),
            ((9, 9), 3, 5, 7, 2, 3, 1, 1),
            ((90, 94), 3, 5, 7, 2, 3, 1, 1),
            ((5, 4), 6, 6, 5, 1, 2, 1, 6),
            ((5, 5), 4, 8, 3, 2, 1, 1, 2),
            ((4, 4), 3, 2, 1, 2, 0, 1, 1),
            // Channels of whole vectors: by tiles, but for those with strides, groups or dilation.
            ((7, 6), 16, 32, 3, 1, 1, 1, 1),
            ((5, 9), 32, 16, 3, 1, 0, 1, 1),
            ((7, 6), 16, 16, 3, 2, 1, 1, 1),
            ((9, 8), 16, 16, 3, 1, 2, 2, 1),
            ((6, 6), 32, 32, 3, 1, 1, 1, 2),
        ] {
            let weight = numbers(&[outputs, channels / groups, kernel, kernel], 1);
            let [gain, bias, mean] = [2, 3, 4].map(|seed| numbers(&[outputs], seed));
            let variance = (numbers(&[outputs], 5) + 1.0).unwrap();
            let norm = FixedNorm::new([&gain, &bias, &mean, &variance], 1e-5).unwrap();
            let x = numbers(&[1, channels, size.0, size.1], 6);
            let window = Window {
                dilation,
                ..Window::new(kernel, stride, padding)
            };
            let ours = Conv2d::new(&weight, Some(&bias), Some(&norm), window, groups, None);
            let map = FeatureMap::new(rows(&x), size).unwrap();
            let ours = ours.unwrap();
            let by_tiles = matches!(ours.weight, Weight::Winograd(_));
            let plain = (kernel, stride, dilation, groups) == (3, 1, 1, 1);
            assert_eq!(by_tiles, plain && channels % 16 == 0);
            let found = ours.forward(&map).unwrap();
            let wanted = x
                .conv2d(&weight, padding, stride, dilation, groups)
                .unwrap();
            assert_eq!(
                found.size(),
                (wanted.dim(2).unwrap(), wanted.dim(3).unwrap())
            );
            let wanted = rows(&wanted).broadcast_add(&bias).unwrap();
            let wanted = wanted.broadcast_mul(&norm.scale).unwrap();
            close(&found.rows, &wanted.broadcast_add(&norm.shift).unwrap());
        }
    }
}
