//! Masks of the things on a page: the decoder begins with the boxes around them, and reads their order off its last
//! states (PP-DocLayoutV3).

use candle_core::{DType, Tensor};

use super::attention::Mlp;
use super::deformable::numbers;
use super::page_order::{check_queries, PageOrder, Pairs};
use super::{size, Predictions};
use crate::models::convolutional::Layer;
use crate::models::modules::{Convolution, Modules};
use crate::nn::feature_map::FeatureMap;
use crate::nn::{Inventory, Linear, Norm};
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::RawConfig;
use kernels::{tensor, Activation};

#[derive(Debug)]
pub struct PageMasks {
    /// Of each map of the pyramid, the finest first.
    scales: Vec<Scale>,
    joined: Layer,
    fine: Layer,
    prototypes: Layer,
    norm: Norm,
    queries: Mlp,
    /// Whether boxes are those around the masks.
    begins: bool,
    order: Linear,
    pairs: Pairs,
}

/// Convolutions, behind each of which a map has twice as many rows and columns unless it is the finest.
#[derive(Debug)]
struct Scale {
    layers: Vec<Layer>,
    doubles: bool,
}

fn convolution(modules: &Modules<'_>, name: &str, inputs: usize) -> Result<(Layer, usize)> {
    let of = Convolution::new("convolution", "normalization", Some(Activation::Silu));
    Layer::load(&modules.at(name), inputs, of)
}

impl Scale {
    fn load(modules: &Modules<'_>, inputs: usize, doubles: bool) -> Result<(Self, usize)> {
        // What doubles a map has a number, too.
        let step = if doubles { 2 } else { 1 };
        let (mut layers, mut channels) = (Vec::new(), inputs);
        while layers.is_empty() || modules.has(&format!("layers.{}", step * layers.len())) {
            let name = format!("layers.{}", step * layers.len());
            let (layer, made) = convolution(modules, &name, channels)?;
            layers.push(layer);
            channels = made;
        }
        Ok((Self { layers, doubles }, channels))
    }

    fn forward(&self, map: &FeatureMap) -> Result<FeatureMap> {
        let mut map = map.clone();
        for layer in &self.layers {
            map = layer.forward(&map)?;
            if self.doubles {
                map = twice(&map)?;
            }
        }
        Ok(map)
    }
}

fn twice(map: &FeatureMap) -> Result<FeatureMap> {
    let (height, width) = map.size();
    map.stretched((2 * height, 2 * width))
}

impl PageMasks {
    /// `fine` are the channels of the backbone's finest map, `levels` and `inner` how many maps the pyramid has and
    /// their channels, `width` that of the decoder.
    pub fn load(
        raw: &RawConfig,
        body: &Modules<'_>,
        (fine, levels, inner): (usize, usize, usize),
        width: usize,
    ) -> Result<Self> {
        check_queries(raw)?;
        let strides = raw.opt_integers("feat_strides")?;
        if strides.is_some_and(|strides| !strides.is_sorted()) {
            let reason = "\"feat_strides\" that do not grow are not supported";
            return Err(Error::unsupported(raw.file(), reason));
        }
        let begins = raw.opt_bool("mask_enhanced")?.unwrap_or(true);
        if begins && raw.opt_bool("learn_initial_query")?.unwrap_or(false) {
            let reason = "\"learn_initial_query\" beside \"mask_enhanced\" is not supported";
            return Err(Error::unsupported(raw.file(), reason));
        }
        let encoder = body.at("encoder");
        let (mut scales, mut channels) = (Vec::new(), 0);
        for number in 0..levels {
            let of = encoder.at(format!("mask_feature_head.scale_heads.{number}"));
            let (scale, made) = Scale::load(&of, inner, number > 0)?;
            if number > 0 && made != channels {
                return Err(of.corrupt(format!("{} makes {made} channels", of.path())));
            }
            channels = made;
            scales.push(scale);
        }
        let (joined, made) = convolution(&encoder, "mask_feature_head.output_conv", channels)?;
        let (lateral, beside) = convolution(&encoder, "encoder_mask_lateral", fine)?;
        let last = encoder.at("encoder_mask_output");
        let (base, base_made) = convolution(&last, "base_conv", made)?;
        let (prototypes, count) =
            Layer::load(&last, base_made, Convolution::new("conv", "", None))?;
        let queries = Mlp::numbered(&body.at("mask_query_head"), width, Activation::Relu)?;
        if made != beside || queries.outputs() != count {
            return Err(encoder.corrupt("its masks do not fit its maps".to_string()));
        }
        let layers = size(raw, "decoder_layers", 6, 1..=1 << 12)?;
        Ok(Self {
            scales,
            joined,
            fine: lateral,
            prototypes: Layer::Chain(vec![base, prototypes]),
            norm: body.layer_norm(
                "decoder_norm",
                width,
                raw.opt_f64("layer_norm_eps")?.unwrap_or(1e-5) as f32,
            )?,
            queries,
            begins,
            order: body.sized_linear(
                &format!("decoder_order_head.{}", layers - 1),
                width,
                width,
            )?,
            pairs: Pairs::load(raw, &body.at("decoder_global_pointer"), width)?,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let scales = self.scales.iter().flat_map(|scale| &scale.layers);
        for layer in scales.chain([&self.joined, &self.fine, &self.prototypes]) {
            layer.list(inventory)?;
        }
        inventory.add_norm(&self.norm)?;
        self.queries.list(inventory)?;
        inventory.add_linear(&self.order)?;
        self.pairs.list(inventory)
    }

    /// The boxes with which the decoder begins: those around the masks of the chosen places, or `None`.
    pub fn boxes(
        &self,
        chosen: &Tensor,
        maps: &[FeatureMap],
        fine: &FeatureMap,
    ) -> Result<Option<Vec<[f32; 4]>>> {
        if !self.begins {
            return Ok(None);
        }
        let mut scales = self.scales.iter().zip(maps);
        let mut joined = match scales.next() {
            Some((scale, map)) => scale.forward(map)?,
            None => return Err(Error::Internal("a pyramid without maps".into())),
        };
        for (scale, map) in scales {
            joined = joined.add(&scale.forward(map)?.stretched(joined.size())?)?;
        }
        let joined = twice(&self.joined.forward(&joined)?)?;
        let fine = self.fine.forward(fine)?;
        if fine.size() != joined.size() {
            return Err(Error::InvalidInput(format!(
                "the image became maps of {:?} and {:?} places, which do not fit: its preprocessor_config.json belongs to \
                 another model",
                fine.size(),
                joined.size()
            )));
        }
        let prototypes = self.prototypes.forward(&joined.add(&fine)?)?;
        let queries = self.queries.forward(&self.norm.forward(chosen)?)?;
        let wide = |x: &Tensor| -> Result<Tensor> { Ok(x.to_dtype(DType::F32)?.contiguous()?) };
        let (queries, rows) = (wide(&queries)?, wide(&prototypes.rows)?);
        let masks = tensor::matmul::matmul(&queries, &rows.t()?, &CancelToken::new())?;
        let (height, width) = prototypes.size();
        let masks = numbers(&masks)?;
        let masks = masks.chunks_exact((height * width).max(1));
        Ok(Some(
            masks.map(|mask| around(mask, (height, width))).collect(),
        ))
    }

    /// Of the last states: the classes of things and the order in which they are read.
    pub fn predictions(
        &self,
        states: &Tensor,
        classes: &Linear,
        boxes: Vec<[f32; 4]>,
    ) -> Result<Predictions> {
        let states = self.norm.forward(states)?;
        let ranks = self
            .pairs
            .ranks(&self.order.forward(&states)?, boxes.len())?;
        Ok(Predictions {
            order: Some(PageOrder::Ranks(ranks)),
            ..Predictions::new(&classes.forward(&states)?, boxes)?
        })
    }
}

/// The centre and the size of the box around a mask's positive places, as parts of the map.
fn around(mask: &[f32], (height, width): (usize, usize)) -> [f32; 4] {
    let inside = mask.iter().enumerate().filter(|(_, &value)| value > 0.0);
    let places = inside.map(|(at, _)| (at % width, at / width));
    let found = places.fold(None, |found: Option<[usize; 4]>, (x, y)| {
        let [left, top, right, bottom] = found.unwrap_or([x, y, x + 1, y + 1]);
        Some([left.min(x), top.min(y), right.max(x + 1), bottom.max(y + 1)])
    });
    let Some([left, top, right, bottom]) = found else {
        return [0.0; 4];
    };
    let part = |at: usize, count: usize| at as f32 / count as f32;
    let (left, right) = (part(left, width), part(right, width));
    let (top, bottom) = (part(top, height), part(bottom, height));
    [
        (left + right) / 2.0,
        (top + bottom) / 2.0,
        right - left,
        bottom - top,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_stand_around_masks() {
        let mask = [-1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 2.0, -1.0];
        assert_eq!(around(&mask, (2, 4)), [0.5, 0.5, 0.5, 1.0]);
        assert_eq!(around(&[-1.0; 8], (2, 4)), [0.0; 4]);
    }
}
