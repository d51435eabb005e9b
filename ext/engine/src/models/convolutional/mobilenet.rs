//! MobileNet V2: blocks that widen the channels, look at each by itself, and narrow them.

use super::*;

/// Of the blocks behind the stem.
const STRIDES: [usize; 16] = [2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1];

/// Zeros around a map as TensorFlow lays them out: by its size.
#[derive(Debug)]
pub(super) struct Frame {
    pub kernel: usize,
    pub stride: usize,
    pub dilation: usize,
}

impl Own for Frame {
    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let sides = |places: usize| {
            let over = match places % self.stride {
                0 => self.stride,
                rest => rest,
            };
            let all = self.kernel.saturating_sub(over);
            (all / 2 * self.dilation, (all - all / 2) * self.dilation)
        };
        let ((left, right), (above, below)) = (sides(map.width), sides(map.height));
        map.framed([left, right, above, below])
    }

    fn list(&self, _: &mut Inventory) -> Result<()> {
        Ok(())
    }
}

/// What all convolutions of a network have in common.
struct Style {
    epsilon: f64,
    framed: bool,
    activation: Activation,
}

#[derive(Clone, Copy)]
struct Step {
    stride: usize,
    dilation: usize,
    /// Whether each channel is looked at by itself.
    single: bool,
    activated: bool,
}

const PLAIN: Step = Step {
    stride: 1,
    dilation: 1,
    single: false,
    activated: true,
};

impl Style {
    fn read(raw: &RawConfig) -> Result<Self> {
        let name = raw.opt_string("hidden_act")?.unwrap_or("relu6");
        Ok(Self {
            epsilon: raw.opt_f64("layer_norm_eps")?.unwrap_or(0.001),
            framed: raw.opt_bool("tf_padding")?.unwrap_or(true),
            activation: crate::models::config::activation(name, raw.file())?,
        })
    }

    /// Adds the layers of a convolution, and returns its channels.
    fn add(
        &self,
        layers: &mut Vec<Layer>,
        modules: &Modules<'_>,
        inputs: usize,
        step: Step,
    ) -> Result<usize> {
        let kernel = modules.shape("convolution.weight")?;
        let kernel = kernel.last().copied().unwrap_or(1).max(1);
        let (stride, dilation) = (step.stride, step.dilation);
        if self.framed {
            layers.push(Layer::Own(Box::new(Frame {
                kernel,
                stride,
                dilation,
            })));
        }
        let of = Convolution {
            stride,
            dilation,
            padding: Some(if self.framed {
                0
            } else {
                (kernel - 1) / 2 * dilation
            }),
            groups: if step.single { inputs } else { 1 },
            epsilon: self.epsilon,
            ..Convolution::new(
                "convolution",
                "normalization",
                step.activated.then_some(self.activation),
            )
        };
        let (layer, channels) = Layer::load(modules, inputs, of)?;
        layers.push(layer);
        Ok(channels)
    }
}

fn single(stride: usize, dilation: usize) -> Step {
    Step {
        stride,
        dilation,
        single: true,
        ..PLAIN
    }
}

const NARROWING: Step = Step {
    activated: false,
    ..PLAIN
};

pub fn load(raw: &RawConfig, modules: &Modules<'_>) -> Result<Backbone> {
    let style = Style::read(raw)?;
    let most = raw.opt_usize_in("output_stride", 1..=1024)?.unwrap_or(32);
    let stem = modules.at("conv_stem");
    let mut layers = Vec::new();
    let first = Step { stride: 2, ..PLAIN };
    let mut channels = style.add(&mut layers, &stem.at("first_conv"), CHANNELS, first)?;
    if stem.has("expand_1x1") {
        channels = style.add(&mut layers, &stem.at("expand_1x1"), channels, PLAIN)?;
    }
    channels = style.add(&mut layers, &stem.at("conv_3x3"), channels, single(1, 1))?;
    channels = style.add(&mut layers, &stem.at("reduce_1x1"), channels, NARROWING)?;
    let mut stages = vec![Stage { layers, channels }];
    let (mut reached, mut apart) = (2, 1);
    for (number, &wanted) in STRIDES.iter().enumerate() {
        let (stride, dilation) = if reached == most {
            let dilation = apart;
            apart *= wanted;
            (1, dilation)
        } else {
            reached *= wanted;
            (wanted, 1)
        };
        let modules = modules.at(format!("layer.{number}"));
        let mut layers = Vec::new();
        let inside = style.add(&mut layers, &modules.at("expand_1x1"), channels, PLAIN)?;
        let step = single(stride, dilation);
        let inside = style.add(&mut layers, &modules.at("conv_3x3"), inside, step)?;
        let outside = style.add(&mut layers, &modules.at("reduce_1x1"), inside, NARROWING)?;
        let chain = Layer::Chain(layers);
        let layer = if stride == 1 && outside == channels {
            Layer::Sum(vec![Layer::Chain(Vec::new()), chain], None)
        } else {
            chain
        };
        channels = outside;
        stages.push(Stage {
            layers: vec![layer],
            channels,
        });
    }
    let mut layers = Vec::new();
    channels = style.add(&mut layers, &modules.at("conv_1x1"), channels, PLAIN)?;
    stages.push(Stage { layers, channels });
    Ok(Backbone {
        family: "mobilenet_v2",
        stages,
        ..Backbone::default()
    })
}
