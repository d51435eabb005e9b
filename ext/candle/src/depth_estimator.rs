//! `Candle::DepthEstimator`

use candle_core::{Device, Tensor};
use engine::tasks::{DepthModel, Depths};
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::tensor::RbTensor;
use crate::{error, image, model};

#[magnus::wrap(class = "Candle::DepthEstimator", free_immediately, size)]
pub struct RbDepthEstimator {
    model: model::Slot<DepthModel>,
}

model::described!(DepthModel, sees);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbDepthEstimator, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbDepthEstimator {
        model: model::load(ruby, &request, DepthModel::load)?,
    })
}

/// For each image the depths of its pixels, and a picture of them.
fn estimate(ruby: &Ruby, this: &RbDepthEstimator, images: RArray) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let pairs = ruby.ary_new_capa(images.len());
    image::in_slices(
        ruby,
        images,
        |slice, first, cancel| model.estimate(slice, first, cancel),
        |found, _| {
            found
                .iter()
                .try_for_each(|depths| pairs.push(pair(ruby, depths)?))
        },
    )?;
    Ok(pairs)
}

fn pair(ruby: &Ruby, depths: &Depths) -> Result<RArray, Error> {
    let shape = (depths.height, depths.width);
    let tensor = Tensor::from_slice(&depths.values, shape, &Device::Cpu);
    let tensor = tensor.map_err(|error| error::raised(ruby)(error.into()))?;
    let picture = depths.image().map_err(error::raised(ruby))?;
    let pair = ruby.ary_new_capa(2);
    pair.push(RbTensor::new(ruby, tensor))?;
    pair.push(image::wrapped(ruby, picture))?;
    Ok(pair)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("DepthEstimator", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_estimate", method!(estimate, 1))?;
    model::define_model!(class, RbDepthEstimator)
}
