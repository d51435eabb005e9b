//! Florence-2's image encoder: convolutions between stages, and in each layer attention inside windows, then attention
//! between groups of channels.

use candle_core::{DType, Device, Tensor};

use crate::models::config;
use crate::models::convolutional::sizes;
use crate::models::detection::attention::check_heads;
use crate::models::modules::{Convolution, Modules};
use crate::models::swin::{Windows, WINDOW};
use crate::nn::{attention, AttentionKind, AttentionOptions};
use crate::nn::{elementwise, Conv2d, Epilogue, FeatureMap, Inventory, Linear, Norm};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::RawConfig;
use formats::image::{View, CHANNELS};
use kernels::tensor;
use kernels::Activation;

const EPSILON: f32 = 1e-5;

#[derive(Debug)]
pub struct Davit {
    stages: Vec<Stage>,
    place: (Device, DType),
    width: usize,
}

#[derive(Debug)]
struct Stage {
    /// Before the convolution, or behind it.
    norm: Norm,
    norm_first: bool,
    convolution: Conv2d,
    blocks: Vec<Block>,
}

/// One half of a layer: each part is added to what it reads, behind a convolution of every channel that is, too.
#[derive(Debug)]
struct Block {
    first: Conv2d,
    first_norm: Norm,
    qkv: Linear,
    output: Linear,
    mixing: Mixing,
    second: Conv2d,
    second_norm: Norm,
    up: Linear,
    down: Linear,
    activation: Activation,
}

#[derive(Clone, Copy, Debug)]
enum Mixing {
    Windows { size: usize, heads: usize },
    Channels { groups: usize },
}

impl Davit {
    pub fn load(raw: &RawConfig, modules: &Modules<'_>, cancel: &CancelToken) -> Result<Self> {
        let list = |key: &str, usual: &[usize]| sizes(raw, key, usual, None);
        let depths = list("depths", &[1, 1, 9, 1])?;
        let widths = list("embed_dim", &[128, 256, 512, 1024])?;
        let heads = list("num_heads", &[4, 8, 16, 32])?;
        let groups = list("num_groups", &[4, 8, 16, 32])?;
        let strides = list("patch_stride", &[4, 2, 2, 2])?;
        let paddings = raw
            .opt_integers("patch_padding")?
            .unwrap_or(vec![3, 1, 1, 1]);
        let norms = norms_first(raw)?;
        let lengths = [
            widths.len(),
            heads.len(),
            groups.len(),
            strides.len(),
            paddings.len(),
            norms.len(),
        ];
        if lengths.iter().any(|length| *length != depths.len()) {
            let reason = "the lists of its vision_config are not of one length";
            return Err(Error::corrupt(raw.file(), reason));
        }
        let size = raw.opt_usize_in("window_size", WINDOW)?.unwrap_or(12);
        let name = raw.opt_string("activation_function")?.unwrap_or("gelu");
        let activation = config::activation(name, raw.file())?;
        let mut channels = CHANNELS;
        let mut stages = Vec::with_capacity(depths.len());
        for (stage, &depth) in depths.iter().enumerate() {
            let convs = modules.at(format!("convs.{stage}"));
            let padding = usize::try_from(paddings[stage]).ok().filter(|p| *p <= 64);
            let padding = padding.ok_or_else(|| {
                Error::corrupt(raw.file(), "\"patch_padding\" is not a list of sizes")
            })?;
            let of = Convolution {
                stride: strides[stage],
                padding: Some(padding),
                ..Convolution::new("conv", "", None)
            };
            let convolution = convs.convolution(channels, of)?;
            let width = widths[stage];
            if convolution.outputs() != width {
                return Err(modules.corrupt(format!(
                    "stage {stage} has {} channels where {width} are wanted",
                    convolution.outputs()
                )));
            }
            let normed = if norms[stage] { channels } else { width };
            let norm = convs.layer_norm("norm", normed, EPSILON)?;
            channels = width;
            let mut blocks = Vec::new();
            for block in 0..depth {
                cancel.check()?;
                let modules = modules.at(format!("blocks.{stage}.{block}"));
                let windows = Mixing::Windows {
                    size,
                    heads: heads[stage],
                };
                let between = Mixing::Channels {
                    groups: groups[stage],
                };
                for (name, mixing) in [("spatial_block", windows), ("channel_block", between)] {
                    blocks.push(Block::load(&modules.at(name), width, mixing, activation)?);
                }
            }
            stages.push(Stage {
                norm,
                norm_first: norms[stage],
                convolution,
                blocks,
            });
        }
        Ok(Self {
            stages,
            place: (modules.device().clone(), modules.dtype()),
            width: channels,
        })
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn layer_count(&self) -> usize {
        self.stages.iter().map(|stage| stage.blocks.len()).sum()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for stage in &self.stages {
            inventory.add_norm(&stage.norm)?;
            stage.convolution.list(inventory)?;
            stage.blocks.iter().try_for_each(|it| it.list(inventory))?;
        }
        Ok(())
    }

    pub fn forward(&self, view: &View, cancel: &CancelToken) -> Result<FeatureMap> {
        let mut map = FeatureMap::of_view(view, (&self.place.0, self.place.1))?;
        for stage in &self.stages {
            if stage.norm_first {
                map = map.with(stage.norm.forward(&map.rows)?)?;
            }
            map = stage.convolution.forward(&map)?;
            if !stage.norm_first {
                map = map.with(stage.norm.forward(&map.rows)?)?;
            }
            for block in &stage.blocks {
                cancel.check()?;
                map = block.forward(&map, cancel)?;
            }
        }
        Ok(map)
    }
}

impl Block {
    fn load(
        modules: &Modules<'_>,
        width: usize,
        mixing: Mixing,
        activation: Activation,
    ) -> Result<Self> {
        let parts = match mixing {
            Mixing::Windows { heads, .. } => heads,
            Mixing::Channels { groups } => groups,
        };
        check_heads(modules, width, parts)?;
        let of = |name: &'static str| Convolution {
            groups: width,
            ..Convolution::new(name, "", None)
        };
        let norm = |name: &str| modules.layer_norm(name, width, EPSILON);
        let mixer = modules.at("window_attn|channel_attn");
        let up = modules.linear("ffn.fc1", width)?;
        let inner = up.outputs();
        Ok(Self {
            first: modules.convolution(width, of("conv1"))?,
            first_norm: norm("norm1")?,
            qkv: mixer.sized_linear("qkv", width, 3 * width)?,
            output: mixer.sized_linear("proj", width, width)?,
            mixing,
            second: modules.convolution(width, of("conv2"))?,
            second_norm: norm("norm2")?,
            up,
            down: modules.sized_linear("ffn.fc2", inner, width)?,
            activation,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for linear in [&self.qkv, &self.output, &self.up, &self.down] {
            inventory.add_linear(linear)?;
        }
        self.first.list(inventory)?;
        self.second.list(inventory)?;
        inventory.add_norm(&self.first_norm)?;
        inventory.add_norm(&self.second_norm)
    }

    fn forward(&self, map: &FeatureMap, cancel: &CancelToken) -> Result<FeatureMap> {
        let map = map.add(&self.first.forward(map)?)?;
        let normed = map.with(self.first_norm.forward(&map.rows)?)?;
        let mixed = match self.mixing {
            Mixing::Windows { size, heads } => self.in_windows(&normed, size, heads)?,
            Mixing::Channels { groups } => self.between_channels(&normed.rows, groups, cancel)?,
        };
        let map = map.with(elementwise::add(&map.rows, &mixed)?)?;
        let map = map.add(&self.second.forward(&map)?)?;
        let inner = Epilogue {
            activation: Some(self.activation),
            ..Epilogue::default()
        };
        let normed = self.second_norm.forward(&map.rows)?;
        let inner = self.up.forward_with(&normed, &inner)?;
        let residual = Epilogue {
            residual: Some(&map.rows),
            ..Epilogue::default()
        };
        map.with(self.down.forward_with(&inner, &residual)?)
    }

    fn in_windows(&self, map: &FeatureMap, size: usize, heads: usize) -> Result<Tensor> {
        let device = map.rows.device();
        let windows = Windows::new(map.size(), size, 0);
        let (count, area) = (windows.rows.len(), size * size);
        let rows = Tensor::from_slice(&windows.rows, count, device)?;
        let padded = map.rows.pad_with_zeros(0, 0, 1)?;
        let divided = padded.index_select(&rows, 0)?.contiguous()?;
        let width = divided.dim(1)?;
        let qkv = self.qkv.forward(&divided)?;
        let part = |number: usize| -> Result<Tensor> {
            let part = qkv.narrow(1, number * width, width)?.contiguous()?;
            Ok(part.reshape((count, heads, width / heads))?)
        };
        let ends: Vec<u32> = (0..=count / area).map(|it| (it * area) as u32).collect();
        let scale = 1.0 / ((width / heads) as f32).sqrt();
        let options = AttentionOptions::new(AttentionKind::Bidirectional, scale);
        let mixed = attention(&part(0)?, &part(1)?, &part(2)?, &ends, &ends, &options)?;
        let mixed = self.output.forward(&mixed.reshape((count, width))?)?;
        let places = Tensor::from_slice(&windows.places, windows.places.len(), device)?;
        Ok(mixed.index_select(&places, 0)?.contiguous()?)
    }

    fn between_channels(
        &self,
        rows: &Tensor,
        groups: usize,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let (count, width) = rows.dims2()?;
        let qkv = self.qkv.forward(rows)?.to_dtype(DType::F32)?;
        // [groups, channels, places]
        let part = |number: usize| -> Result<Tensor> {
            let part = qkv.narrow(1, number * width, width)?.contiguous()?;
            let part = part.reshape((count, groups, width / groups))?;
            Ok(part.permute((1, 2, 0))?.contiguous()?)
        };
        let product = |a: &Tensor, b: &Tensor| tensor::matmul::matmul(a, b, cancel);
        let scores = product(&part(0)?, &part(1)?.transpose(1, 2)?)?;
        let scores = elementwise::scale(&scores, 1.0 / (count as f32).sqrt())?;
        let mixed = product(&kernels::softmax(&scores.contiguous()?)?, &part(2)?)?;
        let mixed = mixed.permute((2, 0, 1))?.contiguous()?;
        let mixed = mixed.reshape((count, width))?.to_dtype(rows.dtype())?;
        self.output.forward(&mixed)
    }
}

/// Which stages have their norm before the convolution.
fn norms_first(raw: &RawConfig) -> Result<Vec<bool>> {
    let Some(value) = raw.get("patch_prenorm") else {
        return Ok(vec![false, true, true, true]);
    };
    let list = value.as_array().and_then(|values| {
        let flags = values.iter().map(serde_json::Value::as_bool);
        flags.collect::<Option<Vec<bool>>>()
    });
    list.ok_or_else(|| Error::corrupt(raw.file(), "\"patch_prenorm\" is not a list of flags"))
}

/// What leads from the map to rows of the text encoder's width: positions of rows and columns, the mean of all places
/// before them, a product and a norm.
#[derive(Debug)]
pub struct Projector {
    rows: Tensor,
    columns: Tensor,
    /// What the first picture of several has, [1, width].
    time: Tensor,
    projection: Linear,
    norm: Norm,
}

impl Projector {
    pub fn load(modules: &Modules<'_>, width: usize, outputs: usize) -> Result<Self> {
        let positions = modules.at("image_position_embed");
        let table = |name: &str, width: usize| -> Result<Tensor> {
            let name = format!("{name}.weight");
            let count = positions.shape(&name)?.first().copied().unwrap_or(0);
            positions.shaped(&name, &[count, width])
        };
        let first = "visual_temporal_embed.pos_idx_to_embed";
        let time = match modules.optional(first)? {
            Some(table) if table.rank() == 2 && table.dim(1)? == width && table.dim(0)? > 0 => {
                table.narrow(0, 0, 1)?.contiguous()?
            }
            Some(_) => modules.shaped(first, &[1, width])?,
            None => {
                let values: Vec<f32> = (0..width).map(|at| (at % 2) as f32).collect();
                let time = Tensor::from_vec(values, (1, width), modules.device())?;
                time.to_dtype(modules.dtype())?
            }
        };
        Ok(Self {
            rows: table("row_embeddings", width / 2)?,
            columns: table("column_embeddings", width - width / 2)?,
            time,
            projection: modules.sized_linear("image_projection", width, outputs)?,
            norm: modules.layer_norm("image_proj_norm", outputs, EPSILON)?,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_tensor(&self.rows);
        inventory.add_tensor(&self.columns);
        inventory.add_linear(&self.projection)?;
        inventory.add_norm(&self.norm)
    }

    pub fn forward(&self, map: &FeatureMap) -> Result<Tensor> {
        let (height, width) = map.size();
        let most = (self.rows.dim(0)?, self.columns.dim(0)?);
        if height > most.0 || width > most.1 {
            return Err(Error::InvalidInput(format!(
                "the image became {width}x{height} places, and the model has positions for {}x{}: its \
                 preprocessor_config.json belongs to another model",
                most.1, most.0
            )));
        }
        let picked = |table: &Tensor, at: &dyn Fn(usize) -> usize| -> Result<Tensor> {
            let rows: Vec<u32> = (0..height * width).map(|place| at(place) as u32).collect();
            let rows = Tensor::from_vec(rows, height * width, table.device())?;
            Ok(table.index_select(&rows, 0)?)
        };
        let columns = picked(&self.columns, &|place| place % width)?;
        let rows = picked(&self.rows, &|place| place / width)?;
        let positions = Tensor::cat(&[columns, rows], 1)?.contiguous()?;
        let states = elementwise::add(&map.rows, &positions)?;
        let states = elementwise::add(&states, &self.time)?;
        let mean = states.to_dtype(DType::F32)?.mean_keepdim(0)?;
        let all = Tensor::cat(&[mean.to_dtype(states.dtype())?, states], 0)?;
        self.norm.forward(&self.projection.forward(&all)?)
    }
}
