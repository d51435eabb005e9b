//! The one error type of the engine; `ext/candle` maps each variant to a Ruby class.

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
    #[error("{message}")]
    StructuredOutput { message: String, partial: String },
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
    /// A file whose bytes do not hold what its format promises.
    pub fn corrupt(file: &Path, reason: impl std::fmt::Display) -> Self {
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
            C::NotCompiledWithCudaSupport | C::NotCompiledWithMetalSupport | C::Metal(_) => {
                Self::Device(error.to_string())
            }
            C::Cuda(inner) => {
                let message = inner.to_string();
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
    // The last is what cuBLAS says.
    ["out of memory", "out_of_memory", "status_alloc_failed"]
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
    fn memory_exhaustion_is_told_apart_from_other_device_errors() {
        for words in ["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED"] {
            let error = candle_core::Error::Cuda(words.into());
            assert!(matches!(Error::from(error), Error::OutOfMemory(_)));
        }
        let error = candle_core::Error::Cuda("CUDA_ERROR_INVALID_DEVICE".into());
        assert!(matches!(Error::from(error), Error::Device(_)));
    }
}
