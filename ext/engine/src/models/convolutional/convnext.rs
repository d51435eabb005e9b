//! ConvNeXt and its second version.

use super::*;

const EPSILON: f32 = 1e-6;

/// A convolution of its own for each channel, then two products, added to what they read.
fn block(
    modules: &Modules<'_>,
    width: usize,
    (activation, epsilon): (Activation, f32),
) -> Result<Layer> {
    let own = Convolution {
        groups: width,
        ..Convolution::new("dwconv|depthwise_conv", "", None)
    };
    let up = modules.linear("pwconv1|pointwise_conv1", width)?;
    let inner = up.outputs();
    let mut chain = vec![
        Layer::Convolution(modules.convolution(width, own)?),
        Layer::Norm(modules.layer_norm("layernorm|layer_norm", width, epsilon)?),
        Layer::Linear(up, Some(activation)),
    ];
    if modules.has("grn") {
        let read = |name: &str| modules.at("grn").shaped(name, &[1, 1, 1, inner]);
        let row = |name: &str| -> Result<_> { Ok(read(name)?.reshape(inner)?) };
        chain.push(Layer::Response(row("weight")?, row("bias")?));
    }
    let factors = modules
        .known("layer_scale_parameter|gamma")
        .unwrap_or("gamma");
    let down = modules.scaled_linear("pwconv2|pointwise_conv2", factors, (inner, width))?;
    chain.push(Layer::Linear(down, None));
    let sum = vec![Layer::Chain(Vec::new()), Layer::Chain(chain)];
    Ok(Layer::Sum(sum, None))
}

pub fn load(raw: &RawConfig, modules: &Modules<'_>) -> Result<Backbone> {
    let depths = sizes(raw, "depths", &[3, 3, 9, 3], None)?;
    let name = raw.opt_string("hidden_act")?.unwrap_or("gelu");
    let activation = crate::models::config::activation(name, raw.file())?;
    let stem = modules.at("embeddings");
    let kernel = stem.shape("patch_embeddings.weight")?;
    let of = Convolution {
        stride: kernel.last().copied().unwrap_or(0),
        padding: Some(0),
        ..Convolution::new("patch_embeddings", "", None)
    };
    let (patches, mut channels) = Layer::load(&stem, CHANNELS, of)?;
    let norm = Layer::Norm(stem.layer_norm("layernorm", channels, EPSILON)?);
    let mut stages = vec![Stage {
        layers: vec![patches, norm],
        channels,
    }];
    for (stage, &depth) in depths.iter().enumerate() {
        let modules = modules.at(format!("encoder.stages.{stage}"));
        let mut layers = Vec::new();
        if modules.has("downsampling_layer.1") {
            let modules = modules.at("downsampling_layer");
            layers.push(Layer::Norm(modules.layer_norm("0", channels, EPSILON)?));
            let of = Convolution {
                stride: if stage > 0 { 2 } else { 1 },
                padding: Some(0),
                ..Convolution::new("1", "", None)
            };
            let layer;
            (layer, channels) = Layer::load(&modules, channels, of)?;
            layers.push(layer);
        }
        for number in 0..depth {
            let modules = modules.at(format!("layers.{number}"));
            layers.push(block(&modules, channels, (activation, EPSILON))?);
        }
        stages.push(Stage { layers, channels });
    }
    let epsilon = raw.opt_f64("layer_norm_eps")?.unwrap_or(1e-12) as f32;
    let last = if modules.has("layernorm") {
        Some(modules.layer_norm("layernorm", channels, epsilon)?)
    } else {
        None
    };
    Ok(Backbone {
        family: "convnext",
        stages,
        pooled_norm: last,
        ..Backbone::default()
    })
}

/// DINOv3's, whose stem is a part of its first stage.
pub fn dinov3(raw: &RawConfig, modules: &Modules<'_>) -> Result<Backbone> {
    let depths = sizes(raw, "depths", &[3, 3, 9, 3], None)?;
    let name = raw.opt_string("hidden_act")?.unwrap_or("gelu");
    let activation = crate::models::config::activation(name, raw.file())?;
    let epsilon = raw.opt_f64("layer_norm_eps")?.unwrap_or(1e-6) as f32;
    let body = if modules.has("stages") {
        modules.clone()
    } else {
        modules.at("model")
    };
    let mut channels = CHANNELS;
    let mut stages = vec![Stage {
        layers: Vec::new(),
        channels,
    }];
    for (stage, &depth) in depths.iter().enumerate() {
        let modules = body.at(format!("stages.{stage}"));
        let smaller = modules.at("downsample_layers");
        let (convolution, norm) = if stage == 0 { ("0", "1") } else { ("1", "0") };
        let shape = smaller.shape(&format!("{convolution}.weight"))?;
        let of = Convolution {
            stride: shape.last().copied().unwrap_or(0),
            padding: Some(0),
            ..Convolution::new(convolution, "", None)
        };
        let before = channels;
        let layer;
        (layer, channels) = Layer::load(&smaller, channels, of)?;
        let width = if stage == 0 { channels } else { before };
        let mut layers = vec![Layer::Norm(smaller.layer_norm(norm, width, epsilon)?)];
        layers.insert(usize::from(stage > 0), layer);
        for number in 0..depth {
            let modules = modules.at(format!("layers.{number}"));
            layers.push(block(&modules, channels, (activation, epsilon))?);
        }
        stages.push(Stage { layers, channels });
    }
    Ok(Backbone {
        family: "dinov3_convnext",
        stages,
        pooled_norm: if modules.has("layer_norm") {
            Some(modules.layer_norm("layer_norm", channels, epsilon)?)
        } else {
            None
        },
        ..Backbone::default()
    })
}
