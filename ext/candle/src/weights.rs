//! `Candle::Weights`

use std::sync::Arc;

use formats::weights::{self, Arrangement, Value as EngineValue, WeightSource};
use magnus::{
    function, method, prelude::*, value::ReprValue, Error, IntoValue, RArray, RHash, RModule,
    RString, Ruby, Value,
};

use crate::{convert, gvl, tensor::RbTensor};

#[magnus::wrap(class = "Candle::Weights", free_immediately, size)]
pub struct RbWeights(Arc<dyn WeightSource>);

fn open(ruby: &Ruby, path: String) -> Result<RbWeights, Error> {
    gvl::leave(ruby, |cancel| weights::open_path(&path, cancel)).map(RbWeights)
}

fn names(ruby: &Ruby, weights: &RbWeights) -> Result<Vec<String>, Error> {
    gvl::hold(ruby, || Ok(weights.0.names()))
}

fn files(ruby: &Ruby, weights: &RbWeights) -> Result<Vec<String>, Error> {
    let files = weights.0.files();
    gvl::hold(ruby, || {
        Ok(files
            .iter()
            .map(|file| file.display().to_string())
            .collect())
    })
}

fn has(weights: &RbWeights, name: String) -> bool {
    weights.0.has(&name)
}

/// Shape, type, size and file of a tensor, or nil.
fn info(ruby: &Ruby, weights: &RbWeights, name: String) -> Result<Option<RArray>, Error> {
    gvl::hold(ruby, || {
        let Some(info) = weights.0.info(&name) else {
            return Ok(None);
        };
        let fields = ruby.ary_new();
        fields.push(info.shape)?;
        fields.push(ruby.to_symbol(info.dtype_name))?;
        fields.push(info.bytes)?;
        fields.push(weights.0.file(&name).display().to_string())?;
        Ok(Some(fields))
    })
}

fn tensor(
    ruby: &Ruby,
    weights: &RbWeights,
    name: String,
    device: Value,
    dtype: Value,
) -> Result<RbTensor, Error> {
    let device = convert::device(ruby, device)?;
    let dtype = convert::optional_dtype(ruby, dtype)?;
    let tensor = gvl::leave(ruby, |cancel| {
        cancel.check()?;
        weights.0.tensor(&name, dtype, &device.open()?)
    })?;
    Ok(RbTensor::new(ruby, tensor))
}

/// The bytes of a tensor in another type; rows are arranged as GGUF files have them, by the name of an arrangement and
/// its numbers, and columns have an importance, if it is given.
fn encoded(
    ruby: &Ruby,
    weights: &RbWeights,
    name: String,
    kind: String,
    rows: Option<(String, Vec<usize>)>,
    importance: Option<Vec<f32>>,
) -> Result<RString, Error> {
    let bytes = gvl::leave(ruby, |cancel| {
        cancel.check()?;
        let unknown = |(name, numbers): &(String, Vec<usize>)| {
            engine::Error::InvalidInput(format!("rows: {name} {numbers:?} is not an arrangement"))
        };
        let found = rows
            .as_ref()
            .map(|rows| Arrangement::named(&rows.0, &rows.1).ok_or_else(|| unknown(rows)));
        let arrangement = found.transpose()?;
        let importance = importance.as_deref();
        weights::encoded(weights.0.as_ref(), &name, &kind, arrangement, importance)
    })?;
    Ok(ruby.str_from_slice(&bytes))
}

fn metadata(ruby: &Ruby, weights: &RbWeights) -> Result<RHash, Error> {
    gvl::hold(ruby, || {
        let metadata = ruby.hash_new();
        for (key, value) in weights.0.metadata().iter() {
            metadata.aset(key.as_str(), ruby_value(ruby, value)?)?;
        }
        Ok(metadata)
    })
}

fn ruby_value(ruby: &Ruby, value: &EngineValue) -> Result<Value, Error> {
    Ok(match value {
        EngineValue::Unsigned(value) => value.into_value_with(ruby),
        EngineValue::Signed(value) => value.into_value_with(ruby),
        EngineValue::Float(value) => value.into_value_with(ruby),
        EngineValue::Bool(value) => value.into_value_with(ruby),
        EngineValue::String(value) => value.as_str().into_value_with(ruby),
        EngineValue::Array(array) => {
            let values = ruby.ary_new();
            for value in array.values() {
                values.push(ruby_value(ruby, &value)?)?;
            }
            values.as_value()
        }
    })
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("Weights", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_open", function!(open, 1))?;
    class.define_private_method("_names", method!(names, 0))?;
    class.define_private_method("_files", method!(files, 0))?;
    class.define_private_method("_has", method!(has, 1))?;
    class.define_private_method("_info", method!(info, 1))?;
    class.define_private_method("_tensor", method!(tensor, 3))?;
    class.define_private_method("_encoded", method!(encoded, 4))?;
    class.define_private_method("_metadata", method!(metadata, 0))
}
