//! What the environment says about the hub, read again for every repository that is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::name;
use super::proxy::Proxies;
use crate::files::models_lock::ModelsLock;
use crate::{Error, Result};

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Settings {
    pub endpoint: String,
    pub cache: PathBuf,
    /// What decides where the cache is.
    pub cache_variable: &'static str,
    pub token: Option<String>,
    pub offline: bool,
    pub symlinks: bool,
    pub progress: bool,
    /// How long the description of a file may take.
    pub lookup_timeout: Duration,
    /// How long a download may stand still.
    pub download_timeout: Duration,
    /// Certificates to trust instead of the built-in ones.
    pub certificates: Option<PathBuf>,
    pub proxies: Proxies,
}

/// What a call says about the hub, before the environment.
#[derive(Clone, Debug, Default)]
pub struct Access {
    pub token: Option<String>,
    /// The directory that holds the cached repositories.
    pub cache: Option<PathBuf>,
    /// What models are made of, where that is fixed.
    pub lock: Option<Arc<ModelsLock>>,
    /// Directories that stand for ids: each holds a `models.lock` and the files it lists in `model`.
    pub packs: Vec<(String, PathBuf)>,
}

impl Settings {
    pub fn from_env() -> Result<Self> {
        Self::read(&|name| std::env::var(name).ok())
    }

    /// The environment's settings, with what a call says for itself before them.
    pub fn for_access(access: &Access) -> Result<Self> {
        let mut settings = Self::from_env()?;
        if let Some(token) = &access.token {
            settings.token = Some(token.clone());
        }
        if let Some(cache) = &access.cache {
            settings.cache = std::path::absolute(cache).unwrap_or_else(|_| cache.clone());
            settings.cache_variable = "cache_dir:";
        }
        Ok(settings)
    }

    pub(super) fn read(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let variable = |name: &str| {
            lookup(name)
                .map(|v| v.trim().to_owned())
                .filter(|v| !v.is_empty())
        };
        let flag = |name: &str| variable(name).is_some_and(|value| is_true(&value));
        let seconds = |name: &str| {
            variable(name)
                .and_then(|value| value.parse::<u64>().ok())
                .filter(|&value| value > 0)
                .map_or(DEFAULT_TIMEOUT, Duration::from_secs)
        };
        let user_home = variable("HOME").map(PathBuf::from);
        let path =
            |name: &str| variable(name).map(|value| expand_tilde(&value, user_home.as_deref()));
        let home = path("HF_HOME")
            .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("huggingface")))
            .or_else(|| {
                user_home
                    .as_ref()
                    .map(|home| home.join(".cache/huggingface"))
            });
        let cache_variable = match path("HF_HUB_CACHE") {
            Some(_) => "HF_HUB_CACHE",
            None => "HF_HOME",
        };
        let cache = path("HF_HUB_CACHE").or_else(|| home.as_ref().map(|home| home.join("hub")));
        let cache = cache.ok_or_else(|| {
            Error::InvalidInput(
                "there is no directory for downloaded models: set HF_HUB_CACHE, HF_HOME or HOME to a directory"
                    .to_owned(),
            )
        })?;
        Ok(Self {
            endpoint: endpoint(variable("HF_ENDPOINT"))?,
            cache: std::path::absolute(&cache).unwrap_or(cache),
            cache_variable,
            token: if flag("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
                None
            } else {
                variable("HF_TOKEN")
                    .or_else(|| variable("HUGGING_FACE_HUB_TOKEN"))
                    .or_else(|| {
                        token_file(path("HF_TOKEN_PATH").or_else(|| Some(home?.join("token")))?)
                    })
            },
            offline: flag("HF_HUB_OFFLINE") || flag("TRANSFORMERS_OFFLINE"),
            symlinks: !flag("HF_HUB_DISABLE_SYMLINKS"),
            progress: !flag("HF_HUB_DISABLE_PROGRESS_BARS"),
            lookup_timeout: seconds("HF_HUB_ETAG_TIMEOUT"),
            download_timeout: seconds("HF_HUB_DOWNLOAD_TIMEOUT"),
            certificates: path("SSL_CERT_FILE").or_else(|| path("REQUESTS_CA_BUNDLE")),
            proxies: Proxies::read(&variable),
        })
    }
}

fn endpoint(value: Option<String>) -> Result<String> {
    let endpoint = value.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
    let endpoint = endpoint.trim_end_matches('/').to_owned();
    let parsed = endpoint.parse::<ureq::http::Uri>();
    let usable = parsed.is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
    });
    if usable {
        return Ok(endpoint);
    }
    Err(Error::InvalidInput(format!(
        "HF_ENDPOINT is {:?}, which is not an http:// or https:// URL. Correct or unset it",
        name::redacted(&endpoint)
    )))
}

fn token_file(path: PathBuf) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|token| !token.is_empty())
}

fn is_true(value: &str) -> bool {
    ["1", "true", "yes", "on"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word))
}

/// `~/x` as a shell would have it.
pub fn expand_tilde(path: &str, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix('~'), home) {
        (Some(""), Some(home)) => home.to_owned(),
        (Some(rest), Some(home)) if rest.starts_with('/') => {
            home.join(rest.trim_start_matches('/'))
        }
        _ => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings> {
        Settings::read(&|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_cache_is_where_python_looks_for_it() {
        let cache = |variables: &[(&str, &str)]| settings(variables).unwrap().cache;
        let home = ("HOME", "/home/u");
        assert_eq!(cache(&[home]), Path::new("/home/u/.cache/huggingface/hub"));
        let xdg = ("XDG_CACHE_HOME", "/x");
        assert_eq!(cache(&[home, xdg]), Path::new("/x/huggingface/hub"));
        let hf_home = ("HF_HOME", "~/hf");
        assert_eq!(cache(&[home, xdg, hf_home]), Path::new("/home/u/hf/hub"));
        let hub = ("HF_HUB_CACHE", "/c");
        assert_eq!(cache(&[home, xdg, hf_home, hub]), Path::new("/c"));
        assert!(settings(&[]).is_err());
    }

    #[test]
    fn the_token_comes_from_the_environment_before_the_file() {
        let directory =
            std::env::temp_dir().join(format!("red-candle-token-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("token"), "from-file\n").unwrap();
        let home = ("HF_HOME", directory.to_str().unwrap());
        let token = |variables: &[(&str, &str)]| settings(variables).unwrap().token;
        assert_eq!(token(&[home]).as_deref(), Some("from-file"));
        assert_eq!(token(&[home, ("HF_TOKEN", "a ")]).as_deref(), Some("a"));
        assert_eq!(
            token(&[home, ("HUGGING_FACE_HUB_TOKEN", "b")]).as_deref(),
            Some("b")
        );
        assert_eq!(
            token(&[
                home,
                ("HF_TOKEN", "a"),
                ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
            ]),
            None
        );
        assert_eq!(token(&[home, ("HF_TOKEN_PATH", "/nowhere")]), None);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn offline_and_endpoint_are_read() {
        let home = ("HOME", "/h");
        assert!(!settings(&[home, ("HF_HUB_OFFLINE", "0")]).unwrap().offline);
        assert!(settings(&[home, ("HF_HUB_OFFLINE", "ON")]).unwrap().offline);
        assert!(
            settings(&[home, ("TRANSFORMERS_OFFLINE", "1")])
                .unwrap()
                .offline
        );
        let local = settings(&[home, ("HF_ENDPOINT", "http://127.0.0.1:1/")]).unwrap();
        assert_eq!(local.endpoint, "http://127.0.0.1:1");
        assert!(settings(&[home, ("HF_ENDPOINT", "localhost")]).is_err());
    }
}
