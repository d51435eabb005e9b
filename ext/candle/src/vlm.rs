//! `Candle::VLM::ImageEncoder`, and the embeddings it makes of images

use std::sync::Arc;

use engine::tasks::{ImageEmbeddings, ImageEncoder};
use magnus::typed_data::Obj;
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::llm::RbLlm;
use crate::token_ids::RbIds;
use crate::{gc, gvl, image, model};

#[magnus::wrap(class = "Candle::VLM::ImageEncoder", free_immediately, size)]
pub struct RbImageEncoder {
    encoder: ImageEncoder,
    #[allow(dead_code, reason = "held for its Drop")]
    memory: gc::Tracked,
}

/// What was seen of one image; its ids stand in prompts for as long as it is held.
#[magnus::wrap(class = "Candle::VLM::ImageEncoder::Encoded", free_immediately, size)]
pub struct RbEncoded(Arc<ImageEmbeddings>);

fn load(
    ruby: &Ruby,
    llm: &RbLlm,
    source: String,
    settings: RHash,
) -> Result<RbImageEncoder, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    let language = llm.model.get(ruby)?;
    let encoder = gvl::leave(ruby, |cancel| {
        ImageEncoder::load(&language, &request.files, &request.options, cancel)
    })?;
    Ok(RbImageEncoder {
        memory: gc::Tracked::new(ruby, encoder.inventory().bytes()),
        encoder,
    })
}

fn marker(this: &RbImageEncoder) -> String {
    this.encoder.marker().to_owned()
}

fn marker_id(this: &RbImageEncoder) -> Option<u32> {
    this.encoder.marker_id()
}

fn place(this: &RbImageEncoder) -> String {
    this.encoder.place().to_owned()
}

fn is_prefix(this: &RbImageEncoder) -> bool {
    this.encoder.is_prefix()
}

fn finish(this: &RbImageEncoder, prompt: String) -> String {
    this.encoder.finish(&prompt)
}

fn encodings(this: &RbImageEncoder) -> usize {
    this.encoder.encodings()
}

fn encode(
    ruby: &Ruby,
    this: &RbImageEncoder,
    llm: &RbLlm,
    images: RArray,
) -> Result<RArray, Error> {
    let language = llm.model.get(ruby)?;
    let pictures = image::pictures(ruby, images, 0, images.len())?;
    let seen = gvl::leave_waiting(ruby, |cancel| {
        this.encoder.encode(&language, &pictures, cancel)
    })?;
    let encoded = ruby.ary_new_capa(seen.len());
    for embeddings in seen {
        encoded.push(RbEncoded(embeddings))?;
    }
    Ok(encoded)
}

fn video_place(this: &RbImageEncoder) -> Option<String> {
    this.encoder.video_place().map(str::to_owned)
}

fn encode_video(
    ruby: &Ruby,
    this: &RbImageEncoder,
    llm: &RbLlm,
    frames: RArray,
    rate: f64,
) -> Result<RbEncoded, Error> {
    let language = llm.model.get(ruby)?;
    let frames = image::pictures(ruby, frames, 0, frames.len())?;
    let seen = gvl::leave_waiting(ruby, |cancel| {
        this.encoder.encode_video(&language, &frames, rate, cancel)
    })?;
    Ok(RbEncoded(seen))
}

fn spelling(this: &RbEncoded) -> String {
    this.0.spelling.clone()
}

/// How many markers stand for it in a prompt, and how many tokens stand for those.
fn sizes(this: &RbEncoded) -> (usize, usize) {
    let embeddings = &this.0.parts;
    (
        embeddings.len(),
        embeddings
            .iter()
            .map(|embedding| embedding.ids().len())
            .sum(),
    )
}

/// The ids of a prompt: its parts, with what stands for each marker between them. There is one part more than
/// there are markers.
fn join(_: &RbImageEncoder, parts: RArray, seen: RArray) -> Result<RbIds, Error> {
    let mut embeddings = Vec::new();
    for encoded in seen {
        embeddings.extend(Obj::<RbEncoded>::try_convert(encoded)?.0.parts.clone());
    }
    let mut ids = Vec::new();
    let mut embeddings = embeddings.iter();
    for part in parts {
        ids.extend(RbIds::of(part)?);
        ids.extend(
            embeddings
                .next()
                .into_iter()
                .flat_map(|embedding| embedding.ids()),
        );
    }
    Ok(RbIds(ids))
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let vlm = candle.define_class("VLM", ruby.class_object())?;
    let class = vlm.define_class("ImageEncoder", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 3))?;
    class.define_method("marker", method!(marker, 0))?;
    class.define_method("marker_id", method!(marker_id, 0))?;
    class.define_method("place", method!(place, 0))?;
    class.define_method("prefix?", method!(is_prefix, 0))?;
    class.define_private_method("_finish", method!(finish, 1))?;
    class.define_method("encodings", method!(encodings, 0))?;
    class.define_private_method("_encode", method!(encode, 2))?;
    class.define_method("video_place", method!(video_place, 0))?;
    class.define_private_method("_encode_video", method!(encode_video, 3))?;
    class.define_private_method("_join", method!(join, 2))?;
    let seen = class.define_class("Encoded", ruby.class_object())?;
    seen.undef_default_alloc_func();
    seen.define_method("spelling", method!(spelling, 0))?;
    seen.define_private_method("_sizes", method!(sizes, 0))
}
