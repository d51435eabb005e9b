//! The one error type of the engine; `ext/candle` maps each variant to a Ruby class.

use std::fs::File;
use std::io::Read;
use std::path::Path;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    ModelNotFound(String),
    #[error("{0}")]
    Download(String),
    #[error("{0}")]
    Offline(String),
    #[error("{0}")]
    UnsupportedModel(String),
    #[error("{0}")]
    CorruptModel(String),
    #[error("{0}")]
    Device(String),
    #[error("{0}")]
    OutOfMemory(String),
    #[error("{0}")]
    Tokenizer(String),
    #[error("{0}")]
    InvalidInput(String),
    #[error("{0}")]
    Generation(String),
    #[error("the operation was interrupted")]
    Interrupted,
    /// A model that was closed.
    #[error("{0}")]
    Closed(String),
    /// A bug of ours, a caught panic included.
    #[error("{0}")]
    Internal(String),
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A file whose bytes do not hold what its format promises. Two kinds of files that often stand where
    /// a model's should are called by their names.
    pub fn corrupt(file: &Path, reason: impl std::fmt::Display) -> Self {
        if let Some(mistaken) = mistaken_file(file) {
            return Self::CorruptModel(format!("{} {mistaken}", file.display()));
        }
        Self::CorruptModel(format!(
            "{} is damaged: {reason}. Delete it and fetch it again",
            file.display()
        ))
    }

    /// A file that is sound but asks for something this engine does not do.
    pub fn unsupported(file: &Path, reason: impl std::fmt::Display) -> Self {
        Self::UnsupportedModel(format!("{}: {reason}", file.display()))
    }
}

/// What a file is and what to do, where it was stored in place of a model's.
fn mistaken_file(file: &Path) -> Option<&'static str> {
    let mut start = Vec::new();
    File::open(file)
        .and_then(|file| file.take(512).read_to_end(&mut start))
        .ok()?;
    let start = String::from_utf8_lossy(&start)
        .trim_start()
        .to_ascii_lowercase();
    if start.starts_with("version https://git-lfs.github.com/spec/") {
        return Some(
            "is a git-lfs pointer, not the file itself. Run `git lfs pull` in its repository, or load the model by \
             its Hugging Face id",
        );
    }
    let is_page = ["<!doctype html", "<html"]
        .iter()
        .any(|tag| start.starts_with(tag));
    is_page.then_some(
        "is an HTML page, not a model's file: a login page or a proxy answered the download. Delete it and fetch it \
         again",
    )
}

/// Tensor operations fail on what the caller passed, unless the device says otherwise.
impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        use candle_core::Error as C;
        match error {
            C::WithBacktrace { inner, .. } | C::Context { inner, .. } => (*inner).into(),
            C::WithPath { inner, path } => match Self::from(*inner) {
                Self::CorruptModel(reason) => Self::corrupt(&path, reason),
                other => other,
            },
            C::NotCompiledWithCudaSupport | C::NotCompiledWithMetalSupport => {
                Self::Device(error.to_string())
            }
            C::Cuda(_) | C::Metal(_) => {
                let message = error.to_string();
                if is_out_of_memory(&message) {
                    Self::OutOfMemory(message)
                } else {
                    Self::Device(message)
                }
            }
            C::SafeTensor(_)
            | C::UnsupportedSafeTensorDtype(_)
            | C::Zip(_)
            | C::Npy(_)
            | C::CannotFindTensor { .. } => Self::CorruptModel(error.to_string()),
            _ => {
                let message = error.to_string();
                if is_out_of_memory(&message) {
                    Self::OutOfMemory(message)
                } else {
                    Self::InvalidInput(message)
                }
            }
        }
    }
}

fn is_out_of_memory(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    [
        "out of memory",
        "out_of_memory",
        // cuBLAS.
        "status_alloc_failed",
        // candle, where Metal gives no buffer; a buffer of no bytes is never asked for.
        "failed to create metal resource: buffer",
        // A command buffer of Metal's that could not run.
        "insufficient memory",
    ]
    .iter()
    .any(|words| message.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_mismatches_are_the_callers_and_name_both_shapes() {
        let device = candle_core::Device::Cpu;
        let a = candle_core::Tensor::zeros((2, 3), candle_core::DType::F32, &device).unwrap();
        let b = candle_core::Tensor::zeros((4, 5), candle_core::DType::F32, &device).unwrap();
        let error = Error::from(a.matmul(&b).unwrap_err());
        assert!(matches!(error, Error::InvalidInput(_)));
        assert!(error.to_string().contains("[2, 3]") && error.to_string().contains("[4, 5]"));
    }

    #[test]
    fn pages_and_pointers_are_called_by_their_names() {
        let folder =
            std::env::temp_dir().join(format!("red-candle-mistaken-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let said = |text: &str| {
            let file = folder.join("model.safetensors");
            std::fs::write(&file, text).unwrap();
            Error::corrupt(&file, "its header is malformed").to_string()
        };
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n";
        assert!(said(pointer).contains("is a git-lfs pointer"));
        assert!(said("\n<!DOCTYPE html><title>Log in</title>").contains("is an HTML page"));
        assert!(said("{}").contains("is damaged: its header is malformed"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn memory_exhaustion_is_told_apart_from_other_device_errors() {
        for words in ["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED"] {
            let error = candle_core::Error::Cuda(words.into());
            assert!(matches!(Error::from(error), Error::OutOfMemory(_)));
        }
        let error = candle_core::Error::Cuda("CUDA_ERROR_INVALID_DEVICE".into());
        assert!(matches!(Error::from(error), Error::Device(_)));
    }
}
