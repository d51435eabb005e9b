//! ResNet: transformers', RT-DETR's with a deep stem, and timm's under other names.

use super::*;

/// How a block is built, whatever its convolutions are called.
struct Block<'a> {
    /// Modules of the block.
    modules: Modules<'a>,
    convolutions: &'a [(&'a str, &'a str)],
    shortcut: (&'a str, &'a str),
    stride: usize,
    /// Which convolution has the stride.
    strided: usize,
    activation: Activation,
    /// Means of squares stand before the shortcut, which then has no stride.
    averaged: bool,
}

impl Block<'_> {
    /// The block and its channels.
    fn load(self, inputs: usize) -> Result<(Layer, usize)> {
        let mut channels = inputs;
        let mut chain = Vec::with_capacity(self.convolutions.len());
        let last = self.convolutions.len() - 1;
        for (number, &(name, norm)) in self.convolutions.iter().enumerate() {
            // Blocks keep ReLU inside whatever the configuration names.
            let inside = (number < last).then_some(Activation::Relu);
            let of = Convolution {
                stride: if number == self.strided {
                    self.stride
                } else {
                    1
                },
                ..Convolution::new(name, norm, inside)
            };
            let layer;
            (layer, channels) = Layer::load(&self.modules, channels, of)?;
            chain.push(layer);
        }
        let mut beside = Vec::new();
        if self.averaged {
            let window = Window {
                beyond: true,
                ..Window::new(2, 2, 0)
            };
            beside.push(Layer::Pool(window, Pooling::Mean));
        }
        let (name, norm) = self.shortcut;
        if self.modules.has(name) {
            let stride = if self.averaged { 1 } else { self.stride };
            let of = Convolution {
                stride,
                ..Convolution::new(name, norm, None)
            };
            beside.push(Layer::load(&self.modules, inputs, of)?.0);
        }
        let sum = vec![Layer::Chain(chain), Layer::Chain(beside)];
        Ok((Layer::Sum(sum, Some(self.activation)), channels))
    }
}

fn pool() -> Layer {
    Layer::Pool(Window::new(3, 2, 1), Pooling::Max)
}

const OURS: [(&str, &str); 3] = [
    ("layer.0.convolution", "layer.0.normalization"),
    ("layer.1.convolution", "layer.1.normalization"),
    ("layer.2.convolution", "layer.2.normalization"),
];

pub fn load(raw: &RawConfig, modules: &Modules<'_>) -> Result<Backbone> {
    let deep = raw.model_type()? == Some("rt_detr_resnet");
    let depths = sizes(raw, "depths", &[3, 4, 6, 3], None)?;
    let basic = match raw.opt_string("layer_type")? {
        Some("basic") => true,
        Some("bottleneck") | None => false,
        Some(other) => {
            let reason = format!("layer_type {other:?} is neither basic nor bottleneck");
            return Err(Error::corrupt(raw.file(), reason));
        }
    };
    let activation = hidden_activation(raw)?;
    let flag = |key: &str| -> Result<bool> { Ok(raw.opt_bool(key)?.unwrap_or(false)) };
    let (first_halves, early) = (
        flag("downsample_in_first_stage")?,
        flag("downsample_in_bottleneck")?,
    );
    let stem = modules.at("embedder.embedder");
    let mut channels = CHANNELS;
    let mut layers = Vec::new();
    let stems: &[(&str, &str, usize)] = if deep {
        &[
            ("0.convolution", "0.normalization", 2),
            ("1.convolution", "1.normalization", 1),
            ("2.convolution", "2.normalization", 1),
        ]
    } else {
        &[("convolution", "normalization", 2)]
    };
    for &(name, norm, stride) in stems {
        let of = Convolution {
            stride,
            ..Convolution::new(name, norm, Some(activation))
        };
        let layer;
        (layer, channels) = Layer::load(&stem, channels, of)?;
        layers.push(layer);
    }
    layers.push(pool());
    let mut stages = vec![Stage { layers, channels }];
    for (stage, &depth) in depths.iter().enumerate() {
        let modules = modules.at(format!("encoder.stages.{stage}"));
        let mut layers = Vec::new();
        for number in 0..depth {
            let halves = number == 0 && (stage > 0 || first_halves);
            let modules = modules.at(format!("layers.{number}"));
            // A convolution behind means of squares is the second of a pair.
            let averaged = deep && (halves && !basic || basic && modules.has("shortcut.1"));
            let shortcut = if averaged {
                ("shortcut.1.convolution", "shortcut.1.normalization")
            } else {
                ("shortcut.convolution", "shortcut.normalization")
            };
            let block = Block {
                modules,
                convolutions: if basic { &OURS[..2] } else { &OURS },
                shortcut,
                stride: if halves { 2 } else { 1 },
                strided: usize::from(!basic && !early),
                activation,
                averaged,
            };
            let layer;
            (layer, channels) = block.load(channels)?;
            layers.push(layer);
        }
        stages.push(Stage { layers, channels });
    }
    Ok(Backbone {
        family: "resnet",
        stages,
        ..Backbone::default()
    })
}

/// timm's by a configuration that names it.
pub fn timm_of(raw: &RawConfig, modules: &Modules<'_>) -> Result<Backbone> {
    let name = raw.opt_string("backbone")?.unwrap_or("resnet50");
    if !name.starts_with("resnet") || raw.has("output_stride") {
        let reason = format!(
            "the backbone {name:?} of timm is not supported: only ResNet without dilation is"
        );
        return Err(Error::unsupported(raw.file(), reason));
    }
    timm(modules)
}

/// Its names tell how many layers there are.
pub fn timm(modules: &Modules<'_>) -> Result<Backbone> {
    const ALL: [(&str, &str); 3] = [("conv1", "bn1"), ("conv2", "bn2"), ("conv3", "bn3")];
    let relu = Some(Activation::Relu);
    let of = Convolution {
        stride: 2,
        ..Convolution::new("conv1", "bn1", relu)
    };
    let (stem, mut channels) = Layer::load(modules, CHANNELS, of)?;
    let mut stages = vec![Stage {
        layers: vec![stem, pool()],
        channels,
    }];
    for stage in 1..=4 {
        let modules = modules.at(format!("layer{stage}"));
        let mut layers = Vec::new();
        while modules.has(&layers.len().to_string()) {
            let first = layers.is_empty();
            let modules = modules.at(layers.len().to_string());
            let basic = !modules.has("conv3");
            let block = Block {
                convolutions: if basic { &ALL[..2] } else { &ALL },
                modules,
                shortcut: ("downsample.0", "downsample.1"),
                stride: if first && stage > 1 { 2 } else { 1 },
                strided: usize::from(!basic),
                activation: Activation::Relu,
                averaged: false,
            };
            let layer;
            (layer, channels) = block.load(channels)?;
            layers.push(layer);
        }
        if layers.is_empty() {
            return Err(modules.corrupt(format!("it holds no layers of {}", modules.path())));
        }
        stages.push(Stage { layers, channels });
    }
    Ok(Backbone {
        family: "resnet",
        stages,
        ..Backbone::default()
    })
}
