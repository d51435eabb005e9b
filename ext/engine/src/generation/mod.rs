//! From logits to text: settings, sampling, stop sequences. Nothing here knows a model.

pub mod config;
pub mod random;
pub mod sampler;
pub mod stop;

pub use config::GenerationConfig;
pub use sampler::{Choice, Sampler};
pub use stop::{StopMatcher, StopOutcome};
