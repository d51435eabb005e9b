//! HGNetV2, the backbone of D-FINE.

use super::*;

/// A convolution with its norm, and a scale and a shift behind the activation where the file has them.
fn block(modules: &Modules<'_>, inputs: usize, of: Convolution<'_>) -> Result<(Layer, usize)> {
    let (layer, outputs) = Layer::load(modules, inputs, of)?;
    if !modules.has("lab") || of.activation.is_none() {
        return Ok((layer, outputs));
    }
    let number = |name: &str| -> Result<f32> {
        let values = modules.at("lab").values(name)?;
        values
            .first()
            .copied()
            .ok_or_else(|| modules.corrupt(format!("{}lab.{name} is empty", modules.path())))
    };
    let affine = Layer::Affine(number("scale")?, number("bias")?);
    Ok((Layer::Chain(vec![layer, affine]), outputs))
}

fn convolution(activation: Option<Activation>, stride: usize) -> Convolution<'static> {
    Convolution {
        stride,
        ..Convolution::new("convolution", "normalization", activation)
    }
}

/// The padding of even kernels stands apart.
fn stem(raw: &RawConfig, modules: &Modules<'_>) -> Result<(Vec<Layer>, usize)> {
    let strides = sizes(raw, "stem_strides", &[2, 1, 1, 2, 1], Some(5))?;
    let activation = Some(hidden_activation(raw)?);
    let part = |name: &str, inputs: usize, stride: usize, padded: bool| {
        let of = Convolution {
            padding: (!padded).then_some(0),
            ..convolution(activation, stride)
        };
        block(&modules.at(name), inputs, of)
    };
    let (first, channels) = part("stem1", CHANNELS, strides[0], true)?;
    let (second, narrow) = part("stem2a", channels, strides[1], false)?;
    let (third, wide) = part("stem2b", narrow, strides[2], false)?;
    let beside = Layer::Pool(
        Window {
            beyond: true,
            ..Window::new(2, 1, 0)
        },
        Pooling::Max,
    );
    let joined = Layer::Join(vec![beside, Layer::Chain(vec![second, Layer::Pad, third])]);
    let (fourth, channels) = part("stem3", channels + wide, strides[3], true)?;
    let (last, channels) = part("stem4", channels, strides[4], true)?;
    Ok((vec![first, Layer::Pad, joined, fourth, last], channels))
}

/// Maps of all layers side by side become one.
fn aggregated(
    modules: &Modules<'_>,
    inputs: usize,
    (count, light, residual): (usize, bool, bool),
) -> Result<(Layer, usize)> {
    let relu = Some(Activation::Relu);
    let mut layers = Vec::new();
    let (mut channels, mut joined) = (inputs, inputs);
    for number in 0..count {
        let modules = modules.at(format!("layers.{number}"));
        let layer;
        if light {
            let narrow;
            (narrow, channels) = block(&modules.at("conv1"), channels, convolution(None, 1))?;
            let of = Convolution {
                groups: channels,
                ..convolution(relu, 1)
            };
            let (own, _) = block(&modules.at("conv2"), channels, of)?;
            layer = Layer::Chain(vec![narrow, own]);
        } else {
            (layer, channels) = block(&modules, channels, convolution(relu, 1))?;
        }
        joined += channels;
        layers.push(layer);
    }
    let modules = modules.at("aggregation");
    let (squeeze, channels) = block(&modules.at("0"), joined, convolution(relu, 1))?;
    let (excite, channels) = block(&modules.at("1"), channels, convolution(relu, 1))?;
    let chain = Layer::Chain(vec![Layer::Dense(layers), squeeze, excite]);
    let layer = if residual {
        Layer::Sum(vec![chain, Layer::Chain(Vec::new())], None)
    } else {
        chain
    };
    Ok((layer, channels))
}

pub fn load(raw: &RawConfig, modules: &Modules<'_>) -> Result<Backbone> {
    let (layers, mut channels) = stem(raw, &modules.at("embedder"))?;
    let blocks = sizes(raw, "stage_num_blocks", &[1, 1, 3, 1], None)?;
    let count = Some(blocks.len());
    let strides = sizes(raw, "stage_downsample_strides", &[2, 2, 2, 2], count)?;
    let depths = sizes(raw, "stage_numb_of_layers", &[6, 6, 6, 6], count)?;
    let mut stages = vec![Stage { layers, channels }];
    for (number, &blocks) in blocks.iter().enumerate() {
        let modules = modules.at(format!("encoder.stages.{number}"));
        let mut layers = Vec::new();
        if modules.has("downsample") {
            let of = Convolution {
                groups: channels,
                ..convolution(None, strides[number])
            };
            layers.push(block(&modules.at("downsample"), channels, of)?.0);
        }
        for number_of_block in 0..blocks {
            let modules = modules.at(format!("blocks.{number_of_block}"));
            let light = modules.has("layers.0.conv1");
            let shape = (depths[number], light, number_of_block > 0);
            let layer;
            (layer, channels) = aggregated(&modules, channels, shape)?;
            layers.push(layer);
        }
        stages.push(Stage { layers, channels });
    }
    Ok(Backbone {
        family: "hgnet_v2",
        stages,
        ..Backbone::default()
    })
}
