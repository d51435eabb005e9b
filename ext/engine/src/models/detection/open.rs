//! OWL-ViT and OWLv2: every patch of a picture finds a thing, whose words are compared with those of a call.

use candle_core::Tensor;

use super::attention::Mlp;
use super::deformable::numbers;
use super::rt_detr::{rows_of_four, sigmoid};
use super::Predictions;
use crate::models::modules::Modules;
use crate::models::vision::Tower;
use crate::nn::{elementwise, Inventory, Linear, Norm};
use crate::{CancelToken, Error, Result};
use formats::image::View;
use kernels::Activation;

/// Added to lengths that things are divided by.
const LEAST: f32 = 1e-6;
/// Added to parts of a picture before their logarithm is taken.
const EDGE: f32 = 1e-4;

/// The heads; images and texts have towers of their own.
#[derive(Debug)]
pub struct OpenHeads {
    norm: Norm,
    words: Linear,
    shift: Linear,
    scale: Linear,
    boxes: Mlp,
}

impl OpenHeads {
    pub fn load(modules: &Modules<'_>, width: usize, epsilon: f32) -> Result<Self> {
        if !modules.has("class_head") || !modules.has("box_head") {
            let reason = "the checkpoint has no heads for detection".to_owned();
            return Err(modules.corrupt(reason));
        }
        let class = modules.at("class_head");
        let boxes = modules.at("box_head");
        let names = ["dense0", "dense1", "dense2"];
        let boxes = Mlp::named(&boxes, width, &names, Activation::Gelu)?;
        super::check_outputs(modules, &boxes, 4)?;
        Ok(Self {
            norm: modules.layer_norm("layer_norm", width, epsilon)?,
            words: class.linear("dense0", width)?,
            shift: class.sized_linear("logit_shift", width, 1)?,
            scale: class.sized_linear("logit_scale", width, 1)?,
            boxes,
        })
    }

    /// The length of what words are compared as.
    pub fn words(&self) -> usize {
        self.words.outputs()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_norm(&self.norm)?;
        for linear in [&self.words, &self.shift, &self.scale] {
            inventory.add_linear(linear)?;
        }
        self.boxes.list(inventory)
    }

    /// `queries` are rows of words, one for each class.
    pub fn forward(
        &self,
        tower: &Tower,
        view: &View,
        queries: &[Vec<f32>],
        cancel: &CancelToken,
    ) -> Result<Predictions> {
        let seen = tower.forward(std::slice::from_ref(view), &[], cancel)?;
        let (columns, rows) = tower.grid(view);
        let patches = seen.patches()?;
        let patches = patches.first();
        let patches = patches.ok_or_else(|| Error::Internal("a tower saw nothing".into()))?;
        let first = seen.states.narrow(0, 0, 1)?.contiguous()?;
        let x = elementwise::multiply(&patches.contiguous()?, &first)?;
        let x = self.norm.forward(&x.contiguous()?)?;
        let boxes = rows_of_four(&self.boxes.forward(&x)?)?;
        let boxes = boxes.iter().enumerate().map(|(at, edges)| {
            let bias = bias((at % columns, at / columns), (columns, rows));
            std::array::from_fn(|axis| sigmoid(edges[axis] + bias[axis]))
        });
        Ok(Predictions {
            boxes: boxes.collect(),
            classes: queries.len(),
            logits: self.logits(&x, queries)?,
            order: None,
        })
    }

    fn logits(&self, x: &Tensor, queries: &[Vec<f32>]) -> Result<Vec<f32>> {
        let words = numbers(&self.words.forward(x)?)?;
        let shifts = numbers(&self.shift.forward(x)?)?;
        let scales = numbers(&self.scale.forward(x)?)?;
        let queries: Vec<Vec<f32>> = queries.iter().map(|row| shortened(row)).collect();
        let mut logits = Vec::with_capacity(shifts.len() * queries.len());
        let each = words.chunks_exact(self.words().max(1));
        for (row, (shift, scale)) in each.zip(shifts.iter().zip(scales)) {
            let row = shortened(row);
            let scale = if scale > 0.0 { scale } else { scale.exp_m1() } + 1.0;
            logits.extend(queries.iter().map(|query| {
                let dot: f32 = row.iter().zip(query).map(|(a, b)| a * b).sum();
                (dot + shift) * scale
            }));
        }
        Ok(logits)
    }
}

fn shortened(row: &[f32]) -> Vec<f32> {
    let length = row.iter().map(|x| x * x).sum::<f32>().sqrt() + LEAST;
    row.iter().map(|x| x / length).collect()
}

/// Where a box lies and how large it is before anything is known of it: at the patch, and of its size.
fn bias((column, row): (usize, usize), (columns, rows): (usize, usize)) -> [f32; 4] {
    let logit = |part: f32| (part + EDGE).ln() - (EDGE - part).ln_1p();
    let part = |at: usize, count: usize| ((at + 1) as f32 / count as f32).clamp(0.0, 1.0);
    [
        logit(part(column, columns)),
        logit(part(row, rows)),
        logit(1.0 / columns as f32),
        logit(1.0 / rows as f32),
    ]
}
