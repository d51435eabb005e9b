//! MobileNet V5: blocks that widen and narrow the channels, attention whose heads share their keys, and the last two maps
//! as one (Gemma 3n). What a block consists of, its tensors tell.

use super::mobilenet::Frame;
use super::*;
use crate::nn::{attention, AttentionKind, AttentionOptions};

const EPSILON: f32 = 1e-6;
const ACTIVATION: Activation = Activation::GeluTanh;
const MOST_STAGES: usize = 16;
const MOST_BLOCKS: usize = 1024;

/// The network and what joins its last two maps.
#[derive(Debug)]
pub struct Joined {
    backbone: Backbone,
    layers: Vec<Layer>,
    norm: Norm,
    channels: usize,
    /// The places of a side.
    side: usize,
    head: usize,
}

/// What each place finds on a map that may be smaller: all heads have one key and one value for each of its places.
#[derive(Debug)]
struct SharedKeys {
    query: Linear,
    key: Vec<Layer>,
    value: Vec<Layer>,
    output: Linear,
    size: usize,
}

impl Own for SharedKeys {
    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let (key, value) = (run(&self.key, map)?, run(&self.value, map)?);
        let split = |x: &Tensor| -> Result<Tensor> {
            let (rows, width) = x.dims2()?;
            Ok(x.contiguous()?
                .reshape((rows, width / self.size, self.size))?)
        };
        let query = split(&self.query.forward(&map.rows)?)?;
        let options = AttentionOptions::new(
            AttentionKind::Bidirectional,
            1.0 / (self.size as f32).sqrt(),
        );
        let whole = |x: &Tensor| -> Result<[u32; 2]> { Ok([0, x.dim(0)? as u32]) };
        let (queries, keys) = (whole(&query)?, whole(&key.rows)?);
        let (key, value) = (split(&key.rows)?, split(&value.rows)?);
        let mixed = attention(&query, &key, &value, &queries, &keys, &options)?;
        map.with(self.output.forward(&mixed.flatten_from(1)?)?)
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.query)?;
        inventory.add_linear(&self.output)?;
        let layers = self.key.iter().chain(&self.value);
        layers
            .into_iter()
            .try_for_each(|layer| layer.list(inventory))
    }
}

/// A convolution and the norm behind it.
#[derive(Clone, Copy)]
struct Step<'a> {
    names: [&'a str; 2],
    stride: usize,
    /// Whether each channel is looked at by itself.
    single: bool,
    activated: bool,
    /// The name of factors of its channels.
    factors: Option<&'a str>,
}

impl<'a> Step<'a> {
    fn new(names: [&'a str; 2]) -> Self {
        Self {
            names,
            stride: 1,
            single: false,
            activated: false,
            factors: None,
        }
    }

    fn activated(self) -> Self {
        Self {
            activated: true,
            ..self
        }
    }

    /// Adds its layers, and returns the channels that they make.
    fn add(&self, layers: &mut Vec<Layer>, modules: &Modules<'_>, inputs: usize) -> Result<usize> {
        let [name, norm] = self.names;
        let kernel = modules.at(name).shape("weight")?;
        let kernel = kernel.last().copied().unwrap_or(1).max(1);
        let outputs = if kernel == 1 && self.stride == 1 && !self.single {
            let linear = product(modules, name, inputs, None)?;
            let outputs = linear.outputs();
            layers.push(Layer::Linear(linear, None));
            outputs
        } else {
            layers.push(Layer::Own(Box::new(Frame {
                kernel,
                stride: self.stride,
                dilation: 1,
            })));
            let of = Convolution {
                stride: self.stride,
                padding: Some(0),
                groups: if self.single { inputs } else { 1 },
                ..Convolution::new(name, "", None)
            };
            let (layer, outputs) = Layer::load(modules, inputs, of)?;
            layers.push(layer);
            outputs
        };
        let mut weight = modules.at(norm).shaped("weight", &[outputs])?;
        if let Some(factors) = self.factors.filter(|factors| modules.has(factors)) {
            weight = elementwise::multiply(&weight, &modules.shaped(factors, &[outputs])?)?;
        }
        layers.push(Layer::Norm(Norm::rms(weight, 0.0, EPSILON)));
        if self.activated {
            layers.push(Layer::Activation(ACTIVATION));
        }
        Ok(outputs)
    }
}

/// A convolution of one place, whose outputs are multiplied by factors that there may be.
fn product(
    modules: &Modules<'_>,
    name: &str,
    inputs: usize,
    factors: Option<&str>,
) -> Result<Linear> {
    let of = modules.at(name);
    let outputs = of.shape("weight")?.first().copied().unwrap_or(0);
    let weight = of.shaped("weight", &[outputs, inputs, 1, 1])?;
    let mut weight = weight.reshape((outputs, inputs))?;
    if let Some(factors) = factors.filter(|factors| modules.has(factors)) {
        let factors = modules.shaped(factors, &[outputs])?;
        weight = elementwise::multiply(&weight, &factors.reshape((outputs, 1))?)?;
    }
    of.assemble(weight, of.optional("bias")?)
}

/// The layers of a block, added to what it reads where it keeps the size and the channels.
fn block(modules: &Modules<'_>, inputs: usize, stride: usize) -> Result<(Layer, usize)> {
    let mut layers = Vec::new();
    let missing = ["se", "conv_cpe_dw", "attn.qkv", "attn.query.norm"];
    if let Some(name) = missing.into_iter().find(|name| modules.has(name)) {
        let reason = format!("{}{name} in MobileNet V5 is not supported", modules.path());
        return Err(modules.corrupt(reason));
    }
    let outputs = if modules.has("attn") {
        let norm = modules.rms_norm("norm", inputs, EPSILON)?;
        layers.extend([
            Layer::Norm(norm),
            Layer::Own(Box::new(shared_keys(modules, inputs)?)),
        ]);
        inputs
    } else if modules.has("conv_exp") {
        let wide = Step {
            stride,
            ..Step::new(["conv_exp", "bn1"]).activated()
        };
        let inside = wide.add(&mut layers, modules, inputs)?;
        Step::new(["conv_pwl", "bn2"]).add(&mut layers, modules, inside)?
    } else {
        inverted(&mut layers, modules, inputs, stride)?
    };
    let chain = Layer::Chain(layers);
    if stride > 1 || outputs != inputs {
        return Ok((chain, outputs));
    }
    let sum = vec![Layer::Chain(Vec::new()), chain];
    Ok((Layer::Sum(sum, None), outputs))
}

/// Channels that each look around, become more, look around again, and become fewer.
fn inverted(
    layers: &mut Vec<Layer>,
    modules: &Modules<'_>,
    inputs: usize,
    stride: usize,
) -> Result<usize> {
    let single = |name: &'static str| (modules.has(name), modules.at(name));
    let names = ["conv", "bn"];
    let (starts, start) = single("dw_start");
    let (looks, middle) = single("dw_mid");
    let alone = Step {
        single: true,
        ..Step::new(names)
    };
    if starts {
        let step = Step {
            stride: if looks { 1 } else { stride },
            ..alone
        };
        step.add(layers, &start, inputs)?;
    }
    let wide = Step::new(names).activated();
    let inside = wide.add(layers, &modules.at("pw_exp"), inputs)?;
    if looks {
        let step = Step {
            stride,
            ..alone.activated()
        };
        step.add(layers, &middle, inside)?;
    }
    let (pw_proj, dw_end) = ("pw_proj.", "dw_end.");
    let last = |name: &str| -> [String; 2] { [format!("{name}conv"), format!("{name}bn")] };
    let ends = modules.has("dw_end");
    let factors = Some("layer_scale.gamma");
    let [convolution, norm] = last(pw_proj);
    let narrow = Step {
        factors: factors.filter(|_| !ends),
        ..Step::new([&convolution, &norm])
    };
    let outputs = narrow.add(layers, modules, inside)?;
    if ends {
        let [convolution, norm] = last(dw_end);
        let step = Step {
            single: true,
            stride: if starts || looks { 1 } else { stride },
            factors,
            ..Step::new([&convolution, &norm])
        };
        step.add(layers, modules, outputs)?;
    }
    Ok(outputs)
}

fn shared_keys(modules: &Modules<'_>, inputs: usize) -> Result<SharedKeys> {
    let seen = |name: &str| -> Result<(Vec<Layer>, usize)> {
        let of = modules.at(name);
        let mut layers = Vec::new();
        if of.has("down_conv") {
            let step = Step {
                stride: 2,
                single: true,
                ..Step::new(["down_conv", "norm"])
            };
            step.add(&mut layers, &of, inputs)?;
        }
        let linear = product(&of, "proj", inputs, None)?;
        let size = linear.outputs();
        layers.push(Layer::Linear(linear, None));
        Ok((layers, size))
    };
    let query = product(modules, "attn.query.proj", inputs, None)?;
    let ((key, size), (value, other)) = (seen("attn.key")?, seen("attn.value")?);
    let width = query.outputs();
    if size == 0 || size != other || !width.is_multiple_of(size) {
        return Err(modules.corrupt(format!(
            "{}attn has queries of {width}, keys of {size} and values of {other} numbers",
            modules.path()
        )));
    }
    let factors = Some("layer_scale.gamma");
    let output = product(modules, "attn.output.proj", width, factors)?;
    if output.outputs() != inputs {
        let reason = format!("{}attn does not keep its channels", modules.path());
        return Err(modules.corrupt(reason));
    }
    Ok(SharedKeys {
        query,
        key,
        value,
        output,
        size,
    })
}

impl Joined {
    /// A picture becomes a map of so many places to a side.
    pub fn load(modules: &Modules<'_>, side: usize, cancel: &CancelToken) -> Result<Self> {
        let mut layers = Vec::new();
        let stem = Step {
            stride: 2,
            ..Step::new(["conv", "bn"]).activated()
        };
        let mut channels = stem.add(&mut layers, &modules.at("conv_stem"), CHANNELS)?;
        let mut stages = vec![Stage { layers, channels }];
        let mut head = 0;
        while stages.len() < MOST_STAGES && modules.has(&format!("blocks.{}", stages.len() - 1)) {
            let stage = modules.at(format!("blocks.{}", stages.len() - 1));
            let mut layers = Vec::new();
            while layers.len() < MOST_BLOCKS && stage.has(&layers.len().to_string()) {
                cancel.check()?;
                let of = stage.at(layers.len().to_string());
                if of.has("attn.key.proj") {
                    let shape = of.shape("attn.key.proj.weight")?;
                    head = shape.first().copied().unwrap_or(0).max(head);
                }
                let stride = if layers.is_empty() { 2 } else { 1 };
                let layer;
                (layer, channels) = block(&of, channels, stride)?;
                layers.push(layer);
            }
            stages.push(Stage { layers, channels });
        }
        let [.., fine, coarse] = &stages[..] else {
            return Err(modules.corrupt("MobileNet V5 without stages".to_string()));
        };
        let joint = fine.channels + coarse.channels;
        let fusion = modules.at("msfa");
        let mut layers = Vec::new();
        let channels = inverted(&mut layers, &fusion.at("ffn"), joint, 1)?;
        Ok(Self {
            norm: fusion.rms_norm("norm", channels, EPSILON)?,
            backbone: Backbone {
                family: "mobilenetv5",
                stages,
                ..Backbone::default()
            },
            layers,
            channels,
            side,
            head,
        })
    }

    pub fn channels(&self) -> usize {
        self.channels
    }

    /// The widest head of attention; 0 where there is none.
    pub fn head(&self) -> usize {
        self.head
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.backbone.list(inventory)?;
        inventory.add_norm(&self.norm)?;
        self.layers
            .iter()
            .try_for_each(|layer| layer.list(inventory))
    }

    /// [side · side, channels]
    pub fn forward(&self, image: &FeatureMap, cancel: &CancelToken) -> Result<Tensor> {
        let last = self.backbone.stages.len() - 1;
        let maps = self.backbone.forward(image, &[last - 1, last], cancel)?;
        let [fine, coarse] = &maps[..] else {
            return Err(Error::Internal("a backbone without two maps".into()));
        };
        let coarse = repeated(coarse, fine.size())?;
        let joined = run(&self.layers, &FeatureMap::join(&[fine.clone(), coarse])?)?;
        let (height, width) = joined.size();
        let pooled = match (height / self.side, width / self.side) {
            (1, 1) if (height, width) == (self.side, self.side) => joined,
            (times, others)
                if times == others && (height, width) == (times * self.side, times * self.side) =>
            {
                joined.pooled(Window::new(times, times, 0), Pooling::Mean)?
            }
            _ => joined.stretched((self.side, self.side))?,
        };
        self.norm.forward(&pooled.rows)
    }
}

/// A map whose places are repeated until there are so many.
fn repeated(map: &FeatureMap, (height, width): (usize, usize)) -> Result<FeatureMap> {
    if map.height >= height && map.width >= width {
        return Ok(map.clone());
    }
    let row = |at: usize| {
        let (y, x) = (at / width, at % width);
        (y * map.height / height * map.width + x * map.width / width) as u32
    };
    let rows = (0..height * width).map(row).collect();
    FeatureMap::new(map.picked(rows, 0.0)?, (height, width))
}
