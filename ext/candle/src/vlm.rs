//! `Candle::VLM::ImageEncoder`, and the embeddings it makes of images

use std::sync::Arc;

use engine::tasks::{ImageEmbeddings, ImageEncoder};
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::llm::RbLlm;
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

fn spelling(this: &RbEncoded) -> String {
    this.0.spelling.clone()
}

fn ids(this: &RbEncoded) -> Vec<Vec<u32>> {
    let guests = this.0.guests.iter();
    guests.map(|guest| guest.ids().collect()).collect()
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
    class.define_method("encodings", method!(encodings, 0))?;
    class.define_private_method("_encode", method!(encode, 2))?;
    let seen = class.define_class("Encoded", ruby.class_object())?;
    seen.undef_default_alloc_func();
    seen.define_method("spelling", method!(spelling, 0))?;
    seen.define_method("ids", method!(ids, 0))
}
