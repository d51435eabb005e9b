//! Texts to weights of tokens: SPLADE, weights without a network, and routers of both.

mod encoder;
mod files;
mod vector;

use std::sync::Arc;

use crate::{CancelToken, Error, Result};
use base::runtime::stats::Reading;
use base::runtime::threads;
use formats::files::model_files::ModelFiles;
use formats::text::tokenizer::Tokenizer;

use super::loading::{LoadOptions, ModelInfo};
use super::sentence::{Prompts, TextTask};
use crate::serving::batching;
use crate::serving::{Served, Stats};
use encoder::Encoder;
use files::{Route, SparseFiles};

pub use vector::{SparseSimilarity, SparseVector};

/// What one call may ask for; `None` means the model's own.
#[derive(Clone, Debug)]
pub struct SparseOptions {
    pub task: Option<TextTask>,
    /// Put before each text.
    pub prompt: Option<String>,
    /// One of the model's own prompts.
    pub prompt_name: Option<String>,
    /// Keep this many weights of a text, the largest.
    pub top_k: Option<usize>,
    /// The token budget of one forward.
    pub batch_tokens: Option<usize>,
    /// `false`: a text beyond the maximum length is an `InvalidInput` error instead.
    pub truncate: bool,
    /// What errors call the first text, when the texts are part of a longer list.
    pub first_index: usize,
}

impl Default for SparseOptions {
    fn default() -> Self {
        Self {
            task: None,
            prompt: None,
            prompt_name: None,
            top_k: None,
            batch_tokens: None,
            truncate: true,
            first_index: 0,
        }
    }
}

pub struct SparseModel {
    /// By the router's names; several may lead to one encoder.
    routes: Vec<(String, Arc<Encoder>)>,
    default_route: Option<usize>,
    prompts: Prompts,
    similarity: SparseSimilarity,
    top_k: Option<usize>,
    info: ModelInfo,
    /// Of all encoders.
    stats: Arc<Stats>,
}

impl SparseModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let found = SparseFiles::read(files, cancel)?;
        let stats: Arc<Stats> = Arc::new(Stats::new(Served::Encoder));
        let mut loaded: Vec<(Route, Arc<Encoder>)> = Vec::new();
        let mut routes = Vec::with_capacity(found.routes.len());
        for (name, route) in found.routes {
            let known = loaded.iter().find(|(known, _)| *known == route);
            let encoder = match known {
                Some((_, encoder)) => encoder.clone(),
                None => {
                    let encoder = Arc::new(Encoder::load(files, &route, options, &stats, cancel)?);
                    loaded.push((route, encoder.clone()));
                    encoder
                }
            };
            routes.push((name, encoder));
        }
        let infos = loaded.iter().map(|(_, encoder)| encoder.info());
        let info = joined(infos.collect())?;
        Ok(Self {
            routes,
            default_route: found.default_route,
            prompts: found.prompts,
            similarity: found.similarity,
            top_k: found.top_k,
            info,
            stats,
        })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// What it counts of its calls, by name.
    pub fn stats(&self) -> Vec<(&'static str, Reading)> {
        self.stats.read()
    }

    /// Of the default route.
    pub fn tokenizer(&self) -> &Tokenizer {
        let route = self.default_route.unwrap_or(0);
        self.routes[route].1.tokenizer()
    }

    /// How many tokens may have a weight.
    pub fn dimension(&self) -> usize {
        let dimensions = self.routes.iter().map(|(_, encoder)| encoder.dimension());
        dimensions.max().unwrap_or(0)
    }

    /// How the model was trained to compare vectors.
    pub fn similarity(&self) -> SparseSimilarity {
        self.similarity
    }

    /// How many weights of a text are kept unless a call says otherwise.
    pub fn top_k(&self) -> Option<usize> {
        self.top_k
    }

    /// The router's names of its ways; empty for a model that has one.
    pub fn routes(&self) -> Vec<&str> {
        let names = self.routes.iter().map(|(name, _)| name.as_str());
        names.filter(|name| !name.is_empty()).collect()
    }

    /// The model's own prompts by name, and the name of the one that is used unasked.
    pub fn prompts(&self) -> (&[(String, String)], Option<&str>) {
        self.prompts.all()
    }

    /// The weights of each text, in the order of the texts.
    pub fn embed<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        options: &SparseOptions,
        cancel: &CancelToken,
    ) -> Result<Vec<SparseVector>> {
        let encoder = self.encoder(options.task)?;
        let prompt = self.prompt(options)?;
        let top_k = options.top_k.or(self.top_k);
        let prepared = threads::map(texts, |_, text| {
            Ok(encoder.prepare(&format!("{prompt}{}", text.as_ref())))
        })?;
        let excess = if options.truncate {
            batching::Excess::Cut
        } else {
            batching::Excess::Refuse {
                first_index: options.first_index,
            }
        };
        encoder.embed(&prepared, excess, (top_k, options.batch_tokens), cancel)
    }

    fn encoder(&self, task: Option<TextTask>) -> Result<&Encoder> {
        let named = |name: &str| self.routes.iter().find(|(known, _)| known == name);
        let found = match (task, self.routes.as_slice()) {
            (_, [(name, encoder)]) if name.is_empty() => return Ok(encoder),
            (Some(task), _) => named(task.name()),
            (None, routes) => self.default_route.and_then(|route| routes.get(route)),
        };
        let missing = || {
            let wanted = match task {
                Some(task) => format!("no route for {:?}", task.name()),
                None => "no default route".to_owned(),
            };
            let routes = self.routes().join(", ");
            Error::InvalidInput(format!("this model has {wanted}: it has {routes}"))
        };
        found
            .map(|(_, encoder)| encoder.as_ref())
            .ok_or_else(missing)
    }

    /// A task has a prompt of its own where the model has one for it.
    fn prompt<'a>(&'a self, options: &'a SparseOptions) -> Result<&'a str> {
        let own = options.task.and_then(|task| {
            let mut names = task.prompt_names().iter();
            names.find(|name| self.prompts.named.iter().any(|(known, _)| known == *name))
        });
        let name = options.prompt_name.as_deref().or(own.copied());
        self.prompts.choose(options.prompt.as_deref(), name)
    }
}

/// What a router's encoders are together: the one with layers gives its name to all.
fn joined(infos: Vec<&ModelInfo>) -> Result<ModelInfo> {
    let largest = infos.iter().max_by_key(|info| info.parameters);
    let Some(largest) = largest else {
        return Err(Error::Internal("a sparse model has no encoder".into()));
    };
    let mut whole = (**largest).clone();
    for info in infos
        .iter()
        .filter(|info| !std::ptr::eq(**info, *largest as &ModelInfo))
    {
        whole.parameters += info.parameters;
        whole.files.extend(info.files.iter().cloned());
        whole.inventory.add(&info.inventory);
    }
    Ok(whole)
}
