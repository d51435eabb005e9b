//! `Candle::EmbeddingModel`

use base::runtime::memory;
use candle_core::{Device as CandleDevice, Tensor};
use engine::nn::Pooling;
use engine::serving::Slice;
use engine::tasks::{EmbedOptions, EmbedSettings, EmbeddingModel, Embeddings};
use engine::vector_index::compact;
use engine::Error as EngineError;
use magnus::{
    block::Proc, function, method, prelude::*, Error, IntoValue, RArray, RHash, RModule, Ruby,
    Value,
};

use crate::{error, gvl, model, tensor::RbTensor};

#[magnus::wrap(class = "Candle::EmbeddingModel", free_immediately, size)]
pub struct RbEmbeddingModel {
    model: model::Slot<EmbeddingModel>,
}

impl model::Described for EmbeddingModel {
    fn info(&self) -> &engine::tasks::ModelInfo {
        self.info()
    }

    fn tokenizer(&self) -> Option<&formats::text::tokenizer::Tokenizer> {
        self.tokenizer()
    }
}

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbEmbeddingModel, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    let own = EmbedSettings {
        pooling: model::parsed(ruby, settings, "pooling", Pooling::parse)?,
        normalize: model::setting(ruby, settings, "normalize")?,
    };
    Ok(RbEmbeddingModel {
        model: model::load(ruby, &request, |files, options, cancel| {
            EmbeddingModel::load(files, options, &own, cancel)
        })?,
    })
}

fn describe(ruby: &Ruby, model: &EmbeddingModel, hash: RHash) -> Result<(), Error> {
    let pooling = model.pooling().iter().map(|pooling| pooling.name());
    hash.aset(ruby.to_symbol("dimensions"), model.dimension())?;
    hash.aset(ruby.to_symbol("pooling"), pooling.collect::<Vec<&str>>())?;
    hash.aset(ruby.to_symbol("normalize"), model.normalizes())?;
    hash.aset(ruby.to_symbol("tasks"), model.tasks())?;
    hash.aset(ruby.to_symbol("similarity"), model.similarity().name())?;
    model::add_prompts(ruby, hash, model.prompts())
}

fn count_tokens(ruby: &Ruby, this: &RbEmbeddingModel, text: String) -> Result<usize, Error> {
    let model = this.model.get(ruby)?;
    gvl::leave(ruby, |cancel| model.count_tokens(&text, cancel))
}

/// The hidden states of a text: [1, tokens, hidden].
fn token_embeddings(ruby: &Ruby, this: &RbEmbeddingModel, text: String) -> Result<RbTensor, Error> {
    let model = this.model.get(ruby)?;
    let states = gvl::leave_waiting(ruby, |cancel| {
        Ok(model.token_embeddings(&text, cancel)?.unsqueeze(0)?)
    })?;
    Ok(RbTensor::new(ruby, states))
}

fn embed_options(ruby: &Ruby, settings: RHash) -> Result<EmbedOptions, Error> {
    Ok(EmbedOptions {
        prompt: model::setting(ruby, settings, "prompt")?,
        prompt_name: model::setting(ruby, settings, "prompt_name")?,
        task: model::setting(ruby, settings, "task")?,
        pooling: model::parsed(ruby, settings, "pooling", Pooling::parse)?,
        normalize: model::setting(ruby, settings, "normalize")?,
        dimensions: model::setting(ruby, settings, "dimensions")?,
        batch_tokens: model::setting(ruby, settings, "batch_tokens")?,
        truncate: model::setting(ruby, settings, "truncate")?.unwrap_or(true),
        first_index: model::setting(ruby, settings, "first_index")?.unwrap_or(0),
    })
}

/// Vectors as `form` says: rows of an Array, or one Tensor. `progress` is called with how many are
/// done, and of how many.
fn embed(
    ruby: &Ruby,
    this: &RbEmbeddingModel,
    texts: RArray,
    settings: RHash,
    form: String,
    progress: Option<Proc>,
) -> Result<Value, Error> {
    let model = this.model.get(ruby)?;
    let options = embed_options(ruby, settings)?;
    let total = texts.len();
    let mut vectors = Vectors::new(ruby, &form, total)?;
    let work = if progress.is_some() {
        Slice::Watched
    } else {
        Slice::Embed
    };
    model::in_slices(
        ruby,
        texts,
        work.size(),
        |slice, first, cancel| {
            let first_index = options.first_index + first;
            let options = EmbedOptions {
                first_index,
                ..options.clone()
            };
            model.embed(slice, &options, cancel)
        },
        |found, done| vectors.add_watched(ruby, found, progress, (done, total)),
    )?;
    gvl::hold(ruby, || vectors.finish(ruby))
}

/// `embed` for lists of token ids.
fn embed_ids(
    ruby: &Ruby,
    this: &RbEmbeddingModel,
    lists: Vec<Vec<u32>>,
    settings: RHash,
    form: String,
) -> Result<Value, Error> {
    let model = this.model.get(ruby)?;
    let options = embed_options(ruby, settings)?;
    let mut vectors = Vectors::new(ruby, &form, lists.len())?;
    let found = gvl::leave_waiting(ruby, |cancel| {
        model.embed_ids(lists.clone(), &options, cancel)
    })?;
    gvl::hold(ruby, || {
        vectors.add(ruby, found)?;
        vectors.finish(ruby)
    })
}

/// What Ruby gets, slice by slice.
pub enum Vectors {
    Rows(RArray, Row),
    Tensor {
        values: Vec<f32>,
        dimension: usize,
        total: usize,
    },
}

#[derive(Clone, Copy)]
pub enum Row {
    Floats,
    Packed,
    Int8,
    Bits,
}

impl Vectors {
    pub fn new(ruby: &Ruby, form: &str, total: usize) -> Result<Self, Error> {
        let rows = |row| Ok(Self::Rows(ruby.ary_new_capa(total), row));
        match form {
            "array" => rows(Row::Floats),
            "packed" => rows(Row::Packed),
            "int8" => rows(Row::Int8),
            "binary" => rows(Row::Bits),
            "tensor" => Ok(Self::Tensor {
                values: Vec::new(),
                dimension: 0,
                total,
            }),
            other => Err(error::to_ruby(
                ruby,
                EngineError::InvalidInput(format!("unknown form {other:?} of vectors")),
            )),
        }
    }

    pub fn add(&mut self, ruby: &Ruby, found: Embeddings) -> Result<(), Error> {
        match self {
            Self::Rows(rows, row) => {
                for vector in found.values.chunks_exact(found.dimension.max(1)) {
                    rows.push(row.convert(ruby, vector))?;
                }
            }
            Self::Tensor {
                values,
                dimension,
                total,
            } => {
                if values.capacity() == 0 {
                    let shape = [*total, found.dimension];
                    *values = memory::vector(&shape, format_args!("{total} vectors"))
                        .map_err(|error| error::to_ruby(ruby, error))?;
                }
                values.extend(found.values);
                *dimension = found.dimension;
            }
        }
        Ok(())
    }

    /// `add`, after which `progress` is called with how many are done, and of how many.
    pub fn add_watched(
        &mut self,
        ruby: &Ruby,
        found: Embeddings,
        progress: Option<Proc>,
        counts: (usize, usize),
    ) -> Result<(), Error> {
        gvl::hold(ruby, || self.add(ruby, found))?;
        match progress {
            Some(progress) => progress.call::<_, Value>(counts).map(drop),
            None => Ok(()),
        }
    }

    pub fn finish(self, ruby: &Ruby) -> Result<Value, Error> {
        match self {
            Self::Rows(rows, _) => Ok(rows.as_value()),
            Self::Tensor {
                values, dimension, ..
            } => {
                let shape = (values.len() / dimension.max(1), dimension);
                let tensor = Tensor::from_vec(values, shape, &CandleDevice::Cpu)
                    .map_err(|error| error::to_ruby(ruby, error.into()))?;
                Ok(RbTensor::new(ruby, tensor).into_value_with(ruby))
            }
        }
    }
}

impl Row {
    fn convert(self, ruby: &Ruby, vector: &[f32]) -> Value {
        match self {
            Self::Floats => ruby
                .ary_from_iter(vector.iter().map(|&value| f64::from(value)))
                .as_value(),
            Self::Packed => {
                let bytes: Vec<u8> = vector
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect();
                ruby.str_from_slice(&bytes).as_value()
            }
            Self::Int8 => {
                let bytes: Vec<u8> = compact::to_int8(vector)
                    .into_iter()
                    .map(i8::cast_unsigned)
                    .collect();
                ruby.str_from_slice(&bytes).as_value()
            }
            Self::Bits => ruby.str_from_slice(&compact::to_bits(vector)).as_value(),
        }
    }
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("EmbeddingModel", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_count_tokens", method!(count_tokens, 1))?;
    class.define_private_method("_token_embeddings", method!(token_embeddings, 1))?;
    class.define_private_method("_embed", method!(embed, 4))?;
    class.define_private_method("_embed_ids", method!(embed_ids, 3))?;
    model::define_stats!(class, RbEmbeddingModel)?;
    model::define_model!(class, RbEmbeddingModel, describe)
}
