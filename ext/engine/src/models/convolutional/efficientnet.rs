//! EfficientNet: MobileNet's blocks, whose channels grow by what the whole map holds of them.

use super::*;

/// The largest of all places.
#[derive(Debug)]
struct Largest;

impl Own for Largest {
    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        FeatureMap::new(map.rows.max_keepdim(0)?.contiguous()?, (1, 1))
    }

    fn list(&self, _: &mut Inventory) -> Result<()> {
        Ok(())
    }
}

struct Block {
    stride: usize,
    /// Whether the zeros before a stride of 2 stand one place further right and below.
    adjusted: bool,
    /// Whether it adds to what it reads.
    adds: bool,
    activation: Activation,
    epsilon: f64,
}

impl Block {
    fn load(&self, modules: &Modules<'_>, inputs: usize) -> Result<(Layer, usize)> {
        let named = |name, norm, activation| Convolution {
            epsilon: self.epsilon,
            ..Convolution::new(name, norm, activation)
        };
        let (activation, mut channels) = (Some(self.activation), inputs);
        let mut layers = Vec::new();
        if modules.has("expansion") {
            let of = named("expand_conv", "expand_bn", activation);
            let layer;
            (layer, channels) = Layer::load(&modules.at("expansion"), channels, of)?;
            layers.push(layer);
        }
        let own = modules.at("depthwise_conv");
        let kernel = own.shape("depthwise_conv.weight")?;
        let half = kernel.last().copied().unwrap_or(1) / 2;
        if self.stride == 2 {
            let first = half.saturating_sub(usize::from(self.adjusted));
            layers.push(Layer::Frame([first, half, first, half]));
        }
        let of = Convolution {
            stride: self.stride,
            padding: (self.stride == 2).then_some(0),
            groups: channels,
            ..named("depthwise_conv", "depthwise_norm", activation)
        };
        layers.push(Layer::load(&own, channels, of)?.0);
        let squeeze = modules.at("squeeze_excite");
        let reduce = Convolution::new("reduce", "", activation);
        let (reduce, inside) = Layer::load(&squeeze, channels, reduce)?;
        let expand = Convolution::new("expand", "", Some(Activation::Sigmoid));
        let (expand, back) = Layer::load(&squeeze, inside, expand)?;
        if back != channels {
            return Err(squeeze.corrupt(format!(
                "{}expand makes {back} factors for {channels} channels",
                squeeze.path()
            )));
        }
        layers.push(Layer::Excite(vec![reduce, expand]));
        let of = named("project_conv", "project_bn", None);
        let (layer, outputs) = Layer::load(&modules.at("projection"), channels, of)?;
        layers.push(layer);
        let chain = Layer::Chain(layers);
        if !self.adds {
            return Ok((chain, outputs));
        }
        if outputs != inputs {
            let reason = format!("{} does not keep its channels", modules.path());
            return Err(modules.corrupt(reason));
        }
        let sum = vec![Layer::Chain(Vec::new()), chain];
        Ok((Layer::Sum(sum, None), outputs))
    }
}

/// How often blocks are repeated, as Python rounds it.
fn repeats(raw: &RawConfig, base: &[usize]) -> Result<Vec<usize>> {
    let factor = raw.opt_f64("depth_coefficient")?.unwrap_or(3.1);
    let all = base.iter().map(|&count| (factor * count as f64).ceil());
    let all: Vec<f64> = all.collect();
    if all.iter().all(|count| (0.0..=4096.0).contains(count)) {
        return Ok(all.into_iter().map(|count| count as usize).collect());
    }
    let reason = "\"depth_coefficient\" asks for an impossible number of blocks";
    Err(Error::corrupt(raw.file(), reason))
}

pub fn load(raw: &RawConfig, modules: &Modules<'_>) -> Result<Backbone> {
    let base = sizes(raw, "num_block_repeats", &[1, 2, 2, 3, 3, 4, 1], None)?;
    let strides = sizes(raw, "strides", &[1, 2, 2, 2, 1, 2, 1], Some(base.len()))?;
    if let Some(stride) = strides.iter().find(|stride| !matches!(stride, 1 | 2)) {
        let reason = format!("a stride of {stride} in EfficientNet is not supported");
        return Err(Error::unsupported(raw.file(), reason));
    }
    let padded = raw.opt_integers("depthwise_padding")?.unwrap_or_default();
    let name = raw.opt_string("hidden_act")?.unwrap_or("swish");
    let activation = crate::models::config::activation(name, raw.file())?;
    let epsilon = raw.opt_f64("batch_norm_eps")?.unwrap_or(0.001);
    let of = Convolution {
        stride: 2,
        padding: Some(0),
        epsilon,
        ..Convolution::new("convolution", "batchnorm", Some(activation))
    };
    let (layer, mut channels) = Layer::load(&modules.at("embeddings"), CHANNELS, of)?;
    let mut stages = vec![Stage {
        layers: vec![Layer::Frame([0, 1, 0, 1]), layer],
        channels,
    }];
    let encoder = modules.at("encoder");
    let mut number = 0;
    for (count, stride) in repeats(raw, &base)?.into_iter().zip(strides) {
        let mut layers = Vec::new();
        for repeated in 0..count {
            let block = Block {
                stride: if repeated == 0 { stride } else { 1 },
                adjusted: !padded.contains(&(number as i64)),
                adds: repeated > 0,
                activation,
                epsilon,
            };
            let layer;
            (layer, channels) = block.load(&encoder.at(format!("blocks.{number}")), channels)?;
            layers.push(layer);
            number += 1;
        }
        stages.push(Stage { layers, channels });
    }
    let of = Convolution {
        epsilon,
        ..Convolution::new("top_conv", "top_bn", Some(activation))
    };
    let layer;
    (layer, channels) = Layer::load(&encoder, channels, of)?;
    let mut layers = vec![layer];
    match raw.opt_string("pooling_type")?.unwrap_or("mean") {
        "mean" => {}
        "max" => layers.push(Layer::Own(Box::new(Largest))),
        other => {
            let reason = format!("pooling_type {other:?} is neither mean nor max");
            return Err(Error::corrupt(raw.file(), reason));
        }
    }
    stages.push(Stage { layers, channels });
    Ok(Backbone {
        family: "efficientnet",
        stages,
        ..Backbone::default()
    })
}
