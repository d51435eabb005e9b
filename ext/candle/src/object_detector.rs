//! `Candle::ObjectDetector`

use engine::tasks::{DetectModel, Detection};
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::{image, model};

#[magnus::wrap(class = "Candle::ObjectDetector", free_immediately, size)]
pub struct RbObjectDetector {
    model: model::Slot<DetectModel>,
}

model::described!(DetectModel, sees);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbObjectDetector, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbObjectDetector {
        model: model::load(ruby, &request, DetectModel::load)?,
    })
}

fn labels(ruby: &Ruby, this: &RbObjectDetector) -> Result<Vec<String>, Error> {
    Ok(this.model.get(ruby)?.labels().to_vec())
}

fn takes_labels(ruby: &Ruby, this: &RbObjectDetector) -> Result<bool, Error> {
    Ok(this.model.get(ruby)?.takes_labels())
}

/// For each image a list of label numbers, scores and corners, best first.
fn detect(
    ruby: &Ruby,
    this: &RbObjectDetector,
    images: RArray,
    labels: Vec<String>,
    threshold: f64,
) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let lists = ruby.ary_new_capa(images.len());
    image::in_slices(
        ruby,
        images,
        |slice, first, cancel| model.find(slice, &labels, threshold as f32, first, cancel),
        |found, _| {
            found
                .iter()
                .try_for_each(|things| lists.push(list(ruby, things)?))
        },
    )?;
    Ok(lists)
}

fn list(ruby: &Ruby, things: &[Detection]) -> Result<RArray, Error> {
    let list = ruby.ary_new_capa(things.len());
    for thing in things {
        let [left, top, right, bottom] = thing.corners;
        list.push((thing.label, thing.score, (left, top, right, bottom)))?;
    }
    Ok(list)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("ObjectDetector", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_labels", method!(labels, 0))?;
    class.define_private_method("_takes_labels", method!(takes_labels, 0))?;
    class.define_private_method("_detect", method!(detect, 3))?;
    model::define_model!(class, RbObjectDetector)
}
