//! The files that make up one model.

use std::path::PathBuf;

/// Where the weights are, by format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightFiles {
    Safetensors(Vec<PathBuf>),
    Gguf(PathBuf),
    Pickle(Vec<PathBuf>),
}
