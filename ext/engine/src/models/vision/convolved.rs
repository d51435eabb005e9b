//! FastVLM's images: FastViT, whose branches of training files have folded into one convolution each, and two products
//! that lead from its last map to a decoder's width.

use candle_core::{DType, Device, Tensor};

use crate::models::config;
use crate::models::modules::{Convolution, Modules};
use crate::nn::feature_map::Window;
use crate::nn::{
    attention, elementwise, AttentionKind, AttentionOptions, Conv2d, Epilogue, FeatureMap,
    Inventory, Linear, Norm,
};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::RawConfig;
use formats::image::{View, CHANNELS};
use kernels::Activation;

const ARCHITECTURES: [&str; 2] = ["fastvit_mci3", "fastvit_mci4"];
/// The width of a head of attention.
const HEAD: usize = 32;
const EPSILON: f32 = 1e-5;
/// More than any of them has.
const MOST_STAGES: usize = 16;
const MOST_BLOCKS: usize = 1024;

#[derive(Debug)]
pub struct Convolved {
    stem: Vec<Folded>,
    stages: Vec<Stage>,
    last: Folded,
    up: Linear,
    activation: Activation,
    down: Linear,
    device: Device,
    dtype: DType,
}

#[derive(Debug)]
struct Stage {
    smaller: Vec<Folded>,
    positions: Option<Folded>,
    blocks: Vec<Block>,
}

#[derive(Debug)]
struct Block {
    mixer: Mixer,
    feed: Feed,
}

#[derive(Debug)]
enum Mixer {
    Convolution(Folded),
    Attention(Attention),
}

#[derive(Debug)]
struct Attention {
    norm: Norm,
    qkv: Linear,
    /// With the factors of its channels.
    output: Linear,
}

/// A convolution of every channel, and two products of every place, the second with the factors of its channels.
#[derive(Debug)]
struct Feed {
    convolution: Conv2d,
    up: Linear,
    down: Linear,
}

/// A convolution, weights of its channels, and an activation.
#[derive(Debug)]
struct Folded {
    /// Which channel each new one is made of, where one makes several.
    order: Option<Tensor>,
    convolution: Conv2d,
    squeeze: Option<[Linear; 2]>,
    activates: bool,
}

impl Convolved {
    /// From the configuration of the whole model; rows have `outputs` numbers.
    pub fn load(
        raw: &RawConfig,
        modules: &Modules<'_>,
        outputs: usize,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let vision = raw.nested("vision_config")?;
        let architecture = vision.opt_string("architecture")?.unwrap_or("fastvit_mci3");
        if !ARCHITECTURES.contains(&architecture) {
            let reason =
                format!("the architecture {architecture:?} of a vision tower is not supported");
            return Err(Error::unsupported(raw.file(), reason));
        }
        let tower = modules.at("model.vision_tower.timm_model|vision_tower.timm_model");
        if !tower.has("stem.0.reparam_conv") {
            let reason = "the vision tower has branches for training: save it in inference mode";
            return Err(Error::unsupported(raw.file(), reason));
        }
        let mut channels = CHANNELS;
        let mut stem = Vec::new();
        for (number, stride) in [2, 2, 1].into_iter().enumerate() {
            let of = tower.at(format!("stem.{number}"));
            stem.push(Folded::load(&of, &mut channels, stride, true)?);
        }
        let mut stages = Vec::new();
        while stages.len() < MOST_STAGES && tower.has(&format!("stages.{}", stages.len())) {
            let of = tower.at(format!("stages.{}", stages.len()));
            stages.push(Stage::load(&of, &mut channels, cancel)?);
        }
        let last = Folded::load(&tower.at("final_conv"), &mut channels, 1, true)?;
        let leads = modules.at("model.multi_modal_projector|multi_modal_projector");
        let up = leads.linear("linear_1", channels)?;
        let activation = raw.opt_string("projector_hidden_act")?.unwrap_or("gelu");
        Ok(Self {
            stem,
            stages,
            last,
            down: leads.sized_linear("linear_2", up.outputs(), outputs)?,
            up,
            activation: config::activation(activation, raw.file())?,
            device: modules.device().clone(),
            dtype: modules.dtype(),
        })
    }

    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        for folded in self.stem.iter().chain([&self.last]) {
            folded.list(&mut inventory)?;
        }
        for stage in &self.stages {
            stage.list(&mut inventory)?;
        }
        inventory.add_linear(&self.up)?;
        inventory.add_linear(&self.down)?;
        inventory.add_rows("activation", &self.device)?;
        inventory.add_attention(&self.device, self.dtype, HEAD)?;
        Ok(inventory)
    }

    /// What stands for a view: [rows, width].
    pub fn forward(&self, view: &View, cancel: &CancelToken) -> Result<Tensor> {
        let mut map = FeatureMap::of_view(view, (&self.device, self.dtype))?;
        for folded in &self.stem {
            map = folded.forward(&map)?;
        }
        for stage in &self.stages {
            map = stage.forward(map, cancel)?;
        }
        let map = self.last.forward(&map)?;
        let epilogue = Epilogue {
            activation: Some(self.activation),
            ..Epilogue::default()
        };
        let inner = self.up.forward_with(&map.rows.contiguous()?, &epilogue)?;
        self.down.forward(&inner)
    }
}

impl Stage {
    fn load(modules: &Modules<'_>, channels: &mut usize, cancel: &CancelToken) -> Result<Self> {
        let mut smaller = Vec::new();
        if modules.has("downsample") {
            let of = modules.at("downsample.proj");
            smaller.push(Folded::load(&of.at("0"), channels, 2, true)?);
            smaller.push(Folded::load(&of.at("1"), channels, 1, true)?);
        }
        let positions = if modules.has("pos_emb") {
            Some(Folded::load(&modules.at("pos_emb"), channels, 1, false)?)
        } else {
            None
        };
        let mut blocks = Vec::new();
        while blocks.len() < MOST_BLOCKS && modules.has(&format!("blocks.{}", blocks.len())) {
            cancel.check()?;
            let of = modules.at(format!("blocks.{}", blocks.len()));
            blocks.push(Block::load(&of, *channels)?);
        }
        Ok(Self {
            smaller,
            positions,
            blocks,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for folded in self.smaller.iter().chain(&self.positions) {
            folded.list(inventory)?;
        }
        self.blocks
            .iter()
            .try_for_each(|block| block.list(inventory))
    }

    fn forward(&self, mut map: FeatureMap, cancel: &CancelToken) -> Result<FeatureMap> {
        for folded in self.smaller.iter().chain(&self.positions) {
            map = folded.forward(&map)?;
        }
        for block in &self.blocks {
            cancel.check()?;
            map = block.forward(&map)?;
        }
        Ok(map)
    }
}

impl Block {
    fn load(modules: &Modules<'_>, channels: usize) -> Result<Self> {
        let of = modules.at("token_mixer");
        let (mixer, factors) = if of.has("qkv") {
            if !channels.is_multiple_of(HEAD) {
                return Err(of.corrupt(format!(
                    "{channels} channels can't be divided into heads of {HEAD}"
                )));
            }
            let attention = Attention {
                norm: modules.layer_norm("norm", channels, EPSILON)?,
                qkv: of.sized_linear("qkv", channels, 3 * channels)?,
                output: product(
                    &of.at("proj"),
                    (channels, channels),
                    Some(&modules.at("layer_scale_1")),
                )?,
            };
            (Mixer::Attention(attention), "layer_scale_2")
        } else {
            let mut made = channels;
            let folded = Folded::load(&of, &mut made, 1, false)?;
            if made != channels {
                return Err(of.corrupt(format!("{channels} channels become {made} in a block")));
            }
            (Mixer::Convolution(folded), "layer_scale")
        };
        let mlp = modules.at("mlp");
        let by_channel = Convolution {
            groups: channels,
            ..Convolution::new("conv.conv", "conv.bn", None)
        };
        let inner = mlp.at("fc1").shape("weight")?.first().copied();
        let inner = inner.unwrap_or(0);
        Ok(Self {
            mixer,
            feed: Feed {
                convolution: mlp.convolution(channels, by_channel)?,
                up: product(&mlp.at("fc1"), (channels, inner), None)?,
                down: product(
                    &mlp.at("fc2"),
                    (inner, channels),
                    Some(&modules.at(factors)),
                )?,
            },
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        match &self.mixer {
            Mixer::Convolution(folded) => folded.list(inventory)?,
            Mixer::Attention(attention) => {
                inventory.add_norm(&attention.norm)?;
                inventory.add_linear(&attention.qkv)?;
                inventory.add_linear(&attention.output)?;
            }
        }
        self.feed.convolution.list(inventory)?;
        inventory.add_linear(&self.feed.up)?;
        inventory.add_linear(&self.feed.down)
    }

    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let map = match &self.mixer {
            Mixer::Convolution(folded) => folded.forward(map)?,
            Mixer::Attention(attention) => map.with(attention.forward(&map.rows)?)?,
        };
        let epilogue = Epilogue {
            activation: Some(Activation::Gelu),
            ..Epilogue::default()
        };
        let seen = self.feed.convolution.forward(&map)?.rows.contiguous()?;
        let inner = self.feed.up.forward_with(&seen, &epilogue)?;
        let residual = Epilogue {
            residual: Some(&map.rows),
            ..Epilogue::default()
        };
        map.with(self.feed.down.forward_with(&inner, &residual)?)
    }
}

impl Attention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (count, width) = x.dims2()?;
        let all = self.qkv.forward(&self.norm.forward(x)?)?;
        let part = |number: usize| -> Result<Tensor> {
            let rows = all.narrow(1, number * width, width)?.contiguous()?;
            Ok(rows.reshape((count, width / HEAD, HEAD))?)
        };
        let scale = 1.0 / (HEAD as f32).sqrt();
        let options = AttentionOptions::new(AttentionKind::Bidirectional, scale);
        let whole = [0, count as u32];
        let mixed = attention(&part(0)?, &part(1)?, &part(2)?, &whole, &whole, &options)?;
        let residual = Epilogue {
            residual: Some(x),
            ..Epilogue::default()
        };
        self.output.forward_with(&mixed.flatten_from(1)?, &residual)
    }
}

impl Folded {
    /// `channels` are those that it reads, and then those that it makes.
    fn load(
        modules: &Modules<'_>,
        channels: &mut usize,
        stride: usize,
        activates: bool,
    ) -> Result<Self> {
        let of = modules.at("reparam_conv");
        let shape = of.shape("weight")?;
        let [outputs, read, kernel, _] = shape[..] else {
            return Err(of.corrupt(format!("{shape:?} is not the shape of a convolution")));
        };
        let reads_all = read == *channels;
        if !reads_all && (read != 1 || !outputs.is_multiple_of(*channels)) {
            return Err(of.corrupt(format!(
                "a convolution of the shape {shape:?} can't read {channels} channels"
            )));
        }
        let order = if reads_all || outputs == *channels {
            None
        } else {
            let each = (outputs / *channels) as u32;
            let order = (0..outputs as u32).map(|channel| channel / each).collect();
            Some(Tensor::from_vec(order, outputs, modules.device())?)
        };
        let weight = of.shaped("weight", &[outputs, read, kernel, kernel])?;
        let bias = of.shaped("bias", &[outputs])?;
        let groups = if reads_all { 1 } else { outputs };
        let window = Window::new(kernel, stride, kernel / 2);
        let squeeze = modules.at("se");
        *channels = outputs;
        Ok(Self {
            order,
            convolution: Conv2d::new(&weight, Some(&bias), None, window, groups, None)?,
            squeeze: if squeeze.has("fc1") {
                let inner = squeeze.at("fc1").shape("weight")?.first().copied();
                let inner = inner.unwrap_or(0);
                Some([
                    product(&squeeze.at("fc1"), (outputs, inner), None)?,
                    product(&squeeze.at("fc2"), (inner, outputs), None)?,
                ])
            } else {
                None
            },
            activates,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.convolution.list(inventory)?;
        let squeeze = self.squeeze.iter().flatten();
        squeeze
            .into_iter()
            .try_for_each(|linear| inventory.add_linear(linear))
    }

    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let map = match &self.order {
            Some(order) => self
                .convolution
                .forward(&map.with(map.rows.index_select(order, 1)?)?)?,
            None => self.convolution.forward(map)?,
        };
        let map = match &self.squeeze {
            Some([reduce, expand]) => {
                let places = [0, map.rows.dim(0)? as u32];
                let mean = kernels::mean_pool(&map.rows.contiguous()?, &places)?;
                let with = |activation| Epilogue {
                    activation: Some(activation),
                    ..Epilogue::default()
                };
                let mean = mean.to_dtype(map.rows.dtype())?;
                let inner = reduce.forward_with(&mean, &with(Activation::Relu))?;
                let weights = expand.forward_with(&inner, &with(Activation::Sigmoid))?;
                map.with(elementwise::multiply(&map.rows, &weights)?)?
            }
            None => map,
        };
        if self.activates {
            map.activated(Activation::Gelu)
        } else {
            Ok(map)
        }
    }
}

/// A product that files may have as a convolution of one place, whose outputs are multiplied by factors that there may
/// be.
fn product(
    modules: &Modules<'_>,
    (inputs, outputs): (usize, usize),
    factors: Option<&Modules<'_>>,
) -> Result<Linear> {
    let weight = match modules.shape("weight")?.len() {
        4 => modules.shaped("weight", &[outputs, inputs, 1, 1])?,
        _ => modules.shaped("weight", &[outputs, inputs])?,
    };
    let mut weight = weight.reshape((outputs, inputs))?;
    let bias = modules
        .has("bias")
        .then(|| modules.shaped("bias", &[outputs]));
    let mut bias = bias.transpose()?;
    if let Some(factors) = factors.filter(|factors| factors.has("gamma")) {
        let factors = factors.shaped("gamma", &[outputs, 1, 1])?;
        let factors = factors.reshape((outputs, 1))?;
        weight = elementwise::multiply(&weight, &factors)?;
        bias = match bias {
            Some(bias) => Some(elementwise::multiply(&bias, &factors.reshape(outputs)?)?),
            None => None,
        };
    }
    modules.assemble(weight, bias)
}
