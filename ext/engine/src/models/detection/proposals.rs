//! The best places of all levels, of which decoders make queries, and their first boxes.

use candle_core::Tensor;

use super::attention::Mlp;
use super::deformable::{numbers, Levels};
use super::{check_outputs, count};
use crate::models::modules::Modules;
use crate::nn::{elementwise, Inventory, Linear, Norm};
use crate::{Error, Result};
use formats::files::raw_config::RawConfig;
use kernels::Activation;

/// What makes queries of places.
#[derive(Debug)]
pub struct Proposals {
    linear: Linear,
    norm: Norm,
    scores: Linear,
    boxes: Mlp,
    count: usize,
    /// Instead of the places themselves.
    learned: Option<Tensor>,
}

impl Proposals {
    /// Boxes have so many numbers.
    pub fn load(
        raw: &RawConfig,
        body: &Modules<'_>,
        (width, epsilon): (usize, f32),
        box_size: usize,
    ) -> Result<Self> {
        let count = count(raw, "num_queries", 300)?;
        let boxes = Mlp::numbered(&body.at("enc_bbox_head"), width, Activation::Relu)?;
        check_outputs(body, &boxes, box_size)?;
        let learned = raw.opt_bool("learn_initial_query")?.unwrap_or(false);
        Ok(Self {
            linear: body.sized_linear("enc_output.0", width, width)?,
            norm: body.layer_norm("enc_output.1", width, epsilon)?,
            scores: body.linear("enc_score_head", width)?,
            boxes,
            count,
            learned: if learned {
                Some(body.shaped("weight_embedding.weight", &[count, width])?)
            } else {
                None
            },
        })
    }

    pub fn queries(&self) -> usize {
        self.count
    }

    pub fn classes(&self) -> usize {
        self.scores.outputs()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.linear)?;
        inventory.add_linear(&self.scores)?;
        inventory.add_norm(&self.norm)?;
        if let Some(learned) = &self.learned {
            inventory.add_tensor(learned);
        }
        self.boxes.list(inventory)
    }

    /// The best places, and their boxes before the sigmoid.
    pub fn choose<const N: usize>(
        &self,
        levels: &Levels,
        anchors: &[Option<[f32; N]>],
    ) -> Result<(Tensor, Vec<[f32; N]>)> {
        check_places(anchors.len(), self.count)?;
        let rows = &levels.rows;
        let valid = anchors
            .iter()
            .map(|anchor| f32::from(u8::from(anchor.is_some())));
        let valid = Tensor::from_vec(valid.collect::<Vec<_>>(), (anchors.len(), 1), rows.device())?;
        let memory = elementwise::multiply(rows, &valid.to_dtype(rows.dtype())?)?;
        let memory = self.norm.forward(&self.linear.forward(&memory)?)?;
        let scores = numbers(&self.scores.forward(&memory)?)?;
        let classes = self.classes().max(1);
        let best = scores
            .chunks_exact(classes)
            .map(|row| row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let chosen = largest(best, self.count);
        let places = Tensor::from_slice(&chosen, chosen.len(), rows.device())?;
        let memory = memory.index_select(&places, 0)?;
        let added = numbers(&self.boxes.forward(&memory)?)?;
        let logits = chosen
            .iter()
            .zip(added.chunks_exact(N))
            .map(|(&at, added)| {
                let anchor = anchors[at as usize].unwrap_or([f32::MAX; N]);
                std::array::from_fn(|axis| anchor[axis] + added[axis])
            });
        let queries = self.learned.clone().unwrap_or(memory);
        Ok((queries, logits.collect()))
    }
}

/// An error where there are fewer places than a model chooses.
pub fn check_places(places: usize, wanted: usize) -> Result<()> {
    if places >= wanted {
        return Ok(());
    }
    Err(Error::InvalidInput(format!(
        "the image became {places} places, of which the model chooses {wanted}: its preprocessor_config.json belongs \
         to another model"
    )))
}

/// The places of the largest numbers, the largest first.
pub fn largest(numbers: impl Iterator<Item = f32>, count: usize) -> Vec<u32> {
    let mut order: Vec<(f32, u32)> = numbers.zip(0..).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    order.iter().take(count).map(|&(_, at)| at).collect()
}

/// Boxes in the middle of all places, before the sigmoid; `None` for those too near to an edge.
pub fn anchors(sizes: &[(usize, usize)]) -> Vec<Option<[f32; 4]>> {
    anchors_with(sizes, |[x, y], edge| [x, y, edge, edge])
}

/// The same of boxes that are made of a place and of the edge of a box there.
pub fn anchors_with<const N: usize>(
    sizes: &[(usize, usize)],
    anchor: impl Fn([f32; 2], f32) -> [f32; N],
) -> Vec<Option<[f32; N]>> {
    const SIZE: f32 = 0.05;
    const LEAST: f32 = 1e-2;
    let mut anchors = Vec::new();
    for (level, &(height, width)) in sizes.iter().enumerate() {
        let edge = SIZE * 2f32.powi(level as i32);
        for y in 0..height {
            for x in 0..width {
                let place = [
                    (x as f32 + 0.5) / width as f32,
                    (y as f32 + 0.5) / height as f32,
                ];
                let anchor = anchor(place, edge);
                let valid = anchor.iter().all(|&at| at > LEAST && at < 1.0 - LEAST);
                anchors.push(valid.then(|| anchor.map(|at| (at / (1.0 - at)).ln())));
            }
        }
    }
    anchors
}
