//! `Candle::DocumentReader::ImageToText`

use engine::tasks::{ReadModel, Reading, Seq2SeqSettings};
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby};

use crate::{image, llm, model, seq2seq};

#[magnus::wrap(class = "Candle::DocumentReader::ImageToText", free_immediately, size)]
pub struct RbImageToText {
    model: model::Slot<ReadModel>,
}

model::described!(ReadModel);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbImageToText, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbImageToText {
        model: model::load(ruby, &request, ReadModel::load)?,
    })
}

/// What the checkpoint says of generating, as a Hash with Symbol keys.
fn defaults(ruby: &Ruby, this: &RbImageToText) -> Result<RHash, Error> {
    let model = this.model.get(ruby)?;
    let hash = seq2seq::defaults_of(ruby, model.defaults())?;
    hash.aset(ruby.to_symbol("max_length"), model.usual_length())?;
    Ok(hash)
}

/// For each image its text, token ids, the reason of the end, and its width and height.
fn read(
    ruby: &Ruby,
    this: &RbImageToText,
    images: RArray,
    prompt: Option<String>,
    settings: RHash,
) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let defaults = model.defaults();
    let beams: Option<usize> = model::setting(ruby, settings, "num_beams")?;
    let settings = Seq2SeqSettings {
        config: llm::generation_config(ruby, settings)?,
        num_beams: beams.unwrap_or(defaults.num_beams),
        length_penalty: defaults.length_penalty,
        early_stopping: defaults.early_stopping,
        rules: defaults.rules.clone(),
    };
    let texts = ruby.ary_new_capa(images.len());
    image::in_slices(
        ruby,
        images,
        |slice, first, cancel| model.read(slice, prompt.as_deref(), &settings, first, cancel),
        |found, _| {
            found
                .iter()
                .try_for_each(|reading| texts.push(entry(reading)))
        },
    )?;
    Ok(texts)
}

fn entry(reading: &Reading) -> (String, Vec<u32>, &'static str, (usize, usize)) {
    (
        reading.text.clone(),
        reading.tokens.clone(),
        llm::reason_name(reading.finish_reason),
        reading.size,
    )
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let reader = candle.define_class("DocumentReader", ruby.class_object())?;
    let class = reader.define_class("ImageToText", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_defaults", method!(defaults, 0))?;
    class.define_private_method("_read", method!(read, 3))?;
    model::define_model!(class, RbImageToText)
}
