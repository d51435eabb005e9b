//! Whether an adapter was made for the model at hand: shapes alone do not tell, since many families share them.

use crate::models::decoder::Blueprint;
use crate::{CancelToken, Error, Result};
use base::runtime::log;
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;

/// The model that an adapter is to change.
pub(super) struct Base {
    pub files: ModelFiles,
    pub family: String,
    /// The class of the checkpoint; `None` for GGUF files, which name a family.
    pub class: Option<String>,
}

/// Refuses an adapter that says it was made for another architecture, and warns where it names another
/// model whose architecture is not known here.
pub(super) fn check(adapter: &ModelFiles, base: &Base, cancel: &CancelToken) -> Result<()> {
    let Some(path) = adapter.file("adapter_config.json", cancel)? else {
        return Ok(());
    };
    let config = RawConfig::read(&path)?;
    let class = config
        .get("auto_mapping")
        .and_then(|mapping| mapping.get("base_model_class"))
        .and_then(|class| class.as_str());
    if let (Some(made_for), Some(own)) = (class, base.class.as_deref()) {
        if made_for != own {
            return Err(mismatch(&config, made_for, base, own));
        }
    }
    let Some(name) = config.opt_string("base_model_name_or_path")? else {
        return Ok(());
    };
    let found = adapter
        .present_in(name, "config.json")
        .or_else(|| base.files.present_in(name, "config.json"));
    match found.map(|path| RawConfig::read(&path)) {
        Some(Ok(raw)) => {
            let found = Blueprint::from_config(&raw).map(|blueprint| blueprint.config);
            match found {
                Ok(found) if found.architecture != base.family => Err(mismatch(
                    &config,
                    &format!("{name}, which is of the family {}", found.architecture),
                    base,
                    &base.family,
                )),
                _ => Ok(()),
            }
        }
        _ => {
            if class.is_none() && !same_model(name, base.files.id()) {
                log::warn(format!(
                    "the adapter {} names {name} as its base model, not {}: unless they are the same, its results \
                     mean nothing",
                    adapter.id(),
                    base.files.id()
                ));
            }
            Ok(())
        }
    }
}

fn mismatch(config: &RawConfig, made_for: &str, base: &Base, own: &str) -> Error {
    Error::unsupported(
        config.file(),
        format!(
            "the adapter was made for {made_for}, but {} is {own}. Load it on the model that it was trained on",
            base.files.id()
        ),
    )
}

/// Copies of a model keep its name, with something before or after it.
fn same_model(one: &str, other: &str) -> bool {
    let last = |name: &str| {
        let name = name.trim_end_matches('/').rsplit('/').next().unwrap_or("");
        name.to_ascii_lowercase()
    };
    let (one, other) = (last(one), last(other));
    !one.is_empty() && (other.contains(&one) || one.contains(&other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_model_are_known_by_their_names() {
        assert!(same_model("Qwen/Qwen2-0.5B", "/models/Qwen2-0.5B"));
        assert!(same_model("Qwen/Qwen2-0.5B", "someone/qwen2-0.5b-GGUF"));
        assert!(!same_model("Qwen/Qwen2-0.5B", "meta-llama/Llama-3.2-1B"));
    }
}
