//! From logits to text: settings, sampling, stop sequences. Nothing here knows a model.

pub mod config;
pub mod constraint;
pub mod grammar;
pub mod random;
pub mod run;
pub mod sampler;
mod schema;
pub mod stop;

pub use config::GenerationConfig;
pub use constraint::Constraint;
pub use grammar::{Ending, GrammarConstraint, Pattern, Vocabulary};
pub use run::{FinishReason, Run, Timings};
pub use sampler::{Choice, Sampler};
pub use schema::WhiteSpace;
pub use stop::{StopMatcher, StopOutcome};
