//! ConvNeXt and its second version.

use super::*;

const EPSILON: f32 = 1e-6;

/// A convolution of its own for each channel, then two products, added to what they read.
fn block(modules: &Modules<'_>, width: usize, activation: Activation) -> Result<Layer> {
    let own = Convolution {
        groups: width,
        ..Convolution::new("dwconv", "", None)
    };
    let up = modules.linear("pwconv1", width)?;
    let inner = up.outputs();
    let mut chain = vec![
        Layer::Convolution(modules.convolution(width, own)?),
        Layer::Norm(modules.layer_norm("layernorm", width, EPSILON)?),
        Layer::Linear(up, Some(activation)),
    ];
    if modules.has("grn") {
        let read = |name: &str| modules.at("grn").shaped(name, &[1, 1, 1, inner]);
        let row = |name: &str| -> Result<_> { Ok(read(name)?.reshape(inner)?) };
        chain.push(Layer::Response(row("weight")?, row("bias")?));
    }
    let down = modules.scaled_linear("pwconv2", "layer_scale_parameter", (inner, width))?;
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
            layers.push(block(&modules, channels, activation)?);
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
    })
}
