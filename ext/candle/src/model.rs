//! What every model class shares: how a model is asked for and what it says of itself.

use std::sync::{Arc, Mutex};

use base::runtime::device::Home;
use base::runtime::memory;
use base::runtime::stats::{Distribution, Reading};
use engine::nn::Inventory;
use engine::tasks::{LoadOptions, ModelInfo};
use engine::{CancelToken, Error as EngineError};
use formats::files::model_files::ModelFiles;
use formats::text::tokenizer::Tokenizer;
use magnus::{prelude::*, Error, RArray, RHash, Ruby, TryConvert, Value};

use crate::{convert, error, gc, gvl, hub, tokenizer::RbTokenizer};

/// A model to be loaded, as Ruby asked for it.
pub struct Request {
    /// Opened with the GVL held, since that reads the environment, which Ruby may change.
    pub files: ModelFiles,
    pub options: LoadOptions,
}

impl Request {
    /// `settings` may hold revision, device, dtype, max_length, tokenizer, gguf_file, mmproj_file,
    /// verify, token and cache_dir.
    pub fn new(ruby: &Ruby, source: String, settings: RHash) -> Result<Self, Error> {
        base::runtime::huge_pages::allow();
        let tokenizer: Option<Value> = setting(ruby, settings, "tokenizer")?;
        let tokenizer = match tokenizer {
            Some(value) => Some(<&RbTokenizer>::try_convert(value)?.tokenizer.clone()),
            None => None,
        };
        let given = |name: &str| {
            settings
                .get(ruby.to_symbol(name))
                .unwrap_or_else(|| ruby.qnil().as_value())
        };
        let (dtype, int8) = convert::precision(ruby, given("dtype"))?;
        let revision: Option<String> = setting(ruby, settings, "revision")?;
        let access = hub::access(ruby, settings)?;
        let files = ModelFiles::open_as(&source, revision.as_deref(), &access, &CancelToken::new());
        Ok(Self {
            files: files.map_err(error::raised(ruby))?,
            options: LoadOptions {
                device: convert::device(ruby, given("device"))?,
                dtype,
                int8,
                max_length: setting(ruby, settings, "max_length")?,
                tokenizer,
                gguf_file: setting(ruby, settings, "gguf_file")?,
                mmproj_file: setting(ruby, settings, "mmproj_file")?,
                verify: setting(ruby, settings, "verify")?,
            },
        })
    }

    /// Has the weights come before loading takes a worker of the pool: others compute meanwhile, however
    /// long that takes.
    fn fetch(&self, ruby: &Ruby) -> Result<(), Error> {
        gvl::leave_waiting(ruby, |cancel| {
            let name = self.options.gguf_file.as_deref();
            match self.files.weights(name, cancel) {
                Err(error @ (EngineError::Interrupted | EngineError::Download(_))) => Err(error),
                // What else may be wrong, loading says in its own order.
                _ => Ok(()),
            }
        })
    }
}

/// A model until it is closed. Calls share it, so that closing waits for none of them: the memory goes
/// with the last.
pub struct Slot<T> {
    loaded: Mutex<Option<Loaded<T>>>,
    home: Home,
}

struct Loaded<T> {
    model: Arc<T>,
    memory: gc::Tracked,
}

impl<T: Described> Slot<T> {
    fn new(ruby: &Ruby, model: T) -> Self {
        let info = model.info();
        Self {
            home: Home::here(info.device),
            loaded: Mutex::new(Some(Loaded {
                memory: gc::Tracked::new(ruby, info.inventory.bytes()),
                model: Arc::new(model),
            })),
        }
    }

    /// The model, unless it is closed or lost by a fork.
    pub fn get(&self, ruby: &Ruby) -> Result<Arc<T>, Error> {
        self.home.check().map_err(error::raised(ruby))?;
        // Ruby may turn to another thread while it makes an exception, and that one may want the lock.
        let loaded = self.loaded.lock().unwrap_or_else(|e| e.into_inner());
        let model = loaded.as_ref().map(|loaded| loaded.model.clone());
        drop(loaded);
        model.ok_or_else(|| {
            let message = "this model was closed: load it again to use it".to_owned();
            error::to_ruby(ruby, EngineError::Closed(message))
        })
    }

    /// What the model says of itself, and what `more` adds.
    pub fn describe(
        &self,
        ruby: &Ruby,
        more: impl Fn(&Ruby, &T, RHash) -> Result<(), Error>,
    ) -> Result<RHash, Error> {
        let model = self.get(ruby)?;
        let hash = info(ruby, model.info())?;
        more(ruby, &model, hash)?;
        Ok(hash)
    }

    pub fn tokenizer(&self, ruby: &Ruby) -> Result<Option<RbTokenizer>, Error> {
        let model = self.get(ruby)?;
        let tokenizer = model.tokenizer();
        Ok(tokenizer.map(|tokenizer| RbTokenizer::new(ruby, tokenizer.clone())))
    }

    pub fn is_closed(&self) -> bool {
        let loaded = self.loaded.lock().unwrap_or_else(|e| e.into_inner());
        loaded.is_none()
    }

    /// Frees the weights, off the GVL since there may be gigabytes of them.
    pub fn close(&self, ruby: &Ruby) -> Result<(), Error> {
        let taken = self.loaded.lock().unwrap_or_else(|e| e.into_inner()).take();
        let Some(Loaded { model, memory }) = taken else {
            return Ok(());
        };
        drop(memory);
        if self.home.check().is_err() {
            std::mem::forget(model);
            return Ok(());
        }
        let mut model = Some(model);
        gvl::leave(ruby, |_| {
            drop(model.take());
            memory::trim();
            self.home.settle()
        })
    }
}

/// What a parent process has on a GPU is not for its child to free.
impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        if self.home.check().is_err() {
            let loaded = self.loaded.get_mut().unwrap_or_else(|e| e.into_inner());
            std::mem::forget(loaded.take());
        }
    }
}

/// What every model of the engine says of itself.
pub trait Described: Send + Sync {
    fn info(&self) -> &ModelInfo;

    /// `None` for models that read no texts.
    fn tokenizer(&self) -> Option<&Tokenizer> {
        None
    }
}

/// Implements [`Described`] by methods of the same names; `sees` is for models that read images alone.
macro_rules! described {
    ($model:ty) => {
        impl crate::model::Described for $model {
            fn info(&self) -> &engine::tasks::ModelInfo {
                self.info()
            }
            fn tokenizer(&self) -> Option<&formats::text::tokenizer::Tokenizer> {
                Some(self.tokenizer())
            }
        }
    };
    ($model:ty, sees) => {
        impl crate::model::Described for $model {
            fn info(&self) -> &engine::tasks::ModelInfo {
                self.info()
            }
        }
    };
}
pub(crate) use described;

/// A run until it is released. Calls share it, so that none waits with the GVL for another.
pub struct Underway<T>(Mutex<Option<Arc<T>>>);

impl<T> Underway<T> {
    pub fn new(run: T) -> Self {
        Self(Mutex::new(Some(Arc::new(run))))
    }

    pub fn get(&self, ruby: &Ruby) -> Result<Arc<T>, Error> {
        let run = self.0.lock().unwrap_or_else(|e| e.into_inner()).clone();
        run.ok_or_else(|| {
            error::to_ruby(
                ruby,
                EngineError::Generation("this generation has ended".to_owned()),
            )
        })
    }

    /// Ends the run, whether it is over or not.
    pub fn release(&self) {
        let taken = self.0.lock().unwrap_or_else(|e| e.into_inner()).take();
        drop(taken);
    }
}

/// Loads off the GVL what a class keeps in its [`Slot`].
pub fn load<T: Described>(
    ruby: &Ruby,
    request: &Request,
    load: impl Fn(&ModelFiles, &LoadOptions, &CancelToken) -> engine::Result<T> + Send + Sync,
) -> Result<Slot<T>, Error> {
    request.fetch(ruby)?;
    let model = gvl::leave(ruby, |cancel| {
        load(&request.files, &request.options, cancel)
    })?;
    Ok(Slot::new(ruby, model))
}

/// Defines what the classes of models share, for one whose struct keeps its [`Slot`] in `model`: `_info`
/// with what `$more` adds to it, `_tokenizer`, `_close` and `_closed`.
macro_rules! define_model {
    ($class:expr, $wrapped:ty) => {
        crate::model::define_model!($class, $wrapped, |_, _, _| Ok(()))
    };
    ($class:expr, $wrapped:ty, $more:expr) => {{
        fn info(ruby: &magnus::Ruby, this: &$wrapped) -> Result<magnus::RHash, magnus::Error> {
            crate::gvl::hold(ruby, || this.model.describe(ruby, $more))
        }
        fn tokenizer(
            ruby: &magnus::Ruby,
            this: &$wrapped,
        ) -> Result<Option<crate::tokenizer::RbTokenizer>, magnus::Error> {
            this.model.tokenizer(ruby)
        }
        fn close(ruby: &magnus::Ruby, this: &$wrapped) -> Result<(), magnus::Error> {
            this.model.close(ruby)
        }
        fn is_closed(this: &$wrapped) -> bool {
            this.model.is_closed()
        }
        $class.define_private_method("_info", magnus::method!(info, 0))?;
        $class.define_private_method("_tokenizer", magnus::method!(tokenizer, 0))?;
        $class.define_private_method("_close", magnus::method!(close, 0))?;
        $class.define_private_method("_closed", magnus::method!(is_closed, 0))
    }};
}
pub(crate) use define_model;

/// Defines `_stats` for a class whose struct keeps its [`Slot`] in `model`, of what has `stats`.
macro_rules! define_stats {
    ($class:expr, $wrapped:ty) => {{
        fn stats(ruby: &magnus::Ruby, this: &$wrapped) -> Result<magnus::RHash, magnus::Error> {
            crate::model::stats(ruby, this.model.get(ruby)?.stats())
        }
        $class.define_private_method("_stats", magnus::method!(stats, 0))
    }};
}
pub(crate) use define_stats;

/// What a model counts, as a Hash with Symbol keys.
pub fn stats(ruby: &Ruby, readings: Vec<(&'static str, Reading)>) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    for (name, reading) in readings {
        let name = ruby.to_symbol(name);
        match reading {
            Reading::Number(value) => hash.aset(name, value)?,
            Reading::Distribution(spread) => hash.aset(name, distribution(ruby, &spread)?)?,
        }
    }
    Ok(hash)
}

fn distribution(ruby: &Ruby, spread: &Distribution) -> Result<RHash, Error> {
    let (hash, buckets) = (ruby.hash_new(), ruby.hash_new());
    for &(bound, count) in &spread.buckets {
        buckets.aset(bound, count)?;
    }
    hash.aset(ruby.to_symbol("count"), spread.count())?;
    hash.aset(ruby.to_symbol("sum"), spread.sum)?;
    for (name, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
        hash.aset(ruby.to_symbol(name), spread.quantile(share))?;
    }
    hash.aset(ruby.to_symbol("buckets"), buckets)?;
    Ok(hash)
}

/// One entry of a Hash with Symbol keys; nil counts as absent.
pub fn setting<T: TryConvert>(
    ruby: &Ruby,
    settings: RHash,
    name: &str,
) -> Result<Option<T>, Error> {
    match settings.get(ruby.to_symbol(name)) {
        Some(value) if !value.is_nil() => T::try_convert(value).map(Some),
        _ => Ok(None),
    }
}

/// `ModelInfo` as a Hash with Symbol keys.
fn info(ruby: &Ruby, info: &ModelInfo) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    let files: Vec<String> = info
        .files
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    hash.aset(ruby.to_symbol("architecture"), info.architecture.as_str())?;
    hash.aset(ruby.to_symbol("family"), info.family.as_str())?;
    hash.aset(ruby.to_symbol("parameters"), info.parameters)?;
    hash.aset(ruby.to_symbol("hidden_size"), info.hidden_size)?;
    hash.aset(ruby.to_symbol("dimensions"), info.hidden_size)?;
    hash.aset(ruby.to_symbol("layers"), info.layers)?;
    hash.aset(ruby.to_symbol("attention_heads"), info.attention_heads)?;
    hash.aset(ruby.to_symbol("vocabulary"), info.vocabulary)?;
    let limited = info.max_length != usize::MAX;
    hash.aset(
        ruby.to_symbol("max_length"),
        limited.then_some(info.max_length),
    )?;
    hash.aset(ruby.to_symbol("device"), info.device.to_string())?;
    hash.aset(ruby.to_symbol("dtype"), info.dtype_name())?;
    hash.aset(ruby.to_symbol("files"), files)?;
    set_inventory(ruby, hash, &info.inventory)?;
    hash.aset(ruby.to_symbol("verified"), info.verified)?;
    Ok(hash)
}

/// What the weights take, and what computes.
pub fn set_inventory(ruby: &Ruby, hash: RHash, inventory: &Inventory) -> Result<(), Error> {
    hash.aset(ruby.to_symbol("weight_bytes"), inventory.bytes())?;
    hash.aset(ruby.to_symbol("kernels"), kernels(ruby, inventory)?)
}

/// Adds a model's own prompts, and the name of the one that is used unasked.
pub fn add_prompts(
    ruby: &Ruby,
    hash: RHash,
    (prompts, usual): (&[(String, String)], Option<&str>),
) -> Result<(), Error> {
    let named = ruby.hash_new();
    for (name, prompt) in prompts {
        named.aset(name.as_str(), prompt.as_str())?;
    }
    hash.aset(ruby.to_symbol("prompts"), named)?;
    hash.aset(ruby.to_symbol("default_prompt_name"), usual)
}

/// What computes, by kernel.
fn kernels(ruby: &Ruby, inventory: &Inventory) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    for (kernel, backend) in inventory.kernels() {
        hash.aset(kernel, backend)?;
    }
    Ok(hash)
}

/// The results of many texts stay, and may fill the memory: with less than this left, no other slice begins.
const LEAST_LEFT: usize = 64 << 20;

/// Runs `work` off the GVL on one slice of the texts after the other, and hands each result to
/// `take` with the number of texts done. An interrupt costs at most the slice at hand. `work` gets
/// the index of the slice's first text; without texts it is called once, with none.
pub fn in_slices<T: Send>(
    ruby: &Ruby,
    texts: RArray,
    size: usize,
    work: impl Fn(&[String], usize, &CancelToken) -> engine::Result<T> + Send + Sync,
    mut take: impl FnMut(T, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    let total = texts.len();
    let mut done = 0;
    loop {
        let count = size.min(total - done);
        let slice: Vec<String> = match texts.subseq(done, count) {
            Some(slice) => slice.to_vec()?,
            None => Vec::new(),
        };
        if done > 0 {
            let what = format_args!("more results than those of {done} texts");
            memory::ensure_available(LEAST_LEFT, what).map_err(error::raised(ruby))?;
        }
        let result = gvl::leave_waiting(ruby, |cancel| work(&slice, done, cancel))?;
        done += count;
        take(result, done)?;
        if done >= total {
            return Ok(());
        }
    }
}

/// Appends rows of numbers as Arrays.
pub fn add_rows(ruby: &Ruby, rows: RArray, found: &[Vec<f32>]) -> Result<(), Error> {
    found.iter().try_for_each(|row| {
        rows.push(ruby.ary_from_iter(row.iter().map(|&value| f64::from(value))))
    })
}

/// An engine value out of a name, as in `parsed(ruby, settings, "pooling", Pooling::parse)`.
pub fn parsed<T>(
    ruby: &Ruby,
    settings: RHash,
    name: &str,
    parse: impl Fn(&str) -> engine::Result<T>,
) -> Result<Option<T>, Error> {
    let given: Option<String> = setting(ruby, settings, name)?;
    given
        .map(|given| parse(&given))
        .transpose()
        .map_err(error::raised(ruby))
}
