//! What tells one family of vision-language models from another.

use super::config::VisionConfig;
use super::connector::ConnectorConfig;
use super::own::OwnConfig;
use super::Blueprint;
use crate::models::config::Checked;
use formats::files::raw_config::RawConfig;
use formats::image::FrameKind;

/// How a language model sees: a tower, what leads from there into its decoder, and how its prompts
/// spell images.
#[derive(Clone, Debug)]
pub struct VlmConfig {
    pub tower: Blueprint,
    /// An image encoder of another shape, which then stands for the tower and for the connector.
    pub own: Option<OwnConfig>,
    /// The tokens of rows around and between views, as the table of the connector has them (Ovis 2).
    pub indicators: Vec<i64>,
    /// After how many layers the tower is read, more than once where several are; none: after all and its norm.
    pub layers: Vec<usize>,
    /// The numbers that files give the projections of layers before the last (Qwen3-VL).
    pub deep: Vec<usize>,
    /// Whether what stands before the patches is read too.
    pub whole: bool,
    pub connector: ConnectorConfig,
    /// The token that stands for what was seen.
    pub marker: Token,
    /// Edges of prepared images are multiples of so many pixels, whatever the processor's file says (Pixtral).
    pub multiple: Option<usize>,
    pub spelling: Spelling,
    /// How videos are shown; `None` where they are not.
    pub video: Option<VideoConfig>,
    /// What the file says of preparing images, in the words of `preprocessor_config.json`, which it stands for.
    pub images: Option<RawConfig>,
}

/// How the frames of a video are shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VideoConfig {
    /// What a template writes for a video.
    pub place: Token,
    pub frames: FrameKind,
    /// How far grids lie apart in time for each second between them; `None`: always 1 (Qwen2-VL).
    pub per_second: Option<f32>,
}

/// A token as files name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    Id(u32),
    /// By its text; a tokenizer may not have it.
    Name(&'static str),
}

/// What a prompt says of an image. A template writes one token for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// Its marker.
    Marker,
    /// The place of each tile in rows and columns, its marker, and the whole at the end (Idefics 3).
    Tiles,
    /// The place of each tile, its marker, and the whole behind them, between two tokens; of an image that is not cut
    /// its marker between these (LFM2-VL).
    Places,
    /// Its marker between two tokens, with lines left blank around them; the template writes the first of
    /// them (Gemma 3).
    Framed { start: Token, end: Token },
    /// Its marker behind a token, with lines left blank around both (Gemma 3n).
    Open { start: Token },
    /// The marker of the whole and those of its slices line by line, each between two tokens, behind the image's number
    /// where the processor counts them (MiniCPM-V).
    Slices,
    /// Its marker between two tokens (Gemma 4).
    Enclosed { start: Token, end: Token },
    /// Its markers, with other tokens around and between them.
    Pattern(Pattern),
    /// The markers of its tiles with tokens between those of a line and behind each line, and that of the whole (Llama 4).
    Separated,
    /// Its marker. The first token of texts stands behind the last image, and a new line behind the prompt (PaliGemma).
    Prefix,
    /// Each of its markers between two tokens of this name, of which neighbours have one (Idefics 2).
    Between(&'static str),
}

/// What stands around the markers of an image. `{}` is a marker, and `#` its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// What a template writes for an image, where it is not the marker.
    pub place: Option<&'static str>,
    pub start: &'static str,
    /// Each marker but the last.
    pub each: &'static str,
    pub last: &'static str,
    pub end: &'static str,
}

impl Pattern {
    pub const MARKERS: Self = Self {
        place: None,
        start: "",
        each: "{}",
        last: "{}",
        end: "",
    };

    pub const OVIS: Self = Self {
        place: Some("<image>"),
        ..Self::MARKERS
    };

    pub const JANUS: Self = Self {
        start: "<begin_of_image>",
        end: "<end_of_image>",
        ..Self::MARKERS
    };

    /// A marker for each line of an image.
    pub const PIXTRAL: Self = Self {
        each: "{}[IMG_BREAK]",
        last: "{}[IMG_END]",
        ..Self::MARKERS
    };

    /// A line ends behind each tile (Command A Vision).
    pub const COMMAND: Self = Self {
        place: None,
        start: "<|START_OF_IMG|>",
        each: "{}<|IMG_LINE_BREAK|>",
        last: "{}<|IMG_LINE_BREAK|>",
        end: "<|END_OF_IMG|>",
    };

    pub const AYA: Self = Self {
        place: Some("<image>"),
        start: "<|START_OF_IMG|>",
        each: "TILE_#{}",
        last: "TILE_GLOBAL{}",
        end: "<|END_OF_IMG|>",
    };

    /// Of an image of so many markers.
    pub fn spelling(&self, marker: &str, count: usize) -> String {
        let mut spelled = self.start.to_owned();
        for number in 1..=count {
            let piece = if number < count { self.each } else { self.last };
            let piece = piece.replace('#', &number.to_string());
            spelled.push_str(&piece.replace("{}", marker));
        }
        spelled.push_str(self.end);
        spelled
    }
}

impl VlmConfig {
    pub fn check(&self) -> Checked {
        VisionConfig::check(&self.tower.config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_stand_between_other_tokens() {
        let spelled = |pattern: Pattern, count| pattern.spelling("<m>", count);
        assert_eq!(spelled(Pattern::PIXTRAL, 2), "<m>[IMG_BREAK]<m>[IMG_END]");
        assert_eq!(
            spelled(Pattern::AYA, 3),
            "<|START_OF_IMG|>TILE_1<m>TILE_2<m>TILE_GLOBAL<m><|END_OF_IMG|>"
        );
        assert_eq!(
            spelled(Pattern::JANUS, 1),
            "<begin_of_image><m><end_of_image>"
        );
    }
}
