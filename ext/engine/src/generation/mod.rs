//! From logits to text: settings, sampling, stop sequences, constraints, the run of one sequence. No model is
//! known here.

pub mod beams;
pub mod config;
pub mod constraint;
mod divisors;
pub mod grammar;
mod logit_bias;
pub mod random;
pub mod rules;
pub mod run;
pub mod sampler;
mod schema;
pub mod scores;
mod search;
pub mod stop;

pub use beams::{BeamSearch, BeamSettings, EarlyStopping};
pub use config::{GenerationConfig, Speculative};
pub use constraint::Constraint;
pub use grammar::{Ending, GrammarConstraint, Pattern, Vocabulary};
pub use logit_bias::LogitBias;
pub use rules::TokenRules;
pub use run::{FinishReason, Run, Timings};
pub use sampler::{Choice, Sampler};
pub use schema::WhiteSpace;
pub use scores::{Needs, Scores};
pub use search::{Piece, Search, SearchSettings};
pub use stop::{StopMatcher, StopOutcome};
