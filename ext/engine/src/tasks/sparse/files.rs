//! What sentence-transformers' files say of a sparse model: the modules, and which of them read what.

use std::path::Path;

use crate::nn::SpladePooling;
use crate::tasks::sentence::{self, join, Prompts};
use crate::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;

use super::SparseSimilarity;

/// One way through the model: a text goes in, weights come out.
#[derive(Debug, PartialEq)]
pub enum Route {
    /// The folder of a masked language model, and what becomes of its logits.
    Splade {
        folder: String,
        pooling: SpladePooling,
    },
    /// The folder of one weight per token.
    Static { folder: String },
}

#[derive(Debug)]
pub struct SparseFiles {
    /// By name; a model without a router has one without.
    pub routes: Vec<(String, Route)>,
    /// The index of the route of texts that are neither queries nor documents.
    pub default_route: Option<usize>,
    pub prompts: Prompts,
    pub similarity: SparseSimilarity,
    /// How many weights of a text are kept.
    pub top_k: Option<usize>,
}

impl SparseFiles {
    pub fn read(files: &ModelFiles, cancel: &CancelToken) -> Result<Self> {
        let modules = match files.file("modules.json", cancel)? {
            Some(path) => sentence::modules(&path)?,
            // As for any masked language model, which is what SPLADE's own repositories hold.
            None => [("MLMTransformer", ""), ("SpladePooling", "")]
                .map(|(kind, folder)| (kind.to_owned(), folder.to_owned()))
                .to_vec(),
        };
        let (routes, default_route) = match modules.as_slice() {
            [(kind, folder)] if kind == "Router" || kind == "Asym" => {
                read_router(files, folder, cancel)?
            }
            modules => {
                let route = read_route(files, modules, cancel)?;
                (vec![(String::new(), route)], Some(0))
            }
        };
        let mut found = Self {
            routes,
            default_route,
            prompts: Prompts::default(),
            similarity: SparseSimilarity::default(),
            top_k: None,
        };
        if let Some(config) = sentence::model_config(files, cancel)? {
            found.prompts = Prompts::of(&config)?;
            found.top_k = config
                .opt_usize("max_active_dims")?
                .filter(|&count| count > 0);
            if let Some(name) = config.opt_string("similarity_fn_name")? {
                found.similarity = SparseSimilarity::parse(name)
                    .map_err(|error| Error::unsupported(config.file(), error))?;
            }
        }
        Ok(found)
    }
}

fn read_route(
    files: &ModelFiles,
    modules: &[(String, String)],
    cancel: &CancelToken,
) -> Result<Route> {
    let kinds: Vec<&str> = modules.iter().map(|(kind, _)| kind.as_str()).collect();
    match kinds.as_slice() {
        ["Transformer" | "MLMTransformer", "SpladePooling"] => Ok(Route::Splade {
            folder: modules[0].1.clone(),
            pooling: read_pooling(files, &modules[1].1, cancel)?,
        }),
        ["SparseStaticEmbedding"] => Ok(Route::Static {
            folder: modules[0].1.clone(),
        }),
        other => Err(Error::UnsupportedModel(format!(
            "{}: the modules {other:?} are not a sparse model that is known here: those are a masked language model \
             (Transformer or MLMTransformer) with SpladePooling, SparseStaticEmbedding, and a Router of both",
            files.id()
        ))),
    }
}

fn read_pooling(files: &ModelFiles, folder: &str, cancel: &CancelToken) -> Result<SpladePooling> {
    if folder.is_empty() {
        return Ok(SpladePooling::default());
    }
    let config = RawConfig::read(&files.require(&join(folder, "config.json"), cancel)?)?;
    let strategy = config.opt_string("pooling_strategy")?.unwrap_or("max");
    let activation = config.opt_string("activation_function")?.unwrap_or("relu");
    SpladePooling::parse(strategy, activation)
        .map_err(|error| Error::unsupported(config.file(), error))
}

/// Each may be a model of its own.
const MOST_ROUTES: usize = 16;

type Routes = (Vec<(String, Route)>, Option<usize>);

/// The lists of modules of a router, each in its own folder.
fn read_router(files: &ModelFiles, folder: &str, cancel: &CancelToken) -> Result<Routes> {
    let path = match files.file(&join(folder, "router_config.json"), cancel)? {
        Some(path) => path,
        // As `Asym` wrote it.
        None => files.require(&join(folder, "config.json"), cancel)?,
    };
    let config = RawConfig::read(&path)?;
    let types = config.nested("types")?;
    let structure = config.nested("structure")?;
    let mut routes = Vec::new();
    for name in structure.keys() {
        let ids = structure.opt_strings(name)?.unwrap_or_default();
        let module = |id: &String| -> Result<(String, String)> {
            let kind = types.string(id.as_str())?;
            let kind = kind.rsplit('.').next().unwrap_or(kind);
            Ok((kind.to_owned(), join(folder, id)))
        };
        let modules = ids.iter().map(module).collect::<Result<Vec<_>>>()?;
        routes.push((name.to_owned(), read_route(files, &modules, cancel)?));
    }
    let default_route = default_route(&config, &routes, &path)?;
    Ok((routes, default_route))
}

fn default_route(
    config: &RawConfig,
    routes: &[(String, Route)],
    path: &Path,
) -> Result<Option<usize>> {
    if routes.is_empty() {
        return Err(Error::corrupt(path, "its structure has no routes"));
    }
    if routes.len() > MOST_ROUTES {
        return Err(Error::unsupported(
            path,
            format!("it has {} routes", routes.len()),
        ));
    }
    let Some(parameters) = config.opt_nested("parameters")? else {
        return Ok(Some(0));
    };
    let mapped = parameters.opt_nested("route_mappings")?;
    if mapped.is_some_and(|mapped| mapped.keys().next().is_some()) {
        return Err(Error::unsupported(
            path,
            "it routes texts by route_mappings, which is not supported. Routes named \"query\" and \"document\" are",
        ));
    }
    match parameters.opt_string("default_route")? {
        Some(name) => match routes.iter().position(|(known, _)| known == name) {
            Some(index) => Ok(Some(index)),
            None => Err(Error::corrupt(
                path,
                format!("it has no route {name:?}, its default"),
            )),
        },
        None => {
            let first = parameters.opt_bool("allow_empty_key")?.unwrap_or(true);
            Ok(first.then_some(0))
        }
    }
}
