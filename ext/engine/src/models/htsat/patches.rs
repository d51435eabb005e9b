//! Patches of an image as rows, and what joins a long audio's parts with the whole.

use candle_core::{DType, Device, Tensor};

use super::{HtsatConfig, EPSILON};
use crate::models::modules::{Modules, BATCH_NORM_EPSILON};
use crate::nn::{elementwise, Epilogue, Inventory, Linear, Norm};
use crate::{Error, Result};
use kernels::Activation;

#[derive(Debug)]
pub struct Patches {
    whole: Windows,
    norm: Option<Norm>,
    fusion: Option<Fusion>,
    grid: (usize, usize),
}

/// A convolution over a square image, as a product on its windows.
#[derive(Debug)]
struct Windows {
    linear: Linear,
    /// Where the numbers of every window stand in the image; behind its end where there are none.
    places: Tensor,
    /// Windows above and beside each other, and the numbers of one.
    count: (usize, usize),
    area: usize,
}

#[derive(Debug)]
struct Fusion {
    parts: Windows,
    local: Weighing,
    global: Weighing,
}

/// Two layers that say how much of a place counts.
#[derive(Debug)]
struct Weighing {
    down: Linear,
    up: Linear,
}

impl Windows {
    fn load(
        config: &HtsatConfig,
        modules: &Modules<'_>,
        (kernel, stride): ((usize, usize), (usize, usize)),
    ) -> Result<Self> {
        let padding = (
            (config.patch.0 - config.stride.0) / 2,
            (config.patch.1 - config.stride.1) / 2,
        );
        let weight = modules.shaped("weight", &[config.width, 1, kernel.0, kernel.1])?;
        let area = kernel.0 * kernel.1;
        let edge = config.edge;
        let count = |padding: usize, kernel: usize, stride: usize| {
            let room = (edge + 2 * padding).checked_sub(kernel);
            room.map_or(0, |room| room / stride + 1)
        };
        let rows = count(padding.0, kernel.0, stride.0);
        let columns = count(padding.1, kernel.1, stride.1);
        let outside = (edge * edge) as u32;
        let mut places = Vec::with_capacity(rows * columns * area);
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |at| (row, at))) {
            for (down, right) in (0..kernel.0).flat_map(|y| (0..kernel.1).map(move |x| (y, x))) {
                let y = (row * stride.0 + down).checked_sub(padding.0);
                let x = (column * stride.1 + right).checked_sub(padding.1);
                places.push(match (y, x) {
                    (Some(y), Some(x)) if y < edge && x < edge => (y * edge + x) as u32,
                    _ => outside,
                });
            }
        }
        let length = places.len();
        Ok(Self {
            linear: Linear::new(
                weight.reshape((config.width, area))?,
                modules.optional("bias")?,
            )?,
            places: Tensor::from_vec(places, length, modules.device())?,
            count: (rows, columns),
            area,
        })
    }

    /// [windows, width] of an image.
    fn forward(&self, image: &Tensor) -> Result<Tensor> {
        let image = image.pad_with_zeros(0, 0, 1)?;
        let windows = image.index_select(&self.places, 0)?;
        self.linear.forward(&windows.reshape(((), self.area))?)
    }
}

impl Weighing {
    /// Of modules by the numbers of two convolutions with a norm behind each.
    fn load(modules: &Modules<'_>, (width, inner): (usize, usize), first: usize) -> Result<Self> {
        let layer = |number: usize, inputs: usize, outputs: usize| -> Result<Linear> {
            let norm = modules.batch_norm(&(number + 1).to_string(), BATCH_NORM_EPSILON)?;
            let module = modules.at(number.to_string());
            let weight = module.shaped("weight", &[outputs, inputs, 1, 1])?;
            let weight = weight.reshape((outputs, inputs))?.to_dtype(DType::F32)?;
            let weight = weight.broadcast_mul(&norm.scale.reshape((outputs, 1))?)?;
            let bias = match module.optional("bias")? {
                Some(bias) => (bias.to_dtype(DType::F32)? * &norm.scale)?,
                None => norm.scale.zeros_like()?,
            };
            let bias = (bias + &norm.shift)?;
            let dtype = modules.dtype();
            Linear::new(weight.to_dtype(dtype)?, Some(bias.to_dtype(dtype)?))
        };
        Ok(Self {
            down: layer(first, width, inner)?,
            up: layer(first + 3, inner, width)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = Epilogue {
            activation: Some(Activation::Relu),
            ..Epilogue::default()
        };
        self.up.forward(&self.down.forward_with(x, &inner)?)
    }
}

impl Fusion {
    fn load(config: &HtsatConfig, modules: &Modules<'_>) -> Result<Self> {
        let shape = (
            (config.patch.0, 3 * config.patch.1),
            (config.stride.0, 3 * config.stride.1),
        );
        let model = modules.at("fusion_model");
        let inner = model.shape("local_att.0.weight")?;
        let widths = (config.width, inner.first().copied().unwrap_or(0));
        Ok(Self {
            parts: Windows::load(config, &modules.at("mel_conv2d"), shape)?,
            local: Weighing::load(&model.at("local_att"), widths, 0)?,
            global: Weighing::load(&model.at("global_att"), widths, 1)?,
        })
    }

    /// The rows of the whole, [rows · columns, width], joined with those of its parts side by side.
    fn forward(
        &self,
        whole: &Tensor,
        parts: &[Tensor],
        (rows, columns): (usize, usize),
    ) -> Result<Tensor> {
        let width = whole.dim(1)?;
        let (high, wide) = self.parts.count;
        if high != rows {
            return Err(Error::Internal(format!(
                "parts of {high} rows beside a whole of {rows}"
            )));
        }
        let maps = parts.iter().map(|part| {
            let map = self.parts.forward(part)?;
            Ok(map.reshape((rows, wide, width))?)
        });
        let maps: Vec<Tensor> = maps.collect::<Result<_>>()?;
        let beside = Tensor::cat(&maps, 1)?;
        let found = beside.dim(1)?;
        let beside = if found < columns {
            beside.pad_with_zeros(1, 0, columns - found)?
        } else {
            beside.narrow(1, 0, columns)?
        };
        let beside = beside.contiguous()?.reshape((rows * columns, width))?;
        let sum = elementwise::add(whole, &beside)?;
        let mean = sum.to_dtype(DType::F32)?.mean_keepdim(0)?;
        let global = self.global.forward(&mean.to_dtype(sum.dtype())?)?;
        let weights = elementwise::add(&self.local.forward(&sum)?, &global)?;
        let weights = kernels::activate(&weights, Activation::Sigmoid)?;
        // 2 (a w + b (1 - w)) = 2 (b + (a - b) w)
        let apart = elementwise::add(whole, &elementwise::scale(&beside, -1.0)?)?;
        let joined = elementwise::add(&beside, &elementwise::multiply(&apart, &weights)?)?;
        elementwise::scale(&joined, 2.0)
    }
}

impl Patches {
    pub fn load(config: &HtsatConfig, modules: &Modules<'_>) -> Result<Self> {
        let whole = Windows::load(config, &modules.at("proj"), (config.patch, config.stride))?;
        if whole.count != config.grid() {
            return Err(modules.corrupt(format!(
                "its patches make a grid of {:?} instead of {:?}",
                whole.count,
                config.grid()
            )));
        }
        Ok(Self {
            norm: if modules.has("norm") {
                Some(modules.layer_norm("norm", config.width, EPSILON)?)
            } else {
                None
            },
            fusion: if config.fuses {
                Some(Fusion::load(config, modules)?)
            } else {
                None
            },
            grid: whole.count,
            whole,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.whole.linear)?;
        if let Some(norm) = &self.norm {
            inventory.add_norm(norm)?;
        }
        if let Some(fusion) = &self.fusion {
            inventory.add_linear(&fusion.parts.linear)?;
            for weighing in [&fusion.local, &fusion.global] {
                inventory.add_linear(&weighing.down)?;
                inventory.add_linear(&weighing.up)?;
            }
        }
        Ok(())
    }

    /// [patches, width] of images: the whole, and its parts where there are any.
    pub fn forward(&self, images: &[Tensor]) -> Result<Tensor> {
        let Some((whole, parts)) = images.split_first() else {
            return Ok(Tensor::zeros((0, 0), DType::F32, &Device::Cpu)?);
        };
        let mut rows = self.whole.forward(whole)?;
        if let (Some(fusion), false) = (&self.fusion, parts.is_empty()) {
            rows = fusion.forward(&rows, parts, self.grid)?;
        }
        match &self.norm {
            Some(norm) => norm.forward(&rows),
            None => Ok(rows),
        }
    }
}
