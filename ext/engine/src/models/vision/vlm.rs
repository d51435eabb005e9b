//! What tells one family of vision-language models from another.

use super::config::VisionConfig;
use super::connector::ConnectorConfig;
use super::Blueprint;
use crate::models::config::Checked;
use formats::files::raw_config::RawConfig;

/// How a language model sees: a tower, what leads from there into its decoder, and how its prompts
/// spell images.
#[derive(Clone, Debug)]
pub struct VlmConfig {
    pub tower: Blueprint,
    /// After how many layers the tower is read, more than once where several are; none: after all and its norm.
    pub layers: Vec<usize>,
    /// Whether what stands before the patches is read too.
    pub whole: bool,
    pub connector: ConnectorConfig,
    /// The token that stands for what was seen.
    pub marker: Token,
    pub spelling: Spelling,
    /// What the file says of preparing images, in the words of `preprocessor_config.json`, which it stands for.
    pub images: Option<RawConfig>,
}

/// A token as files name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    Id(u32),
    /// By its text; tokenizers may lack it.
    Name(&'static str),
}

/// What a prompt says of an image. A template writes one token for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// Its marker.
    Marker,
    /// The place of each tile in rows and columns, its marker, and the whole at the end (Idefics 3).
    Tiles,
    /// Its marker between two tokens, with lines left blank around them; the template writes the first of
    /// them (Gemma 3).
    Framed { start: Token, end: Token },
}

impl VlmConfig {
    pub fn check(&self) -> Checked {
        VisionConfig::check(&self.tower.config)
    }
}
