//! SegFormer's encoder: attention to a map that convolutions made smaller, and MLPs with a convolution inside.

use super::*;
use crate::models::detection::attention::Attention;

const EPSILON: f32 = 1e-5;

/// What is added to the map.
fn added(chain: Vec<Layer>) -> Layer {
    Layer::Sum(vec![Layer::Chain(Vec::new()), Layer::Chain(chain)], None)
}

fn block(
    modules: &Modules<'_>,
    (width, heads): (usize, usize),
    activation: Activation,
) -> Result<Vec<Layer>> {
    let norm = |modules: &Modules<'_>, name: &str| -> Result<Layer> {
        Ok(Layer::Norm(modules.layer_norm(name, width, EPSILON)?))
    };
    let attention = modules.at("attention");
    let names = ["self.query", "self.key", "self.value", "output.dense"];
    let attend = Attention::named(&attention, names, width, heads)?;
    let inside = attention.at("self");
    let mut smaller = Vec::new();
    if inside.has("sr") {
        let edge = inside.shape("sr.weight")?.last().copied().unwrap_or(0);
        let of = Convolution {
            stride: edge,
            padding: Some(0),
            ..Convolution::new("sr", "", None)
        };
        smaller.push(Layer::load(&inside, width, of)?.0);
        smaller.push(norm(&inside, "layer_norm")?);
    }
    let mlp = modules.at("mlp");
    let up = mlp.linear("dense1", width)?;
    let inner = up.outputs();
    let own = Convolution {
        groups: inner,
        ..Convolution::new("dwconv.dwconv", "", Some(activation))
    };
    let own = Layer::Convolution(mlp.convolution(inner, own)?);
    let down = mlp.sized_linear("dense2", inner, width)?;
    Ok(vec![
        added(vec![
            norm(modules, "layer_norm_1")?,
            Layer::Attention(Box::new(attend), smaller),
        ]),
        added(vec![
            norm(modules, "layer_norm_2")?,
            Layer::Linear(up, None),
            own,
            Layer::Linear(down, None),
        ]),
    ])
}

pub fn load(raw: &RawConfig, modules: &Modules<'_>) -> Result<Backbone> {
    let depths = sizes(raw, "depths", &[2, 2, 2, 2], None)?;
    let count = Some(depths.len());
    let strides = sizes(raw, "strides", &[4, 2, 2, 2], count)?;
    let heads = sizes(raw, "num_attention_heads", &[1, 2, 5, 8], count)?;
    let name = raw.opt_string("hidden_act")?.unwrap_or("gelu");
    let activation = crate::models::config::activation(name, raw.file())?;
    let modules = modules.at("encoder");
    let mut channels = CHANNELS;
    let mut stages = Vec::new();
    for (stage, &depth) in depths.iter().enumerate() {
        let patches = modules.at(format!("patch_embeddings.{stage}"));
        let of = Convolution {
            stride: strides[stage],
            ..Convolution::new("proj", "", None)
        };
        let layer;
        (layer, channels) = Layer::load(&patches, channels, of)?;
        let norm = patches.layer_norm("layer_norm", channels, EPSILON)?;
        let mut layers = vec![layer, Layer::Norm(norm)];
        for number in 0..depth {
            let modules = modules.at(format!("block.{stage}.{number}"));
            layers.extend(block(&modules, (channels, heads[stage]), activation)?);
        }
        let name = format!("layer_norm.{stage}");
        layers.push(Layer::Norm(modules.layer_norm(&name, channels, EPSILON)?));
        stages.push(Stage { layers, channels });
    }
    Ok(Backbone {
        family: "segformer",
        stages,
        ..Backbone::default()
    })
}
