//! What vision towers leave for a decoder.

use candle_core::Tensor;

use crate::models::decoder::image_embeddings::Grid;

/// What stands in a prompt for one marker.
pub struct Rows {
    /// [count, width]
    pub rows: Tensor,
    /// Rows that the first layers of the decoder add.
    pub deep: Vec<Tensor>,
    /// Of the blocks that they were made of, where their positions follow from it.
    pub grid: Option<Grid>,
}

impl Rows {
    pub fn plain(rows: Tensor) -> Self {
        Self {
            rows,
            deep: Vec::new(),
            grid: None,
        }
    }
}
