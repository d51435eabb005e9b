//! D-FINE's boxes: each edge is the mean of a distribution over distances, which layers sharpen.

use candle_core::Tensor;

use super::attention::Mlp;
use super::deformable::numbers;
use super::rt_detr::{inverse, rows_of_four, sigmoid, Each};
use super::{count, Predictions};
use crate::models::modules::Modules;
use crate::nn::{elementwise, Inventory, Linear};
use crate::{Error, Result};
use formats::files::raw_config::RawConfig;
use kernels::Activation;

#[derive(Debug)]
pub struct Distributions {
    /// The first boxes.
    first: Mlp,
    /// What each layer adds to the logits of distributions.
    edges: Vec<Mlp>,
    classes: Linear,
    /// What the shape of a distribution says of how sure the last layer is.
    quality: Mlp,
    /// How many of the most likely distances that reads.
    most_likely: usize,
    /// The distance that each bin stands for.
    distances: Vec<f32>,
    scale: f32,
}

/// Between layers.
pub struct State {
    first: Vec<[f32; 4]>,
    /// [queries, 4 · bins]
    logits: Tensor,
}

impl Distributions {
    pub fn load(
        raw: &RawConfig,
        decoder: &Modules<'_>,
        heads: &Modules<'_>,
        width: usize,
    ) -> Result<Self> {
        let layers = count(raw, "decoder_layers", 6)?;
        let last = match raw.opt_integers("eval_idx")?.as_deref() {
            None | Some([]) => layers.checked_sub(1),
            Some(&[number, ..]) => match usize::try_from(number) {
                Ok(number) => Some(number).filter(|&number| number < layers),
                Err(_) => layers.checked_add_signed(number as isize),
            },
        };
        let last = last.ok_or_else(|| {
            let reason = format!("\"eval_idx\" is out of range: it has {layers} layers");
            Error::corrupt(raw.file(), reason)
        })?;
        if raw.opt_f64("layer_scale")?.unwrap_or(1.0) != 1.0 && last + 1 < layers {
            let reason = "layers of D-FINE behind the one that counts are not supported";
            return Err(Error::unsupported(raw.file(), reason));
        }
        let bins = raw.opt_usize_in("max_num_bins", 4..=1024)?.unwrap_or(32);
        let head = |name: String| Mlp::numbered(&heads.at(name), width, Activation::Relu);
        let mut edges = Vec::new();
        for number in 0..=last {
            let mlp = head(format!("bbox_embed.{number}"))?;
            super::check_outputs(heads, &mlp, 4 * (bins + 1))?;
            edges.push(mlp);
        }
        let most_likely = raw.opt_usize_in("top_prob_values", 1..=bins)?.unwrap_or(4);
        let quality = decoder.at(format!("lqe_layers.{last}.reg_conf"));
        let first = Mlp::numbered(&decoder.at("pre_bbox_head"), width, Activation::Relu)?;
        super::check_outputs(decoder, &first, 4)?;
        let number = |name: &str| -> Result<f32> {
            let values = decoder.values(name)?;
            values
                .first()
                .copied()
                .ok_or_else(|| decoder.corrupt(format!("{}{name} is empty", decoder.path())))
        };
        let (reach, scale) = (number("up")?.abs(), number("reg_scale")?.abs());
        Ok(Self {
            first,
            edges,
            classes: heads.linear(&format!("class_embed.{last}"), width)?,
            quality: Mlp::numbered(&quality, 4 * (most_likely + 1), Activation::Relu)?,
            most_likely,
            distances: distances(bins, reach * scale),
            scale,
        })
    }

    pub fn layer_count(&self) -> usize {
        self.edges.len()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        [&self.first, &self.quality]
            .into_iter()
            .chain(&self.edges)
            .try_for_each(|mlp| mlp.list(inventory))?;
        inventory.add_linear(&self.classes)
    }

    /// The boxes behind a layer that made `x` of `before`.
    pub fn refine(
        &self,
        layer: usize,
        x: &Tensor,
        before: Option<&Tensor>,
        boxes: Vec<[f32; 4]>,
        state: &mut Option<State>,
    ) -> Result<Vec<[f32; 4]>> {
        let read = match before {
            Some(before) => elementwise::add(x, before)?,
            None => x.clone(),
        };
        let edges = self
            .edges
            .get(layer)
            .ok_or_else(|| Error::Internal(format!("layer {layer} has no boxes")))?;
        let logits = edges.forward(&read)?;
        let next = match state.take() {
            Some(State { first, logits: old }) => State {
                first,
                logits: elementwise::add(&logits, &old)?,
            },
            None => {
                let added = rows_of_four(&self.first.forward(x)?)?;
                State {
                    first: boxes.zip_each(&added, |at, added| sigmoid(added + inverse(at))),
                    logits,
                }
            }
        };
        let bins = self.distances.len();
        let likely = numbers(&self.probabilities(&next.logits)?)?;
        let means: Vec<f32> = likely
            .chunks_exact(bins)
            .map(|row| row.iter().zip(&self.distances).map(|(p, d)| p * d).sum())
            .collect();
        let edges = means.chunks_exact(4);
        let boxes = next.first.iter().zip(edges).map(|(first, edges)| {
            let reach =
                |axis: usize, edge: f32| (0.5 * self.scale + edge) * (first[2 + axis] / self.scale);
            let (left, top) = (first[0] - reach(0, edges[0]), first[1] - reach(1, edges[1]));
            let (right, below) = (first[0] + reach(0, edges[2]), first[1] + reach(1, edges[3]));
            [
                (left + right) / 2.0,
                (top + below) / 2.0,
                right - left,
                below - top,
            ]
        });
        let boxes = boxes.collect();
        *state = Some(next);
        Ok(boxes)
    }

    /// [queries · 4, bins]
    fn probabilities(&self, logits: &Tensor) -> Result<Tensor> {
        let (queries, width) = logits.dims2()?;
        let bins = self.distances.len();
        kernels::softmax(&logits.reshape((queries * width / bins, bins))?)
    }

    pub fn predictions(
        &self,
        x: &Tensor,
        boxes: Vec<[f32; 4]>,
        state: Option<&State>,
    ) -> Result<Predictions> {
        let state = state.ok_or_else(|| Error::Internal("a decoder without layers".into()))?;
        let scores = self.classes.forward(x)?;
        let likely = self.probabilities(&state.logits)?;
        let mut features = Vec::new();
        for row in numbers(&likely)?.chunks_exact(self.distances.len()) {
            let mut row = row.to_vec();
            row.sort_by(|a, b| b.total_cmp(a));
            row.truncate(self.most_likely);
            features.extend(&row);
            features.push(row.iter().sum::<f32>() / self.most_likely as f32);
        }
        let shape = (boxes.len(), 4 * (self.most_likely + 1));
        let features = Tensor::from_vec(features, shape, x.device())?;
        let quality = self.quality.forward(&features.to_dtype(x.dtype())?)?;
        Predictions::new(&elementwise::add(&scores, &quality)?, boxes)
    }
}

/// Of the bins, densest around 0.
fn distances(bins: usize, reach: f32) -> Vec<f32> {
    let step = (reach + 1.0).powf(2.0 / (bins - 2) as f32);
    let half = bins / 2;
    let mut distances = vec![-2.0 * reach];
    distances.extend((1..half).rev().map(|at| 1.0 - step.powi(at as i32)));
    distances.push(0.0);
    distances.extend((1..half).map(|at| step.powi(at as i32) - 1.0));
    distances.push(2.0 * reach);
    distances
}
