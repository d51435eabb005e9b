//! YOLOS: a vision tower some of whose tokens each find a thing.

use super::attention::Mlp;
use super::Predictions;
use crate::models::modules::Modules;
use crate::models::vision::{Blueprint, Tower};
use crate::nn::Inventory;
use crate::{CancelToken, Error, Result};
use formats::files::raw_config::RawConfig;
use formats::image::View;
use formats::weights::WeightSource;
use kernels::Activation;

#[derive(Debug)]
pub struct Yolos {
    tower: Tower,
    classes: Mlp,
    boxes: Mlp,
    /// Of the tokens that find things, which follow the first of all.
    count: usize,
}

impl Yolos {
    pub fn load(
        raw: &RawConfig,
        source: &dyn WeightSource,
        modules: &Modules<'_>,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let blueprint = Blueprint::from_config(raw)?;
        let place = (modules.device(), modules.dtype());
        let tower = Tower::load(&blueprint, source, place, modules.int8(), cancel)?;
        let width = blueprint.config.encoder.hidden_size;
        let head = |name: &str| Mlp::numbered(&modules.at(name), width, Activation::Relu);
        let boxes = head("bbox_predictor")?;
        super::check_outputs(modules, &boxes, 4)?;
        Ok(Self {
            classes: head("class_labels_classifier")?,
            boxes,
            count: blueprint.config.finders.map_or(0, |finders| finders.count),
            tower,
        })
    }

    pub fn classes(&self) -> usize {
        self.classes.outputs().saturating_sub(1)
    }

    pub fn width(&self) -> usize {
        self.tower.config().encoder.hidden_size
    }

    pub fn layer_count(&self) -> usize {
        self.tower.config().encoder.layers.len()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.merge(self.tower.inventory()?);
        self.classes.list(inventory)?;
        self.boxes.list(inventory)
    }

    pub fn forward(&self, view: &View, cancel: &CancelToken) -> Result<Predictions> {
        let seen = self
            .tower
            .forward(std::slice::from_ref(view), &[], cancel)?;
        let first = seen.leading.checked_sub(self.count);
        let first = first.ok_or_else(|| Error::Internal("a tower without its tokens".into()))?;
        let found = seen.states.narrow(0, first, self.count)?.contiguous()?;
        Predictions::of(&self.classes.forward(&found)?, &self.boxes.forward(&found)?)
    }
}
