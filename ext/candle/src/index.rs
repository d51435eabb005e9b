//! `Candle::Index`

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use base::runtime::shared_lock::{ReadGuard, SharedLock};
use base::runtime::threads;
use engine::vector_index::fixed::{FixedConfig, FixedEncoding, Side};
use engine::vector_index::{Id, RowType, Similarity, VectorIndex};
use engine::{CancelToken, Error as EngineError};
use magnus::{
    function, method, prelude::*, Error, Integer, IntoValue, RArray, RModule, RString, Ruby,
    TryConvert, Value,
};

use crate::{error, gc, gvl};

#[magnus::wrap(class = "Candle::Index", free_immediately, size)]
pub struct RbIndex {
    index: SharedLock<VectorIndex>,
    /// What the collector was told of last.
    memory: Mutex<(usize, gc::Tracked)>,
    /// What makes one vector of those of many tokens.
    fixed: Mutex<Option<Arc<FixedEncoding>>>,
}

impl RbIndex {
    fn new(ruby: &Ruby, index: VectorIndex) -> Self {
        base::runtime::huge_pages::allow();
        let memory = index.memory();
        Self {
            memory: Mutex::new((memory, gc::Tracked::new(ruby, memory))),
            index: SharedLock::new(index),
            fixed: Mutex::new(None),
        }
    }

    /// The index for reading, with its ids ready to be looked up.
    fn by_id(&self, cancel: &CancelToken) -> engine::Result<ReadGuard<'_, VectorIndex>> {
        let index = self.index.read(cancel)?;
        if index.has_indexed_ids() {
            return Ok(index);
        }
        drop(index);
        self.index.write(cancel)?.index_ids()?;
        self.index.read(cancel)
    }

    /// Tells the collector what the index takes by now.
    fn report(&self, ruby: &Ruby, memory: usize) {
        let mut told = self.memory.lock().unwrap_or_else(|e| e.into_inner());
        if told.0 != memory {
            *told = (memory, gc::Tracked::new(ruby, memory));
        }
    }
}

/// `rescored_by` is the type of finer rows beside bits, or nil.
fn build(
    ruby: &Ruby,
    dimension: usize,
    row_type: String,
    rescored_by: Option<String>,
    similarity: String,
) -> Result<RbIndex, Error> {
    let parse = |name: String| {
        RowType::parse(&name).ok_or_else(|| {
            let message = format!("{name} is not a type of rows");
            error::to_ruby(ruby, EngineError::Internal(message))
        })
    };
    let index = VectorIndex::new(dimension, parse(row_type)?).map_err(error::raised(ruby))?;
    let similarity = Similarity::parse(&similarity).ok_or_else(|| {
        let message = format!("vectors are not compared by {similarity}");
        error::to_ruby(ruby, EngineError::Internal(message))
    })?;
    let index = index.compared_by(similarity).map_err(error::raised(ruby))?;
    let index = match rescored_by {
        Some(name) => index
            .rescored_by(parse(name)?)
            .map_err(error::raised(ruby))?,
        None => index,
    };
    Ok(RbIndex::new(ruby, index))
}

/// Says how the vectors of tokens become one, and how large that is.
fn fix(
    ruby: &Ruby,
    this: &RbIndex,
    dimension: usize,
    repetitions: usize,
    bits: usize,
    projected: usize,
    seed: u64,
) -> Result<usize, Error> {
    let config = FixedConfig {
        dimension,
        repetitions,
        bits,
        projected,
        seed,
    };
    let encoding = FixedEncoding::new(config).map_err(error::raised(ruby))?;
    let size = encoding.size();
    *this.fixed.lock().unwrap_or_else(|e| e.into_inner()) = Some(Arc::new(encoding));
    Ok(size)
}

/// One packed vector of those of tokens, which are packed one after the other.
fn fixed(ruby: &Ruby, this: &RbIndex, tokens: RString, query: bool) -> Result<RString, Error> {
    let known = this.fixed.lock().unwrap_or_else(|e| e.into_inner()).clone();
    let encoding = known.ok_or_else(|| {
        let message = "this index has no fixed vectors".to_owned();
        error::to_ruby(ruby, EngineError::Internal(message))
    })?;
    let tokens = bytes(tokens);
    let encoded = gvl::leave(ruby, |_| {
        let words = tokens.as_chunks::<4>().0;
        let tokens: Vec<f32> = words.iter().map(|&word| f32::from_le_bytes(word)).collect();
        let side = if query { Side::Query } else { Side::Document };
        encoding.encode(&tokens, side)
    })?;
    let packed: Vec<u8> = encoded
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect();
    Ok(ruby.str_from_slice(&packed))
}

fn open(ruby: &Ruby, path: PathBuf) -> Result<RbIndex, Error> {
    let index = gvl::leave_waiting(ruby, |cancel| VectorIndex::open(&path, cancel))?;
    Ok(RbIndex::new(ruby, index))
}

/// An Integer or a String; Ruby's side lets nothing else through.
fn id(ruby: &Ruby, value: Value) -> Result<Id, Error> {
    if let Some(number) = Integer::from_value(value) {
        return number.to_i64().map(Id::Integer).map_err(|_| {
            let message = format!("an id must be an Integer of 64 bits or a String, not {number}");
            error::to_ruby(ruby, EngineError::InvalidInput(message))
        });
    }
    Ok(Id::Text(String::try_convert(value)?.into()))
}

fn ids(ruby: &Ruby, values: RArray) -> Result<Vec<Id>, Error> {
    values.into_iter().map(|value| id(ruby, value)).collect()
}

fn bytes(string: RString) -> Vec<u8> {
    // SAFETY: the bytes are copied before Ruby can run and change them.
    unsafe { string.as_slice() }.to_vec()
}

/// `vectors` are Strings, one for each id.
fn add(ruby: &Ruby, this: &RbIndex, names: RArray, vectors: RArray) -> Result<(), Error> {
    let names = ids(ruby, names)?;
    let vectors = vectors.into_iter().map(RString::try_convert);
    let vectors = vectors.map(|vector| vector.map(bytes));
    let vectors: Vec<Vec<u8>> = vectors.collect::<Result<_, Error>>()?;
    let mut pairs: Vec<(Id, Vec<u8>)> = names.into_iter().zip(vectors).collect();
    // What was added before an interrupt that raised nothing is added; the rest follows.
    pairs.reverse();
    let memory = gvl::leave_waiting(ruby, |cancel| {
        let mut index = this.index.write(cancel)?;
        while let Some((id, vector)) = pairs.pop() {
            index.add(id, &vector)?;
            cancel.check()?;
        }
        Ok(index.memory())
    })?;
    this.report(ruby, memory);
    Ok(())
}

fn delete(ruby: &Ruby, this: &RbIndex, name: Value) -> Result<bool, Error> {
    let id = id(ruby, name)?;
    gvl::leave_waiting(ruby, |cancel| this.index.write(cancel)?.delete(&id))
}

fn contains(ruby: &Ruby, this: &RbIndex, name: Value) -> Result<bool, Error> {
    let id = id(ruby, name)?;
    gvl::leave_waiting(ruby, |cancel| Ok(this.by_id(cancel)?.contains(&id)))
}

/// Begins a graph, or goes on with one that has as many links.
fn start_graph(ruby: &Ruby, this: &RbIndex, links: usize) -> Result<(), Error> {
    gvl::leave_waiting(ruby, |cancel| this.index.write(cancel)?.start_graph(links))
}

/// Builds more of the graph, and says whether there is more to build. Others search and change the index meanwhile.
fn grow_graph(ruby: &Ruby, this: &RbIndex, effort: usize) -> Result<bool, Error> {
    let memory = gvl::leave_waiting(ruby, |cancel| {
        let built = this.index.read_long(cancel)?.build_graph(effort, cancel)?;
        let Some(block) = built else {
            return Ok(None);
        };
        let mut index = this.index.write(cancel)?;
        index.grow_graph(block)?;
        Ok(Some(index.memory()))
    })?;
    if let Some(memory) = memory {
        this.report(ruby, memory);
    }
    Ok(memory.is_some())
}

/// Pairs of an id and a score; `among` are the ids to search in, nil is all; without an `effort` all are compared. Of
/// bits with finer rows, so many `candidates` are compared once more.
fn search(
    ruby: &Ruby,
    this: &RbIndex,
    vector: RString,
    most: usize,
    among: Option<RArray>,
    effort: Option<usize>,
    candidates: Option<usize>,
) -> Result<RArray, Error> {
    let vector = bytes(vector);
    let among = among.map(|values| ids(ruby, values)).transpose()?;
    // A worker of the pool must not wait for the lock: who holds it may be waiting for the pool.
    let found = gvl::leave_waiting(ruby, |cancel| {
        let index: &VectorIndex = &*match &among {
            Some(_) => this.by_id(cancel)?,
            None => this.index.read(cancel)?,
        };
        let rows = among.as_ref().map(|ids| index.rows_of(ids));
        let counts = (most, candidates);
        threads::install(|| index.search_again(&vector, counts, rows.as_deref(), effort, cancel))?
    })?;
    let list = ruby.ary_new_capa(found.len());
    for (id, score) in found {
        let id = match id {
            Id::Integer(number) => number.into_value_with(ruby),
            Id::Text(text) => ruby.str_new(&text).into_value_with(ruby),
        };
        list.push((id, f64::from(score)))?;
    }
    Ok(list)
}

/// `followed`: something else will be added to the file.
fn save(ruby: &Ruby, this: &RbIndex, path: PathBuf, followed: bool) -> Result<(), Error> {
    gvl::leave_waiting(ruby, |cancel| {
        let index = this.index.read_long(cancel)?;
        if followed {
            index.save_before_more(&path, cancel)
        } else {
            index.save(&path, cancel)
        }
    })
}

/// Becomes what the file holds.
fn reload(ruby: &Ruby, this: &RbIndex, path: PathBuf) -> Result<(), Error> {
    let memory = gvl::leave_waiting(ruby, |cancel| {
        let opened = VectorIndex::open(&path, cancel)?;
        let memory = opened.memory();
        *this.index.write(cancel)? = opened;
        Ok(memory)
    })?;
    this.report(ruby, memory);
    Ok(())
}

/// Dimension, type of rows and number of vectors; links and rows of the graph, or nil; type of finer rows, or nil; what
/// vectors are compared by.
fn facts(ruby: &Ruby, this: &RbIndex) -> Result<RArray, Error> {
    let (dimension, row_type, count, graph, fine, similarity) =
        gvl::leave_waiting(ruby, |cancel| {
            let index = this.index.read(cancel)?;
            Ok((
                index.dimension(),
                index.row_type(),
                index.len(),
                index.graph(),
                index.fine_type(),
                index.similarity(),
            ))
        })?;
    let list = ruby.ary_new();
    list.push(dimension)?;
    list.push(ruby.to_symbol(row_type.name()))?;
    list.push(count)?;
    list.push(graph)?;
    list.push(fine.map(|fine| ruby.to_symbol(fine.name())))?;
    list.push(ruby.to_symbol(similarity.name()))?;
    Ok(list)
}

pub fn init(ruby: &Ruby, candle: RModule) -> Result<(), Error> {
    let class = candle.define_class("Index", ruby.class_object())?;
    class.undef_default_alloc_func();
    let singleton = class.singleton_class()?;
    singleton.define_private_method("_build", function!(build, 4))?;
    singleton.define_private_method("_open", function!(open, 1))?;
    class.define_private_method("_add", method!(add, 2))?;
    class.define_private_method("_delete", method!(delete, 1))?;
    class.define_private_method("_contains", method!(contains, 1))?;
    class.define_private_method("_search", method!(search, 5))?;
    class.define_private_method("_start_graph", method!(start_graph, 1))?;
    class.define_private_method("_grow_graph", method!(grow_graph, 1))?;
    class.define_private_method("_save", method!(save, 2))?;
    class.define_private_method("_reload", method!(reload, 1))?;
    class.define_private_method("_fix", method!(fix, 5))?;
    class.define_private_method("_fixed", method!(fixed, 2))?;
    class.define_private_method("_facts", method!(facts, 0))
}
