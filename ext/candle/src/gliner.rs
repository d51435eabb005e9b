//! `Candle::GLiNER`

use engine::serving::Slice;
use engine::tasks::{
    ExtractModel, ExtractOptions, Extracted, FieldFound, Found, FoundSpan, RelationQuery,
    SchemaField, SchemaQuery, SchemaTask, TaskFound, TaskKind,
};
use formats::text::words::words_links_and_signs;
use magnus::{function, method, prelude::*, Error, RArray, RHash, RModule, Ruby, Value};

use crate::model;

#[magnus::wrap(class = "Candle::GLiNER", free_immediately, size)]
pub struct RbGliner {
    model: model::Slot<ExtractModel>,
}

model::described!(ExtractModel);

fn load(ruby: &Ruby, source: String, settings: RHash) -> Result<RbGliner, Error> {
    let request = model::Request::new(ruby, source, settings)?;
    Ok(RbGliner {
        model: model::load(ruby, &request, ExtractModel::load)?,
    })
}

/// Words that are read at once, where they are limited, and words of an entity.
fn limits(ruby: &Ruby, this: &RbGliner) -> Result<(Option<usize>, usize), Error> {
    Ok(this.model.get(ruby)?.limits())
}

fn takes_schema(ruby: &Ruby, this: &RbGliner) -> Result<bool, Error> {
    Ok(matches!(*this.model.get(ruby)?, ExtractModel::Schema(_)))
}

/// Where the words of a text begin and end, in characters.
fn words(_ruby: &Ruby, _this: &RbGliner, text: String) -> Vec<(usize, usize)> {
    let words = words_links_and_signs(&text).into_iter();
    words
        .map(|word| (word.characters.start, word.characters.end))
        .collect()
}

/// A task: its kind, its prompt, and its fields with their thresholds, choices and whether they are attributes.
type Task = (String, String, Vec<(String, f64, Option<Vec<usize>>, bool)>);

fn query(tasks: Vec<Task>, prefix: Vec<String>, most_words: Option<usize>) -> SchemaQuery {
    let task = |(kind, prompt, fields): Task| SchemaTask {
        kind: match kind.as_str() {
            "structure" => TaskKind::Structure,
            "entities" => TaskKind::Entities,
            "relation" => TaskKind::Relation,
            _ => TaskKind::Labels,
        },
        prompt,
        fields: fields
            .into_iter()
            .map(|(name, threshold, choices, attribute)| SchemaField {
                name,
                threshold: threshold as f32,
                choices,
                attribute,
            })
            .collect(),
    };
    SchemaQuery {
        tasks: tasks.into_iter().map(task).collect(),
        prefix,
        most_words,
    }
}

/// What each task finds in each text; nil for a text that is too long. `settings` are words before the text, and how
/// many of its own are read.
fn extract_schema(
    ruby: &Ruby,
    this: &RbGliner,
    texts: RArray,
    tasks: Vec<Task>,
    settings: (Vec<String>, Option<usize>),
) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let query = query(tasks, settings.0, settings.1);
    let lists = ruby.ary_new_capa(texts.len());
    model::in_slices(
        ruby,
        texts,
        Slice::Tag.size(),
        |slice, _, cancel| model.extract_schema(slice, &query, cancel),
        |found, _| {
            found.iter().try_for_each(|tasks| match tasks {
                Some(tasks) => {
                    let list = ruby.ary_new_capa(tasks.len());
                    for task in tasks {
                        list.push(task_value(ruby, task)?)?;
                    }
                    lists.push(list)
                }
                None => lists.push(ruby.qnil()),
            })
        },
    )?;
    Ok(lists)
}

fn numbers(ruby: &Ruby, values: &[f32]) -> RArray {
    ruby.ary_from_iter(values.iter().map(|&value| f64::from(value)))
}

/// The logits of labels, or of each instance the fields.
fn task_value(ruby: &Ruby, task: &TaskFound) -> Result<Value, Error> {
    let instances = match task {
        TaskFound::Logits(logits) => return Ok(numbers(ruby, logits).as_value()),
        TaskFound::Instances(instances) => instances,
    };
    let list = ruby.ary_new_capa(instances.len());
    for fields in instances {
        let values = ruby.ary_new_capa(fields.len());
        for field in fields {
            match field {
                FieldFound::Choices(scores) => values.push(numbers(ruby, scores))?,
                FieldFound::Spans(spans) => {
                    let found = ruby.ary_new_capa(spans.len());
                    for span in spans {
                        found.push(span_hash(ruby, span)?)?;
                    }
                    values.push(found)?;
                }
            }
        }
        list.push(values)?;
    }
    Ok(list.as_value())
}

fn span_hash(ruby: &Ruby, span: &FoundSpan) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    hash.aset(ruby.to_symbol("text"), span.text.as_str())?;
    hash.aset(ruby.to_symbol("score"), f64::from(span.score))?;
    hash.aset(ruby.to_symbol("start"), span.start)?;
    hash.aset(ruby.to_symbol("end"), span.end)?;
    if !span.attributes.is_empty() {
        hash.aset(
            ruby.to_symbol("attributes"),
            numbers(ruby, &span.attributes),
        )?;
    }
    Ok(hash)
}

/// Whether it has a head for relations.
fn relates(ruby: &Ruby, this: &RbGliner) -> Result<bool, Error> {
    Ok(this.model.get(ruby)?.relates())
}

/// Names of relations, their threshold, and that of pairs.
type Relations = (Vec<String>, f64, f64);

/// The entities of each text, and with relations those, too. `settings` are the threshold, whether entities never
/// overlap, and whether one may have several labels.
fn extract(
    ruby: &Ruby,
    this: &RbGliner,
    texts: RArray,
    labels: Vec<String>,
    settings: (f64, bool, bool),
    relations: Option<Relations>,
) -> Result<RArray, Error> {
    let model = this.model.get(ruby)?;
    let (threshold, flat, multi_label) = settings;
    let options = ExtractOptions {
        threshold: threshold as f32,
        flat,
        multi_label,
    };
    let query = relations.map(|(names, threshold, adjacency_threshold)| RelationQuery {
        names,
        threshold: threshold as f32,
        adjacency_threshold: adjacency_threshold as f32,
    });
    let lists = ruby.ary_new_capa(texts.len());
    model::in_slices(
        ruby,
        texts,
        Slice::Tag.size(),
        |slice, _, cancel| model.extract(slice, &labels, query.as_ref(), &options, cancel),
        |found, _| {
            found.iter().try_for_each(|one| {
                let entities = ruby.ary_new_capa(one.entities.len());
                for entity in &one.entities {
                    entities.push(entity_hash(ruby, entity, &labels)?)?;
                }
                match &query {
                    Some(query) => lists.push(related_hash(ruby, one, entities, query)?),
                    None => lists.push(entities),
                }
            })
        },
    )?;
    Ok(lists)
}

fn related_hash(
    ruby: &Ruby,
    found: &Found,
    entities: RArray,
    query: &RelationQuery,
) -> Result<RHash, Error> {
    let relations = ruby.ary_new_capa(found.related.len());
    for related in &found.related {
        let hash = ruby.hash_new();
        let name = query.names.get(related.relation).map(String::as_str);
        hash.aset(ruby.to_symbol("relation"), name.unwrap_or_default())?;
        hash.aset(ruby.to_symbol("score"), f64::from(related.score))?;
        for (key, at) in [("head", related.head), ("tail", related.tail)] {
            hash.aset(ruby.to_symbol(key), entities.entry::<Value>(at as isize)?)?;
        }
        relations.push(hash)?;
    }
    let hash = ruby.hash_new();
    hash.aset(ruby.to_symbol("entities"), entities)?;
    hash.aset(ruby.to_symbol("relations"), relations)?;
    Ok(hash)
}

fn entity_hash(ruby: &Ruby, entity: &Extracted, labels: &[String]) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    let label = labels.get(entity.label).map(String::as_str);
    hash.aset(ruby.to_symbol("text"), entity.text.as_str())?;
    hash.aset(ruby.to_symbol("label"), label.unwrap_or_default())?;
    hash.aset(ruby.to_symbol("score"), f64::from(entity.score))?;
    hash.aset(ruby.to_symbol("start"), entity.start)?;
    hash.aset(ruby.to_symbol("end"), entity.end)?;
    Ok(hash)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("GLiNER", ruby.class_object())?;
    class.undef_default_alloc_func();
    class
        .singleton_class()?
        .define_private_method("_load", function!(load, 2))?;
    class.define_private_method("_limits", method!(limits, 0))?;
    class.define_private_method("_extract", method!(extract, 4))?;
    class.define_private_method("_relates", method!(relates, 0))?;
    class.define_private_method("_takes_schema", method!(takes_schema, 0))?;
    class.define_private_method("_words", method!(words, 1))?;
    class.define_private_method("_extract_schema", method!(extract_schema, 3))?;
    model::define_stats!(class, RbGliner)?;
    model::define_model!(class, RbGliner)
}
