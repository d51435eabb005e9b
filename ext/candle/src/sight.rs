//! `Candle::VLM::Sight`, the eyes of a language model, and what they saw

use std::sync::Arc;

use engine::tasks::{Impression, Sight};
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::llm::RbLlm;
use crate::{gc, gvl, image, model};

#[magnus::wrap(class = "Candle::VLM::Sight", free_immediately, size)]
pub struct RbSight {
    sight: Sight,
    #[allow(dead_code, reason = "held for its Drop")]
    memory: gc::Tracked,
}

/// What was seen of one image; its ids stand in prompts for as long as it is held.
#[magnus::wrap(class = "Candle::VLM::Sight::Seen", free_immediately, size)]
pub struct RbSeen(Arc<Impression>);

fn load(ruby: &Ruby, llm: &RbLlm, source: String, settings: RHash) -> Result<RbSight, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    let language = llm.model.get(ruby)?;
    let sight = gvl::leave(ruby, |cancel| {
        Sight::load(&language, &request.files, &request.options, cancel)
    })?;
    Ok(RbSight {
        memory: gc::Tracked::new(ruby, sight.inventory().bytes()),
        sight,
    })
}

fn marker(this: &RbSight) -> String {
    this.sight.marker().to_owned()
}

fn marker_id(this: &RbSight) -> Option<u32> {
    this.sight.marker_id()
}

fn place(this: &RbSight) -> String {
    this.sight.place().to_owned()
}

fn looks(this: &RbSight) -> usize {
    this.sight.looks()
}

fn look(ruby: &Ruby, this: &RbSight, llm: &RbLlm, images: RArray) -> Result<RArray, Error> {
    let language = llm.model.get(ruby)?;
    let pictures = image::pictures(ruby, images, 0, images.len())?;
    let seen = gvl::leave_waiting(ruby, |cancel| this.sight.look(&language, &pictures, cancel))?;
    let impressions = ruby.ary_new_capa(seen.len());
    for impression in seen {
        impressions.push(RbSeen(impression))?;
    }
    Ok(impressions)
}

fn spelling(this: &RbSeen) -> String {
    this.0.spelling.clone()
}

fn ids(this: &RbSeen) -> Vec<Vec<u32>> {
    let guests = this.0.guests.iter();
    guests.map(|guest| guest.ids().collect()).collect()
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let vlm = candle.define_class("VLM", ruby.class_object())?;
    let class = vlm.define_class("Sight", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 3))?;
    class.define_method("marker", method!(marker, 0))?;
    class.define_method("marker_id", method!(marker_id, 0))?;
    class.define_method("place", method!(place, 0))?;
    class.define_method("looks", method!(looks, 0))?;
    class.define_private_method("_look", method!(look, 2))?;
    let seen = class.define_class("Seen", ruby.class_object())?;
    seen.undef_default_alloc_func();
    seen.define_method("spelling", method!(spelling, 0))?;
    seen.define_method("ids", method!(ids, 0))
}
