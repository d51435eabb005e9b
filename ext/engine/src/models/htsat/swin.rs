//! Layers of attention inside windows of a map, every second one's windows moved by half.

use candle_core::{DType, Device, Tensor};

use super::{HtsatConfig, EPSILON};
use crate::models::modules::Modules;
use crate::nn::{elementwise, Epilogue, Inventory, Linear, Norm};
use crate::{CancelToken, Result};
use kernels::tensor;
use kernels::Activation;

/// What is added to the scores of places that only the moved windows bring together.
const APART: f32 = -100.0;

#[derive(Debug)]
pub struct Stage {
    blocks: Vec<Block>,
    merging: Option<Merging>,
}

#[derive(Debug)]
struct Block {
    before: Norm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    after: Norm,
    up: Linear,
    down: Linear,
    activation: Activation,
    heads: usize,
    windows: Windows,
    /// [1, heads, places, places]
    bias: Tensor,
}

/// How a map of places is divided.
#[derive(Debug)]
struct Windows {
    count: usize,
    /// Places of one.
    area: usize,
    /// For each place of each window, the map's row; the one behind the last where there is none.
    rows: Tensor,
    /// For each row of the map, its place among all windows'.
    places: Tensor,
    /// [windows, 1, places, places]
    mask: Option<Tensor>,
}

#[derive(Debug)]
struct Merging {
    norm: Norm,
    reduction: Linear,
    /// The four rows that become one, one after the other.
    rows: Tensor,
}

impl Stage {
    pub fn load(config: &HtsatConfig, number: usize, modules: &Modules<'_>) -> Result<Self> {
        let edge = config.grid().0 >> number;
        let width = config.width << number;
        let blocks = (0..config.depths[number]).map(|block| {
            let modules = modules.at(format!("blocks.{block}"));
            let moved = edge > config.window && block % 2 == 1;
            let shift = if moved { config.window / 2 } else { 0 };
            let sizes = (width, config.heads[number]);
            Block::load(config, &modules, sizes, (edge, shift))
        });
        Ok(Self {
            blocks: blocks.collect::<Result<_>>()?,
            merging: if number + 1 < config.depths.len() {
                Some(Merging::load(&modules.at("downsample"), width, edge)?)
            } else {
                None
            },
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for block in &self.blocks {
            block.list(inventory)?;
        }
        match &self.merging {
            Some(merging) => {
                inventory.add_norm(&merging.norm)?;
                inventory.add_linear(&merging.reduction)
            }
            None => Ok(()),
        }
    }

    /// `x` is [places, width].
    pub fn forward(&self, x: &Tensor, cancel: &CancelToken) -> Result<Tensor> {
        let mut x = x.clone();
        for block in &self.blocks {
            cancel.check()?;
            x = block.forward(&x)?;
        }
        match &self.merging {
            Some(merging) => merging.forward(&x),
            None => Ok(x),
        }
    }
}

impl Block {
    fn load(
        config: &HtsatConfig,
        modules: &Modules<'_>,
        (width, heads): (usize, usize),
        (edge, shift): (usize, usize),
    ) -> Result<Self> {
        crate::models::detection::attention::check_heads(modules, width, heads)?;
        let attention = modules.at("attention");
        let own = attention.at("self");
        let linear = |name: &str| own.sized_linear(name, width, width);
        let norm = |name: &str| modules.layer_norm(name, width, config.norm_epsilon);
        let up = modules.linear("intermediate.dense", width)?;
        let inner = up.outputs();
        Ok(Self {
            before: norm("layernorm_before")?,
            query: linear("query")?,
            key: linear("key")?,
            value: linear("value")?,
            output: attention.sized_linear("output.dense", width, width)?,
            after: norm("layernorm_after")?,
            up,
            down: modules.sized_linear("output.dense", inner, width)?,
            activation: config.activation,
            heads,
            windows: Windows::new(edge, config.window, shift, modules.device())?,
            bias: distances(&own, config.window, heads)?,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let linears = [
            &self.query,
            &self.key,
            &self.value,
            &self.output,
            &self.up,
            &self.down,
        ];
        for linear in linears {
            inventory.add_linear(linear)?;
        }
        inventory.add_tensor(&self.bias);
        inventory.add_norm(&self.before)?;
        inventory.add_norm(&self.after)
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let normed = self.before.forward(x)?.pad_with_zeros(0, 0, 1)?;
        let divided = normed.index_select(&self.windows.rows, 0)?.contiguous()?;
        let mixed = self.attend(&divided)?.to_dtype(x.dtype())?;
        let attended = mixed.index_select(&self.windows.places, 0)?.contiguous()?;
        let x = elementwise::add(x, &attended)?;
        let inner = Epilogue {
            activation: Some(self.activation),
            ..Epilogue::default()
        };
        let inner = self.up.forward_with(&self.after.forward(&x)?, &inner)?;
        let residual = Epilogue {
            residual: Some(&x),
            ..Epilogue::default()
        };
        self.down.forward_with(&inner, &residual)
    }

    /// [windows · places, width] of the same.
    fn attend(&self, x: &Tensor) -> Result<Tensor> {
        let (count, area) = (self.windows.count, self.windows.area);
        let width = x.dim(1)?;
        let size = width / self.heads;
        let heads = |linear: &Linear| -> Result<Tensor> {
            let rows = linear.forward(x)?.to_dtype(DType::F32)?;
            let rows = rows.reshape((count, area, self.heads, size))?;
            Ok(rows.transpose(1, 2)?.contiguous()?)
        };
        let product = |a: &Tensor, b: &Tensor| {
            tensor::matmul::matmul(&a.contiguous()?, &b.contiguous()?, &CancelToken::new())
        };
        let (q, k, v) = (heads(&self.query)?, heads(&self.key)?, heads(&self.value)?);
        let scores = product(&q, &k.transpose(2, 3)?)?;
        let scores = elementwise::scale(&scores, 1.0 / (size as f32).sqrt())?;
        let mut scores = elementwise::add(&scores, &self.bias)?;
        if let Some(mask) = &self.windows.mask {
            scores = elementwise::add(&scores, mask)?;
        }
        let mixed = product(&kernels::softmax(&scores.contiguous()?)?, &v)?;
        let mixed = mixed.transpose(1, 2)?.contiguous()?;
        let mixed = mixed.reshape((count * area, width))?;
        self.output.forward(&mixed.to_dtype(x.dtype())?)
    }
}

impl Windows {
    fn new(edge: usize, size: usize, shift: usize, device: &Device) -> Result<Self> {
        let across = edge.div_ceil(size);
        let padded = across * size;
        let (count, area) = (across * across, size * size);
        let none = (edge * edge) as u32;
        let mut rows = Vec::with_capacity(count * area);
        let mut places = vec![0u32; edge * edge];
        let mut regions = Vec::with_capacity(count * area);
        // Places of a moved map that were neighbours before, of both directions.
        let region =
            |at: usize| usize::from(at >= padded - size) + usize::from(at >= padded - shift);
        for window in 0..count {
            for place in 0..area {
                let y = window / across * size + place / size;
                let x = window % across * size + place % size;
                regions.push(region(y) * 3 + region(x));
                let (y, x) = ((y + shift) % padded, (x + shift) % padded);
                if y < edge && x < edge {
                    places[y * edge + x] = rows.len() as u32;
                    rows.push((y * edge + x) as u32);
                } else {
                    rows.push(none);
                }
            }
        }
        let mask = if shift > 0 {
            let mut values = Vec::with_capacity(count * area * area);
            for regions in regions.chunks_exact(area) {
                for own in regions {
                    values.extend(
                        regions
                            .iter()
                            .map(|other| if own == other { 0.0 } else { APART }),
                    );
                }
            }
            Some(Tensor::from_vec(values, (count, 1, area, area), device)?)
        } else {
            None
        };
        Ok(Self {
            count,
            area,
            rows: Tensor::from_vec(rows, count * area, device)?,
            places: Tensor::from_vec(places, edge * edge, device)?,
            mask,
        })
    }
}

/// The bias of every two places of a window, [1, heads, places, places] in f32.
fn distances(modules: &Modules<'_>, size: usize, heads: usize) -> Result<Tensor> {
    let span = 2 * size - 1;
    let table = modules.shaped("relative_position_bias_table", &[span * span, heads])?;
    let area = size * size;
    let mut rows = Vec::with_capacity(area * area);
    for one in 0..area {
        for other in 0..area {
            let down = one / size + size - 1 - other / size;
            let right = one % size + size - 1 - other % size;
            rows.push((down * span + right) as u32);
        }
    }
    let rows = Tensor::from_vec(rows, area * area, modules.device())?;
    let bias = table.to_dtype(DType::F32)?.index_select(&rows, 0)?;
    let bias = bias.t()?.contiguous()?;
    Ok(bias.reshape((1, heads, area, area))?)
}

impl Merging {
    fn load(modules: &Modules<'_>, width: usize, edge: usize) -> Result<Self> {
        let half = edge / 2;
        let mut rows = Vec::with_capacity(4 * half * half);
        for (y, x) in (0..half).flat_map(|y| (0..half).map(move |x| (y, x))) {
            for (right, down) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                rows.push(((2 * y + down) * edge + 2 * x + right) as u32);
            }
        }
        let count = rows.len();
        Ok(Self {
            norm: modules.layer_norm("norm", 4 * width, EPSILON)?,
            reduction: modules.sized_linear("reduction", 4 * width, 2 * width)?,
            rows: Tensor::from_vec(rows, count, modules.device())?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (places, width) = x.dims2()?;
        let four = x.index_select(&self.rows, 0)?.contiguous()?;
        let four = four.reshape((places / 4, 4 * width))?;
        self.reduction.forward(&self.norm.forward(&four)?)
    }
}
