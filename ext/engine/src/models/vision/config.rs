//! What tells one family of vision towers from another.

use crate::models::config::{check_size, Checked};
use crate::models::encoder::EncoderConfig;
use formats::image::PatchOrder;

#[derive(Clone, Debug)]
pub struct VisionConfig {
    /// The layers, which are an encoder's.
    pub encoder: EncoderConfig,
    /// The edge of a patch, in pixels.
    pub patch_size: usize,
    pub patch_order: PatchOrder,
    pub positions: GridPositions,
    /// Tokens beside the patches that stand for things in the picture.
    pub finders: Option<Finders>,
    /// Where patches are read block by block.
    pub blocks: Option<Blocks>,
    pub pooling: VisionPooling,
    pub classifier: ClassifierInput,
}

/// What becomes of the table of positions for an image of another size than it was learned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GridPositions {
    /// There is none: patches rotate by row and column.
    Rotary,
    /// There is no such image.
    Fixed,
    /// The same, of a table that has the tokens before the patches at its end. Patches rotate, too (Llama 4).
    FixedTokensLast,
    /// Resized by cubic interpolation between its points (DINOv2).
    Bicubic,
    /// `Bicubic`, over all points that fall together (DINOv2 with registers).
    SmoothBicubic,
    /// Resized linearly, over all points that fall together (SigLIP 2).
    SmoothLinear,
    /// Each patch has that of the square which its left upper corner lies in (Idefics 2).
    Buckets,
    /// Resized linearly between its points, of which the outermost stay where they are (Qwen3-VL).
    LinearCorners,
}

/// Tokens that each find a thing in a picture (YOLOS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finders {
    pub count: usize,
    /// (columns, rows) of the patches that positions were learned for.
    pub grid: (usize, usize),
    /// Whether positions are added again behind every layer but the last.
    pub later_positions: bool,
}

/// Squares of patches that stand together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// In patches.
    pub edge: usize,
    /// The edge of a window in blocks; `None` where a window is the whole image.
    pub window: Option<usize>,
    /// For each layer, whether its attention keeps to windows; empty where none does.
    pub windowed: Vec<bool>,
}

/// What stands for a whole image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisionPooling {
    /// The first token, which is not a patch.
    First,
    /// What a learned query finds (SigLIP).
    Attention,
}

/// What a classifier reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassifierInput {
    First,
    /// The first token, and the mean of the patches beside it (DINOv2).
    FirstAndMean,
    /// The mean of the patches (SigLIP).
    Mean,
    /// The mean of the patches before the last norm (CLIP).
    MeanBeforeNorm,
}

impl ClassifierInput {
    /// After how many layers; empty where the last norm counts.
    pub fn layers(self, config: &VisionConfig) -> Vec<usize> {
        match self {
            Self::MeanBeforeNorm => vec![config.encoder.layers.len()],
            _ => Vec::new(),
        }
    }

    /// The length of what it reads.
    pub fn width(self, hidden: usize) -> usize {
        match self {
            Self::First | Self::Mean | Self::MeanBeforeNorm => hidden,
            Self::FirstAndMean => 2 * hidden,
        }
    }
}

impl VisionConfig {
    pub fn check(&self) -> Checked {
        self.encoder.check()?;
        if let Some(blocks) = &self.blocks {
            check_size("edge of a block of patches", blocks.edge, 1..=64)?;
            check_size("edge of a window", blocks.window.unwrap_or(1), 1..=1 << 20)?;
        }
        if let Some(finders) = &self.finders {
            check_size("number of detection tokens", finders.count, 1..=1 << 16)?;
            check_size("columns of patches", finders.grid.0, 1..=1 << 14)?;
            check_size("rows of patches", finders.grid.1, 1..=1 << 14)?;
        }
        Ok(())
    }
}
