//! Texts to vectors.

mod adapters;
mod body;
mod call;
mod token_modules;
mod words;

use std::sync::Arc;

use candle_core::{DType, Tensor};

use crate::nn::{Linear, PackedSequences, Pooling};
use crate::{CancelToken, Error, Result};
use base::runtime::stats::Reading;
use formats::files::model_files::ModelFiles;
use formats::text::tokenizer::{Detail, Input, Tokenizer};

use super::loading::{LoadOptions, LoadedModel, ModelInfo};
use super::modules::{Listed, Router, Similarity};
use super::sentence::{Module, SentenceFiles, TextTask};
use crate::serving::batching::{self, Excess, Tokens};
use adapters::TaskAdapters;
use body::{load_body, Body};
use call::Call;
pub use token_modules::TokenModule;
use token_modules::TokenStates;

/// What replaces the files' own settings for good.
#[derive(Clone, Debug, Default)]
pub struct EmbedSettings {
    pub pooling: Option<Pooling>,
    pub normalize: Option<bool>,
}

/// What one call may ask for; `None` means the model's own.
#[derive(Clone, Debug)]
pub struct EmbedOptions {
    /// Put before each text.
    pub prompt: Option<String>,
    /// One of the model's own prompts.
    pub prompt_name: Option<String>,
    /// What the texts are for: one of the model's own tasks, `query` or `document`.
    pub task: Option<String>,
    pub pooling: Option<Pooling>,
    pub normalize: Option<bool>,
    /// Keep this many leading dimensions.
    pub dimensions: Option<usize>,
    /// The token budget of one forward.
    pub batch_tokens: Option<usize>,
    /// `false`: a text beyond the maximum length is an `InvalidInput` error instead.
    pub truncate: bool,
    /// What errors call the first text, when the texts are part of a longer list.
    pub first_index: usize,
}

impl Default for EmbedOptions {
    fn default() -> Self {
        Self {
            prompt: None,
            prompt_name: None,
            task: None,
            pooling: None,
            normalize: None,
            dimensions: None,
            batch_tokens: None,
            truncate: true,
            first_index: 0,
        }
    }
}

/// `count` vectors of `dimension`, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Embeddings {
    pub values: Vec<f32>,
    pub count: usize,
    pub dimension: usize,
}

pub struct EmbeddingModel {
    body: Body,
    sentence: SentenceFiles,
    pooling: Vec<Pooling>,
    normalize: bool,
    dimension: usize,
    tasks: Tasks,
}

/// How texts are read differently by what they are for.
enum Tasks {
    None,
    /// The model is one of the routes; the others stand beside it.
    Routes {
        router: Box<Router>,
        own: usize,
        others: Vec<Option<EmbeddingModel>>,
    },
    Adapters(Box<TaskAdapters>),
}

impl EmbeddingModel {
    pub fn load(
        files: &ModelFiles,
        options: &LoadOptions,
        settings: &EmbedSettings,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let load = |modules: Option<&[Module]>| Self::of(files, modules, options, settings, cancel);
        let router = match Router::read(files, cancel)? {
            Listed::None => return load(None),
            Listed::Modules(modules) => return load(Some(&modules)),
            Listed::Router(router) => router,
        };
        let own = router.default_route.unwrap_or(0);
        let mut others = Vec::new();
        for (index, route) in router.routes.iter().enumerate() {
            let other = (index != own).then(|| load(Some(&route.modules)));
            others.push(other.transpose()?);
        }
        let model = load(Some(&router.routes[own].modules))?;
        let router = Box::new(router);
        Ok(Self {
            tasks: Tasks::Routes {
                router,
                own,
                others,
            },
            ..model
        })
    }

    /// One way through these modules.
    fn of(
        files: &ModelFiles,
        modules: Option<&[Module]>,
        options: &LoadOptions,
        settings: &EmbedSettings,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let opened = options.device.open()?;
        let dtype = if options.int8 {
            Linear::dtype_beside_bytes()?
        } else {
            options.dtype.unwrap_or(DType::F32)
        };
        let sentence = SentenceFiles::read(files, modules, (&opened, dtype), cancel)?;
        let (body, tasks, checkpoint_pooling) = load_body(files, options, &sentence, cancel)?;
        let pooling = match (settings.pooling, sentence.pooling.as_slice()) {
            (Some(asked), _) => vec![asked],
            (None, []) => vec![checkpoint_pooling.unwrap_or(Pooling::Mean)],
            (None, said) => said.to_vec(),
        };
        let own_normalize = match &body {
            Body::Static(model) => model.normalize,
            _ => true,
        };
        let normalize = settings
            .normalize
            .or(sentence.normalize)
            .unwrap_or(own_normalize);
        let model = Self {
            dimension: 0,
            body,
            sentence,
            pooling,
            normalize,
            tasks,
        };
        let full = model.checked_dimension(&model.pooling)?;
        let dimension = model
            .sentence
            .truncate_dim
            .map_or(full, |most| most.min(full));
        let mut model = Self { dimension, ..model };
        model.list_own(&opened)?;
        Ok(model)
    }

    /// What it runs beside the transformer; static embeddings are summed up without kernels.
    fn list_own(&mut self, device: &candle_core::Device) -> Result<()> {
        let Body::Transformer(loaded) = &mut self.body else {
            return Ok(());
        };
        let inventory = &mut loaded.info.inventory;
        for pooling in &self.pooling {
            inventory.add_pooling(*pooling, device)?;
        }
        for module in &self.sentence.token_modules {
            module.list(inventory)?;
        }
        for step in &self.sentence.steps {
            step.list(inventory)?;
        }
        if self.normalize {
            inventory.add_rows("l2_normalize", device)
        } else {
            Ok(())
        }
    }

    /// The length of a vector.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// The most tokens of a text that are read, special ones included.
    pub fn max_length(&self) -> usize {
        self.info().max_length
    }

    pub fn info(&self) -> &ModelInfo {
        match &self.body {
            Body::Transformer(loaded) => &loaded.info,
            Body::Static(model) => &model.info,
            Body::Words(model) => &model.info,
            Body::Bag(model) => &model.info,
        }
    }

    /// `None` where whole words are looked up.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        match &self.body {
            Body::Transformer(loaded) => Some(&loaded.tokenizer),
            Body::Static(model) => Some(&model.tokenizer),
            Body::Words(_) | Body::Bag(_) => None,
        }
    }

    /// How its vectors are compared.
    pub fn similarity(&self) -> Similarity {
        self.sentence.similarity
    }

    /// The names of its own tasks.
    pub fn tasks(&self) -> Vec<&str> {
        match &self.tasks {
            Tasks::None => Vec::new(),
            Tasks::Routes { router, .. } => router.names().collect(),
            Tasks::Adapters(adapters) => adapters.names().collect(),
        }
    }

    /// The route of a task, where a model has routes.
    fn route(&self, task: Option<&str>) -> Result<&Self> {
        let Tasks::Routes {
            router,
            own,
            others,
        } = &self.tasks
        else {
            return Ok(self);
        };
        let index = router.resolve(task)?;
        match others.get(index) {
            Some(Some(other)) if index != *own => Ok(other),
            _ => Ok(self),
        }
    }

    /// The adapter of a task, where a model has adapters; an error for tasks that it does not have.
    fn adapter(&self, task: Option<&str>) -> Result<Option<(&TaskAdapters, usize)>> {
        let Some(task) = task else { return Ok(None) };
        match &self.tasks {
            Tasks::Adapters(adapters) => match adapters.number(task) {
                Some(number) => Ok(Some((adapters, number))),
                None => {
                    let names: Vec<&str> = adapters.names().collect();
                    Err(Error::InvalidInput(format!(
                        "unknown task {task:?}: this model has {}",
                        names.join(", ")
                    )))
                }
            },
            // The router has found the route, or refused the task.
            Tasks::Routes { .. } => Ok(None),
            Tasks::None => TextTask::parse(task).map(|_| None),
        }
    }

    /// What it counts of its calls, by name.
    pub fn stats(&self) -> Vec<(&'static str, Reading)> {
        match &self.body {
            Body::Transformer(loaded) => loaded.batcher.stats.read(),
            Body::Static(model) => model.stats.read(),
            Body::Words(model) => model.stats.read(),
            Body::Bag(model) => model.stats.read(),
        }
    }

    /// The pooling that calls use unless they ask for another.
    pub fn pooling(&self) -> &[Pooling] {
        &self.pooling
    }

    pub fn normalizes(&self) -> bool {
        self.normalize
    }

    /// The model's own prompts by name, and the name of the one that is used unasked.
    pub fn prompts(&self) -> (&[(String, String)], Option<&str>) {
        self.sentence.prompts.all()
    }

    /// How many tokens a text has, special ones included and nothing cut.
    pub fn count_tokens(&self, text: &str, cancel: &CancelToken) -> Result<usize> {
        match &self.body {
            Body::Transformer(loaded) => Ok(loaded
                .tokenizer
                .encode(&*self.cased(text), true, Detail::Ids, cancel)?
                .len()),
            Body::Static(model) => Ok(model
                .tokenizer
                .encode(text, false, Detail::Ids, cancel)?
                .len()),
            Body::Words(model) => Ok(model.splitter.ids(text).len()),
            Body::Bag(model) => Ok(model.splitter.ids(text).len()),
        }
    }

    /// One vector per text, in the order of the texts.
    pub fn embed<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        options: &EmbedOptions,
        cancel: &CancelToken,
    ) -> Result<Embeddings> {
        let task = options.task.as_deref();
        let model = self.route(task)?;
        let adapter = self.adapter(task)?;
        let call = Call::new(model, options, adapter, cancel)?;
        base::runtime::memory::ensure_elements(
            &[texts.len(), call.dimension],
            std::mem::size_of::<f32>(),
            format_args!("{} vectors", texts.len()),
        )?;
        let mut values = vec![0f32; texts.len() * call.dimension];
        let refuse_from = (!options.truncate).then_some(options.first_index);
        match &model.body {
            Body::Transformer(loaded) => {
                let excess = match refuse_from {
                    None => Excess::Cut,
                    Some(first_index) => Excess::Refuse { first_index },
                };
                let adapted = adapted(adapter, cancel)?;
                let loaded = adapted.as_deref().unwrap_or(loaded);
                call.encode(loaded, texts, excess, &mut values, cancel)?;
            }
            Body::Static(own) => call.look_up(own, texts, refuse_from, &mut values, cancel)?,
            Body::Words(own) => call.read_words(own, texts, refuse_from, &mut values, cancel)?,
            Body::Bag(own) => call.count_words(own, texts, &mut values, cancel)?,
        }
        model.info().check_numbers(&values)?;
        Ok(Embeddings {
            values,
            count: texts.len(),
            dimension: call.dimension,
        })
    }

    /// `embed` for texts that are tokens already, special ones included.
    pub fn embed_ids(
        &self,
        lists: Vec<Vec<u32>>,
        options: &EmbedOptions,
        cancel: &CancelToken,
    ) -> Result<Embeddings> {
        let task = options.task.as_deref();
        let model = self.route(task)?;
        let Body::Transformer(loaded) = &model.body else {
            return Err(Error::InvalidInput(
                "a static embedding model has no special tokens and takes texts only".into(),
            ));
        };
        let adapter = self.adapter(task)?;
        let adapted = adapted(adapter, cancel)?;
        let loaded: &LoadedModel = adapted.as_deref().unwrap_or(loaded);
        check_ids(loaded, &lists)?;
        let call = Call::new(model, options, adapter, cancel)?;
        let count = lists.len();
        base::runtime::memory::ensure_elements(
            &[count, call.dimension],
            std::mem::size_of::<f32>(),
            format_args!("{count} vectors"),
        )?;
        let mut values = vec![0f32; count * call.dimension];
        let tokens: Vec<Tokens> = lists
            .into_iter()
            .map(|ids| Tokens {
                type_ids: vec![0; ids.len()],
                ids,
            })
            .collect();
        call.compute(loaded, &tokens, &mut values, cancel)?;
        self.info().check_numbers(&values)?;
        Ok(Embeddings {
            values,
            count,
            dimension: call.dimension,
        })
    }

    /// The hidden state of every token of a text, special ones included: f32 [tokens, hidden].
    pub fn token_embeddings(&self, text: &str, cancel: &CancelToken) -> Result<Tensor> {
        match &self.body {
            Body::Transformer(loaded) => {
                let text = self.cased(text);
                let tokens = batching::tokenize(
                    &loaded.tokenizer,
                    &[Input::Single(&text)],
                    loaded.max_length,
                    Excess::Cut,
                    cancel,
                )?;
                let sequences = batching::pack(&tokens, &[0])?;
                loaded.forward(&sequences, None, cancel, |hidden| {
                    let states = self.through_modules(hidden.clone(), &sequences)?;
                    Ok(states.hidden.to_dtype(DType::F32)?)
                })
            }
            Body::Words(model) => {
                let mut ids = model.splitter.ids(&self.cased(text));
                ids.truncate(model.max_length);
                let mut sequences = PackedSequences::new();
                sequences.push(&ids, None)?;
                let states = self.through_modules(model.forward(&sequences)?, &sequences)?;
                Ok(states.hidden.to_dtype(DType::F32)?)
            }
            Body::Bag(_) => Err(Error::InvalidInput(
                "a bag-of-words model has no token states".into(),
            )),
            Body::Static(model) => {
                let ids = model.ids(&self.cased(text), cancel)?;
                let vectors = model.token_vectors(&ids)?;
                let device = candle_core::Device::Cpu;
                Ok(Tensor::from_vec(
                    vectors,
                    (ids.len(), model.dimension()),
                    &device,
                )?)
            }
        }
    }

    /// What the modules before pooling make of the states of tokens.
    fn through_modules(&self, hidden: Tensor, sequences: &PackedSequences) -> Result<TokenStates> {
        let states = TokenStates {
            hidden,
            totals: None,
        };
        let mut modules = self.sentence.token_modules.iter();
        modules.try_fold(states, |states, module| module.forward(states, sequences))
    }

    fn cased<'a>(&self, text: &'a str) -> std::borrow::Cow<'a, str> {
        self.sentence.settings.cased(text)
    }

    /// The length of vectors pooled in this way, once every Dense module fits.
    fn checked_dimension(&self, pooling: &[Pooling]) -> Result<usize> {
        let width = match &self.body {
            Body::Transformer(loaded) => self.pooled_width(loaded.body.hidden_size(), pooling)?,
            Body::Words(model) => self.pooled_width(model.dimension(), pooling)?,
            Body::Static(model) => model.dimension(),
            Body::Bag(model) => model.dimension(),
        };
        self.sentence.steps.iter().try_fold(width, |width, step| {
            if step.inputs() != width {
                return Err(Error::InvalidInput(format!(
                    "the model's Dense module takes vectors of {} and this pooling gives {width}",
                    step.inputs()
                )));
            }
            Ok(step.outputs())
        })
    }

    fn pooled_width(&self, hidden: usize, pooling: &[Pooling]) -> Result<usize> {
        let mut modules = self.sentence.token_modules.iter();
        let width = modules.try_fold(hidden, |width, module| {
            module.width(width).ok_or_else(|| {
                Error::UnsupportedModel(format!(
                    "a module of the model does not take the {width} numbers of a token that it gets"
                ))
            })
        })?;
        Ok(width * pooling.len())
    }
}

/// The model with the weights of an adapter.
fn adapted(
    adapter: Option<(&TaskAdapters, usize)>,
    cancel: &CancelToken,
) -> Result<Option<Arc<LoadedModel>>> {
    let model = adapter.map(|(adapters, number)| adapters.model(number, cancel));
    model.transpose()
}

/// Ids that the model has rows for, in lists that it has positions for.
fn check_ids(loaded: &LoadedModel, lists: &[Vec<u32>]) -> Result<()> {
    let vocabulary = loaded.info.vocabulary;
    for (index, ids) in lists.iter().enumerate() {
        if ids.is_empty() || ids.len() > loaded.max_length {
            return Err(Error::InvalidInput(format!(
                "the list at index {index} has {} tokens; the model takes 1 to {}",
                ids.len(),
                loaded.max_length
            )));
        }
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(Error::InvalidInput(format!(
                "token {id} in the list at index {index} is beyond the model's vocabulary of {vocabulary}"
            )));
        }
    }
    Ok(())
}
