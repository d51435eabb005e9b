//! The frames of a video as models read them: prepared by torch, and as large as their number allows.

use serde_json::json;

use super::processor::{Processor, View};
use super::resample::Rounding;
use super::size::Target;
use super::stacks::{together, Shown, Stacks};
use super::target_config::pixels;
use super::Image;
use crate::files::raw_config::RawConfig;
use crate::{CancelToken, Error, Result};

/// Whose frames they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Brought to squares (SmolVLM).
    Squares,
    /// Each within bounds of pixels, two at a time (Qwen2-VL).
    Pixels,
    /// All together within bounds of pixels, two at a time (Qwen3-VL).
    SharedPixels,
    /// Brought to one size (LLaVA-OneVision).
    Exact,
    /// As many blocks of patches as fit (Gemma 4).
    PatchBlocks,
    /// The whole of each, and slices of a larger copy behind it (MiniCPM-V).
    Slices,
}

/// What a checkpoint makes of the frames of a video.
#[derive(Clone, Debug, PartialEq)]
pub struct VideoProcessor {
    processor: Processor,
    /// Of all frames together.
    shared: Option<Target>,
    pairs: bool,
    squares: bool,
    slices: bool,
    stacks: Option<Stacks>,
}

/// The frames of a video, or the first of each pair of them, and the second ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Frames {
    pub views: Vec<View>,
    pub behind: Vec<View>,
    /// (columns, rows) of each frame's slices, which are views behind that of the whole frame; empty where no model
    /// looks at slices.
    pub slices: Vec<(usize, usize)>,
}

impl VideoProcessor {
    /// From `video_preprocessor_config.json`, or from that of images if it is missing.
    pub fn read(raw: &RawConfig, kind: FrameKind) -> Result<Self> {
        if raw.opt_bool("cap_pixels_per_frame")?.unwrap_or(false) {
            let reason = "cap_pixels_per_frame is not supported";
            return Err(Error::unsupported(raw.file(), reason));
        }
        let (own, usual) = match kind {
            FrameKind::Squares => (
                json!({"image_processor_type": "SmolVLMImageProcessor", "do_image_splitting": false}),
                json!({}),
            ),
            FrameKind::Pixels => (
                json!({"image_processor_type": "Qwen2VLImageProcessor"}),
                json!({"size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768}}),
            ),
            FrameKind::SharedPixels => (
                json!({"image_processor_type": "Qwen2VLImageProcessor"}),
                json!({
                    "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768}, "patch_size": 16,
                    "image_mean": 0.5, "image_std": 0.5,
                }),
            ),
            FrameKind::Exact => (
                json!({"image_processor_type": "LlavaOnevisionImageProcessor", "do_pad": false}),
                json!({}),
            ),
            FrameKind::PatchBlocks => (
                json!({"image_processor_type": "Gemma4ImageProcessor"}),
                json!({"max_soft_tokens": 70}),
            ),
            FrameKind::Slices => (
                json!({"image_processor_type": "MiniCPMV4_6ImageProcessor"}),
                json!({}),
            ),
        };
        let raw = raw.clone().with_defaults(usual).with(own);
        let shared = match kind {
            FrameKind::SharedPixels => Some(pixels(&raw, (128 * 32 * 32, 32 * 32 * 768))?),
            _ => None,
        };
        Ok(Self {
            processor: Processor::read(&raw)?.rounded_by(Rounding::Torch),
            shared,
            squares: kind == FrameKind::Squares,
            slices: kind == FrameKind::Slices,
            stacks: match kind {
                FrameKind::Slices => Stacks::read(&raw)?,
                _ => None,
            },
            pairs: matches!(kind, FrameKind::Pixels | FrameKind::SharedPixels),
        })
    }

    /// Frames must be of one size; `rate` of them were taken in a second.
    pub fn frames(&self, images: &[&Image], rate: f64, cancel: &CancelToken) -> Result<Frames> {
        let Some((first, others)) = images.split_first() else {
            return Err(Error::InvalidInput(
                "a video needs at least one frame".into(),
            ));
        };
        if let Some(other) = others.iter().find(|other| size(other) != size(first)) {
            let ((width, height), (wide, high)) = (size(first), size(other));
            return Err(Error::InvalidInput(format!(
                "the frames of a video must be of one size, and these have {width}x{height} and {wide}x{high} pixels"
            )));
        }
        if self.slices {
            return self.sliced(images, rate, cancel);
        }
        let processor = match self.shared {
            Some(Target::Pixels {
                factor,
                least,
                most,
            }) => {
                if images.len() < 2 {
                    return Err(Error::InvalidInput(
                        "this model reads two frames at a time: pass at least two".into(),
                    ));
                }
                self.processor.clone().resized_by(Target::VideoPixels {
                    factor,
                    frames: images.len(),
                    least,
                    most,
                })
            }
            _ => self.processor.clone(),
        };
        let mut views = Vec::with_capacity(images.len());
        for image in images {
            if self.squares {
                views.extend(processor.views(image, cancel)?.views.pop());
            } else {
                views.push(processor.process(image, cancel)?);
            }
        }
        if !self.pairs {
            return Ok(Frames {
                views,
                ..Frames::default()
            });
        }
        if !views.len().is_multiple_of(2) {
            views.extend(views.last().cloned());
        }
        let (mut first, mut behind) = (Vec::new(), Vec::new());
        for (number, view) in views.into_iter().enumerate() {
            let into = if number % 2 == 0 {
                &mut first
            } else {
                &mut behind
            };
            into.push(view);
        }
        Ok(Frames {
            views: first,
            behind,
            ..Frames::default()
        })
    }

    /// Each frame, or each canvas of several, as an image is cut.
    fn sliced(&self, images: &[&Image], rate: f64, cancel: &CancelToken) -> Result<Frames> {
        let shown = match &self.stacks {
            Some(stacks) => stacks.shown(images.len(), rate)?,
            None => (0..images.len()).map(Shown::Frame).collect(),
        };
        let mut frames = Frames::default();
        for shown in shown {
            let cut = match shown {
                Shown::Frame(at) => self.processor.views(images[at], cancel)?,
                Shown::Together(places) => {
                    let parts: Vec<&Image> = places.iter().map(|&at| images[at]).collect();
                    self.processor.views(&together(&parts)?, cancel)?
                }
            };
            frames.views.extend(cut.views);
            frames.slices.push(cut.tiles);
        }
        Ok(frames)
    }
}

fn size(image: &Image) -> (usize, usize) {
    (image.width(), image.height())
}
