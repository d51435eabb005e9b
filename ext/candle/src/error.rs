//! Engine errors as Ruby exceptions.

use engine::Error as EngineError;
use magnus::{prelude::*, Error, ExceptionClass, RModule, Ruby};

/// The exception class of `lib/candle/errors.rb` that stands for an engine error.
fn class_name(error: &EngineError) -> &'static str {
    match error {
        EngineError::ModelNotFound(_) => "ModelNotFoundError",
        EngineError::Download(_) => "DownloadError",
        EngineError::Offline(_) => "OfflineError",
        EngineError::UnsupportedModel(_) => "UnsupportedModelError",
        EngineError::CorruptModel(_) => "CorruptModelError",
        EngineError::Device(_) => "DeviceError",
        EngineError::OutOfMemory(_) => "OutOfMemoryError",
        EngineError::Tokenizer(_) => "TokenizerError",
        EngineError::InvalidInput(_) => "InvalidInputError",
        EngineError::Generation(_) => "GenerationError",
        EngineError::Interrupted => "InterruptedError",
        EngineError::Closed(_) => "Error",
        EngineError::Internal(_) => "InternalError",
    }
}

pub fn to_ruby(ruby: &Ruby, error: EngineError) -> Error {
    raise(ruby, error).unwrap_or_else(|lookup_failure| lookup_failure)
}

fn raise(ruby: &Ruby, error: EngineError) -> Result<Error, Error> {
    let candle: RModule = ruby.class_object().const_get("Candle")?;
    let class: ExceptionClass = candle.const_get(class_name(&error))?;
    Ok(class.new_instance((error.to_string(),))?.into())
}

/// For `map_err` on engine results.
pub fn raised(ruby: &Ruby) -> impl Fn(EngineError) -> Error + '_ {
    move |error| to_ruby(ruby, error)
}
