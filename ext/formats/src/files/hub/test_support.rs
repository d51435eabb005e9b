//! A directory that goes away with the test, and a repository in one.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::settings::Settings;
use super::Repo;

/// A repository whose cache is `directory`, and which never asks the network.
pub fn offline_repo(directory: &TemporaryDirectory, id: &str) -> Repo {
    let cache = directory.path().to_str().unwrap();
    let settings = Settings::read(&|name| match name {
        "HF_HUB_CACHE" => Some(cache.to_owned()),
        "HF_HUB_OFFLINE" => Some("1".to_owned()),
        _ => None,
    });
    Repo::with_settings(id, None, settings.unwrap()).unwrap()
}

pub struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    pub fn new() -> Self {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("red-candle-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
