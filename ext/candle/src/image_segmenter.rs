//! `Candle::ImageSegmenter`

use engine::tasks::{PartKind, Prompt, SegmentModel, Segmentation};
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::{error, image, model};

#[magnus::wrap(class = "Candle::ImageSegmenter", free_immediately, size)]
pub struct RbImageSegmenter {
    model: model::Slot<SegmentModel>,
}

model::described!(SegmentModel, sees);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbImageSegmenter, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbImageSegmenter {
        model: model::load(ruby, &request, SegmentModel::load)?,
    })
}

fn labels(ruby: &Ruby, this: &RbImageSegmenter) -> Result<Vec<String>, Error> {
    Ok(this.model.get(ruby)?.labels().to_vec())
}

/// For each image a list of label numbers, parts of all pixels, and masks.
fn segment(ruby: &Ruby, this: &RbImageSegmenter, images: RArray) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let lists = ruby.ary_new_capa(images.len());
    image::in_slices(
        ruby,
        images,
        |slice, first, cancel| model.segment(slice, first, cancel),
        |found, _| {
            found
                .iter()
                .try_for_each(|segmentation| lists.push(list(ruby, segmentation)?))
        },
    )?;
    Ok(lists)
}

fn list(ruby: &Ruby, found: &Segmentation) -> Result<RArray, Error> {
    let list = ruby.ary_new();
    for label in found.present() {
        let count = found.labels.iter().filter(|&&at| at == label).count();
        let part = count as f64 / found.labels.len() as f64;
        let mask = found.mask(label).map_err(error::raised(ruby))?;
        list.push((label, part, image::wrapped(ruby, mask)))?;
    }
    Ok(list)
}

fn finds_things(ruby: &Ruby, this: &RbImageSegmenter) -> Result<bool, Error> {
    Ok(this.model.get(ruby)?.finds_things())
}

/// For each image a list of label numbers, scores and masks.
fn parts(
    ruby: &Ruby,
    this: &RbImageSegmenter,
    images: RArray,
    panoptic: bool,
    merged: Vec<usize>,
    threshold: f64,
) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let kind = if panoptic {
        PartKind::Panoptic { merged }
    } else {
        PartKind::Instances
    };
    let lists = ruby.ary_new_capa(images.len());
    image::in_slices(
        ruby,
        images,
        |slice, first, cancel| model.parts(slice, &kind, threshold as f32, first, cancel),
        |found, _| {
            for parts in found {
                let list = ruby.ary_new();
                for part in parts {
                    list.push((part.label, part.score, image::wrapped(ruby, part.mask)))?;
                }
                lists.push(list)?;
            }
            Ok(())
        },
    )?;
    Ok(lists)
}

fn takes_prompts(ruby: &Ruby, this: &RbImageSegmenter) -> Result<bool, Error> {
    Ok(this.model.get(ruby)?.takes_prompts())
}

/// Points as x, y and whether the thing is there, and the corners of a box.
type RbPrompt = (Vec<(f64, f64, bool)>, Option<(f64, f64, f64, f64)>);

/// For each prompt a list of scores and masks.
fn segment_prompts(
    ruby: &Ruby,
    this: &RbImageSegmenter,
    images: RArray,
    prompts: Vec<RbPrompt>,
    several: bool,
) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let prompt = |(points, corners): RbPrompt| {
        let points = points.into_iter();
        Prompt {
            points: points
                .map(|(x, y, inside)| (x as f32, y as f32, inside))
                .collect(),
            corners: corners.map(|(left, top, right, bottom)| {
                [left, top, right, bottom].map(|edge| edge as f32)
            }),
        }
    };
    let prompts: Vec<Prompt> = prompts.into_iter().map(prompt).collect();
    let lists = ruby.ary_new();
    image::in_slices(
        ruby,
        images,
        |slice, _, cancel| {
            let each = slice.iter();
            let masks = each.map(|image| model.segment_prompts(image, &prompts, several, cancel));
            masks.collect::<Result<Vec<_>, _>>()
        },
        |found, _| {
            for masks in found.into_iter().flatten() {
                let list = ruby.ary_new();
                for one in masks {
                    list.push((one.score, image::wrapped(ruby, one.mask)))?;
                }
                lists.push(list)?;
            }
            Ok(())
        },
    )?;
    Ok(lists)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("ImageSegmenter", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_labels", method!(labels, 0))?;
    class.define_private_method("_segment", method!(segment, 1))?;
    class.define_private_method("_finds_things", method!(finds_things, 0))?;
    class.define_private_method("_parts", method!(parts, 4))?;
    class.define_private_method("_takes_prompts", method!(takes_prompts, 0))?;
    class.define_private_method("_segment_prompts", method!(segment_prompts, 3))?;
    model::define_model!(class, RbImageSegmenter)
}
