//! `Candle::MaskedLM`

use engine::tasks::{Filling, MaskModel};
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::{gvl, model};

#[magnus::wrap(class = "Candle::MaskedLM", free_immediately, size)]
pub struct RbMaskedLm {
    model: model::Slot<MaskModel>,
}

model::described!(MaskModel);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbMaskedLm, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbMaskedLm {
        model: model::load(ruby, &request, MaskModel::load)?,
    })
}

fn mask_token(ruby: &Ruby, this: &RbMaskedLm) -> Result<String, Error> {
    Ok(this.model.get(ruby)?.mask_token())
}

/// A list of proposals for each mask of the text.
fn fill(ruby: &Ruby, this: &RbMaskedLm, text: String, top_k: usize) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let masks = gvl::leave_waiting(ruby, |cancel| model.fill(&text, top_k, cancel))?;
    let lists = ruby.ary_new_capa(masks.len());
    for fillings in &masks {
        let list = ruby.ary_new_capa(fillings.len());
        for filling in fillings {
            list.push(filling_hash(ruby, filling)?)?;
        }
        lists.push(list)?;
    }
    Ok(lists)
}

fn filling_hash(ruby: &Ruby, filling: &Filling) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    hash.aset(ruby.to_symbol("token"), filling.token.as_str())?;
    hash.aset(ruby.to_symbol("id"), filling.id)?;
    hash.aset(ruby.to_symbol("score"), f64::from(filling.score))?;
    hash.aset(ruby.to_symbol("sequence"), filling.sequence.as_str())?;
    Ok(hash)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("MaskedLM", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_mask_token", method!(mask_token, 0))?;
    class.define_private_method("_fill", method!(fill, 2))?;
    model::define_stats!(class, RbMaskedLm)?;
    model::define_model!(class, RbMaskedLm)
}
