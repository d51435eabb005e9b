//! Which modules of sentence-transformers a text goes through, and how what comes out is compared.

use std::path::Path;

use candle_core::{DType, Device};

use super::sentence::{join, module_weights, modules, Module, Route, Step};
use crate::nn::Norm;
use crate::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;

/// How two vectors are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Similarity {
    #[default]
    Cosine,
    Dot,
    /// The negative distance.
    Euclidean,
    /// The negative sum of all differences.
    Manhattan,
}

impl Similarity {
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "cosine" => Ok(Self::Cosine),
            "dot" => Ok(Self::Dot),
            "euclidean" => Ok(Self::Euclidean),
            "manhattan" => Ok(Self::Manhattan),
            other => Err(Error::InvalidInput(format!(
                "unknown similarity {other:?}: use cosine, dot, euclidean or manhattan"
            ))),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Cosine => "cosine",
            Self::Dot => "dot",
            Self::Euclidean => "euclidean",
            Self::Manhattan => "manhattan",
        }
    }
}

/// What a Dense module reads.
pub enum Reads {
    Sentence,
    Tokens,
}

pub fn reads(config: &RawConfig) -> Result<Reads> {
    let input = config.opt_string("module_input_name")?;
    let input = input.unwrap_or("sentence_embedding");
    let output = config.opt_string("module_output_name")?.unwrap_or(input);
    match (input, output) {
        ("sentence_embedding", "sentence_embedding") => Ok(Reads::Sentence),
        ("token_embeddings", "token_embeddings") => Ok(Reads::Tokens),
        _ => {
            let reason = format!("a Dense module from {input:?} to {output:?} is not supported");
            Err(Error::unsupported(config.file(), reason))
        }
    }
}

pub fn layer_norm(
    files: &ModelFiles,
    folder: &str,
    device: &Device,
    cancel: &CancelToken,
) -> Result<Step> {
    let source = module_weights(files, folder, cancel)?;
    let read = |name: &str| source.tensor(name, Some(DType::F32), device);
    let (weight, bias) = (read("norm.weight")?, read("norm.bias")?);
    let width = weight.elem_count();
    if weight.dims() != bias.dims() || weight.rank() != 1 {
        let reason = "norm.weight and norm.bias have different shapes";
        return Err(Error::corrupt(&source.file(""), reason));
    }
    Ok(Step::LayerNorm(
        Norm::layer(weight, Some(bias), 1e-5),
        width,
    ))
}

/// The routes of a model, and how texts find theirs.
pub struct Router {
    pub routes: Vec<Route>,
    /// The index of the route of texts without a task.
    pub default_route: Option<usize>,
    /// The index of the route for a task, or for all tasks.
    mapped: Vec<(Option<String>, usize)>,
}

impl Router {
    /// The router of a model that begins with one; what stands behind it belongs to each route.
    pub fn read(files: &ModelFiles, cancel: &CancelToken) -> Result<Listed> {
        let Some(path) = files.file("modules.json", cancel)? else {
            return Ok(Listed::None);
        };
        let all = modules(&path)?;
        match all.split_first() {
            Some(((kind, folder), behind)) if kind == "Router" || kind == "Asym" => {
                let router = read_router(files, folder, behind, cancel)?;
                Ok(Listed::Router(router))
            }
            _ => Ok(Listed::Modules(all)),
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.routes.iter().map(|route| route.name.as_str())
    }

    /// The index of the route that a task takes.
    pub fn resolve(&self, task: Option<&str>) -> Result<usize> {
        let mapped = |wanted: Option<&str>| {
            let mut all = self.mapped.iter();
            all.find(|(task, _)| task.as_deref() == wanted)
                .map(|(_, index)| *index)
        };
        let named = |name: &str| self.names().position(|route| route == name);
        let found = task
            .and_then(|task| mapped(Some(task)))
            .or_else(|| mapped(None))
            .or_else(|| task.and_then(named))
            .or_else(|| named("text"));
        match (found, task, self.default_route) {
            (Some(index), _, _) | (None, None, Some(index)) => Ok(index),
            (None, task, _) => {
                let names: Vec<&str> = self.names().collect();
                let what = match task {
                    Some(task) => format!("no route for the task {task:?}"),
                    None => "no route for texts without a task".to_owned(),
                };
                Err(Error::InvalidInput(format!(
                    "this model has {what}: give task: one of {}",
                    names.join(", ")
                )))
            }
        }
    }
}

/// What a model lists in `modules.json`.
pub enum Listed {
    None,
    Modules(Vec<Module>),
    Router(Router),
}

/// Each may be a model of its own.
const MOST_ROUTES: usize = 16;

fn read_router(
    files: &ModelFiles,
    folder: &str,
    behind: &[Module],
    cancel: &CancelToken,
) -> Result<Router> {
    let path = match files.file(&join(folder, "router_config.json"), cancel)? {
        Some(path) => path,
        // As `Asym` wrote it.
        None => files.require(&join(folder, "config.json"), cancel)?,
    };
    let config = RawConfig::read(&path)?;
    let (types, structure) = (config.nested("types")?, config.nested("structure")?);
    let mut routes = Vec::new();
    for name in structure.keys() {
        let ids = structure.opt_strings(name)?.unwrap_or_default();
        let module = |id: &String| -> Result<Module> {
            let kind = types.string(id.as_str())?;
            let kind = kind.rsplit('.').next().unwrap_or(kind);
            if id.split(['/', '\\']).any(|part| part == "..") {
                return Err(Error::corrupt(
                    &path,
                    format!("{id:?} leaves the model's folder"),
                ));
            }
            Ok((kind.to_owned(), join(folder, id)))
        };
        let mut modules = ids.iter().map(module).collect::<Result<Vec<_>>>()?;
        modules.extend(behind.iter().cloned());
        routes.push(Route {
            name: name.to_owned(),
            modules,
        });
    }
    if routes.is_empty() || routes.len() > MOST_ROUTES {
        let reason = format!("it has {} routes", routes.len());
        return Err(Error::unsupported(&path, reason));
    }
    let index = |name: &str| -> Result<usize> {
        let found = routes.iter().position(|route| route.name == name);
        found.ok_or_else(|| Error::corrupt(&path, format!("it has no route {name:?}")))
    };
    let parameters = config.opt_nested("parameters")?;
    let mut mapped = Vec::new();
    let mut default_route = Some(0);
    if let Some(parameters) = &parameters {
        let first = parameters.opt_bool("allow_empty_key")?.unwrap_or(true);
        default_route = match parameters.opt_string("default_route")? {
            Some(name) => Some(index(name)?),
            None => first.then_some(0),
        };
        if let Some(mappings) = parameters.opt_nested("route_mappings")? {
            let mut all = Vec::new();
            for key in mappings.keys() {
                if let Some((task, rank)) = mapping(key, &path)? {
                    all.push((rank, task, index(mappings.string(key)?)?));
                }
            }
            // Those that name what texts are come first.
            all.sort_by_key(|(rank, _, _)| *rank);
            mapped.extend(all.into_iter().map(|(_, task, route)| (task, route)));
        }
    }
    Ok(Router {
        routes,
        default_route,
        mapped,
    })
}

/// Task and kind of input of a key such as `('query', 'text')`; `None` where it is not for texts.
fn mapping(key: &str, path: &Path) -> Result<Option<(Option<String>, u8)>> {
    let wrong = || Error::corrupt(path, format!("{key:?} is not a pair of task and modality"));
    let inside = key
        .trim()
        .strip_prefix('(')
        .and_then(|key| key.strip_suffix(')'));
    let (task, kind) = inside
        .and_then(|key| key.split_once(','))
        .ok_or_else(wrong)?;
    let word = |text: &str| -> Result<Option<String>> {
        let text = text.trim();
        if text == "None" {
            return Ok(None);
        }
        let quoted = ['\'', '"'].iter().find_map(|&quote| {
            text.strip_prefix(quote)
                .and_then(|text| text.strip_suffix(quote))
        });
        Ok(Some(quoted.ok_or_else(wrong)?.to_owned()))
    };
    let task = word(task)?;
    if kind.trim().starts_with('(') {
        return Ok(None);
    }
    Ok(match word(kind)?.as_deref() {
        Some("text") => Some((task, 0)),
        None => Some((task, 1)),
        Some(_) => None,
    })
}
