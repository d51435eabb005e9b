//! The blocks that models are built of.

pub mod attention;
pub mod conv1d;
pub mod conv2d;
pub mod elementwise;
pub mod embedding;
pub mod feature_map;
mod group_norm;
mod head_matrices;
pub mod input_sums;
pub mod inventory;
mod joined;
pub mod linear;
pub mod low_rank;
pub mod lstm;
pub mod norm;
pub mod packed;
pub mod pooling;
pub mod projection;
pub mod rescored;
pub mod rope;
pub mod selftest;
pub mod splade;
pub mod spread;

pub use attention::{
    attention, attention_among, Alignment, AttentionBias, AttentionKind, AttentionOptions,
    Disentangled,
};
pub use conv1d::Conv1d;
pub use conv2d::{Conv2d, FixedNorm};
pub use embedding::{Embedding, Lookup};
pub use feature_map::{FeatureMap, Window};
pub use group_norm::GroupNorm;
pub(crate) use head_matrices::HeadMatrices;
pub use input_sums::{InputSums, Sums};
pub use inventory::Inventory;
pub use linear::{Epilogue, Linear};
pub(crate) use low_rank::change_rows;
pub use low_rank::{LowRank, RowUpdate, RowUpdates};
pub use lstm::Lstm;
pub use norm::Norm;
pub use packed::PackedSequences;
pub use pooling::Pooling;
pub use projection::{Projection, ProjectionUpdates};
pub use rescored::RescoredLinear;
pub use rope::{Rope, RopeTable};
pub use splade::SpladePooling;
pub use spread::Spread;
