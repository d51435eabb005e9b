//! From logits to text: settings, sampling, stop sequences. Nothing here knows a model.

pub mod config;
pub mod constraint;
pub mod random;
pub mod sampler;
pub mod stop;

pub use config::GenerationConfig;
pub use constraint::Constraint;
pub use sampler::{Choice, Sampler};
pub use stop::{StopMatcher, StopOutcome};
