//! The blocks that models are built of.

pub mod attention;
pub mod linear;

pub use attention::{attention, AttentionBias, AttentionKind, AttentionOptions, Disentangled};
pub use linear::{Epilogue, Linear};
