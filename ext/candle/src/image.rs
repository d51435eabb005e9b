//! `Candle::Image`

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{Device, Tensor};
use engine::serving::Slice;
use engine::tasks::{Embeddings, Picture};
use engine::{CancelToken, Error as EngineError};
use formats::files::raw_config::RawConfig;
use formats::image::{self, Image, Limits, Processor, View};
use magnus::{
    block::Proc, function, method, prelude::*, Error, RArray, RModule, RString, Ruby, Symbol,
    TryConvert, Value,
};

use crate::embedding_model::Vectors;
use crate::tensor::RbTensor;
use crate::{error, gc, gvl};

#[magnus::wrap(class = "Candle::Image", free_immediately, size)]
pub struct RbImage {
    image: Arc<Image>,
    #[allow(dead_code, reason = "held for its Drop")]
    memory: gc::Tracked,
}

/// A picture as Ruby gives it: a decoded one, or a pair that says what its String is.
fn picture(ruby: &Ruby, value: Value) -> Result<Picture, Error> {
    if let Ok(image) = <&RbImage>::try_convert(value) {
        return Ok(Picture::Decoded(image.image.clone()));
    }
    let (kind, content): (Symbol, RString) = TryConvert::try_convert(value)?;
    // SAFETY: the bytes are copied before anything else of Ruby runs.
    let bytes = unsafe { content.as_slice() }.to_vec();
    match &*kind.name()? {
        "bytes" => Ok(Picture::Encoded(bytes)),
        "file" => String::from_utf8(bytes)
            .map(|path| Picture::File(PathBuf::from(path)))
            .map_err(|_| {
                let reason = "the path of an image must be valid UTF-8";
                error::to_ruby(ruby, EngineError::InvalidInput(reason.to_owned()))
            }),
        other => Err(error::to_ruby(
            ruby,
            EngineError::Internal(format!("unknown kind {other:?} of image")),
        )),
    }
}

/// Runs `work` off the GVL on one slice of the pictures after the other, with the index of the
/// slice's first, and hands each result to `take` with the number of pictures done.
pub fn in_slices<T: Send>(
    ruby: &Ruby,
    images: RArray,
    work: impl Fn(&[Picture], usize, &CancelToken) -> engine::Result<T> + Send + Sync,
    mut take: impl FnMut(T, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    let total = images.len();
    let mut done = 0;
    while done < total {
        let count = Slice::Images.size().min(total - done);
        let pictures = pictures(ruby, images, done, count)?;
        let result = gvl::leave_waiting(ruby, |cancel| work(&pictures, done, cancel))?;
        done += count;
        take(result, done)?;
    }
    Ok(())
}

/// The vectors of pictures as `form` says: rows of an Array, or one Tensor. `progress` is called with how
/// many are done, and of how many.
pub fn vectors(
    ruby: &Ruby,
    images: RArray,
    form: &str,
    progress: Option<Proc>,
    embed: impl Fn(&[Picture], usize, &CancelToken) -> engine::Result<Embeddings> + Send + Sync,
) -> Result<Value, Error> {
    let total = images.len();
    let mut vectors = Vectors::new(ruby, form, total)?;
    in_slices(ruby, images, embed, |found, done| {
        vectors.add_watched(ruby, found, progress, (done, total))
    })?;
    gvl::hold(ruby, || vectors.finish(ruby))
}

pub fn pictures(
    ruby: &Ruby,
    images: RArray,
    first: usize,
    count: usize,
) -> Result<Vec<Picture>, Error> {
    let Some(slice) = images.subseq(first, count) else {
        return Ok(Vec::new());
    };
    let values = slice.into_iter();
    values.map(|value| picture(ruby, value)).collect()
}

fn decode(ruby: &Ruby, value: Value) -> Result<RbImage, Error> {
    let picture = picture(ruby, value)?;
    let image = gvl::leave(ruby, |_| picture.decode())?;
    Ok(RbImage {
        memory: gc::Tracked::new(ruby, image.pixels().len()),
        image,
    })
}

fn width(this: &RbImage) -> usize {
    this.image.width()
}

fn height(this: &RbImage) -> usize {
    this.image.height()
}

/// What a processor makes of the picture: `settings` is the text of a `preprocessor_config.json`.
fn prepared(ruby: &Ruby, this: &RbImage, settings: String) -> Result<RArray, Error> {
    let tensors: Vec<Tensor> = gvl::leave(ruby, |cancel| {
        let raw = RawConfig::parse(Path::new("preprocessor_config.json"), &settings)?;
        let found = Processor::read(&raw)?.views(&this.image, cancel)?;
        let tensor = |view: View| -> engine::Result<Tensor> {
            let shape = (image::CHANNELS, view.height, view.width);
            Ok(Tensor::from_vec(view.values, shape, &Device::Cpu)?)
        };
        found.views.into_iter().map(tensor).collect()
    })?;
    let views = ruby.ary_new_capa(tensors.len());
    for tensor in tensors {
        views.push(RbTensor::new(ruby, tensor))?;
    }
    Ok(views)
}

/// A picture that was made here.
pub fn wrapped(ruby: &Ruby, image: Image) -> RbImage {
    RbImage {
        memory: gc::Tracked::new(ruby, image.pixels().len()),
        image: Arc::new(image),
    }
}

/// The bytes of a PNG file.
fn png(ruby: &Ruby, this: &RbImage) -> Result<RString, Error> {
    let bytes = gvl::leave(ruby, |_| this.image.png())?;
    Ok(ruby.str_from_slice(&bytes))
}

/// Left, top, right and bottom, and a color.
type ColoredBox = ((f64, f64, f64, f64), (u8, u8, u8));

/// A copy with boxes of four corners each, in their colours.
fn outlined(
    ruby: &Ruby,
    this: &RbImage,
    boxes: Vec<ColoredBox>,
    thickness: usize,
) -> Result<RbImage, Error> {
    let image = gvl::leave(ruby, |_| {
        let mut image = Image::clone(&this.image);
        for ((left, top, right, bottom), (red, green, blue)) in &boxes {
            let corners = [*left, *top, *right, *bottom];
            image.outline(corners, [*red, *green, *blue], thickness);
        }
        Ok(image)
    })?;
    Ok(wrapped(ruby, image))
}

fn is_encoded(content: RString) -> bool {
    // SAFETY: the bytes are only looked at, and nothing of Ruby runs meanwhile.
    image::is_encoded(unsafe { content.as_slice() })
}

fn limits() -> (usize, usize) {
    let Limits {
        max_bytes,
        max_pixels,
    } = image::limits();
    (max_bytes, max_pixels)
}

fn set_limits(max_bytes: usize, max_pixels: usize) {
    image::set_limits(Limits {
        max_bytes,
        max_pixels,
    });
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("Image", ruby.class_object())?;
    class.undef_default_alloc_func();
    let singleton = class.singleton_class()?;
    singleton.define_private_method("_decode", function!(decode, 1))?;
    singleton.define_private_method("_encoded", function!(is_encoded, 1))?;
    singleton.define_private_method("_limits", function!(limits, 0))?;
    singleton.define_private_method("_limits=", function!(set_limits, 2))?;
    class.define_private_method("_prepared", method!(prepared, 1))?;
    class.define_private_method("_png", method!(png, 0))?;
    class.define_private_method("_outlined", method!(outlined, 2))?;
    class.define_method("width", method!(width, 0))?;
    class.define_method("height", method!(height, 0))
}
